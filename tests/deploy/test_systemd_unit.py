"""deploy/systemd: read by systemd's own tools, and held to the settings of the node.
No unit is started: that needs a machine that systemd runs."""

from __future__ import annotations

import shutil
from configparser import RawConfigParser
from pathlib import Path

import pytest

from headwater import config
from tests.deploy.dockerfile import DEPLOY
from tests.deploy.test_image_file import FILES_MAX
from tests.deploy.tools import program, ran

FOLDER = DEPLOY / "systemd"
UNIT = FOLDER / "headwater.service"
PROGRAM = "/opt/headwater/bin/headwater"
EXPOSURE_MAX = 20  # tenths; systemd calls anything below 50 ok
INSTALL = "make system-packages"


def unit() -> dict[str, str]:
    """Keys of [Service]; of one that is repeated, the last."""
    parser = RawConfigParser(strict=False, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


def installed(folder: Path, text: str) -> Path:
    """A copy of the unit whose program exists here: verifying asks for that too."""
    assert PROGRAM in text
    here = folder / UNIT.name
    here.write_text(text.replace(PROGRAM, str(shutil.which("true"))))
    return here


def verified(folder: Path, text: str) -> str:
    tool = program("systemd-analyze", INSTALL)
    done = ran(tool, "verify", "--man=no", "--recursive-errors=no", installed(folder, text))
    return done.stdout if not done.returncode else done.stdout or f"it ended with {done.returncode}"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    assert verified(tmp_path, UNIT.read_text()) == ""


@pytest.mark.parametrize(
    ("right", "wrong"), [("ProtectHome", "ProtectHomes"), ("always", "allways"), ("@system-service", "@system-servant")]
)
def test_systemd_finds_a_planted_fault(right: str, wrong: str, tmp_path: Path) -> None:
    assert wrong in verified(tmp_path, UNIT.read_text().replace(right, wrong))


def test_systemd_finds_the_unit_little_exposed(tmp_path: Path) -> None:
    tool = program("systemd-analyze", INSTALL)
    unit_here = installed(tmp_path, UNIT.read_text())
    done = ran(tool, "security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit_here)
    assert done.returncode == 0, done.stdout


def test_the_user_of_the_unit_is_the_one_that_sysusers_makes() -> None:
    tool = program("systemd-sysusers", INSTALL)
    done = ran(tool, "--dry-run", "--root=/nonexistent", FOLDER / "headwater.sysusers")
    lines = (FOLDER / "headwater.sysusers").read_text().splitlines()
    assert done.returncode == 0 and "headwater" in done.stdout, done.stdout
    assert f"u {unit()['User']} " in lines[-1]


def test_the_unit_keeps_the_data_where_its_settings_say() -> None:
    settings = config.load({}, {}, FOLDER / "headwater.toml")
    assert settings.data == f"/var/lib/{unit()['StateDirectory']}"
    assert settings.workers == config.AUTO
    assert config.resolve({}, {}, FOLDER / "headwater.toml").warnings == []


def test_the_unit_gives_the_node_its_files_and_its_time_to_stop() -> None:
    assert int(unit()["LimitNOFILE"]) == FILES_MAX
    assert int(unit()["TimeoutStopSec"]) * 1_000 > config.Settings().shutdown_grace_ms
    assert unit()["Restart"] == "always"
