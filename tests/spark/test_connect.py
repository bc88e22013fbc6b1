"""Jobs from the command line on a real Spark Connect server, which shares no working directory with them: most run and
count right; what needs the driver in its own process is refused, with another way to go."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.spark.conftest import QUICK
from tests.support import streams
from tests.support.http import read_messages
from tests.support.node import Node
from tests.support.spark import connect_server

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="pip install 'pyspark[connect]'"),
]
EVENTS = [{"kind": "tokens", "tokens": n} for n in range(20)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=QUICK) as running:
        body = json.dumps(EVENTS).encode()
        made = running.request("PUT", "/v1/stream/runs/a", {"Content-Type": "application/json"}, body)
        assert made.status == 201
        yield running


def job(folder: Path, node: Node, server: str, *arguments: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """The summary of a job, and what it said on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "pipeline", "run", *arguments, "--master", server],
        cwd=folder,
        env={**os.environ, "HEADWATER_URL": node.url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout or "{}"), done.stderr


def test_a_route_counts_what_it_read_and_wrote(server: str, node: Node, tmp_path: Path) -> None:
    where = ("--bucket", "runs", "--target", "'routed/a'", "--checkpoint", str(tmp_path / "checkpoint"))
    told, said = job(tmp_path, node, server, "route", *where)
    assert (told["batches"], told["rows_read"], told["rows_written"], told["rows_known"]) == (1, 20, 20, 0)
    assert said == ""
    with node.connect() as connection:
        assert read_messages(connection, "/v1/stream/routed/a") == EVENTS


def test_files_are_loaded_each_row_once(server: str, node: Node, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    load = ("backfill", str(tmp_path / "in.json"), "--format", "json", "--stream", "'loaded/a'")
    told, _ = job(tmp_path, node, server, *load)
    assert (told["rows_written"], told["rows_known"], told["streams"]) == (20, 0, 1)
    assert len(streams.read_json(node, "loaded/a")) == 20


def test_a_table_in_one_go_lies_where_the_command_was_run(server: str, node: Node, tmp_path: Path) -> None:
    schema = ("--bucket", "runs", "--schema", "kind STRING, tokens BIGINT")
    told, _ = job(tmp_path, node, server, "derive", "table", *schema, "--batch")
    assert told["rows"] == 20
    assert sorted(pl.read_delta(str(tmp_path / "table"))["tokens"]) == list(range(20))


def test_what_goes_from_batch_to_batch_is_refused_before_anything_changes(
    server: str, node: Node, tmp_path: Path
) -> None:
    _, said = job(tmp_path, node, server, "derive", "table", "--bucket", "runs", "--schema", "kind STRING", status=1)
    assert "Spark Connect" in said and "--batch" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "pipeline.toml").write_text(
        'name = "p"\n[source]\nbucket = "runs"\n[[table]]\nname = "t"\nschema = "kind STRING"\n'
    )
    _, said = job(tmp_path, node, server, "declared", "pipeline.toml", status=1)
    assert "a declared pipeline needs Spark's driver" in said and "Traceback" not in said


def test_the_lake_is_kept_and_backed_up(server: str, node: Node, tmp_path: Path) -> None:
    for _ in range(4):
        assert node.request("POST", "/v1/stream/runs/a", {"Content-Type": "application/json"}, b"[7]").status == 204
        assert node.request("POST", "/__headwater/flush").status == 200
    told, _ = job(tmp_path, node, server, "compact")
    assert told["files_after"] == 1
    told, _ = job(tmp_path, node, server, "verify", "--deep")
    assert told["findings_count"] == 0
    job(tmp_path, node, server, "backup", "--to", "backups")
    told, _ = job(tmp_path, node, server, "restore", "--from", "backups", "--data", "restored")
    assert told["outcome"] == "done"


def test_settings_go_to_the_session_and_those_of_the_server_are_refused(
    server: str, node: Node, tmp_path: Path
) -> None:
    told, _ = job(tmp_path, node, server, "usage", "--dry-run", "--conf", "spark.sql.shuffle.partitions=3")
    assert told["dry_run"] is True and "files" in told
    _, said = job(tmp_path, node, server, "usage", "--conf", "spark.executor.memory=4g", status=1)
    assert "takes spark.executor.memory only when it starts: set it there" in said and "Traceback" not in said


def test_an_address_where_no_server_is_is_told_at_once(node: Node, tmp_path: Path) -> None:
    _, said = job(tmp_path, node, "sc://127.0.0.1:1", "usage", status=1)
    assert "no Spark Connect server answers at sc://127.0.0.1:1" in said and "Traceback" not in said


def test_a_program_of_ones_own_reads_and_keeps_states(server: str, tmp_path: Path) -> None:
    with Node.started(tmp_path / "node", flags=QUICK) as node:
        json_type = {"Content-Type": "application/json"}
        for name in ("a", "b"):
            assert node.request("PUT", f"/v1/stream/runs/{name}", json_type, b"[1, 2, 3]").status == 201
        assert node.request("POST", "/__headwater/flush").status == 200
        group = node.request("GET", "/__headwater/groups").json()["groups"][0]
        for name in ("a", "b"):
            assert node.request("POST", f"/v1/stream/runs/{name}", json_type, b"[4]").status == 204
        at = str(group["position"])
        every = [[name, seq] for name in ("a", "b") for seq in range(4)]
        settled = [one for one in every if one[1] < 3]
        reads: dict[str, tuple[dict[str, str], list[list[Any]]]] = {
            "from": ({"startingOffsets": json.dumps({"0": int(at)})}, [one for one in every if one[1] == 3]),
            "of streams": ({"startingOffsets": '{"runs/a": "latest"}'}, [one for one in every if one[0] == "b"]),
            "as of": ({"asOfPosition": at}, settled),
            "labels": ({"bucket": "runs", "includeHeaders": "true"}, every),
        }
        given = {
            "server": server,
            "url": node.url,
            "folder": str(tmp_path),
            "reads": {name: options for name, (options, _) in reads.items()},
        }
        program = Path(__file__).with_name("connect_driver.py")
        done = subprocess.run(
            [sys.executable, str(program), json.dumps(given)], capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        expected = {name: rows for name, (_, rows) in reads.items()}
        expected |= {"read_lake": expected["of streams"], "where": [one for one in every if one[1] >= 2]}
        assert told["reads"] == expected
        # A function for batches runs in a process of its own there, and its tasks are not told whose batch it is.
        assert set(told["errors"]) == {"unnamed"}, told["errors"]
        assert "start_stream takes a producer_id" in told["errors"]["unnamed"]
        for bucket in ("complete", "update"):
            for name in ("a", "b"):
                found = node.request("GET", f"/{bucket}/{name}/snapshot")
                assert node.request("GET", found.header("location") or "").json() == {"count": 4}
