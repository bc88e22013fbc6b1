"""What a driver does for a read: where it begins and ends, what was lost before it, and who reads which part.

Owns the decisions, group by group. Never reads a payload.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from headwater.spark.group_states import (
    Head,
    Heads,
    Loss,
    Question,
    State,
    asked_of,
    ends_of,
    heads_of,
    listed,
    look,
    losses,
    seen_in,
)
from headwater.spark.lake_file import LakeFile
from headwater.spark.lake_place import Place
from headwater.spark.lake_table import table_files
from headwater.spark.node import DataLoss, LogChanged, Node, NodeError
from headwater.spark.options import EARLIEST, LATEST, BadOptions, Options, of_each
from headwater.spark.ranges import FAR, Piece, Positions, Range, part_bytes, reach, share_out
from headwater.spark.reading import Task, Trims, Work, feed, live_pieces
from headwater.spark.selection import Selection
from headwater.spark.stream_bounds import BadDocument, Bounds, Edge, located

PLANS_MAX = 20
"""Files that change while they are planned on are looked at again."""
HOT_PART_BYTES = 32 << 20
SMALL_BYTES = 8 << 20
"""Tasks that together are no more than this are one partition: each costs 35–40 ms before its first row."""
LOSSES_SHOWN = 10
CLOCK_SLACK_MS = 60_000

log = logging.getLogger("headwater.spark")


def looked_at(options: Options, node: Node) -> tuple[Node, dict[int, Head]]:
    """Where the groups are, and the node as one that answers for these logs alone. Raises DataLoss for other logs.

    Those are ones which do not have the positions that the options name, as far as they say of which logs these are.
    """
    for seen in options.expected:
        try:
            heads_of(node.expecting(seen))
        except LogChanged as changed:
            raise DataLoss(
                f"{node.url}: {changed.message}. startingOffsets, endingOffsets or asOfPosition names a position "
                "of that log: name its node, or leave it out"
            ) from changed
    heads = heads_of(node)
    return node.expecting(seen_in(heads)), heads


# ---- where it begins and ends ------------------------------------------------------------------------------------


def first_positions(options: Options, node: Node, heads: Heads, default: str) -> dict[int, int]:
    """The positions after which a new read begins. Raises BadOptions for one that the node has not reached."""
    if options.starting_ms is not None:
        return {group: position_at(node, group, options.place, options.starting_ms) for group in heads}
    if options.stream_starts:
        return _first_of_streams(options, node, heads, default)
    starting = default if options.starting is None else options.starting
    if starting == EARLIEST:
        return dict.fromkeys(heads, 0)
    return ends_of(heads) if isinstance(starting, str) else reached("startingOffsets", starting, heads)


def _first_of_streams(options: Options, node: Node, heads: Heads, default: str) -> dict[int, int]:
    """The same where single streams begin elsewhere: not behind any of them."""
    edges = [*(options.stream_starts or {}).values(), *([Edge(EARLIEST)] if default == EARLIEST else [])]
    if any(edge.kind in (EARLIEST, "offset") for edge in edges):
        return dict.fromkeys(heads, 0)
    moments = [edge.value for edge in edges if edge.kind == "ms"]
    if not moments:
        return ends_of(heads)
    return {group: position_at(node, group, options.place, min(moments)) for group in heads}


def with_bounds(options: Options, node: Node, heads: Heads, default: str) -> Options:
    """The options with what they say of single streams, held against the node. Raises BadOptions, DataLoss."""
    starts, ends = options.stream_starts or {}, options.stream_ends or {}
    if not starts and not ends and options.ending_ms is None:
        return options
    try:
        starts = located(node, starts, "startingOffsets", options.fail_on_loss)
        ends = located(node, ends, "endingOffsets", options.fail_on_loss)
    except BadDocument as bad:
        raise BadOptions(str(bad)) from None
    others = Edge(LATEST) if starts and default == LATEST else None
    others_end = None if options.ending_ms is None else Edge("ms", options.ending_ms)
    return options._replace(bounds=Bounds(starts, others, ends, others_end, ends_of(heads) if starts else {}))


def last_positions(options: Options, heads: Heads) -> dict[int, int]:
    ending = options.ending
    return ends_of(heads) if isinstance(ending, str) else reached("endingOffsets", ending, heads)


def reached(name: str, given: Positions, heads: Heads) -> dict[int, int]:
    """The positions, if the node has got there. Raises BadOptions."""
    for group, position in of_each(name, given, heads).items():
        head = heads[group].position
        if position > head:
            raise BadOptions(
                f"{name} is position {position} of group {group}, and the node is at {head}: is it another node's?"
            )
    return dict(given)


def position_at(node: Node, group: int, place: Place | None, ms: int) -> int:
    """The position before that of a group's first record of `ms` or later; where it is now when there is none.

    Files are in order of time as they are in order of position: a bisection reads the times of a few of them.
    """
    head = heads_of(node)[group]
    listing = listed(node, group, place, head)
    found: int | None = None
    if listing.files:
        store = listing.place.store()
        # Nothing in a file is younger than the file.
        files = [file for file in listing.files if file.modified_ms >= ms - CLOCK_SLACK_MS]
        files.sort(key=lambda file: (file.position_max, file.position_min))
        low, high = 0, len(files)
        firsts: dict[int, int | None] = {}
        while low < high:
            middle = (low + high) // 2
            firsts[middle] = _first_in(LakeFile(store, files[middle].path), ms)
            low, high = (low, middle) if firsts[middle] is not None else (middle + 1, high)
        if low < len(files):
            found = firsts[low]
            # A flush that took some streams further than others makes files overlap: look at those too.
            for index in range(low + 1, len(files)):
                if found is not None and files[index].position_min < found:
                    other = firsts[index] if index in firsts else _first_in(LakeFile(store, files[index].path), ms)
                    found = found if other is None else min(found, other)
    if found is not None and found <= listing.position:
        return found - 1
    at, until = listing.position, head.position if found is None else found - 1
    while at < until:
        answer = feed(node, group, at, until, None, ("ts_ms", "position"))
        if answer is None:
            return position_at(node, group, place, ms)  # settled meanwhile
        late = answer.rows.filter(pc.greater_equal(answer.rows["ts_ms"], ms))
        if len(late):
            return int(pc.min(late["position"]).as_py()) - 1
        at = max(answer.position, at + 1)
    return until


def _first_in(file: LakeFile, ms: int) -> int | None:
    """The least position of a record of that time or later."""
    found = None
    for _, rows in file.rows(["ts_ms", "position"]):
        least = pc.min(rows.filter(pc.greater_equal(rows["ts_ms"], ms))["position"]).as_py()
        if least is not None:
            found = least if found is None else min(found, least)
    return found


def furthest(
    node: Node,
    place: Place | None,
    group: int,
    state: State,
    question: Question,
    end: int,
    choice: Mapping[str, Any] | None = None,
) -> int:
    """How far from `question.after` a batch within its limit goes, `end` at most: about, in files, exactly in memory.

    Always after it when there is anything after it.
    """
    start = question.after
    if not question.is_limited or start >= end:
        return max(start, end)
    at, cut = start, state.cut
    if state.listing is not None:
        settled = Range(at, min(state.listing.position, end))
        at, rows, size = reach(state.listing.files, settled, question.rows_max, question.bytes_max)
        left = [
            None if limit is None else limit - much
            for limit, much in ((question.rows_max, rows), (question.bytes_max, size))
        ]
        if at < settled.until or at >= end or any(one is not None and one <= 0 for one in left):
            return at
        found = state.matched
        if found is not None:
            much = (found.rows_count, found.payload_bytes)
            fits = all(limit is None or some <= limit for some, limit in zip(much, left, strict=True))
            if fits or at > start:
                # One call has to do: what does not fit behind the files is for the next batch.
                return max(at, min(end, found.within.until)) if fits else at
        cut = look(node, place, {group: Question(at, *left)}, choice)[group].cut
    if cut is not None:
        return min(cut, end)
    if at > start:
        return at
    # These records are just settling: the lake has them when it is asked again.
    state = look(node, place, {group: question}, choice)[group]
    return furthest(node, place, group, state, question, end, choice)


# ---- what was lost -----------------------------------------------------------------------------------------------


def judge(found: Sequence[Loss], selection: Selection, starts: Positions, fail: bool) -> None:
    """Raises DataLoss, or tells the log, when streams of the selection lost what a read from there was to have."""
    mine = [loss for loss in found if selection.takes(loss.bucket, loss.stream)]
    if not mine:
        return
    shown = "; ".join(
        f"{loss.bucket}/{loss.stream} (incarnation {loss.incarnation}): positions "
        f"({starts[loss.group]}, {loss.position}] of group {loss.group}, its earliest offset left is "
        f"{loss.earliest:020d}"
        for loss in mine[:LOSSES_SHOWN]
    )
    more = f"; and {len(mine) - LOSSES_SHOWN} more" if len(mine) > LOSSES_SHOWN else ""
    text = f"{len(mine)} streams have let go of records that this read was to have: {shown}{more}"
    if fail:
        raise DataLoss(f"{text}. To go on without them set failOnDataLoss to false")
    log.warning("%s", text)


def _trims(found: list[Loss]) -> Trims | None:
    if not found:
        return None
    found = sorted(found, key=lambda loss: loss.incarnation)
    return (
        np.array([loss.incarnation for loss in found], dtype=np.int64),
        np.array([loss.earliest for loss in found], dtype=np.int64),
    )


# ---- who reads what ----------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    work: Work
    tasks: list[Task]
    losses: list[Loss]
    """Known when the files were looked at."""

    def partitions(self, parts_min: int | None) -> list[list[Task]]:
        return packed(self.tasks) if parts_min is None else [[task] for task in self.tasks]


class _Part(NamedTuple):
    """What one group is to be read: pieces of files up to a position, and what follows."""

    group: int
    pieces: list[Piece]
    settled: Range
    hot: Range
    state: State
    losses: list[Loss]
    place: Place | None


def plan(
    options: Options,
    node: Node,
    wanted: Mapping[int, Range],
    columns: list[str],
    states: Mapping[int, State] | None = None,
) -> Plan:
    """Tasks that together read the ranges, each record once. `until` of each is at most where the group is.

    `states` are what the groups answered when they were asked about records after the beginnings of these ranges.
    """
    work = Work(node, options.place, options.selection, tuple(columns), None, options.bounds, options.where)
    wanted = {group: span for group, span in wanted.items() if not span.empty}
    if not wanted:
        return Plan(work, [], [])
    if states is None:
        questions = asked_of({group: span.after for group, span in wanted.items()})
        states = look(node, options.place, questions, options.selection.choice())
    parts = [_part(options, node, group, span, states[group]) for group, span in wanted.items()]
    total = sum(piece.file.size_bytes for part in parts for piece in part.pieces)
    size = part_bytes(total, options.parts_min, os.cpu_count() or 1)
    tasks = [task for part in parts for task in (*tasks_of(part.group, part.pieces, part.settled, size), *_hot(part))]
    place = next((part.place for part in parts if part.place is not None), options.place)
    settled = [loss for part in parts if part.place is not None for loss in part.losses]
    found = [loss for part in parts for loss in part.losses]
    return Plan(work._replace(place=place, trims=_trims(settled)), tasks, found)


def _part(options: Options, node: Node, group: int, wanted: Range, state: State) -> _Part:
    for _ in range(PLANS_MAX):
        listing = state.listing
        if listing is None:
            none = Range(wanted.after, wanted.after)
            # Where the lake is further, and no file has anything behind the beginning, there is nothing up to there.
            after = wanted.after if state.matched is None else max(wanted.after, state.matched.within.after)
            hot = Range(min(after, wanted.until), wanted.until)
            hot = none if state.is_empty(hot) else hot
            return _Part(group, [], none, hot, state, state.losses, None)
        settled = Range(wanted.after, min(wanted.until, listing.position))
        files = [file for file in listing.files if file.meets(settled) and file.matched_rows != 0]
        if options.where is not None:
            files = [file for file in files if not options.where.rules_out(file.bounds)]
        earliest_ms = None if options.where is None else options.where.earliest_ms()
        if earliest_ms is not None:
            # Of a file whose times are not known: nothing in it is younger than the file.
            files = [file for file in files if file.modified_ms >= earliest_ms - CLOCK_SLACK_MS]
        pieces = live_pieces(node, files)
        if pieces is not None:
            # What left the files before it was asked which of their rows are live is among the losses.
            masked = any(piece.live is not None for piece in pieces)
            found = losses(node, group, wanted.after) if masked else state.losses
            hot = Range(max(wanted.after, listing.position), wanted.until)
            hot = Range(hot.after, hot.after) if state.is_empty(hot) else hot
            return _Part(group, pieces, settled, hot, state, found, listing.place)
        state = look(node, options.place, {group: Question(wanted.after)}, options.selection.choice())[group]
    raise NodeError(f"{node.url}: the lake's files change too fast to plan on them")


def tasks_of(group: int, pieces: list[Piece], wanted: Range, size: float) -> list[Task]:
    """Tasks over files of one group, of about `size` bytes each."""
    return [
        Task(group, wanted, share.pieces, share.whole, None, sum(piece.size_bytes for piece in share.pieces))
        for share in share_out(pieces, wanted, size)
    ]


def _hot(part: _Part) -> Iterator[Task]:
    """Tasks for what memory holds: several when it is much."""
    wanted, width = part.hot, part.hot.until - part.hot.after
    if wanted.empty:
        return
    size = part.state.hot_bytes_in(wanted)
    count = max(1, min(ceil(size / HOT_PART_BYTES), width))
    edges = [wanted.after + width * number // count for number in range(count + 1)]
    for number in range(count):
        span = Range(edges[number], edges[number + 1])
        yield Task(part.group, span, [], None, span, size / count)


def packed(tasks: Sequence[Task]) -> list[list[Task]]:
    """The tasks, in order, with small ones together."""
    parts: list[list[Task]] = []
    size = 0.0
    for task in tasks:
        if parts and size + task.size_bytes <= SMALL_BYTES:
            parts[-1].append(task)
            size += task.size_bytes
        else:
            parts.append([task])
            size = task.size_bytes
    return parts


# ---- a lake without a node -----------------------------------------------------------------------------------------


def plan_table(options: Options, columns: list[str], version: int | None = None) -> Plan:
    """The same from the Delta table alone, or one version of it: all of its rows, also those whose streams are gone."""
    if options.place is None:
        raise ValueError("neither a node nor a lake")
    by_group = table_files(options.place, version)
    starting, ending = options.starting, options.ending
    starts = {} if starting is None or isinstance(starting, str) else of_each("startingOffsets", starting, by_group)
    ends = {} if isinstance(ending, str) else of_each("endingOffsets", ending, by_group)
    wanted = {group: Range(starts.get(group, 0), ends.get(group, FAR)) for group in by_group}
    where = options.where
    pieces = {
        group: [
            Piece(file)
            for file in files
            if file.meets(wanted[group]) and not (where is not None and where.rules_out(file.bounds))
        ]
        for group, files in by_group.items()
    }
    total = sum(piece.file.size_bytes for some in pieces.values() for piece in some)
    size = part_bytes(total, options.parts_min, os.cpu_count() or 1)
    tasks = [task for group, some in pieces.items() for task in tasks_of(group, some, wanted[group], size)]
    others_end = None if options.ending_ms is None else Edge("ms", options.ending_ms)
    bounds = None if others_end is None else Bounds(others_end=others_end)
    return Plan(Work(None, options.place, options.selection, tuple(columns), None, bounds, options.where), tasks, [])
