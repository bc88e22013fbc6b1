"""deploy/systemd: read by systemd's own tools, and held to the settings of the node.
No unit is started: that needs a machine that systemd runs. What it forbids is held against what a node does."""

from __future__ import annotations

import os
import re
import shutil
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from headwater import config
from tests.deploy.dockerfile import DEPLOY, FILES_MAX, ROOT
from tests.deploy.tools import program, ran
from tests.support.node import Node, NotReady

FOLDER = DEPLOY / "systemd"
UNIT = FOLDER / "headwater.service"
PROGRAM = "/opt/headwater/bin/headwater"
EXPOSURE_MAX = 20  # tenths; systemd calls anything below 50 ok
INSTALL = "make system-packages"
# PR_SET_MDWE, what MemoryDenyWriteExecute= sets on kernels that have it.
DENY_WRITE_EXECUTE = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit("no PR_SET_MDWE")
os.execv(sys.argv[1], sys.argv[1:])
"""


def unit(path: Path = UNIT) -> dict[str, str]:
    """Keys of [Service]; of one that is repeated, the last."""
    parser = RawConfigParser(strict=False, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
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


def work(node: Node) -> None:
    """Through log, catalog and lake and back."""
    json = {"Content-Type": "application/json"}
    assert node.request("PUT", "/v1/stream/a", json).status == 201
    assert node.request("POST", "/v1/stream/a", json, b'{"n":1}').status in (200, 204)
    assert node.request("POST", "/__headwater/flush").status == 200
    assert node.request("GET", "/v1/stream/a?offset=-1").body == b'[{"n":1}]'
    assert node.request("GET", "/readyz").status == 200


def test_a_node_needs_no_memory_that_is_written_and_executed(tmp_path: Path) -> None:
    assert unit()["MemoryDenyWriteExecute"] == "yes"
    wrapper = (sys.executable, "-c", DENY_WRITE_EXECUTE)
    try:
        with Node.started(tmp_path, wrapper=wrapper, flags=("--workers", "2")) as node:
            work(node)
            assert node.terminate() == 0
    except NotReady as error:
        if "no PR_SET_MDWE" not in error.stderr:
            raise
        pytest.skip("this kernel cannot deny it to one process: 6.3 or later can")


def allowed_calls() -> set[str]:
    """What the lines SystemCallFilter= of the unit leave, by the sets of the systemd that is here."""
    listing = ran(program("systemd-analyze", INSTALL), "syscall-filter", "--no-pager").stdout
    sets: dict[str, list[str]] = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", listing).splitlines():
        if line.startswith("@"):
            sets[line.strip()] = members = []
        elif line.startswith(" ") and not line.strip().startswith("#"):
            members.append(line.strip())

    def calls(name: str) -> set[str]:
        return set().union(*map(calls, sets[name])) if name in sets else {name}

    left: set[str] = set()
    for value in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        named = set().union(*map(calls, value.removeprefix("~").split()))
        left = left - named if value.startswith("~") else left | named
    # Always allowed by systemd.
    return left | calls("@default")


@pytest.mark.full
@pytest.mark.traced
def test_a_node_makes_no_system_call_that_the_unit_forbids(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    wrapper = ("strace", "-f", "-c", "-U", "name", "-o", str(counts))
    with Node.started(tmp_path, wrapper=wrapper, flags=("--workers", "2")) as node:
        work(node)
        ran("kill", "-TERM", *Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split())
        assert node.wait() == 0
    made = {line.strip() for line in counts.read_text().splitlines()[2:]} - {"total", ""}
    made = {name for name in made if not name.startswith("-")}
    assert {"fdatasync", "accept4"} <= made, made
    if os.geteuid() == 0:
        made.discard("fchown")  # SQLite gives files away when it is root, and root is not who the unit runs.
    assert made <= allowed_calls()


def put_by_the_guide(section: str, folder: Path, made: str = "") -> dict[str, Path]:
    """What the commands of a section install, by path on the machine, and the file that is there now. `made` is a file
    that a command before them makes."""
    guide = (ROOT / "docs" / "guides" / "deployment.md").read_text()
    text = guide.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^sudo (install .*)$", text, re.MULTILINE)
    script = "\n".join(lines).replace(" /etc/", f" {folder}/etc/")
    if made:
        (folder.parent / made).write_text("made by an earlier command")
        script = script.replace(f" {made} ", f" {folder.parent / made} ")
    done = ran("sh", "-ec", script, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    return {f"/{path.relative_to(folder)}": path for path in folder.rglob("*") if path.is_file()}


def test_the_guide_installs_every_file_to_where_the_unit_looks(tmp_path: Path) -> None:
    put = put_by_the_guide("systemd", tmp_path)
    assert len(put) == len([path for path in FOLDER.iterdir() if "cluster" not in path.name])
    assert put.keys() >= {unit()["ExecStart"].split()[-1], f"/etc/systemd/system/{UNIT.name}"}
