"""What a node tells of records that are not in the lake yet: the feed, its bounds, and how far some of them reach.
Rows are read with Arrow alone; what they should be is what was appended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.model.timeline import RECORD_BYTES
from tests.lake.on_a_node.surface import QUIET, append, create, flush
from tests.support.http import Response
from tests.support.node import Node

GROUPS = "/__headwater/groups"
WAIT_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=QUIET) as node:
        yield node


def state(node: Node) -> dict[str, int]:
    found: dict[str, int] = node.request("GET", GROUPS).json()["groups"][0]
    return found


def feed(node: Node, query: str) -> tuple[list[dict[str, Any]], Response]:
    answer = node.request("GET", f"{GROUPS}/0/feed?{query}")
    assert answer.status == 200, answer
    return pa.ipc.open_stream(answer.body).read_all().to_pylist(), answer


def number(answer: Response, name: str) -> int:
    return int(answer.header(name) or "")


def test_the_feed_is_a_range_of_the_log_and_says_how_far_it_is_complete(node: Node) -> None:
    with node.connect() as connection:
        for key in ("feed/a", "feed/b"):
            create(connection, key)
        for count in range(6):
            append(connection, "feed/a" if count % 2 else "feed/b", b"record %d" % count)
    start, end = state(node)["lake_position"], state(node)["position"]
    rows, answer = feed(node, f"from={start}")
    assert [row["payload"] for row in rows] == [b"record %d" % count for count in range(6)]
    assert number(answer, "headwater-position") == end
    assert number(answer, "headwater-lake-position") == start
    assert number(answer, "headwater-settled-position") == 0
    some, answer = feed(node, f"from={rows[1]['position']}&to={rows[3]['position']}")
    assert some == rows[2:4]
    assert number(answer, "headwater-position") == rows[3]["position"]
    page, answer = feed(node, f"from={start}&max_bytes=1")
    assert page == rows[:1]
    rest, _ = feed(node, f"from={number(answer, 'headwater-position')}")
    assert rest == rows[1:]
    assert feed(node, f"from={end}")[0] == []


def test_a_cut_counts_records_and_bytes_and_keeps_an_append_together(node: Node) -> None:
    with node.connect() as connection:
        create(connection, "feed/json", {"Content-Type": "application/json"})
        for body in (b"[1,2,3]", b"[4]", b"[55,66]"):
            append(connection, "feed/json", body, {"Content-Type": "application/json"})
    start, end = state(node)["lake_position"], state(node)["position"]
    rows, _ = feed(node, f"from={start}")
    first, second, third = sorted({row["position"] for row in rows})

    def cut(query: str) -> tuple[int, int, int]:
        found = node.request("GET", f"{GROUPS}/0/cut?from={start}&{query}").json()
        return found["position"], found["rows"], found["bytes"]

    assert cut("max_rows=1") == (first, 3, 3), "the first append is more than asked for, but a step all the same"
    assert cut("max_rows=4") == cut("max_rows=5") == (second, 4, 4)
    assert cut("max_bytes=7") == (second, 4, 4)
    assert cut("max_rows=6&max_bytes=8") == cut("") == (end, 6, 8)
    assert cut(f"to={second}") == (second, 4, 4)
    assert third <= end


def test_what_is_in_the_lake_is_refused(node: Node) -> None:
    with node.connect() as connection:
        create(connection, "feed/a")
        append(connection, "feed/a", b"settled")
        before = state(node)["lake_position"]
        flush(node)
        append(connection, "feed/a", b"not yet")
    lake = state(node)["lake_position"]
    for call in ("feed", "cut"):
        refused = node.request("GET", f"{GROUPS}/0/{call}?from={before}")
        assert refused.status == 410 and refused.header("stream-earliest-offset") == f"{lake:020d}"
        for query in ("from=x", "from=1&to=-1", f"from={lake}&max_bytes=1.5"):
            assert node.request("GET", f"{GROUPS}/0/{call}?{query}").status == 400, query
        assert node.request("PUT", f"{GROUPS}/0/{call}?from={lake}").status == 405
    rows, _ = feed(node, f"from={lake}")
    assert [row["payload"] for row in rows] == [b"not yet"]


def test_a_flush_that_takes_one_stream_further_than_another_is_told_of(tmp_path: Path) -> None:
    """A file is full with the first stream's records, so the other's older one stays in memory."""
    flags = ["--flush-bytes", "1KiB", "--lake-file-bytes", "1KiB", "--flush-interval-ms", "86400000"]
    with Node.started(tmp_path, flags=flags) as node:
        with node.connect() as connection:
            for key in ("feed/large", "feed/small"):
                create(connection, key)
            append(connection, "feed/large", b"x" * 300)
            append(connection, "feed/small", b"waits")
            append(connection, "feed/large", b"x" * 724)
        deadline_s = time.monotonic() + WAIT_S
        while state(node)["hot_bytes"] != len(b"waits") + RECORD_BYTES:
            assert time.monotonic() < deadline_s, state(node)
            time.sleep(0.02)
        lake = state(node)["lake_position"]
        rows, answer = feed(node, f"from={lake}")
        assert [row["payload"] for row in rows] == [b"waits"]
        settled = number(answer, "headwater-settled-position")
        files = node.request("GET", "/__headwater/groups/0/lake/files").json()
        assert files["lake_position"] == lake < settled == max(file["position_max"] for file in files["files"])
        read_whole(node)


def read_whole(node: Node) -> None:
    """The source puts both together."""
    from headwater.lake.layout import SCHEMA
    from headwater.spark.group_states import heads_of
    from headwater.spark.options import for_batch
    from headwater.spark.planning import plan
    from headwater.spark.ranges import Range
    from headwater.spark.reading import rows_of

    options = for_batch({"url": node.url})
    assert options.node is not None
    head = heads_of(options.node)[0]
    for after in (0, head.lake_position):
        planned = plan(options, options.node, {0: Range(after, head.position)}, list(SCHEMA.names))
        rows = [row for task in planned.tasks for table in rows_of(planned.work, task) for row in table.to_pylist()]
        found = [len(row["payload"]) for row in sorted(rows, key=lambda row: row["position"])]
        assert found == ([300, 5, 724] if after == 0 else [5, 724])


def test_a_flush_of_one_stream_is_told_though_the_lakes_position_stays(node: Node) -> None:
    with node.connect() as connection:
        for key in ("early/s", "late/s"):
            create(connection, key)
            append(connection, key, b"abc")
    before = state(node)["lake_position"]
    answer = node.request("GET", f"{GROUPS}/0/feed?from={before}")
    assert int(answer.header("headwater-settled-position") or "") <= before
    assert node.request("POST", "/__headwater/flush/late/s").status == 200
    assert state(node)["lake_position"] == before, "the older record of the other stream is in memory"
    answer = node.request("GET", f"{GROUPS}/0/feed?from={before}")
    assert int(answer.header("headwater-settled-position") or "") > before
    rows = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    assert [row["stream"] for row in rows] == ["s"] and rows[0]["bucket"] == "early"
