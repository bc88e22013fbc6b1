"""The streaming read of `format("headwater")`: micro-batches by position, as large as asked for, lag in sight.

Owns the meeting with Spark's streaming API. Never keeps anything: Spark's offset says all (see `offsets`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from headwater.spark.matching import check_match
from headwater.spark.node import Node
from headwater.spark.offsets import Offset, Past, offset_of
from headwater.spark.options import EARLIEST, LATEST
from headwater.spark.planning import Loss, first_position, furthest, head_of, judge, looked_at, plan
from headwater.spark.ranges import Range
from headwater.spark.resuming import resume
from headwater.spark.rows import check, stored
from headwater.spark.source import batches_of, partitions_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("headwater.spark")

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
        self._matched = self._warned = False
        self._selection = self._options.selection.spelled()

    @property
    def _node(self) -> Node:
        if self._options.node is None:
            raise ValueError("a streaming read without a node")
        return self._options.node

    def initialOffset(self) -> Document:
        self._check_match()
        node, head = looked_at(self._options, self._node)
        start = first_position(self._options, node, head, LATEST)
        behind = start < head.position and not isinstance(self._options.starting, int)
        began = head.position if behind else None
        return head.offset(start)._replace(began=began, selection=self._selection).json()

    def _check_match(self) -> None:
        """Once in a run: streams may well come later."""
        if not self._matched:
            self._matched = True
            check_match(self._options, self._node)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        return ReadAllAvailable() if self._options.bytes_max is None else ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        self._check_match()
        before = offset_of(start)
        node, head, at = resume(self._node, before, self._options.fail_on_loss)
        end = head.position if self._target is None else min(self._target, head.position)
        moved = at != before.position
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows_max is not None and rows_max == self._options.rows_max:
            # Spark passes on one limit; the other one is in the options all the same.
            bytes_max = self._options.bytes_max

        def reach(low: int, high: int) -> int:
            return min(furthest(self._options, node, low, head._replace(position=high), rows_max, bytes_max), high)

        began = before.began if before.began is not None and at < before.began else None
        made = head.offset(at)._replace(after=at if moved else None, began=began, selection=self._selection)
        past = self._past(before)
        if past is not None and past.until < at:
            return made._replace(past=past._replace(until=reach(past.until, at))).json()
        if end > at:
            return made._replace(position=reach(at, end)).json()
        # Without a record more it is still another offset when it says for the first time which log it is of.
        return made.json() if moved or before.log != head.log else start

    def _past(self, before: Offset) -> Past | None:
        """What is to be read of streams that the query did not read before. Raises BadOptions."""
        was, now = before.selection, self._selection
        if was is None or was == now:
            return before.past
        if before.past is not None and before.past.until < before.position:
            raise asked.BadOptions(
                f"the query still reads the past of streams that it did not read before: let it come to its end with "
                f"{shown(was)}, then read {shown(now)}"
            )
        if self._options.added_from == EARLIEST:
            asked.selection_of(was)  # complains now if it cannot be told
            return Past(was, 0)
        if self._warned:
            return None
        self._warned = True
        log.warning(
            "this query read %s before, and reads %s now: of streams that it did not read before, records up to "
            "position %d are left out. Set addedStreams to earliest to have them read, too",
            shown(was),
            shown(now),
            before.position,
        )
        return None

    def reportLatestOffset(self) -> Document:
        return Offset(head_of(self._node).position).json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = head_of(self._node).position

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        before, until = offset_of(start), offset_of(end)
        if until.past is not None:
            return self._past_partitions(before, until, until.past)
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

    def _past_partitions(self, before: Offset, until: Offset, past: Past) -> Sequence[InputPartition]:
        node, head, reached = resume(self._node, until, self._options.fail_on_loss)
        after = before.past.until if before.past is not None and before.past.of == past.of else 0
        added = replace(self._options.selection, minus=asked.selection_of(past.of))
        wanted = Range(min(after, reached), min(past.until, reached))
        options = self._options._replace(selection=added)
        # From the earliest record on: what is gone was gone before anybody asked for it.
        return partitions_of(plan(options, node, wanted, stored(self._schema), head))

    def _is_loss(self, loss: Loss, wanted: Range, until: Offset) -> bool:
        """A read from the earliest record on misses nothing that was gone before it began."""
        if until.began is not None:
            return wanted.after > 0 and loss.at > until.began
        return wanted.after > 0 or self._options.starting != EARLIEST

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition, self._schema)

    def commit(self, end: Document) -> None:
        """Nothing to do: a node keeps no state for a query."""


def shown(selection: Mapping[str, str]) -> str:
    """A choice of streams in words."""
    return " and ".join(f"{name} {value}" for name, value in selection.items()) or "every stream"
