"""Reads of what there was: by a node what HTTP showed then, or a refusal; of a lake alone each version of its table,
for as long as its files are there. What was erased is in none of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headwater.spark.node import Node as Calls
from headwater.spark.options import BadOptions
from headwater.spark.rows import schema_of
from headwater.spark.source import Reader
from headwater.spark.time_travel import TooOld
from tests.lake.on_a_node.surface import flush, path_of
from tests.spark.reads import Row, assert_shown, fill, in_order, position, rows_of, snapshot
from tests.support.node import Node
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = ("orders/a", "orders/json", "other/b")


def read(given: Mapping[str, str]) -> list[Row]:
    reader = Reader(given, schema_of(False))
    return in_order(row for part in reader.partitions() for some in reader.read(part) for row in some.to_pylist())


def batch(node: Node, **options: str) -> list[Row]:
    return read({"url": node.url, **options})


def table(node: Node, **options: str) -> list[Row]:
    return read({"lake": str(lake_of(node)), **options})


def lake_of(node: Node) -> Path:
    return node.data_directory / "lake"


def moment(rows: list[Row]) -> int:
    """That of the newest record."""
    return max(int(row["timestamp"].timestamp() * 1000 + 0.5) for row in rows)


class Then:
    """What a read returned at some moment, and which one that was."""

    def __init__(self, node: Node) -> None:
        self.rows = batch(node)
        self.table = table(node) if lake_of(node).is_dir() else []
        self.position = position(node)
        self.at_ms = int(time.time() * 1000)


def settled(node: Node, first: int) -> Then:
    """Two rounds more, in a file; the next round begins a millisecond later."""
    with node.connect() as connection:
        fill(connection, KEYS, 2, first=first)
    flush(node)
    then = Then(node)
    until(lambda: int(time.time() * 1000) > then.at_ms)
    return then


def told(kind: type[Exception], act: Any, *given: Any, **options: str) -> str:
    with pytest.raises(kind) as raised:
        act(*given, **options)
    return str(raised.value)


def test_a_node_shows_what_http_showed_at_a_position_and_at_a_moment(node: Node) -> None:
    thens = [settled(node, 0), settled(node, 2)]
    with node.connect() as connection:
        fill(connection, KEYS, 2, first=4)
    thens.append(Then(node))
    assert_shown(node, KEYS, thens[-1].rows)
    with node.connect() as connection:
        fill(connection, KEYS, 1, first=6)
    for then in thens:
        assert batch(node, asOfPosition=str(then.position)) == then.rows
        assert batch(node, asOfPosition=json.dumps({"0": then.position})) == then.rows
        assert batch(node, asOfTimestamp=str(moment(then.rows))) == then.rows
    some = batch(node, asOfPosition=str(thens[1].position), subscribe="orders/a", where="seq >= 1")
    assert some == [row for row in thens[1].rows if row["stream"] == "a" and row["seq"] >= 1]
    assert batch(node, asOfTimestamp="1") == []


def test_a_node_refuses_what_its_streams_have_let_go_of_since_and_names_what_can_be_read(node: Node) -> None:
    then, later = settled(node, 0), settled(node, 2)
    offset = [row["offset"] for row in later.rows if row["stream"] == "a"][1]
    with node.connect() as connection:
        snapshot(connection, "orders/a", offset)
    said = told(TooOld, batch, node, asOfPosition=str(then.position))
    assert "orders/a" in said and "The earliest position that can be read as it was is" in said
    assert told(TooOld, batch, node, asOfTimestamp=str(moment(then.rows))) and "failOnDataLoss" in said
    others = [row for row in then.rows if row["stream"] != "a"]
    assert batch(node, asOfPosition=str(then.position), subscribe="orders/json,other/b") == others
    left = [row for row in then.rows if row["stream"] != "a" or row["offset"] >= offset]
    assert batch(node, asOfPosition=str(then.position), failOnDataLoss="false") == left
    earliest = said.partition("as it was is ")[2].partition("}")[0] + "}"
    assert batch(node, asOfPosition=earliest) == batch(node)
    # The lake alone has what was let go of.
    assert table(node, asOfTimestamp=str(then.at_ms)) == then.table


def test_a_lake_alone_shows_each_version_of_its_table(node: Node) -> None:
    thens = [settled(node, first) for first in (0, 2, 4)]
    assert node.request("DELETE", path_of("other/b")).status == 204
    for then in thens:
        assert then.table == then.rows
        assert table(node, asOfTimestamp=str(then.at_ms)) == then.table
        assert table(node, asOfPosition=str(then.position)) == then.table
    # The table has had nothing behind a position until the next file came.
    assert table(node, asOfPosition=str(thens[1].position + 1), bucket="orders") == [
        row for row in thens[1].table if row["bucket"] == "orders"
    ]
    newest = thens[-1]
    assert table(node, asOfPosition=json.dumps({"0": newest.position + 10**9})) == newest.table
    since = table(node, asOfTimestamp=str(thens[1].at_ms), startingOffsets=json.dumps({"0": thens[0].position}))
    assert since == [row for row in thens[1].table if row not in thens[0].table]


def test_what_cannot_be_is_told(node: Node) -> None:
    then = settled(node, 0)
    assert "the node is at" in told(BadOptions, batch, node, asOfPosition="99999999")
    assert "both say where to end" in told(BadOptions, batch, node, asOfPosition="1", endingOffsets="latest")
    assert "asOfPosition is earliest, latest or" in told(BadOptions, batch, node, asOfPosition="soon")
    assert "group 0, 1, and there is group 0" in told(BadOptions, table, node, asOfPosition='{"0": 1, "1": 1}')
    assert "lies after asOfPosition 1" in told(
        BadOptions, batch, node, asOfPosition="1", startingOffsets=json.dumps({"0": then.position})
    )
    future = str(int(time.time() * 1000) + 3_600_000)
    for reading in (batch, table):
        assert "future" in told(BadOptions, reading, node, asOfTimestamp=future)
    assert "log does not reach so far back" in told(TooOld, table, node, asOfTimestamp="1")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_compaction_takes_no_version_and_files_that_go_take_theirs(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.compact import compact
    from headwater.spark.native_read import read_lake

    thens = [settled(node, first) for first in (0, 2, 4)]
    old = set(DeltaTable(str(lake_of(node))).get_add_actions().column("path").to_pylist())
    assert compact(spark, Calls(node.url), min_files=2)["swaps"]
    thens.append(settled(node, 6))
    for then in thens:
        given = {"lake": str(lake_of(node)), "asOfTimestamp": str(then.at_ms)}
        assert read(given) == then.table
        assert in_order(rows_of(read_lake(spark, None, **given))) == in_order(rows_of(_loaded(spark, given)))
        assert in_order(rows_of(read_lake(spark, node.url, asOfPosition=str(then.position)))) == in_order(
            rows_of(_loaded(spark, {"url": node.url, "asOfPosition": str(then.position)}))
        )
        assert batch(node, asOfPosition=str(then.position)) == then.rows
    for name in old:
        (lake_of(node) / name).unlink()  # as gc does when its grace period is over
    said = told(TooOld, table, node, asOfTimestamp=str(thens[1].at_ms))
    assert "are gone" in said and "The earliest that can be read is version" in said
    since = said.partition("asOfTimestamp ")[2].partition(",")[0]
    assert table(node, asOfTimestamp=since) == thens[2].table
    assert table(node, asOfTimestamp=str(thens[3].at_ms)) == thens[3].table


def _loaded(spark: SparkSession, given: Mapping[str, str]) -> Any:
    return spark.read.format("headwater").options(**given).load()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_was_erased_is_in_no_version(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.erase import erase_stream

    thens = [settled(node, first) for first in (0, 2)]
    old = _objects(node)
    assert erase_stream(spark, Calls(node.url), "other/b", delete=True)["complete"]
    after = Then(node)
    for then in thens:
        said = told(TooOld, table, node, asOfTimestamp=str(then.at_ms))
        assert "cannot be read as it was then" in said
    assert told(TooOld, table, node, asOfPosition=str(thens[0].position))
    # The table has had nothing behind the last position, so what there is of it now is the answer.
    assert table(node, asOfPosition=str(thens[1].position)) == after.table
    assert {row["stream"] for row in after.table} == {"a", "json"}
    assert table(node, asOfTimestamp=str(after.at_ms)) == after.table
    assert old <= _objects(node), "it is not because the files are gone"


def _objects(node: Node) -> set[Path]:
    return set((lake_of(node) / "data").rglob("*.parquet"))
