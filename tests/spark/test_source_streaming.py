"""Streaming reads of `format("headwater")`: each record once, over restarts and settling; limits, lag, loss.
Each query ends by itself (availableNow) or is stopped; what a batch held is what its own function was given."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import flush
from tests.spark.reads import Row, assert_shown, bucketed, fill, in_order, load, position, rows_of, snapshot
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
KEYS = ("orders/text", "orders/json", "other/nested/name")
WAIT_S = 120.0


class Followed:
    """A query's batches by number; a batch that comes again has to be the same."""

    def __init__(self, spark: SparkSession, node: Node, checkpoint: Path, **options: str) -> None:
        self._spark, self._node, self._checkpoint = spark, node, checkpoint
        self.options = {"startingOffsets": "earliest", **options}
        self.batches: dict[int, list[Row]] = {}
        self.repeated: list[int] = []

    def start(self, available_now: bool = True, **options: str) -> StreamingQuery:
        read = self._spark.readStream.format("headwater").option("url", self._node.url)
        frame = read.options(**{**self.options, **options}).load()
        write = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._checkpoint))
        return write.trigger(availableNow=True).start() if available_now else write.start()

    def run(self, **options: str) -> StreamingQuery:
        query = self.start(**options)
        assert query.awaitTermination(int(WAIT_S)), "the query has not come to its end"
        return query

    def _keep(self, frame: DataFrame, number: int) -> None:
        rows = in_order(rows_of(frame))
        if number in self.batches:
            self.repeated.append(number)
            assert rows == self.batches[number], "a batch that is read again is another one"
        self.batches[number] = rows

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches.values() for row in rows]


def assert_once(followed: Followed, node: Node) -> None:
    assert_shown(node, KEYS, followed.rows)
    keys = [(row["incarnation"], row["seq"]) for row in followed.rows]
    assert len(keys) == len(set(keys))


def test_a_query_goes_on_where_it_was_over_restarts_settling_and_compaction(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    from headwater.spark.jobs.compact import compact

    followed = Followed(spark, node, tmp_path / "checkpoint")
    with node.connect() as connection:
        fill(connection, KEYS, 6)
        flush(node)
        fill(connection, KEYS, 2, first=6)
        followed.run()  # lake and memory
        assert_once(followed, node)
        fill(connection, KEYS, 2, first=8)
        followed.run()  # memory alone
        fill(connection, KEYS, 2, first=10)
        flush(node)
        fill(connection, KEYS, 2, first=12)
        flush(node)
        compact(spark, Calls(node.url), min_files=2)
        followed.run()  # what was in memory when it was last here is in a file with what it has seen already
        node.listen = f"127.0.0.1:{node.port}"
        node.restart()
    with node.connect() as connection:
        fill(connection, KEYS, 2, first=14)
    followed.run()
    assert_once(followed, node)
    assert followed.repeated == []
    quiet = followed.run()
    assert_once(followed, node)
    assert quiet.exception() is None


def test_a_batch_that_was_not_committed_is_read_again_exactly(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    followed = Followed(spark, node, tmp_path / "checkpoint")
    with node.connect() as connection:
        fill(connection, KEYS, 5)
        flush(node)
        fill(connection, KEYS, 5, first=5)
        followed.run()
        last = max(followed.batches)
        for file in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
            file.unlink()
        flush(node)
        fill(connection, KEYS, 5, first=10)
    followed.run()
    assert followed.repeated == [last]
    assert_once(followed, node)


def test_batches_are_as_large_as_asked_for(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 10)
        whole = Followed(spark, node, tmp_path / "hot")
        query = whole.run(maxOffsetsPerTrigger="7")
        sizes = [len(whole.batches[number]) for number in sorted(whole.batches)]
        assert all(size <= 7 for size in sizes) and sum(sizes) >= len(sizes) * 5, sizes  # appends stay together
        assert_once(whole, node)
        reached = [json.loads(one.sources[0].endOffset)["0"] for one in query.recentProgress]
        assert reached == sorted(reached) and len(set(reached)) > 3
        flush(node)
        fill(connection, KEYS, 2, first=10)
    settled = Followed(spark, node, tmp_path / "settled")
    settled.run(maxOffsetsPerTrigger="15")
    assert len(settled.batches) > 2
    assert_once(settled, node)
    small = Followed(spark, node, tmp_path / "bytes")
    small.run(maxBytesPerTrigger="500", maxOffsetsPerTrigger="1000000")
    assert len(small.batches) > 2
    assert_once(small, node)


def test_how_far_a_query_is_behind_can_be_seen(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 10)
    followed = Followed(spark, node, tmp_path / "checkpoint")
    query = followed.run(maxOffsetsPerTrigger="10")
    seen = [one.sources[0] for one in query.recentProgress if one.numInputRows]
    ends = [json.loads(source.endOffset)["0"] for source in seen]
    latest = [json.loads(source.latestOffset)["0"] for source in seen]
    assert len(ends) > 2 and all(end <= last for end, last in zip(ends, latest, strict=True))
    assert ends[0] < latest[0] == position(node) == ends[-1]


def test_a_running_query_gets_what_is_written_while_records_settle(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    followed = Followed(spark, node, tmp_path / "checkpoint", startingOffsets="latest")
    with node.connect() as connection:
        fill(connection, KEYS, 3)
        before = len(rows_of(load(spark, node)))
        query = followed.start(available_now=False)
        try:
            deadline_s = time.monotonic() + WAIT_S
            while not query.recentProgress:  # only then does it know where it began
                assert time.monotonic() < deadline_s and query.exception() is None
                time.sleep(0.1)
            for number in range(3, 9):
                fill(connection, KEYS, 1, first=number)
                if number % 2:
                    flush(node)
            expected = len(rows_of(load(spark, node))) - before
            while len(followed.rows) < expected:
                assert time.monotonic() < deadline_s and query.exception() is None, query.exception()
                time.sleep(0.1)
        finally:
            query.stop()
    whole = in_order(rows_of(load(spark, node)))
    first = min(row["position"] for row in followed.rows)
    assert in_order(followed.rows) == [row for row in whole if row["position"] >= first]
    assert len(followed.rows) == expected


def test_a_query_that_retention_overtook_says_what_it_lost(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    bucketed(node, ["orders"])
    keys = ("orders/cut", "orders/whole")
    followed = Followed(spark, node, tmp_path / "checkpoint")
    with node.connect() as connection:
        fill(connection, keys, 4)
        flush(node)
        # Gone before the query began: no loss to it.
        snapshot(connection, "orders/cut", _offset(spark, node, 2))
        followed.run(maxOffsetsPerTrigger="3")
        assert_shown(node, keys, followed.rows)
        fill(connection, keys, 6, first=4)
        flush(node)
        snapshot(connection, "orders/cut", _offset(spark, node, 8))
    query = followed.start()
    with pytest.raises(Exception, match="DataLoss") as told:
        query.awaitTermination(int(WAIT_S))
    text = str(told.value)
    assert "orders/cut (incarnation" in text and "orders/whole" not in text
    assert f"its earliest offset left is {_offset(spark, node, 8):020d}" in text
    assert "set failOnDataLoss to false" in text
    followed.run(failOnDataLoss="false")
    found = [(row["stream"], row["seq"]) for row in in_order(followed.rows)]
    assert found == [
        *(("cut", seq) for seq in (2, 3, 8, 9)),
        *(("whole", seq) for seq in range(10)),
    ]


def _offset(spark: SparkSession, node: Node, seq: int) -> int:
    rows = rows_of(load(spark, node, subscribe="orders/cut"))
    found: int = next(row["offset"] for row in rows if row["seq"] == seq)
    return found


def test_a_checkpoint_of_another_node_is_told_from_an_empty_one(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    followed = Followed(spark, node, tmp_path / "checkpoint")
    with node.connect() as connection:
        fill(connection, KEYS, 5)
    followed.run()
    last = max(followed.batches)
    for file in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        file.unlink()
    with Node.started(tmp_path / "other") as other:
        elsewhere = Followed(spark, other, tmp_path / "checkpoint")
        with pytest.raises(Exception, match="another node answers here"):
            elsewhere.run()


def refused(read: Any) -> str:
    with pytest.raises(Exception) as told:  # Spark's own, around whatever was raised in Python
        read()
    return str(told.value)


def test_options_that_do_not_fit_a_streaming_read_are_refused(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    ending = Followed(spark, node, tmp_path / "a", endingOffsets="latest")
    assert "endingOffsets is for batch reads" in refused(ending.run)
    unknown = Followed(spark, node, tmp_path / "b", maxFilesPerTrigger="1")
    assert "no option maxfilespertrigger" in refused(unknown.run)
