"""Backups from and to S3, with the commands as an operator types them: local to S3, S3 to S3, and back to a directory.
Each command is a process of its own: the credentials are in its environment and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.extensions.surface import make_bucket, make_stream, token
from tests.spark.conftest import QUICK
from tests.support.node import Node
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.spark import JAVA_QUICK

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}


def headwater(*arguments: str, fails: bool = False) -> tuple[list[Any], str]:
    """The JSON lines that a command printed, and what it wrote beside them."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "AWS_"))}
    quick = {"JAVA_TOOL_OPTIONS": JAVA_QUICK}
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        env={**inherited, **KEYS, **quick},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_node_moves_to_s3_and_back_through_backups(tmp_path: Path, s3: S3) -> None:
    s3.make_bucket("vault")
    vault = ["s3://vault/nightly", "--endpoint", s3.endpoint]
    with Node.started(tmp_path / "first", flags=QUICK) as node:
        bucket = make_bucket(node)
        streams = [make_stream(node, bucket) for _ in range(20)]
        for stream in streams:
            stream.append(b"12345")
            assert stream.publish(token(5), stream.path.encode()).status == 204
            stream.append(b"settled;")
        assert node.request("POST", "/__headwater/flush").status == 200
        (made,), _ = headwater("pipeline", "run", "backup", "--url", node.url, "--master", "local[2]", "--to", *vault)
        assert (made["outcome"], made["streams"], made["objects"], made["objects_copied"]) == ("done", 20, 21, 21)
        runs = [one for one in headwater("pipeline", "status", "--url", node.url)[0] if one["job"] == "backup"]
        assert runs[0]["backup"] == made["backup"]

    (listed,), _ = headwater("pipeline", "run", "restore", "--from", *vault, "--list")
    assert (listed["backup"], listed["streams"]) == (made["backup"], 20)
    lake = ["--lake", "s3://lake/restored", "--lake-endpoint", s3.endpoint]
    data = tmp_path / "second" / "data"
    job = ["pipeline", "run", "restore", "--master", "local[2]", "--from", *vault, "--data", str(data), *lake]
    (restored,), told = headwater(*job)
    assert restored["records"] == made["records"] and f"headwater serve --data {data} --lake s3://lake/restored" in told
    assert "is not empty" in headwater(*job, fails=True)[1]
    assert "lake" not in {path.name for path in data.iterdir()}

    place = str(tmp_path / "vault")
    with Node.started(tmp_path / "second", flags=[*QUICK, *lake], env=KEYS) as node:
        for stream in streams:
            stream.node = node
            assert stream.read(token(5)).body == b"settled;"
            assert stream.snapshot(token(5)).body == stream.path.encode()
            stream.append(b"more")
        again, _ = headwater("pipeline", "run", "backup", "--url", node.url, "--master", "local[2]", "--to", place)
        assert again[0]["objects_copied"] == again[0]["objects"] == 22

    headwater(
        "pipeline",
        "run",
        "restore",
        "--master",
        "local[2]",
        "--from",
        place,
        "--data",
        str(tmp_path / "third" / "data"),
    )
    with Node.started(tmp_path / "third", flags=QUICK) as node:
        for stream in streams:
            stream.node = node
            assert stream.read(token(5)).body == b"settled;more"
            assert stream.snapshot(token(5)).body == stream.path.encode()


def test_commands_that_cannot_work_say_why_before_spark_is_started(tmp_path: Path, s3: S3) -> None:
    nobody = ["--url", "http://127.0.0.1:9"]
    assert "no node answers" in headwater("pipeline", "run", "backup", *nobody, "--to", str(tmp_path), fails=True)[1]
    restore = ["pipeline", "run", "restore", "--from"]
    told = headwater(*restore, str(tmp_path / "none"), "--data", str(tmp_path / "data"), fails=True)[1]
    assert "there is no backup in" in told
    assert "--data" in headwater(*restore, str(tmp_path), fails=True)[1]
    missing = headwater(*restore, "s3://no-such-bucket/x", "--endpoint", s3.endpoint, "--list", fails=True)[1]
    assert "the bucket does not exist" in missing
    told = headwater(*restore, str(tmp_path), "--data", str(tmp_path / "d"), "--lake-region", "x", fails=True)[1]
    assert "only a lake at s3" in told
