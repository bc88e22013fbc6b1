"""Compaction of chosen files, and by what its files are clustered: what streams hold never changes, and a query for a
time opens fewer files. Files that a reader opens are counted, not timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.spark.clustering import columns_of, deepest, order_of
from headwater.spark.job_runs import JobRefused
from headwater.spark.jobs.compact import overlapping
from headwater.spark.lake_listing import File
from headwater.spark.lake_table import table_bounds
from headwater.spark.node import Node as Calls
from headwater.spark.options import for_batch
from headwater.spark.source import plan_batch
from tests.lake.on_a_node.surface import append, create, flush
from tests.spark.lakes import FLAGS, Model, assert_clean_when_stopped, assert_reads, fill, keys, lake_files, table_files
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

full = [pytest.mark.full, pytest.mark.timeout(300)]
Rows = list[tuple[Any, ...]]
BY_TIME = order_of(["timestamp"])

# ---- how deep files lie over one another ---------------------------------------------------------------------------


def file(number: int, size: int = 10, rows: int = 100) -> File:
    return File(f"data/0/{number}", size, rows, rows, number, number, 0)


def bounds_of(parts: list[Rows], columns: tuple[str, ...]) -> dict[str, dict[str, tuple[Any, Any]]]:
    return {
        f"data/0/{number}": {
            name: (min(row[at] for row in rows), max(row[at] for row in rows)) for at, name in enumerate(columns)
        }
        for number, rows in enumerate(parts)
    }


values = st.tuples(
    st.integers(0, 3), st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 1), st.integers(0, 5)
)


@settings(max_examples=200, deadline=None)
@given(st.sets(values, min_size=1), st.integers(1, 6))
def test_files_that_were_cut_from_one_order_never_overlap(rows: set[tuple[Any, ...]], count: int) -> None:
    listed = sorted(rows)
    step = -(-len(listed) // count)
    parts = [listed[at : at + step] for at in range(0, len(listed), step)]
    files = [file(number) for number in range(len(parts))]
    assert len(deepest(files, BY_TIME, bounds_of(parts, columns_of(BY_TIME)))) <= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), min_size=1, max_size=8))
def test_the_deepest_place_is_the_one_that_most_files_hold(spans: list[list[int]]) -> None:
    """The model tries the middle between any two neighbouring times."""
    bounds = {f"data/0/{number}": {"ts_ms": (low, high)} for number, (low, high) in enumerate(spans)}
    found = deepest([file(number) for number in range(len(spans))], BY_TIME, bounds)
    single = sum(low == high for low, high in spans)
    most = max(sum(low <= at and at + 1 <= high for low, high in spans) for at in range(10))
    # Without bounds of a second column a file of one time alone may hold any of it.
    assert most <= len(found) <= most + single
    assert len({one.path for one in found}) == len(found)


def test_files_without_bounds_overlap_with_all_others() -> None:
    bounds = {"data/0/0": {"ts_ms": (0, 5)}, "data/0/1": {"ts_ms": (5, 9)}}
    files = [file(number) for number in range(4)]
    assert [one.path for one in deepest(files[:2], BY_TIME, bounds)] == ["data/0/0"]
    assert len(deepest(files, BY_TIME, bounds)) == 3


def test_the_smallest_of_the_files_that_overlap_are_rewritten_and_two_of_any_size_fit() -> None:
    files = [file(number, size=100 + number) for number in range(6)]
    bounds = {one.path: {"ts_ms": (0, 9)} for one in files}
    assert overlapping(files, BY_TIME, bounds, 4, 64, 1 << 30) == files
    assert overlapping(files, BY_TIME, bounds, 7, 64, 1 << 30) == []
    assert overlapping(files, BY_TIME, bounds, 4, 64, 310) == files[:3]
    assert overlapping(files, BY_TIME, bounds, 4, 64, 150) == []
    large = [one._replace(bytes=4 << 30, rows=1_500_000) for one in files]
    assert len(overlapping(large, BY_TIME, bounds, 4, 64, 1 << 40)) == 2


@pytest.mark.parametrize("columns", [["tag"], ["timestamp", "timestamp"], ["seq"], ["ts_ms"]])
def test_an_order_that_would_tear_streams_apart_is_refused(columns: list[str]) -> None:
    with pytest.raises(JobRefused, match="bucket, stream, timestamp"):
        order_of(columns)


# ---- on a node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def compacted(spark: SparkSession, node: Node, **options: Any) -> dict[str, Any]:
    from headwater.spark.jobs.compact import compact

    return compact(spark, Calls(node.url), **options)


def fill_by_turns(node: Node, model: Model, names: list[str], rounds: int) -> list[int]:
    """A file for each round, whose records are later than those of the round before. When each began."""
    begun = []
    for _ in range(rounds):
        begun.append(time.time_ns() // 1_000_000)
        fill(node, model, names, rounds=1, records=4, size=200)
        last = begun[-1]
        while time.time_ns() // 1_000_000 <= last:
            time.sleep(0.001)
    return begun


def opened_by_source(node: Node, where: str) -> int:
    """How many files `format("headwater")` gives its tasks to open."""
    planned = plan_batch(for_batch({"url": node.url, "where": where}), ["seq"])
    return len({piece.file.path for task in planned.tasks for piece in task.pieces})


def opened_by_delta(node: Node, low: int, high: int) -> int:
    """How many files are left to a reader that skips them by what the Delta table says."""
    field = ds.field("ts_ms")
    found = DeltaTable(node.data_directory / "lake").to_pyarrow_dataset()
    return len(list(found.get_fragments((field >= low) & (field < high))))


def between(low: int, high: int) -> str:
    first, last = (datetime.fromtimestamp(ms / 1_000, UTC).isoformat() for ms in (low, high))
    return f"timestamp >= '{first}' AND timestamp < '{last}'"


class TestCompaction:
    pytestmark = full

    def test_a_query_for_a_time_opens_one_file_instead_of_all_once_they_are_clustered_by_time(
        self, spark: SparkSession, node: Node
    ) -> None:
        model: Model = {}
        begun = fill_by_turns(node, model, keys(12), rounds=24)
        low, high = begun[9], begun[10]
        size = sum(one["bytes"] for one in lake_files(node)) // 6
        files = compacted(spark, node, target_bytes=size)["files_after"]
        assert files >= 4
        assert opened_by_source(node, between(low, high)) == opened_by_delta(node, low, high) == files
        planned = compacted(spark, node, target_bytes=size, cluster_by=["timestamp"], dry_run=True)
        assert (planned["files_read"], planned["overlap_before"]) == (files, files)
        by_time = compacted(spark, node, target_bytes=size, cluster_by=["timestamp"])
        assert (by_time["overlap_before"], by_time["overlap_after"], by_time["rows_dropped"]) == (files, 1, 0)
        assert opened_by_source(node, between(low, high)) <= 2 and opened_by_delta(node, low, high) <= 2
        assert compacted(spark, node, target_bytes=size, cluster_by=["timestamp"])["nothing_to_do"] is True
        assert_reads(node, model)
        rows = spark.read.format("headwater").options(url=node.url, where=between(low, high)).load()
        assert rows.count() == 12 * 4
        node.restart()
        assert_reads(node, model)
        assert_clean_when_stopped(node)

    def test_files_of_buckets_that_are_clustered_by_bucket_and_time_hold_one_range_each(
        self, spark: SparkSession, node: Node
    ) -> None:
        from headwater.spark.jobs.verify import verify

        model: Model = {}
        names = [*keys(5, "left"), *keys(5, "right")]
        fill_by_turns(node, model, names, rounds=24)
        size = sum(one["bytes"] for one in lake_files(node)) // 6
        done = compacted(spark, node, target_bytes=size, cluster_by=["bucket", "timestamp"])
        place = listing_place(node)
        spans = sorted(
            ((*one["bucket"], *one["ts_ms"]) for one in table_bounds(place, ("bucket", "ts_ms")).values()),
        )
        assert done["files_after"] == len(spans) >= 4 and done["overlap_after"] == 1
        of_left = [span[2:] for span in spans if span[:2] == ("left", "left")]
        assert len(of_left) >= 2
        assert all(one[1] <= two[0] for one, two in pairwise(of_left))
        assert verify(spark, Calls(node.url), deep=True)["findings"] == []
        assert_reads(node, model)

    def test_only_files_that_can_hold_such_rows_are_rewritten_and_all_their_rows_are_kept(
        self, spark: SparkSession, node: Node
    ) -> None:
        model: Model = {}
        fill(node, model, keys(3, "left"), rounds=4)
        fill(node, model, keys(3, "right"), rounds=4)
        with node.connect() as connection:
            create(connection, "left/with-right")
            model["left/with-right"] = [b"beside the others\n"]
            append(connection, "left/with-right", b"beside the others\n")
        fill(node, model, keys(3, "right"), rounds=1)
        flush(node)
        before = set(table_files(node))
        where = "bucket = 'right' AND stream LIKE 'stream-%'"
        planned = compacted(spark, node, where=where, dry_run=True)
        assert set(table_files(node)) == before
        done = compacted(spark, node, where=where)
        assert done["files_read"] == planned["files_read"] == 5 and done["rows_dropped"] == 0
        assert (done["files_after"], done["files_written"]) == (5, 1) == (planned["files_after"], 1)
        assert done["rows"] == planned["rows"] == 5 * 9 + 1
        assert len(before & set(table_files(node))) == 4
        assert_reads(node, model)
        assert compacted(spark, node, where="bucket = 'nobody'")["nothing_to_do"] is True

    def test_files_are_chosen_by_time(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        begun = fill_by_turns(node, model, keys(2), rounds=6)
        done = compacted(spark, node, where=between(begun[1], begun[5]))
        assert (done["files_before"], done["files_read"], done["files_after"]) == (6, 4, 3)
        assert_reads(node, model)

    def test_conditions_on_other_columns_are_refused(self, spark: SparkSession, node: Node) -> None:
        with pytest.raises(JobRefused, match="not chosen by tag"):
            compacted(spark, node, where="tag = 'x'")
        with pytest.raises(JobRefused, match="where: expected AND"):
            compacted(spark, node, where="bucket = 'a' OR bucket = 'b'")


def listing_place(node: Node) -> Any:
    from headwater.spark.lake_listing import listed

    return listed(Calls(node.url), 0).place
