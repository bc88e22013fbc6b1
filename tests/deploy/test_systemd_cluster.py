"""deploy/systemd for a machine of a cluster: what is added to the unit, read by systemd's own tools and by the node."""

from __future__ import annotations

from pathlib import Path

from headwater import config
from headwater.cluster_groups import LEAVE_S_MAX
from headwater.setting_values import parse_listen
from tests.deploy.test_systemd_unit import FOLDER, UNIT, put_by_the_guide, unit, verified

ADDED = FOLDER / "headwater-cluster.conf"


def environment() -> dict[str, str]:
    lines = (FOLDER / "headwater-cluster.environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def verified_with(folder: Path, text: str) -> str:
    beside = folder / f"{UNIT.name}.d"
    beside.mkdir()
    (beside / "cluster.conf").write_text(text)
    return verified(folder, UNIT.read_text())


def test_systemd_finds_nothing_wrong_with_what_is_added(tmp_path: Path) -> None:
    assert verified_with(tmp_path, ADDED.read_text()) == ""


def test_systemd_finds_a_planted_fault_in_it(tmp_path: Path) -> None:
    assert "LoadCredentials" in verified_with(
        tmp_path, ADDED.read_text().replace("LoadCredential=", "LoadCredentials=")
    )


def test_the_settings_are_those_of_a_node_of_a_cluster() -> None:
    settings = config.load({}, environment(), FOLDER / "headwater-cluster.toml")
    assert settings.in_cluster and settings.zone == "a"
    assert settings.data == f"/var/lib/{unit()['StateDirectory']}"
    assert parse_listen(settings.cluster_advertise)[1] == parse_listen(settings.cluster_listen)[1]
    assert parse_listen(settings.public_address)[1] == settings.listen_address[1]


def test_the_secret_is_where_systemd_puts_it() -> None:
    settings = config.load({}, {}, FOLDER / "headwater-cluster.toml")
    name, _, _ = unit(ADDED)["LoadCredential"].partition(":")
    assert settings.cluster_secret_file == f"/run/credentials/{UNIT.name}/{name}"


def test_a_node_has_the_time_to_hand_its_groups_over() -> None:
    needed_s = LEAVE_S_MAX + 2 * config.Settings().shutdown_grace_ms / 1_000
    assert int(unit(ADDED)["TimeoutStopSec"]) > needed_s


def test_the_guide_installs_every_file_to_where_systemd_looks(tmp_path: Path) -> None:
    put = put_by_the_guide("systemd, a cluster", tmp_path / "root", "cluster-secret")
    source = unit(ADDED)["LoadCredential"].partition(":")[2]
    wanted = {unit()["ExecStart"].split()[-1], f"/etc/systemd/system/{UNIT.name}", "/etc/sysusers.d/headwater.conf"}
    wanted |= {f"/etc/systemd/system/{UNIT.name}.d/cluster.conf", unit()["EnvironmentFile"].removeprefix("-"), source}
    assert put.keys() == wanted
    assert put["/etc/headwater/headwater.toml"].read_text() == (FOLDER / "headwater-cluster.toml").read_text()
    for secret in (source, "/etc/headwater/environment"):
        assert put[secret].stat().st_mode & 0o077 == 0
