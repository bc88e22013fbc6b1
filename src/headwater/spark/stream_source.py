"""The streaming read of `format("headwater")`: micro-batches by position, as large as asked for, and their lag.

What Spark's streaming API calls. Keeps nothing between batches: Spark's offset says all (see `offsets`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
from headwater.spark.group_states import (
    Head,
    Heads,
    Loss,
    Question,
    State,
    ends_of,
    heads_in,
    heads_of,
    look,
    offset_at,
)
from headwater.spark.lag import Waiting, rows_within, waiting
from headwater.spark.matching import check_match
from headwater.spark.node import Node
from headwater.spark.offsets import Offset, Past, offset_of
from headwater.spark.options import EARLIEST, LATEST
from headwater.spark.parsing import check_columns, columns_of
from headwater.spark.planning import first_positions, furthest, judge, looked_at, plan, with_bounds
from headwater.spark.ranges import FAR, Positions, Range, limits_by_group
from headwater.spark.resuming import Resumed, resume
from headwater.spark.same_versions import Checked
from headwater.spark.source import batches_of, partitions_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("headwater.spark")

Document = dict[str, Any]
"""An offset as Spark keeps it (see `offsets`)."""


class _Planned(NamedTuple):
    """What the node said when a batch was cut: Spark asks for its partitions next."""

    end: Document
    starts: Positions
    resumed: Resumed


class StreamReader(Checked, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises BadOptions when it is made."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = asked.for_streaming(given)
        check_columns(schema, self._options.parse_mode)
        self._schema = schema
        self._target: Positions = {}
        """Where a query with an end ends, by group."""
        self._heads: dict[int, Head] | None = None
        """How far the groups were when the node was last asked."""
        self._planned: _Planned | None = None
        self._matched = self._warned = False
        self._selection = self._options.selection.spelled()
        self._choice = self._options.selection.choice()
        self._lag: dict[str, Any] | None = None
        """What waited when the last offset was asked for."""
        self._waiting_since_s: float | None = None
        """When a batch began to wait for more records."""
        self._left: Positions = {}
        """How many records each group had left then, as far as that was counted."""

    @property
    def _node(self) -> Node:
        if self._options.node is None:
            raise ValueError("a streaming read without a node")
        return self._options.node

    def initialOffset(self) -> Document:
        self._check_match()
        node, heads = looked_at(self._options, self._node)
        self._heads = heads
        options = with_bounds(self._options, node, heads, LATEST)
        starts = first_positions(options, node, heads, LATEST)
        began = {} if isinstance(options.starting, Mapping) else ends_of(heads)
        made = offset_at(heads, starts)._replace(began=_ahead(began, starts), selection=self._selection)
        return made._replace(bounds=options.bounds if _ahead(ends_of(heads), starts) else None).json()

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
        past = self._past(before)
        lows = dict(before.positions)
        if past is not None:
            until = {group: past.until.get(group, 0) for group in lows}
            past = past._replace(until=until) if _ahead(lows, until) else None
            lows = lows if past is None else until
        rows_max, bytes_max = self._limits(limit)
        if self._heads is None and (rows_max is not None or bytes_max is not None):
            self._heads = heads_of(self._node)
        highs = before.positions if past is not None else self._ends(self._heads or {})
        questions = _questions(lows, highs, rows_max, bytes_max, self._left)
        resumed = self._resumed(before, questions)
        heads, at = heads_in(resumed.states), resumed.positions
        self._heads = heads
        found = waiting(resumed.states, lows)
        self._left = _left(resumed.states, lows)
        moved = {group: position for group, position in at.items() if position != before.positions.get(group)}
        if moved and past is None:
            lows = at
        elif past is None and _is_quiet(found, resumed.states, lows) and _same_logs(before, heads):
            # Nothing that is asked for came. The offset follows, without a task, when its records have settled: what
            # lies between is not looked through again and again.
            self._lag = found.told(_now_ms(), 0)
            return start
        elif past is None and not moved and self._waits(found):
            self._lag = found.told(_now_ms(), 0)
            return start
        highs = at if past is not None else self._ends(heads)
        made = offset_at(heads, at)._replace(
            after=moved, began=_ahead(before.began, at), selection=self._selection, past=past
        )
        if before.bounds is not None and _ahead(before.bounds.heads, at):
            made = made._replace(bounds=before.bounds)
        if _ahead(highs, lows):
            resumed, reached = self._reached(resumed, questions, lows, highs, (rows_max, bytes_max))
            if past is not None:
                made = made._replace(past=past._replace(until=reached))
            else:
                made = made._replace(positions=reached)
        elif not moved and set(at) == set(before.positions) and _same_logs(before, heads):
            # Without a record more it is another offset only when it says for the first time of which logs it is.
            return start
        self._planned = _Planned(made.json(), lows, resumed)
        self._lag = found.told(_now_ms(), self._taken(resumed, questions, made.positions, found))
        return made.json()

    def _waits(self, found: Waiting) -> bool:
        """There are fewer records than a batch is to have at least, and it has not waited long enough for more."""
        fewest = self._options.rows_min
        if fewest is None or self._target or not found.is_certain or found.rows_count >= fewest:
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()
        if (time.monotonic() - self._waiting_since_s) * 1000 < self._options.delay_ms:
            return True
        self._waiting_since_s = None
        return False

    def _resumed(self, before: Offset, questions: Mapping[int, Question]) -> Resumed:
        options = self._options
        return resume(self._node, before, options.fail_on_loss, options.place, questions, self._choice)

    def _taken(self, resumed: Resumed, questions: Mapping[int, Question], ends: Positions, found: Waiting) -> int:
        """How many records a batch has, about."""
        left = 0
        for group, question in questions.items():
            state, end = resumed.states.get(group), ends.get(group, 0)
            if state is None or state.matched is None or end >= state.head.position:
                continue
            if state.listing is None:
                left += max(state.matched.rows_count - state.cut_rows, 0)
                continue
            left += sum(
                rows_within(file.chosen_rows, file.range, Range(max(end, question.after), state.listing.position))
                for file in state.listing.files
            )
            if end <= state.listing.position:
                left += state.matched.rows_count
        return max(found.rows_count - left, 0)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Rows and bytes at most."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows_max is not None and rows_max == self._options.rows_max:
            # Spark passes on one limit; the other one is in the options all the same.
            bytes_max = self._options.bytes_max
        return rows_max, bytes_max

    def _ends(self, heads: Heads) -> dict[int, int]:
        return {group: min(self._target.get(group, FAR), head.position) for group, head in heads.items()}

    def _reached(
        self,
        resumed: Resumed,
        questions: Mapping[int, Question],
        lows: Positions,
        highs: Positions,
        limits: tuple[int | None, int | None],
    ) -> tuple[Resumed, dict[int, int]]:
        """How far each group goes in a batch: together within the limits, and at least one of them further."""
        place = self._options.place
        if all(questions.get(group) == Question(low) for group, low in lows.items()):
            return resumed, {group: max(low, highs[group]) for group, low in lows.items()}
        for _ in range(2):
            reached = {
                group: furthest(
                    resumed.node, place, group, resumed.states[group], questions[group], highs[group], self._choice
                )
                if group in questions and questions[group].after == low and not _is_nothing(questions[group])
                else low
                for group, low in lows.items()
            }
            if _ahead(reached, lows):
                break
            # The limits were shared out by what the groups had left when they were last asked.
            questions = _questions(lows, highs, *limits, self._left)
            resumed = resumed._replace(states=look(resumed.node, place, questions, self._choice))
        return resumed, reached

    def _past(self, before: Offset) -> Past | None:
        """What is to be read of streams that the query did not read before. Raises BadOptions."""
        was, now = before.selection, self._selection
        if was is None or was == now:
            return before.past
        if before.past is not None and _ahead(before.positions, before.past.until):
            raise asked.BadOptions(
                f"the query still reads the past of streams that it did not read before: let it come to its end with "
                f"{shown(was)}, then read {shown(now)}"
            )
        if self._options.added_from == EARLIEST:
            asked.selection_of(was)  # raises now if it cannot be told
            return Past(was, {})
        if self._warned:
            return None
        self._warned = True
        log.warning(
            "this query read %s before, and reads %s now: of streams that it did not read before, records up to %s "
            "are left out. Set addedStreams to earliest to have them read, too",
            shown(was),
            shown(now),
            _places(before.positions),
        )
        return None

    def reportLatestOffset(self) -> Document:
        # Spark asks for it right after the latest offset.
        found = Offset(ends_of(self._heads or heads_of(self._node))).json()
        return found if self._lag is None else {**found, "lag": self._lag}

    def prepareForTriggerAvailableNow(self) -> None:
        self._heads = heads_of(self._node)
        self._target = ends_of(self._heads)

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        before, until = offset_of(start), offset_of(end)
        options = self._options._replace(bounds=until.bounds)
        if until.past is not None:
            # From the earliest record on: what is gone was gone before the query began.
            minus = replace(options.selection, minus=asked.selection_of(until.past.of))
            options = options._replace(selection=minus, bounds=None)
        resumed, wanted = self._wanted(before, until, end)
        states = {
            group: state for group, state in resumed.states.items() if group in wanted and not wanted[group].empty
        }
        planned = plan(options, resumed.node, wanted, columns_of(self._schema, options.parse_mode), states)
        if until.past is None:
            judge(
                [loss for loss in planned.losses if self._is_loss(loss, wanted[loss.group], until)],
                options.selection,
                {group: span.after for group, span in wanted.items()},
                options.fail_on_loss,
            )
        return partitions_of(planned, options)

    def _wanted(self, before: Offset, until: Offset, end: Document) -> tuple[Resumed, dict[int, Range]]:
        """What the batch is to read, and what the node says of it."""
        if until.past is not None:
            same = before.past is not None and before.past.of == until.past.of
            starts = dict(before.past.until) if before.past is not None and same else {}
            ends = until.past.until
        else:
            starts, ends = {**before.positions, **until.after}, until.positions
        starts = {group: starts.get(group, 0) for group in ends}
        kept = self._planned
        if kept is not None and kept.end == end and kept.starts == starts:
            return kept.resumed, {group: Range(start, max(start, ends[group])) for group, start in starts.items()}
        questions = {group: Question(start) for group, start in starts.items()}
        resumed = self._resumed(until, questions)
        wanted = {}
        for group, reached in resumed.positions.items():
            # Of a batch that was planned before the log was set back only what both histories share can be read again.
            last = min(ends.get(group, 0), reached)
            wanted[group] = Range(min(starts.get(group, 0), last), last)
        return self._asked_again(resumed, wanted, questions), wanted

    def _asked_again(self, resumed: Resumed, wanted: Mapping[int, Range], questions: Mapping[int, Question]) -> Resumed:
        """The same, once the node has answered for what is wanted after all."""
        if all(span.empty or questions.get(group) == Question(span.after) for group, span in wanted.items()):
            return resumed
        again = {group: Question(span.after) for group, span in wanted.items() if not span.empty}
        return resumed._replace(states=look(resumed.node, self._options.place, again, self._choice))

    def _is_loss(self, loss: Loss, wanted: Range, until: Offset) -> bool:
        """A read from the earliest record on misses nothing that was gone before it began."""
        began = until.began.get(loss.group)
        if began is not None:
            return wanted.after > 0 and loss.at > began
        return wanted.after > 0 or self._options.starting != EARLIEST

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(partition, self._schema, self._options.parse_mode)

    def commit(self, end: Document) -> None:
        """Nothing to do: a node keeps no state for a query."""


def shown(selection: Mapping[str, str]) -> str:
    """A choice of streams in words."""
    return " and ".join(f"{name} {value}" for name, value in selection.items()) or "every stream"


def _questions(
    lows: Positions, highs: Positions, rows_max: int | None, bytes_max: int | None, rows: Positions
) -> dict[int, Question]:
    """What is asked of each group: its share of the limits, by how much it has left, in records where these are known.

    A group that had none left counts as if it had one: there may be some by now."""
    left = {group: max(highs.get(group, 0) - low, 0) for group, low in lows.items()}
    if lows.keys() <= rows.keys() and any(rows.values()):
        left = {group: rows[group] + 1 for group in lows}
    if not any(left.values()):
        left = dict.fromkeys(lows, 1)  # nothing better is known
    counts, sizes = (None if most is None else limits_by_group(most, left) for most in (rows_max, bytes_max))
    return {
        group: Question(low, None if counts is None else counts[group], None if sizes is None else sizes[group])
        for group, low in lows.items()
    }


def _left(states: Mapping[int, State], lows: Positions) -> dict[int, int]:
    """How many records each group has left, of those where that was counted."""
    found = {group: waiting(states, {group: low}) for group, low in lows.items()}
    return {group: one.rows_count for group, one in found.items() if one.is_certain}


def _is_quiet(found: Waiting, states: Mapping[int, State], lows: Positions) -> bool:
    """Nothing of what is read came, and everything since is in memory."""
    settled = any(state.listing is not None for state in states.values())
    return found.is_certain and not found.rows_count and not settled and set(states) == set(lows)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _is_nothing(question: Question) -> bool:
    """A limit too small to be shared out over all groups leaves nothing to some."""
    return 0 in (question.rows_max, question.bytes_max)


def _ahead(positions: Positions, of: Positions) -> dict[int, int]:
    """Those of the positions that are after the others."""
    return {group: position for group, position in positions.items() if position > of.get(group, 0)}


def _same_logs(before: Offset, heads: Heads) -> bool:
    return {group: log.id for group, log in before.logs.items()} == {group: one.log.id for group, one in heads.items()}


def _places(positions: Positions) -> str:
    """In words."""
    if len(positions) == 1:
        return f"position {next(iter(positions.values()))}"
    return "positions " + ", ".join(f"{position} of group {group}" for group, position in sorted(positions.items()))
