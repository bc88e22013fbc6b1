"""What users of Kafka's source expect, held against HTTP: each option's rows are those that the same requests show,
in memory, in the lake, after a compaction and after a kill. The queries run in this process, without Spark; the page's
examples run in Spark as they stand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.node import DataLoss
from headwater.spark.node import Node as Calls
from headwater.spark.options import BadOptions, for_batch, for_streaming
from headwater.spark.rows import schema_of
from headwater.spark.source import Reader
from tests.lake.on_a_node.surface import append, create, flush, path_of
from tests.spark.conftest import QUICK
from tests.spark.queries import Query
from tests.spark.reads import Row, assert_shown, fill, in_order, snapshot
from tests.support.fences import fences
from tests.support.http import read_bytes
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "from-kafka.md"
KEYS = ("orders/a", "orders/b", "orders/json", "other/x")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=QUICK) as node:
        node.listen = f"127.0.0.1:{node.port}"
        yield node


def batch(node: Node, **options: str) -> list[Row]:
    reader = Reader({"url": node.url, **options}, schema_of("includeHeaders" in options))
    return [row for part in reader.partitions() for some in reader.read(part) for row in some.to_pylist()]


def of(rows: list[Row], key: str) -> list[Row]:
    return [row for row in in_order(rows) if f"{row['bucket']}/{row['stream']}" == key]


def written(node: Node) -> None:
    """Some in a file, some in memory."""
    with node.connect() as connection:
        fill(connection, KEYS, 6)
        flush(node)
        fill(connection, KEYS, 4, first=6)


def settle_or_kill(node: Node, what: str) -> None:
    if what == "settled":
        flush(node)
    elif what == "killed":
        node.kill()
        node.start()


def ms_of(row: Row) -> int:
    return int(row["timestamp"].timestamp() * 1000 + 0.5)


def check_edges(node: Node) -> None:
    """Beginnings and ends of streams, against HTTP."""
    whole = batch(node, bucket="orders")
    assert_shown(node, KEYS[:3], whole)
    a, b, last = of(whole, "orders/a"), of(whole, "orders/b"), of(whole, "orders/json")
    start, end = a[4]["offset"], b[7]["offset"]
    with node.connect() as connection:
        shown = read_bytes(connection, path_of("orders/a"), f"{start:020d}")
    starts = {"orders/a": f"{start:020d}", "orders/json": "latest"}
    found = batch(node, bucket="orders", startingOffsets=json.dumps(starts))
    assert b"".join(row["payload"] for row in of(found, "orders/a")) == shown
    assert in_order(found) == [*a[4:], *b]
    found = batch(node, bucket="orders", startingOffsets=json.dumps({"orders/a": start, "orders/b": -2}))
    assert in_order(found) == [*a[4:], *b, *last]
    found = batch(node, bucket="orders", endingOffsets=json.dumps({"orders/b": end, "orders/a": -1}))
    assert in_order(found) == [*a, *b[:7], *last]
    both = {"startingOffsets": json.dumps({"orders/b": b[2]["offset"]}), "endingOffsets": json.dumps({"orders/b": end})}
    assert of(batch(node, subscribe="orders/b", **both), "orders/b") == b[2:7]


@pytest.mark.parametrize("what", ["as it is", "settled", "killed"])
def test_a_stream_begins_and_ends_where_http_does(node: Node, what: str) -> None:
    written(node)
    settle_or_kill(node, what)
    check_edges(node)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_it_does_so_after_a_compaction_and_what_retention_took(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.compact import compact

    written(node)
    flush(node)
    offset = of(batch(node, bucket="orders"), "orders/b")[2]["offset"]
    assert compact(spark, Calls(node.url), min_files=2)["swaps"]
    check_edges(node)
    with node.connect() as connection:
        snapshot(connection, "orders/b", offset)
        fill(connection, KEYS, 1, first=10)
    check_edges(node)


def test_a_moment_of_each_stream_is_its_first_record_of_then_or_later(node: Node) -> None:
    written(node)
    whole = batch(node, bucket="orders")
    a, b, last = of(whole, "orders/a"), of(whole, "orders/b"), of(whole, "orders/json")
    at, until = ms_of(a[5]), ms_of(b[8])
    begun = [row for row in a if ms_of(row) >= at]
    ended = [row for row in b if ms_of(row) < until]
    found = batch(node, bucket="orders", startingOffsetsByTimestamp=json.dumps({"orders/a": at}))
    assert in_order(found) == [*begun, *b, *last]
    date = b[8]["timestamp"].isoformat()
    for moment in (until, date):
        found = batch(node, subscribe="orders/b", endingOffsetsByTimestamp=json.dumps({"orders/b": moment}))
        assert of(found, "orders/b") == ended
    found = batch(node, bucket="orders", endingTimestamp=str(until))
    assert in_order(found) == [row for row in in_order(whole) if ms_of(row) < until]
    flush(node)
    table = {"lake": str(node.data_directory / "lake"), "bucket": "orders", "endingTimestamp": date}
    reader = Reader(table, schema_of(False))
    rows = [row for part in reader.partitions() for some in reader.read(part) for row in some.to_pylist()]
    assert in_order(rows) == in_order(found)


def test_a_query_begins_with_each_stream_where_it_is_told_and_new_ones_at_their_beginning(node: Node) -> None:
    written(node)
    whole = batch(node)
    a = of(whole, "orders/a")
    starts = {"orders/a": a[3]["offset"], "orders/b": "earliest"}
    query = Query(node, subscribePattern="orders/**", startingOffsets=json.dumps(starts), maxOffsetsPerTrigger="7")
    first = query.run(batches_max=2)
    assert query.offset["bounds"]["starts"]["orders/a"][1] == a[3]["offset"]
    with node.connect() as connection:
        fill(connection, KEYS, 2, first=10)
        create(connection, "orders/new/er")
        append(connection, "orders/new/er", b"from its beginning")
        flush(node)
        settle_or_kill(node, "killed")
    # Where to begin counts for a new query only.
    rest = query.run(startingOffsets=json.dumps({"orders/a": "latest"}))
    found, now = [*first, *rest], batch(node)
    assert of(found, "orders/a") == of(now, "orders/a")[3:]
    assert of(found, "orders/b") == of(now, "orders/b")
    assert of(found, "orders/new/er") == of(now, "orders/new/er")
    assert of(found, "other/x") == []
    # Of those that were not named a query has what came after it began, as with `latest`.
    json_rows = of(now, "orders/json")
    assert of(found, "orders/json") == [row for row in json_rows if row not in of(whole, "orders/json")]
    assert "bounds" not in query.offset


def test_a_batch_waits_for_as_many_records_as_it_is_to_have_and_no_longer_than_told(node: Node) -> None:
    written(node)
    query = Query(node, subscribe="orders/a", startingOffsets="latest", minOffsetsPerTrigger="3")
    reader = query.reader()
    query.offsets.append(json.dumps(reader.initialOffset()))
    with node.connect() as connection:
        fill(connection, KEYS, 2, first=10)
        assert not query.plan(reader), "two of the stream came, and eleven of others"
        assert reader.reportLatestOffset()["lag"]["records"] == 2
        fill(connection, KEYS, 1, first=12)
        assert query.plan(reader)
    assert [row["seq"] for row in query.read(reader)] == [10, 11, 12]
    hasty = Query(node, subscribe="orders/a", minOffsetsPerTrigger="1000", maxTriggerDelay="0ms")
    reader = hasty.reader()
    hasty.offsets.append(json.dumps(reader.initialOffset()))
    assert hasty.plan(reader) and len(hasty.read(reader)) == 13
    assert len(Query(node, subscribe="orders/a", minOffsetsPerTrigger="1000").run()) == 13, (
        "availableNow waits for none"
    )


def test_a_query_gets_no_batch_for_what_others_append_and_counts_what_it_reads(node: Node) -> None:
    written(node)
    query = Query(node, subscribe="orders/a", maxOffsetsPerTrigger="4")
    assert len(query.run()) == 10
    assert [len(rows) for rows in query.batches if rows] and max(map(len, query.batches)) <= 6
    reader, offsets = query.reader(), len(query.offsets)
    with node.connect() as connection:
        fill(connection, ["orders/b", "other/x"], 5, first=10)
        assert not query.plan(reader) and len(query.offsets) == offsets
        assert reader.reportLatestOffset()["lag"] == {"records": 0, "milliseconds": 0, "recordsAfterBatch": 0}
        flush(node)
        # What settled is not looked through again: the offset follows, and costs no task.
        assert query.plan(reader) and not query.parts(reader)
        query.committed += 1
        fill(connection, KEYS, 6, first=15)
        assert query.plan(reader)
        rows = query.read(reader)
        lag = reader.reportLatestOffset()["lag"]
    assert len(rows) == 4 and {row["stream"] for row in rows} == {"a"}
    assert lag["records"] == 6 and lag["recordsAfterBatch"] == 2


def test_what_cannot_be_is_told(node: Node) -> None:
    written(node)
    with node.connect() as connection:
        snapshot(connection, "orders/a", of(batch(node), "orders/a")[5]["offset"])

    def told(kind: Any = BadOptions, **options: str) -> str:
        with pytest.raises(kind) as raised:
            batch(node, **options)
        return str(raised.value)

    assert "and its tail is" in told(bucket="orders", startingOffsets='{"orders/b": 999999}')
    assert "no such stream" in told(bucket="orders", startingOffsets='{"orders/none": 1}')
    assert "this read does not have" in told(bucket="orders", startingOffsets='{"other/x": 1}')
    assert "one sequence without partitions" in told(subscribe="orders/a", startingOffsets='{"orders/a": {"0": 23}}')
    assert "its earliest offset left is" in told(DataLoss, subscribe="orders/a", startingOffsets='{"orders/a": 1}')
    late = batch(node, subscribe="orders/a", startingOffsets='{"orders/a": 1}', failOnDataLoss="false")
    assert late == batch(node, subscribe="orders/a")
    assert "both say where to end" in told(endingTimestamp="1", endingOffsets="latest")
    assert "has no rows" in told(subscribe="orders/a", endingOffsets='{"orders/a": "earliest"}')


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"subscribePattern": "orders.*"}, "looks like a regular expression"),
        ({"subscribePattern": "^orders/[0-9]+$"}, "looks like a regular expression"),
        ({"subscribePattern": "(a|b)/*"}, "looks like a regular expression"),
        ({"kafka.bootstrap.servers": "h:9092"}, "url is this one's"),
        ({"kafka.security.protocol": "SSL"}, "nothing like it here"),
        ({"assign": '{"a":[0]}'}, "subscribe is this one's"),
        ({"maxTriggerDelay": "3m"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "30s, 15m or 2h"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than"),
        ({"startingOffsetsByTimestamp": "yesterday"}, "expected"),
    ],
)
def test_habits_that_mean_something_else_here_are_told(given: dict[str, str], why: str) -> None:
    with pytest.raises(BadOptions, match=why):
        for_streaming({"url": "http://127.0.0.1:1", **given})


def test_a_star_within_a_part_is_told_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    for_batch({"url": "http://127.0.0.1:1", "subscribePattern": "orders-*/events"})
    assert "stands for a whole part" in caplog.text


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_examples_of_the_page_run_as_they_stand(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    with node.connect() as connection:
        fill(connection, ["orders/1", "orders/2", "clicks/json"], 8)
        flush(node)
        fill(connection, ["orders/1", "orders/2", "clicks/json"], 4, first=8)
    pieces = [piece for piece in fences(PAGE) if piece.language == "python"]
    assert len(pieces) > 3
    seen: list[int] = []
    for piece in pieces:
        names: dict[str, Any] = {"spark": spark, "url": node.url, "checkpoint": str(tmp_path / str(piece.line))}
        exec(compile(piece.text, f"from-kafka.md:{piece.line}", "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
        if "rows" in names:
            seen.append(names["rows"].count())
        if "lag" in names:
            assert names["lag"]["recordsAfterBatch"] >= 0
    assert all(seen)
