"""Passwords in settings: not in a settings' text, a refusal, a log line, a page or a list of processes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest

from headwater.config import BadSettings, Settings, load, resolve
from headwater.doors.http.admin.administration import in_force
from headwater.observe import log_lines
from tests.support.node import Node

PASSWORD = "hush-4711"
NATS = f"nats://ada:{PASSWORD}@127.0.0.1:1,ada:{PASSWORD}@127.0.0.1:2"
ENDPOINT = f"https://key:{PASSWORD}@store.example:9000/x"


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headwater", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def test_settings_that_come_into_a_trace_do_not_tell_it() -> None:
    settings = dataclasses.replace(Settings(), cluster=NATS, lake_endpoint=ENDPOINT, zone="north")
    for text in (repr(settings), str(settings), f"{settings}", repr({"settings": settings}), str(in_force(settings))):
        assert PASSWORD not in text and "store.example:9000" in text
    assert "zone='north'" in repr(settings) and repr(Settings()) == "Settings()"
    try:
        raise ValueError(settings)
    except ValueError:
        assert PASSWORD not in traceback.format_exc()


def test_a_refused_setting_is_shown_without_it() -> None:
    with pytest.raises(BadSettings) as refused:
        load({"cluster": f"nats:/ada:{PASSWORD}@x", "public_url": f"ftp://a:{PASSWORD}@h"}, {}, None)
    assert len(refused.value.problems) == 2
    for word in (f"nats://ada:{PASSWORD}@", f"https://ada:{PASSWORD}@h ost", f"http://x,ada:{PASSWORD}@y/"):
        with pytest.raises(BadSettings) as refused:
            load({"cluster": word, "public_url": word}, {}, None)
        assert PASSWORD not in str(refused.value), str(refused.value)


def test_config_show_leaves_it_out_and_is_a_file_still() -> None:
    env = {"HEADWATER_CLUSTER": NATS, "HEADWATER_LAKE": "/lake", "HEADWATER_CLUSTER_SECRET_FILE": "/secret"}
    shown = run("config", "show", **env)
    assert shown.returncode == 0 and PASSWORD not in shown.stdout + shown.stderr
    assert '# cluster = "nats://[redacted]@127.0.0.1:1,[redacted]@127.0.0.1:2"' in shown.stdout
    assert tomllib.loads(shown.stdout)["cluster_secret_file"] == "/secret"
    assert resolve({}, env, None).settings.cluster == NATS


def test_a_server_of_a_log_that_cannot_be_reached_is_named_without_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    places = ("--lake", str(tmp_path / "lake"), "--data", str(tmp_path / "data"))
    keys = ("--cluster-secret-file", str(tmp_path / "secret"), "--listen", "127.0.0.1:0", "--s3p", "off")
    failed = run("serve", *places, *keys, "--cluster-listen", "127.0.0.1:0", HEADWATER_CLUSTER=NATS)
    assert failed.returncode != 0 and "127.0.0.1:1" in failed.stderr
    assert PASSWORD not in failed.stdout + failed.stderr


def test_no_log_line_has_credentials_of_a_url() -> None:
    event = {
        "event": f"no answer of {NATS}",
        "exception": f"Traceback\n  at {ENDPOINT}\nOSError: {ENDPOINT}",
        "other": [ENDPOINT],
        "count": 3,
        "mail": "ada@example.com",
    }
    told = log_lines.escape(None, "", dict(event))
    assert PASSWORD not in told["exception"] + told["other"]
    assert told["event"].startswith("no answer of nats://[redacted]@127.0.0.1:1")
    assert (told["count"], told["mail"]) == (3, "ada@example.com")


def test_no_process_of_a_node_has_it_on_its_command_line(tmp_path: Path) -> None:
    env = {"HEADWATER_JWT_ISSUER": PASSWORD}
    with Node.started(tmp_path, memory=True, env=env, flags=("--workers", "2")) as node:
        pids = [str(node.pid), *_below(node.pid)]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        assert len(lines) >= 3 and not any(PASSWORD.encode() in line for line in lines)
        assert node.request("GET", "/__headwater/config").json()["settings"]["jwt_issuer"] == PASSWORD


def _below(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return children + [one for child in children for one in _below(int(child))]
