"""The streaming read of `format("headwater")`: micro-batches by position, as large as asked for, lag in sight.

Owns the meeting with Spark's streaming API. Never keeps anything: Spark's offset, `{"0": position}`, says all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headwater.spark import options as asked
from headwater.spark.node import Node, NodeError
from headwater.spark.options import EARLIEST, GROUP, LATEST
from headwater.spark.planning import Loss, first_position, furthest, head_of, judge, losses, plan
from headwater.spark.ranges import Range
from headwater.spark.rows import check, stored
from headwater.spark.source import batches_of, partitions_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Offset = dict[str, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises BadOptions when it is made."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = asked.for_streaming(given)
        check(schema)
        self._schema = schema
        self._target: int | None = None
        """Where a query with an end ends."""
        self._gone_before: dict[int, int] = {}
        """What streams had let go of when the query first began: incarnation and position. No loss to it."""

    @property
    def _node(self) -> Node:
        if self._options.node is None:
            raise ValueError("a streaming read without a node")
        return self._options.node

    def initialOffset(self) -> Offset:
        start = first_position(self._options, self._node, LATEST)
        if not isinstance(self._options.starting, int):
            self._gone_before = {loss.incarnation: loss.position for loss in losses(self._node, start)}
        return {GROUP: start}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        return ReadAllAvailable() if self._options.bytes_max is None else ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        head = head_of(self._node)
        if self._target is not None:
            head = head._replace(position=min(self._target, head.position))
        at = start[GROUP]
        if head.position <= at:
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows_max is not None and rows_max == self._options.rows_max:
            # Spark passes on one limit; the other one is in the options all the same.
            bytes_max = self._options.bytes_max
        return {GROUP: furthest(self._options, self._node, at, head, rows_max, bytes_max)}

    def reportLatestOffset(self) -> Offset:
        return {GROUP: head_of(self._node).position}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = head_of(self._node).position

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        wanted = Range(start[GROUP], end[GROUP])
        head = head_of(self._node)
        if wanted.until > head.position:
            raise NodeError(
                f"the checkpoint is at position {wanted.until}, and {self._node.url} only at {head.position}: it is "
                "another node, or one that lost its data. Name the right one, or begin with a new checkpoint"
            )
        planned = plan(self._options, self._node, wanted, stored(self._schema))
        judge(
            [loss for loss in planned.losses if self._is_loss(loss, wanted)],
            self._options.selection,
            wanted.after,
            self._options.fail_on_loss,
        )
        return partitions_of(planned)

    def _is_loss(self, loss: Loss, wanted: Range) -> bool:
        """A read from the earliest record on misses nothing that was gone before it began."""
        from_earliest = wanted.after == 0 and self._options.starting in (None, EARLIEST)
        return not from_earliest and loss.position > self._gone_before.get(loss.incarnation, 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Nothing to do: a node keeps no state for a query."""
