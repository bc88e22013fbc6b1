"""What a node tells of the lake's files: the times of their records, with a checkpoint only where one is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import append, create, flush
from tests.support.node import Node

FILES = "/__headwater/groups/0/lake/files"
QUIET = ["--flush-interval-ms", "600000", "--checkpoint-interval-ms", "600000"]


def listed(node: Node, query: str = "") -> dict[str, Any]:
    answer = node.request("GET", FILES + query)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


def records_in_catalog(node: Node) -> int:
    """Of the only stream, as of the last checkpoint."""
    pages = Calls(node.url).lake_streams()
    return sum(pc.sum(pa.ipc.open_stream(page).read_all()["count"]).as_py() or 0 for page in pages)


def test_the_times_of_a_files_records_are_told(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=QUIET) as node, node.connect() as connection:
        create(connection, "lake/one")
        append(connection, "lake/one", b"record")
        flush(node)
        (file,) = listed(node)["files"]
        assert 0 < file["ms_min"] == file["ms_max"] <= file["modified_ms"]


def test_a_checkpoint_is_taken_only_when_files_could_not_be_told_without(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=QUIET) as node, node.connect() as connection:
        create(connection, "lake/one")
        append(connection, "lake/one", b"record")
        flush(node)
        found = listed(node, "?checkpoint=if-needed")
        assert len(found["files"]) == 1, "what has settled since the last checkpoint is told"
        append(connection, "lake/one", b"in memory alone")
        assert listed(node, "?checkpoint=if-needed")["files"] == found["files"]
        assert records_in_catalog(node) == 1
        assert listed(node)["files"] == found["files"]
        assert records_in_catalog(node) == 2
        assert listed(node, "?checkpoint=always")["files"] == found["files"]
        assert node.request("GET", f"{FILES}?checkpoint=never").status == 400
