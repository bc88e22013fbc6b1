"""`headwater serve`, `headwater config …` and the root command: flags to settings, refusals, help.
The server itself is started once, to see that the command reaches it."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import headwater
from headwater.cli.main import app, guide
from headwater.config import MIB, TABLE, Settings
from tests.support.node import Node


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("HEADWATER_"):
            monkeypatch.delenv(variable)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Stands in for the server: remembers with which settings it was started."""
    seen: list[Settings] = []

    def serve(settings: Settings) -> int:
        seen.append(settings)
        return 7

    stand_in = types.ModuleType("headwater.app")
    stand_in.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "headwater.app", stand_in)
    return seen


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(args), env=env)


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"headwater {headwater.__version__}\n")


def test_serve_without_flags_serves_the_defaults_and_passes_its_exit_code_on(started: list[Settings]) -> None:
    assert run("serve").exit_code == 7
    assert started == [Settings()]


def test_every_setting_is_a_flag_of_serve(started: list[Settings]) -> None:
    given = {
        row.name: row.shown(row.default) for row in TABLE if row.kind != "flag" and row.name not in ("data", "listen")
    }
    flags = [text for name, value in given.items() for text in ("--" + name.replace("_", "-"), value)]
    result = run("serve", *flags, "--listen", "127.0.0.1:1", "--data", "d", "--no-memory", "--webhook-allow-local")
    assert result.exit_code == 7, result.output
    assert started == [Settings(listen="127.0.0.1:1", data="d", webhook_allow_local=True)]


def test_flags_variables_and_file_meet_in_serve(started: list[Settings], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('body_bytes_max = "1MiB"\nlog_level = "error"\nmemory = true\n')
    run("serve", "--config", str(path), "--log-level", "debug", env={"HEADWATER_CONNECTIONS_MAX": "9"})
    assert started == [Settings(body_bytes_max=MIB, log_level="debug", memory=True, connections_max=9)]


def test_bad_settings_are_printed_together_and_nothing_is_started(started: list[Settings], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("memmory = true\n")
    environ = {"HEADWATER_CONFIG": str(path), "HEADWATER_DISK_SYNC_MS": "soon"}
    result = run("serve", "--listen", "here", "--body-bytes-max", "9GiB", env=environ)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "error: 4 bad settings"
    assert [line.split(": ")[0].strip() for line in result.stderr.splitlines()[1:]] == [
        str(path),
        "HEADWATER_DISK_SYNC_MS",
        "--listen",
        "--body-bytes-max",
    ]
    assert started == []


def test_an_open_address_is_served_when_that_is_said_and_with_a_warning(started: list[Settings]) -> None:
    result = run("serve", "--listen", "0.0.0.0:1", "--memory")
    assert result.exit_code == 2 and started == []
    result = run("serve", "--listen", "0.0.0.0:1", "--memory", "--open-to-everyone")
    assert result.stderr.startswith("warning: --listen: 0.0.0.0:1 can be reached from other machines")
    assert len(started) == 1


def test_an_unknown_flag_is_a_usage_error(started: list[Settings]) -> None:
    assert run("serve", "--lissten", "127.0.0.1:1").exit_code == 2
    assert started == []


def test_the_help_of_serve_explains_every_flag_in_its_panel() -> None:
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).stdout
    for row in TABLE:
        assert row.flag in text
    for panel in {row.panel for row in TABLE if row.panel != "Serving"}:
        assert panel in text


def test_config_show_prints_every_value_and_its_source() -> None:
    result = run("config", "show", "--log-level", "debug", env={"HEADWATER_DATA": "/d"})
    assert result.exit_code == 0
    lines = {line.split(" = ")[0]: line for line in result.stdout.splitlines()}
    assert list(lines) == [row.name for row in TABLE]
    assert lines["log_level"].split() == ["log_level", "=", '"debug"', "#", "--log-level"]
    assert lines["data"].split() == ["data", "=", '"/d"', "#", "HEADWATER_DATA"]
    assert lines["log_file_bytes"].split() == ["log_file_bytes", "=", '"128MiB"', "#", "default"]


def test_config_show_refuses_bad_settings_as_serve_does() -> None:
    result = run("config", "show", "--log-level", "loud")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--log-level: 'loud'" in result.stderr


def test_config_docs_prints_the_guide() -> None:
    assert run("config", "docs").stdout == guide()


def test_the_module_serves_as_the_command_does(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        assert node.request("GET", "/healthz").status == 200
        env = {**os.environ, "HEADWATER_URL": node.url}
        command = [sys.executable, "-m", "headwater", "stream", "create", "s"]
        assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0
        assert node.terminate() == 0


def test_the_client_commands_load_nothing_of_the_server() -> None:
    code = "import sys, headwater.cli.main; print([m for m in sys.modules if m in ('uvloop', 'asyncio', 'httpx')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
