"""Every option that says which records a read has, held against what HTTP shows, in memory, settled, compacted, after
retention took some, and after a kill: one list of options and what each is to return, and one node that it all happens
to. The reads run in this process; the compaction is the job itself, on Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from headwater.spark.node import Node as Calls
from headwater.spark.rows import schema_of
from headwater.spark.source import Reader
from tests.lake.on_a_node.surface import flush
from tests.spark.queries import Query
from tests.spark.reads import Row, assert_shown, fill, in_order, position, snapshot
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
KEYS = ("orders/a", "orders/b", "orders/json", "other/x")
ROUNDS = 6
Wanted = Callable[[Row], bool]


def batch(node: Node, given: Mapping[str, str]) -> list[Row]:
    reader = Reader({"url": node.url, **given}, schema_of(False))
    return in_order(row for part in reader.partitions() for some in reader.read(part) for row in some.to_pylist())


def key_of(row: Row) -> str:
    return f"{row['bucket']}/{row['stream']}"


def ms_of(row: Row) -> int:
    return int(row["timestamp"].timestamp() * 1000 + 0.5)


def options_of(whole: list[Row], at: int) -> list[tuple[dict[str, str], Wanted]]:
    """Options, and which of the records that HTTP shows they have. `at`: a position that everything here begins before,
    and something after."""
    a = [row for row in whole if key_of(row) == "orders/a"]
    offset, moment = a[len(a) // 2]["offset"], ms_of(a[len(a) // 2])

    def behind(row: Row) -> bool:
        return key_of(row) != "orders/a" or row["offset"] >= offset

    def since(row: Row) -> bool:
        return key_of(row) != "orders/a" or ms_of(row) >= moment

    found: list[tuple[dict[str, str], Wanted]] = [
        ({}, lambda row: True),
        ({"startingOffsets": json.dumps({"0": at})}, lambda row: row["position"] > at),
        ({"startingOffsets": json.dumps({"orders/a": offset})}, behind),
        ({"startingOffsets": json.dumps({"orders/a": "latest"})}, lambda row: key_of(row) != "orders/a"),
        ({"startingOffsetsByTimestamp": json.dumps({"orders/a": moment})}, since),
        ({"startingTimestamp": str(moment)}, lambda row: ms_of(row) >= moment),
        ({"endingOffsets": json.dumps({"0": at})}, lambda row: row["position"] <= at),
        ({"endingOffsets": json.dumps({"orders/a": offset})}, lambda row: not behind(row) or key_of(row) != "orders/a"),
        ({"endingTimestamp": str(moment)}, lambda row: ms_of(row) < moment),
        (
            {"endingOffsetsByTimestamp": json.dumps({"orders/a": moment})},
            lambda row: not since(row) or key_of(row) != "orders/a",
        ),
        ({"where": "stream LIKE 'a%' AND seq >= 2"}, lambda row: row["stream"].startswith("a") and row["seq"] >= 2),
        (
            {"where": f"position > {at} AND bucket IN ('orders')"},
            lambda row: row["position"] > at and row["bucket"] == "orders",
        ),
        ({"asOfPosition": str(at)}, lambda row: row["position"] <= at),
        ({"asOfTimestamp": str(moment)}, lambda row: ms_of(row) <= moment),
        ({"minPartitions": "5"}, lambda row: True),
    ]
    return found


SELECTIONS: list[tuple[dict[str, str], Wanted]] = [
    ({}, lambda row: True),
    ({"bucket": "orders"}, lambda row: row["bucket"] == "orders"),
    ({"subscribePattern": "orders/*"}, lambda row: row["bucket"] == "orders"),
    ({"subscribe": "orders/a,orders/json"}, lambda row: key_of(row) in ("orders/a", "orders/json")),
]


def check(node: Node, at: int) -> None:
    whole = batch(node, {})
    assert_shown(node, KEYS, whole)
    for number, (given, wanted) in enumerate(options_of(whole, at)):
        # What a trim took is no part of a batch, and told as a loss where a position says that it was to be.
        told = (
            {"failOnDataLoss": "false"} if given.keys() & {"startingOffsets", "asOfPosition", "asOfTimestamp"} else {}
        )
        for chosen, takes in (SELECTIONS[0], SELECTIONS[1 + number % (len(SELECTIONS) - 1)]):
            expected = [row for row in whole if takes(row) and wanted(row)]
            assert batch(node, {**chosen, **given, **told}) == expected, (chosen, given)


def test_every_option_has_the_records_that_http_shows(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.compact import compact

    port = node.port
    node.listen = f"127.0.0.1:{port}"
    follower = Query(node, bucket="orders", maxOffsetsPerTrigger="5", minOffsetsPerTrigger="2")
    where = Query(node, where="stream = 'a' AND seq >= 1")
    narrow = Query(node, subscribe="orders/a")
    with node.connect() as connection:
        fill(connection, KEYS, ROUNDS)
    at = position(node) // 2
    read = [[*query.run()] for query in (follower, where, narrow)]
    check(node, at)  # in memory
    flush(node)
    with node.connect() as connection:
        fill(connection, KEYS, 2, first=ROUNDS)
    check(node, at)  # some in a file, some in memory
    flush(node)
    assert compact(spark, Calls(node.url), min_files=2)["swaps"]
    check(node, at)
    for rows, query in zip(read, (follower, where, narrow), strict=True):
        rows += query.run()
    # The streams that a query did not read before are read from their beginning, once.
    read[2] += narrow.run(subscribe="orders/a,orders/b", addedStreams="earliest")
    whole = batch(node, {})
    assert in_order(read[0]) == [row for row in whole if row["bucket"] == "orders"]
    assert in_order(read[1]) == [row for row in whole if row["stream"] == "a" and row["seq"] >= 1]
    assert in_order(read[2]) == [row for row in whole if key_of(row) in ("orders/a", "orders/b")]
    b = [row for row in whole if key_of(row) == "orders/b"]
    with node.connect() as connection:
        snapshot(connection, "orders/b", b[3]["offset"])  # and with it, as retention does, go the records before
    check(node, at)
    node.kill()
    node.start()
    check(node, at)
