"""`headwater pipeline run derive|fold|declared` as typed: what they print, what they refuse, how they end.
Each command is a process of its own; those that are refused at once start no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.support.node import Node
from tests.support.spark import JAVA_QUICK

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
JSON = {"Content-Type": "application/json"}


def headwater(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    return subprocess.run(
        [sys.executable, "-m", "headwater", "pipeline", "run", *map(str, arguments)],
        cwd=folder,
        env={**inherited, "JAVA_TOOL_OPTIONS": JAVA_QUICK, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_table_is_derived_and_its_streams_are_folded_from_the_command_line(node: Node, tmp_path: Path) -> None:
    body = json.dumps([{"id": n % 2, "n": n} for n in range(10)] + ["not an object"]).encode()
    assert node.request("PUT", "/v1/stream/runs/a", JSON, body).status == 201
    where = ("--url", node.url, "--master", "local[2]")
    (tmp_path / "schema.ddl").write_text("id INT, n BIGINT\n")
    derived = headwater(tmp_path, "derive", "events", "--bucket", "runs", "--schema", "@schema.ddl", *where)
    assert derived.returncode == 1, "a record that does not fit is for somebody to look at"
    told = json.loads(derived.stdout)
    assert (told["job"], told["outcome"], told["rows"], told["quarantined"]) == ("derive", "findings", 10, 1)
    assert told["inputs"]["source"] == {"bucket": "runs"} and told["inputs"]["url"] == node.url
    assert sorted(pl.read_delta(str(tmp_path / "events"))["n"]) == list(range(10))

    (tmp_path / "mine.py").write_text("def total(previous, records):\n    return {'records': len(records)}\n")
    folded = headwater(tmp_path, "fold", "function", "--function", "mine:total", "--min-records", "5", *where)
    assert folded.returncode == 0, folded.stderr
    assert json.loads(folded.stdout)["published"] == 1
    assert node.request("GET", "/runs/a/bootstrap").body.count(b'{"records":11}') == 1

    runs = subprocess.run(
        [sys.executable, "-m", "headwater", "pipeline", "status", "--url", node.url], capture_output=True, text=True
    )
    told = [json.loads(line) for line in runs.stdout.splitlines()]
    assert [(one["job"], one["outcome"]) for one in told] == [("derive", "findings"), ("fold", "done")]


@pytest.mark.soak  # several JVMs
def test_what_no_stream_goes_by_is_told_and_can_be_a_failure(node: Node, tmp_path: Path) -> None:
    body = b'[{"n": 1}, "not an object"]'
    assert node.request("PUT", "/v1/stream/runs/a", JSON, body).status == 201
    where = ("--url", node.url, "--master", "local[2]")
    derive = ("derive", "events", "--schema", "n BIGINT", "--quarantined-max", "50%")
    there = headwater(tmp_path, *derive, "--bucket", "runs", "--require-match", *where)
    assert there.returncode == 0 and json.loads(there.stdout)["quarantined"] == 1, there.stderr
    route = ("route", "--bucket", "runz", "--target", "'copy/all'", "--checkpoint", str(tmp_path / "route"))
    nowhere = headwater(tmp_path, *route, *where)
    assert nowhere.returncode == 0, nowhere.stderr
    complaint = f"there is no stream in bucket runz on {node.url}"
    assert json.loads(nowhere.stdout)["warnings"] == [complaint]
    assert f"warning: {complaint}" in nowhere.stderr
    refused = headwater(tmp_path, *route, "--require-match", *where)
    assert refused.returncode == 1 and f"error: {complaint}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["derive", "t"], 2, "say which streams to read"),
        (["derive", "t", "--bucket", "a", "--stream", "b"], 2, "give one of --stream, --pattern and --bucket"),
        (["derive", "t", "--bucket", "a", "--schema", "@nowhere"], 2, "cannot be read"),
        (["declared", "nowhere.toml"], 1, "nowhere.toml cannot be read"),
        (["declared", "bad.toml"], 1, "bad.toml: table x: schema: Expected `str | null`, got `int`"),
        (["fold", "merge", "--url", "http://127.0.0.1:1"], 1, "no node answers"),
        (["fold", "merge", "--min-records", "0"], 2, "--min-records"),
    ],
)
def test_a_wrong_command_is_refused_at_once(tmp_path: Path, arguments: list[str], status: int, complaint: str) -> None:
    (tmp_path / "bad.toml").write_text('name = "p"\n[[table]]\nname = "x"\nschema = 5\n')
    done = headwater(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr
