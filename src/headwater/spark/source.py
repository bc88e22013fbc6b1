"""The batch read of `format("headwater")`: what Spark plans with and what its tasks run.

What Spark's batch API calls. Never plans or reads itself: `planning` and `reading` do.

Spark's filters are not pushed down. Spark (4.3) keeps what was planned for one query's filters with the frame, and runs
other queries of that frame on it: `frame.where(a).union(frame.where(b))` would lose rows of one or the other. The
option `where` takes their place (docs/decisions/0034).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.spark import options as asked
from headwater.spark.matching import check_match
from headwater.spark.options import EARLIEST, Options
from headwater.spark.parsing import check_columns, columns_of, shape_of
from headwater.spark.planning import (
    Plan,
    first_positions,
    judge,
    last_positions,
    looked_at,
    plan,
    plan_table,
    with_bounds,
)
from headwater.spark.ranges import Range
from headwater.spark.reading import Task, Work, rows_of
from headwater.spark.same_versions import Checked
from headwater.spark.time_travel import ending, judge_since, version_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Partition(Checked, InputPartition):
    """Everything a task needs: executors know nothing else of the read."""

    def __init__(self, work: Work, tasks: list[Task]) -> None:
        self.work, self.tasks = work, tasks


def partitions_of(planned: Plan, options: Options) -> list[InputPartition]:
    return [Partition(planned.work, tasks) for tasks in planned.partitions(options.parts_min)]


def batches_of(partition: InputPartition, schema: StructType, mode: str | None) -> Iterator[pa.RecordBatch]:
    """`mode`: what becomes of records that do not fit; None: they are not parsed."""
    if isinstance(partition, Partition):  # Spark makes up a partition of its own where there is none
        shape = shape_of(schema, mode)
        for task in partition.tasks:
            for rows in rows_of(partition.work, task):
                yield from shape.batches(rows)


def plan_batch(options: Options, columns: list[str]) -> Plan:
    """Everything from the read's start to where the node is now, or where it is to end. Raises DataLoss."""
    if options.node is None:
        version = None if options.place is None else version_of(options.place, options)
        return plan_table(options, columns, version)
    node, heads = looked_at(options, options.node)
    check_match(options, node)
    options = with_bounds(options, node, heads, EARLIEST)
    options = ending(options, node, heads)
    starts = first_positions(options, node, heads, EARLIEST)
    ends = last_positions(options, heads)
    planned = plan(options, node, {group: Range(starts[group], ends[group]) for group in heads}, columns)
    if isinstance(options.starting, Mapping):
        lost = [loss for loss in planned.losses if starts[loss.group] > 0]
        judge(lost, options.selection, starts, options.fail_on_loss)
    if options.as_of is not None or options.as_of_ms is not None:
        judge_since(options, node, starts, ends)
    return planned


class Reader(Checked, DataSourceReader):
    """Raises BadOptions when it is made."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = asked.for_batch(given)
        check_columns(schema, self._options.parse_mode)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        columns = columns_of(self._schema, self._options.parse_mode)
        return partitions_of(plan_batch(self._options, columns), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition, self._schema, self._options.parse_mode)
