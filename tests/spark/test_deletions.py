"""Labels and deleted records as Spark sees them: source, `read_lake`, compaction, erasure and verification agree with
plain lists, in memory, in the lake, and after files were rewritten. A stopped node's groups take the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from headwater.cli.stopped_node import writable
from headwater.engine.outcome_future import OutcomeFuture
from headwater.model.commands import Append, Command, Create, DeleteRecords, Fork
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import flush, path_of
from tests.spark.lakes import FLAGS, assert_clean_when_stopped, lake_files, table_files
from tests.spark.reads import load, rows_of
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]
HEADERS = {"includeHeaders": "true"}
Cells = tuple[bytes, str | None, str | None, str | None]
Model = dict[str, list[Cells | None]]
"""Records of each stream; None where one was deleted."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


class Topics:
    """What is done to a node while it is stopped, and the same to lists."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.model: Model = {}
        self._commands: list[tuple[str, Command]] = []

    def create(self, key: str, source: str | None = None) -> None:
        self._commands.append((key, Create(key, "text/plain", [], fork=None if source is None else Fork(source))))
        self.model[key] = []

    def append(self, key: str, count: int, labels: bool = False) -> None:
        first = len(self.model[key])
        numbers = range(first, first + count)
        payloads = [f"{key} {number:03d} ".encode() for number in numbers]
        carried: list[Labels | None] | None = None
        if labels:
            carried = [None if number % 4 == 3 else self._labels(number) for number in numbers]
        self._commands.append((key, Append(payloads, labels=carried)))
        for payload, one in zip(payloads, carried or [None] * count, strict=True):
            known = one or Labels()
            meta = None if known.meta is None else known.meta.decode()
            self.model[key].append((payload, known.tag, known.node, meta))

    @staticmethod
    def _labels(number: int) -> Labels:
        meta = b'{"n":%d}' % number if number % 2 else None
        return Labels(f"tag-{number % 3}", "n1" if number % 2 else None, meta, f"key-{number}", number)

    def delete(self, key: str, *runs: tuple[int, int]) -> None:
        edges = [0]
        for number in range(len(self.model[key])):
            edges.append(edges[-1] + len(f"{key} {number:03d} "))
        self._commands.append((key, DeleteRecords([Run(*run, edges[run[0]], edges[run[1]]) for run in runs])))
        for first, last in runs:
            self.model[key][first:last] = [None] * (last - first)

    def done(self) -> None:
        """The node has all of it."""
        assert self.node.terminate() == 0, self.node.output()
        asyncio.run(self._submit())
        self.node.start()
        self._commands = []

    async def _submit(self) -> None:
        async with writable(self.node.data_directory, 1 << 20) as groups:
            for key, command in self._commands:
                outcome = OutcomeFuture()
                groups[0].submit(key, command, outcome)
                await outcome.success()

    def rows(self) -> dict[tuple[str, int], Cells]:
        return {
            (key, number): cells
            for key, records in self.model.items()
            for number, cells in enumerate(records)
            if cells is not None
        }

    def payloads(self) -> set[bytes]:
        return {cells[0] for cells in self.rows().values()}


def shown(frame: DataFrame) -> dict[tuple[str, int], Cells]:
    found = rows_of(frame)
    made = {
        (f"{row['bucket']}/{row['stream']}", row["seq"]): (row["payload"], row["tag"], row["node"], row["meta"])
        for row in found
    }
    assert len(made) == len(found), "a record came twice"
    return made


def assert_same(spark: SparkSession, topics: Topics) -> None:
    from headwater.spark.native_read import read_lake

    node = topics.node
    assert shown(load(spark, node, **HEADERS)) == topics.rows()
    assert shown(read_lake(spark, Calls(node.url), **HEADERS)) == topics.rows()
    plain = load(spark, node, subscribe="topic/a")
    assert plain.count() == sum(one is not None for one in topics.model["topic/a"])


def in_files(node: Node) -> set[bytes]:
    return {payload for path in table_files(node) for payload in pq.read_table(path)["payload"].to_pylist()}


def test_spark_sees_records_that_are_there_and_their_labels(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.compact import compact
    from headwater.spark.jobs.erase import erase
    from headwater.spark.jobs.verify import verify

    topics = Topics(node)
    for key in ("topic/a", "topic/b", "topic/c"):
        topics.create(key)
        topics.append(key, 12, labels=key == "topic/a")
    topics.delete("topic/a", (2, 4))
    topics.done()
    assert_same(spark, topics)  # all of it in memory
    flush(node)
    assert_same(spark, topics)  # all of it in the lake

    # A fork needs what its source deletes afterwards.
    topics.create("topic/fork", source="topic/a")
    topics.delete("topic/a", (5, 6), (9, 11))
    topics.delete("topic/b", (0, 5), (7, 8))
    topics.delete("topic/c", (1, 12))
    topics.append("topic/a", 6, labels=True)
    topics.append("topic/b", 6)
    topics.append("topic/c", 2)
    topics.delete("topic/a", (13, 15))
    topics.done()
    assert_same(spark, topics)  # some here, some there
    flush(node)
    assert_same(spark, topics)
    dead = {b"topic/b 000 ", b"topic/b 007 ", b"topic/c 005 "}
    assert dead <= in_files(node)
    assert verified(verify(spark, Calls(node.url), deep=True))

    told = compact(spark, Calls(node.url), min_files=2)
    assert told["rows_dropped"] == 17
    assert_same(spark, topics)
    for_the_fork = {b"topic/a %03d " % number for number in (2, 3, 5, 9, 10, 13, 14)}
    assert in_files(node) == topics.payloads() | for_the_fork
    (listed,) = lake_files(node)
    assert (listed["rows"], listed["live_rows"], listed["deleted_rows"]) == (len(in_files(node)),) * 2 + (7,)
    assert verified(verify(spark, Calls(node.url), deep=True))
    assert "nothing_to_do" in erase(spark, Calls(node.url))

    answer = node.request("DELETE", path_of("topic/fork"))
    assert answer.status == 204, answer
    del topics.model["topic/fork"]
    assert erase(spark, Calls(node.url))["rows_dropped"] == 7
    assert in_files(node) == topics.payloads()
    assert_same(spark, topics)
    assert verified(verify(spark, Calls(node.url), deep=True))
    assert_clean_when_stopped(node)
    assert_same(spark, topics)


def verified(told: dict[str, Any]) -> bool:
    assert told["findings"] == []
    return bool(told["rows"])
