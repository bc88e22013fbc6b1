"""The streaming read of `format("headwater")`: micro-batches by position, as large as asked for, lag in sight.

Owns the meeting with Spark's streaming API. Never keeps anything: Spark's offset says all (see `offsets`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from headwater.spark.node import Node
from headwater.spark.offsets import Offset, offset_of
from headwater.spark.options import EARLIEST, LATEST
from headwater.spark.planning import Loss, first_position, furthest, head_of, judge, looked_at, plan
from headwater.spark.ranges import Range
from headwater.spark.resuming import resume
from headwater.spark.rows import check, stored
from headwater.spark.source import batches_of, partitions_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Document = dict[str, Any]
"""An offset as Spark keeps it (see `offsets`)."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises BadOptions when it is made."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = asked.for_streaming(given)
        check(schema)
        self._schema = schema
        self._target: int | None = None
        """Where a query with an end ends."""

    @property
    def _node(self) -> Node:
        if self._options.node is None:
            raise ValueError("a streaming read without a node")
        return self._options.node

    def initialOffset(self) -> Document:
        node, head = looked_at(self._options, self._node)
        start = first_position(self._options, node, head, LATEST)
        behind = start < head.position and not isinstance(self._options.starting, int)
        return head.offset(start)._replace(began=head.position if behind else None).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        return ReadAllAvailable() if self._options.bytes_max is None else ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        before = offset_of(start)
        node, head, at = resume(self._node, before, self._options.fail_on_loss)
        end = head.position if self._target is None else min(self._target, head.position)
        moved = at != before.position
        if end <= at and not moved and before.log == head.log:
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows_max is not None and rows_max == self._options.rows_max:
            # Spark passes on one limit; the other one is in the options all the same.
            bytes_max = self._options.bytes_max
        if end > at:
            end = furthest(self._options, node, at, head._replace(position=end), rows_max, bytes_max)
        began = before.began if before.began is not None and at < before.began else None
        # Without a record more it is still another offset: it says for the first time which log it is of.
        return head.offset(max(end, at))._replace(after=at if moved else None, began=began).json()

    def reportLatestOffset(self) -> Document:
        return Offset(head_of(self._node).position).json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = head_of(self._node).position

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        before, until = offset_of(start), offset_of(end)
        node, head, reached = resume(self._node, until, self._options.fail_on_loss)
        after = before.position if until.after is None else until.after
        # Of a batch that was planned before the log was set back only what both histories share can be read again.
        wanted = Range(min(after, reached), reached)
        planned = plan(self._options, node, wanted, stored(self._schema), head)
        judge(
            [loss for loss in planned.losses if self._is_loss(loss, wanted, until)],
            self._options.selection,
            wanted.after,
            self._options.fail_on_loss,
        )
        return partitions_of(planned)

    def _is_loss(self, loss: Loss, wanted: Range, until: Offset) -> bool:
        """A read from the earliest record on misses nothing that was gone before it began."""
        if until.began is not None:
            return wanted.after > 0 and loss.at > until.began
        return wanted.after > 0 or self._options.starting != EARLIEST

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition, self._schema)

    def commit(self, end: Document) -> None:
        """Nothing to do: a node keeps no state for a query."""
