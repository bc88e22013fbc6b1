"""Rewriting files of a node's lake as the data pipeline does it: read rows, write others, ask for the swap.
It checks nothing; which rows are live it asks the node, and what it should refuse is written here on request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.lake.layout import SCHEMA
from headwater.lake.local import LocalStore
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.writer import SORTED_BY
from tests.support.http import Response
from tests.support.node import Node


def listing(node: Node) -> dict[str, Any]:
    answer = node.request("GET", "/__headwater/groups/0/lake/files")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


def paths(node: Node) -> list[str]:
    return [file["path"] for file in listing(node)["files"]]


def extents(node: Node, files: Sequence[str]) -> list[dict[str, Any]]:
    answer = node.request("POST", "/__headwater/groups/0/lake/extents", {}, json.dumps({"files": list(files)}).encode())
    assert answer.status == 200, answer
    rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return rows


def rows_of(place: Path, files: Sequence[str]) -> pa.Table:
    """Every row of the files, dead ones too, in order."""
    rows = pa.concat_tables([pq.read_table(place / name) for name in files]).cast(SCHEMA)
    return rows.sort_by([(name, "ascending") for name in SORTED_BY])


def live_rows(node: Node, place: Path, files: Sequence[str]) -> pa.Table:
    found = []
    for extent in extents(node, files):
        opened = pq.ParquetFile(place / extent["file"])
        group = opened.read_row_group(extent["row_group"]).cast(SCHEMA)
        found.append(group.slice(extent["row_start"], extent["row_count"]))
    rows = pa.concat_tables(found) if found else SCHEMA.empty_table()
    return rows.sort_by([(name, "ascending") for name in SORTED_BY])


def write(place: Path, rows: pa.Table, token: str) -> str:
    """A new file of the lake; nothing refers to it yet."""
    written = write_sorted(rows.to_batches(), 0, token)
    assert written is not None
    LocalStore(place).put(written.file.path, written.data)
    return written.file.path


def merged(
    node: Node,
    place: Path,
    files: Sequence[str],
    token: str,
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> str:
    """The live rows of the files as one new file."""
    return write(place, change(live_rows(node, place, files)), token)


def swap(node: Node, remove: Sequence[str], add: Sequence[str]) -> Response:
    body = json.dumps({"remove": list(remove), "add": list(add)}).encode()
    return node.request("POST", "/__headwater/groups/0/lake/swap", {"Content-Type": "application/json"}, body)


def swapped(node: Node, remove: Sequence[str], add: Sequence[str]) -> dict[str, int]:
    answer = swap(node, remove, add)
    assert answer.status == 200, answer
    told: dict[str, int] = answer.json()
    return told


def assert_verified(node: Node) -> None:
    """The node ends, and its lake is right in every row."""
    assert node.terminate() == 0, node.output()
    command = [sys.executable, "-m", "headwater", "lake", "verify", "--deep", "--data", str(node.data_directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
