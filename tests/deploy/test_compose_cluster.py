"""deploy/compose.cluster.yaml and deploy/nats.conf as texts: judged by the schema of Compose, the node and nats-server.
What its services do is in test_compose_cluster_runs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from headwater import config
from headwater.cluster_groups import LEAVE_S_MAX, SECRET_BYTES_MIN
from headwater.log.jetstream_servers import MONITOR_PORT, VERSION_MIN
from headwater.setting_values import parse_listen
from tests.deploy.dockerfile import DEPLOY, DOCKERFILE, FILES_MAX, container_settings, one_of, stages
from tests.deploy.tools import program, ran

FILE = DEPLOY / "compose.cluster.yaml"
NATS_FILE = DEPLOY / "nats.conf"
NODES = ("headwater-0", "headwater-1", "headwater-2")
SERVERS = ("nats-0", "nats-1", "nats-2")


def compose() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def service(name: str) -> dict[str, Any]:
    return compose()["services"][name]


def settings_of(name: str) -> config.Settings:
    return config.load({}, service(name)["environment"], DEPLOY / "container.toml")


def seconds(text: str) -> int:
    assert text.endswith("s") and not text.endswith("ms")
    return int(text[:-1])


def test_the_file_fits_the_schema_of_compose() -> None:
    tool = program("check-jsonschema", "make setup")
    done = ran(tool, "--builtin-schema", "vendor.compose-spec", FILE)
    assert done.returncode == 0, done.stdout


def test_the_schema_of_compose_finds_a_planted_fault(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(FILE.read_text().replace("stop_grace_period", "stop_grace_time"))
    tool = program("check-jsonschema", "make setup")
    done = ran(tool, "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml")
    assert done.returncode != 0 and "stop_grace_time" in done.stdout


def test_every_node_has_settings_of_its_own_and_the_rest_in_common() -> None:
    found = [settings_of(name) for name in NODES]
    own = ("cluster_advertise", "public_address")
    for name, settings in zip(NODES, found, strict=True):
        assert settings.in_cluster
        assert parse_listen(settings.cluster_advertise) == (name, parse_listen(settings.cluster_listen)[1])
        for setting in config.TABLE:
            assert setting.name in own or getattr(settings, setting.name) == getattr(found[0], setting.name)
    assert all(len({getattr(settings, name) for settings in found}) == len(NODES) for name in own)


def test_a_node_is_published_where_its_redirects_lead() -> None:
    ports = one_of(stages()[-1], "EXPOSE").split()
    for name in NODES:
        published = service(name)["ports"]
        assert [one.rpartition(":")[2] for one in published] == ports
        assert all(one.startswith("127.0.0.1:") for one in published)
        assert published[0].rpartition(":")[0] == settings_of(name).public_address


def test_what_the_settings_name_is_a_service_of_the_file() -> None:
    settings = settings_of(NODES[0])
    hosts = [parse_listen(one)[0] for one in settings.cluster.removeprefix("nats://").split(",")]
    assert tuple(hosts) == SERVERS
    assert urlsplit(settings.lake_endpoint).hostname in compose()["services"]
    assert settings.cluster_replicas == len(SERVERS)


def test_a_node_waits_for_what_it_needs_and_comes_back_by_itself() -> None:
    services = compose()["services"]
    for name in NODES:
        wanted = services[name]["depends_on"]
        assert set(wanted) == set(services) - set(NODES)
        for other, how in wanted.items():
            checked = "healthcheck" in services[other]
            assert how["condition"] == ("service_healthy" if checked else "service_completed_successfully")
    assert all(services[name]["restart"] == "unless-stopped" for name in services if name != "secret")


def test_a_node_has_its_files_its_volume_and_the_time_to_hand_groups_over() -> None:
    content = compose()
    needed_s = LEAVE_S_MAX + 2 * config.Settings().shutdown_grace_ms / 1_000
    places = set()
    for name in NODES:
        node = content["services"][name]
        assert (DEPLOY / node["build"]["context"] / node["build"]["dockerfile"]).resolve() == DOCKERFILE
        assert node["ulimits"]["nofile"] == FILES_MAX
        assert seconds(node["stop_grace_period"]) > needed_s
        volume, _, where = node["volumes"][0].partition(":")
        assert where == container_settings().data and volume in content["volumes"]
        places.add(volume)
    assert len(places) == len(NODES)


def test_the_secret_is_made_once_and_is_what_a_node_takes(tmp_path: Path) -> None:
    made = service("secret")
    # Mounted where the image's user has a directory; the command runs in it.
    assert made["volumes"] == [f"secret:{container_settings().data}"] == [f"secret:{one_of(stages()[-1], 'WORKDIR')}"]
    command = [*made["entrypoint"], *made["command"]]
    assert ran(*command, cwd=tmp_path).returncode == 0
    secret = tmp_path / "secret"
    first = secret.read_bytes()
    assert len(first.strip()) >= SECRET_BYTES_MIN and secret.stat().st_mode & 0o077 == 0
    assert ran(*command, cwd=tmp_path).returncode == 0 and secret.read_bytes() == first
    for name in NODES:
        assert settings_of(name).cluster_secret_file == "/run/headwater/secret"
        assert service(name)["volumes"][1] == "secret:/run/headwater:ro"


def test_the_images_of_others_are_pinned_to_a_version_that_nodes_accept() -> None:
    for name in (*SERVERS, "s3"):
        image, _, tag = service(name)["image"].partition(":")
        assert image and tag[0].isdigit()
    version = service(SERVERS[0])["image"].partition(":")[2].partition("-")[0]
    assert tuple(map(int, version.split("."))) >= VERSION_MIN


def test_no_credentials_are_in_the_file() -> None:
    assert "AWS_SECRET_ACCESS_KEY:" not in FILE.read_text()
    for name in (*NODES, "s3"):
        assert service(name)["env_file"] == ["cluster.env"]


# --- the NATS servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_the_file_is_valid_for_the_name_that_compose_gives(name: str) -> None:
    given = service(name)["environment"]
    done = ran(program("nats-server", "make setup"), "-t", "--config", NATS_FILE, env=given)
    assert done.returncode == 0 and given == {"NATS_SERVER_NAME": name}, done.stdout
    assert f"nats://{name}:6222" in NATS_FILE.read_text()


def test_compose_gives_the_servers_the_file_and_asks_their_monitors() -> None:
    for name in SERVERS:
        server = service(name)
        assert server["command"][-1] in (one.split(":")[1] for one in server["volumes"])
        assert "./nats.conf" in (one.split(":")[0] for one in server["volumes"])
        assert urlsplit(server["healthcheck"]["test"][-1]).port == MONITOR_PORT
