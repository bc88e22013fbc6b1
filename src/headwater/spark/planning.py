"""What a driver does for a read: where it begins and ends, what was lost before it, and who reads which part.

Owns the questions to the node. Never reads a payload.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.store import ObjectMissing, StoreRefused
from headwater.model.lineage import Incarnation
from headwater.spark.lake_file import LakeFile
from headwater.spark.lake_place import Place
from headwater.spark.node import DataLoss, LogChanged, Node, NodeError, NodeRefused, Seen
from headwater.spark.offsets import Offset
from headwater.spark.options import EARLIEST, LATEST, BadOptions, Options
from headwater.spark.ranges import FAR, File, Piece, Range, reach, share_out
from headwater.spark.reading import Listing, Task, Trims, Work, feed, list_files, live_pieces
from headwater.spark.selection import Selection

PLANS_MAX = 20
"""Files that change while they are planned on are looked at again."""
HOT_PART_BYTES = 32 << 20
LOSSES_PAGE = 10_000
LOSSES_SHOWN = 10
CLOCK_SLACK_MS = 60_000

log = logging.getLogger("headwater.spark")


class Head(NamedTuple):
    """How far a node is."""

    position: int
    lake_position: int
    hot_bytes: int
    log: str | None = None
    """None: a node of an earlier version, which does not tell."""
    incarnations: tuple[Incarnation, ...] = ()

    @property
    def seen(self) -> Seen | None:
        return None if self.log is None else Seen(self.log, self.incarnations[-1].id, self.position)

    def offset(self, position: int) -> Offset:
        """A position of this log."""
        return Offset(position, self.log, self.incarnations)


def head_of(node: Node) -> Head:
    """Raises LogChanged when the node is expected to have another log."""
    (group,) = node.groups()
    incarnations = tuple(Incarnation(*one) for one in group.get("incarnations", ()))
    return Head(group["position"], group["lake_position"], group["hot_bytes"], group.get("log"), incarnations)


def looked_at(options: Options, node: Node) -> tuple[Node, Head]:
    """Where the node is, and the node as one that answers for this log alone. Raises DataLoss for another log.

    That is one which does not have the positions that the options name, as far as they say of which log those are.
    """
    for seen in options.expected:
        try:
            head_of(node.expecting(seen))
        except LogChanged as changed:
            raise DataLoss(
                f"{node.url}: {changed.message}. startingOffsets or endingOffsets names a position of that log: name "
                "its node, or leave it out"
            ) from changed
    head = head_of(node)
    return node.expecting(head.seen), head


# ---- where it begins and ends ------------------------------------------------------------------------------------


def first_position(options: Options, node: Node, head: Head, default: str) -> int:
    """The position after which a new read begins. Raises BadOptions for one that the node has not reached."""
    if options.starting_ms is not None:
        return position_at(node, options.place, options.starting_ms)
    starting = default if options.starting is None else options.starting
    if starting == EARLIEST:
        return 0
    if starting == LATEST:
        return head.position
    return _reached("startingOffsets", int(starting), head.position)


def last_position(options: Options, head: Head) -> int:
    return head.position if options.ending == LATEST else _reached("endingOffsets", int(options.ending), head.position)


def _reached(name: str, position: int, head: int) -> int:
    if position > head:
        raise BadOptions(f"{name} is position {position}, and the node is at {head}: is it another node's?")
    return position


def position_at(node: Node, place: Place | None, ms: int) -> int:
    """The position before that of the first record of `ms` or later; where the node is now when there is none.

    Files are in order of time as they are in order of position: a bisection reads the times of a few of them.
    """
    head = head_of(node)
    listing = _listing(node, place, head)
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
        answer = feed(node, at, until)
        if answer is None:
            return position_at(node, place, ms)  # settled meanwhile
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


def furthest(options: Options, node: Node, start: int, head: Head, rows_max: int | None, bytes_max: int | None) -> int:
    """How far from `start` a batch of so many rows or bytes goes: about, in files, and exactly in memory.

    Always after `start` when there is anything after it.
    """
    if rows_max is None and bytes_max is None:
        return head.position
    at = start
    if at < head.lake_position:
        listing = _listing(node, options.place, head)
        settled = Range(at, min(listing.position, head.position))
        at, rows, size = reach(listing.files, settled, rows_max, bytes_max)
        if at < settled.until:
            return at
        rows_max = None if rows_max is None else rows_max - rows
        bytes_max = None if bytes_max is None else bytes_max - size
        if (rows_max is not None and rows_max <= 0) or (bytes_max is not None and bytes_max <= 0):
            return at
    asked = {"from": at, "to": head.position, "max_rows": rows_max, "max_bytes": bytes_max}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    try:
        return int(node.json("GET", f"/__headwater/groups/0/cut?{query}")["position"])
    except NodeRefused as refused:
        if refused.status != 410:
            raise
        # It settles right now. What was found so far is a batch; if that is nothing, the lake has it by the next look.
        return at if at > start else furthest(options, node, start, head_of(node), rows_max, bytes_max)


# ---- what was lost -----------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    bucket: str
    stream: str
    incarnation: int
    position: int
    """Of the newest record that is gone."""
    earliest: int
    """Offset of the oldest one left."""
    at: int
    """Log position at which the stream let go of it, at the latest."""


def losses(node: Node, after: int) -> list[Loss]:
    """Streams that let go of records after a position, in the order of the newest of those."""
    found: dict[int, Loss] = {}
    while True:
        query = urlencode({"after": after, "limit": LOSSES_PAGE})
        try:
            page: dict[str, Any] = node.json("GET", f"/__headwater/groups/0/losses?{query}")
        except NodeRefused as refused:
            if refused.status == 404:
                return []  # a node without a lake: it keeps nothing, and no account of what it let go of
            raise
        for one in page["losses"]:
            facts = (one["bucket"], one["stream"], one["incarnation"], one["position"], int(one["earliest"]))
            loss = Loss(*facts, one.get("at", FAR))
            found[loss.incarnation] = loss
            after = max(after, loss.position)
        if not page["more"]:
            return list(found.values())


def judge(found: list[Loss], selection: Selection, start: int, fail: bool) -> None:
    """Raises DataLoss, or tells the log, when streams of the selection lost what a read from `start` was to have."""
    mine = [loss for loss in found if selection.takes(loss.bucket, loss.stream)]
    if not mine:
        return
    shown = "; ".join(
        f"{loss.bucket}/{loss.stream} (incarnation {loss.incarnation}): positions ({start}, {loss.position}], "
        f"its earliest offset left is {loss.earliest:020d}"
        for loss in mine[:LOSSES_SHOWN]
    )
    more = f"; and {len(mine) - LOSSES_SHOWN} more" if len(mine) > LOSSES_SHOWN else ""
    text = f"{len(mine)} streams have let go of records that a read from position {start} was to have: {shown}{more}"
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


def plan(options: Options, node: Node, wanted: Range, columns: list[str], head: Head | None = None) -> Plan:
    """Tasks that together read the range, each record once. `wanted.until` is at most where the node is."""
    head = head or head_of(node)
    work = Work(node, options.place, options.selection, tuple(columns))
    if wanted.empty:
        return Plan(work, [], [])
    if wanted.after >= head.lake_position:
        return Plan(work, _hot(node, wanted, head), losses(node, wanted.after))
    for _ in range(PLANS_MAX):
        listing = _listing(node, options.place, head)
        settled = Range(wanted.after, min(wanted.until, listing.position))
        pieces = live_pieces(node, [file for file in listing.files if file.meets(settled)])
        if pieces is None:
            continue
        found = losses(node, wanted.after)
        tasks = tasks_of(pieces, settled, options.parts_min)
        hot = Range(max(wanted.after, listing.position), wanted.until)
        if not hot.empty:
            more = _hot(node, hot, head)
            if len(tasks) == 1 and len(more) == 1 and options.parts_min is None:
                tasks = [tasks[0]._replace(hot=hot)] if _small(tasks[0]) else tasks + more
            else:
                tasks += more
        return Plan(work._replace(place=listing.place, trims=_trims(found)), tasks, found)
    raise NodeError(f"{node.url}: the lake's files change too fast to plan on them")


def tasks_of(pieces: list[Piece], wanted: Range, parts_min: int | None) -> list[Task]:
    shares = share_out(pieces, wanted, parts_min, os.cpu_count() or 1)
    return [Task(wanted, share.pieces, share.whole) for share in shares]


def _small(task: Task) -> bool:
    return sum(piece.file.size_bytes for piece in task.pieces) < HOT_PART_BYTES // 4


def _hot(node: Node, wanted: Range, head: Head) -> list[Task]:
    """Tasks for what memory holds: several when it is much."""
    return [Task(part, [], None, part) for part in _hot_parts(node, wanted, head)]


def _hot_parts(node: Node, wanted: Range, head: Head) -> Iterator[Range]:
    at = wanted.after
    while at < wanted.until:
        end = wanted.until
        if head.hot_bytes > 2 * HOT_PART_BYTES:
            query = urlencode({"from": at, "to": wanted.until, "max_bytes": HOT_PART_BYTES})
            try:
                found = node.json("GET", f"/__headwater/groups/0/cut?{query}")["position"]
                end = found if found > at else wanted.until
            except NodeRefused as refused:
                if refused.status != 410:
                    raise  # 410: it settles right now, and the task will find it in the lake
        yield Range(at, end)
        at = end


def _listing(node: Node, place: Place | None, head: Head) -> Listing:
    """The lake's files; none for a node that has no lake, and keeps everything in memory."""
    try:
        return list_files(node, place)
    except NodeRefused as refused:
        if refused.status in (400, 404) and place is None:
            return Listing(head.lake_position, Place("memory:"), [])
        raise


# ---- a lake without a node -----------------------------------------------------------------------------------------


def plan_table(options: Options, columns: list[str]) -> Plan:
    """The same from the Delta table alone: all of its rows, also those whose streams are gone."""
    if options.place is None:
        raise ValueError("neither a node nor a lake")
    wanted = Range(
        options.starting if isinstance(options.starting, int) else 0,
        options.ending if isinstance(options.ending, int) else FAR,
    )
    files = [file for file in table_files(options.place) if file.meets(wanted)]
    tasks = tasks_of([Piece(file) for file in files], wanted, options.parts_min)
    return Plan(Work(None, options.place, options.selection, tuple(columns)), tasks, [])


def table_files(place: Place) -> list[File]:
    """The files of the newest version of the table. Raises StoreError for what is no lake, or cannot be read as one."""
    listed = listed_table(place)
    names = ("path", "size_bytes", "num_records", "min.position", "max.position", "modification_time")
    rows = zip(*(_column(listed, name) for name in names), strict=True)
    return [
        File(path, size, rows_count or 0, rows_count or 0, 1 if low is None else low, FAR if high is None else high, ms)
        for path, size, rows_count, low, high, ms in rows
    ]


def table_names(place: Place) -> dict[str, dict[str, tuple[str, str]]]:
    """Between which buckets and streams the rows of each file lie, as far as the table says. Raises StoreError."""
    listed = listed_table(place)
    found: dict[str, dict[str, tuple[str, str]]] = {path: {} for path in _column(listed, "path")}
    for name in ("bucket", "stream"):
        spans = zip(_column(listed, f"min.{name}"), _column(listed, f"max.{name}"), strict=True)
        for known, (low, high) in zip(found.values(), spans, strict=True):
            if low is not None and high is not None:
                known[name] = (low, high)
    return found


def listed_table(place: Place) -> pa.Table:
    """What the newest version of the table says of its files. Raises StoreError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    store = place.store()
    try:
        table = DeltaTable(store.uri, storage_options=store.storage_options or None)
        features = {"deletionVectors", "columnMapping"} & set(table.protocol().reader_features or ())
        if features:
            raise StoreRefused(
                f"the table at {store.uri} uses {', '.join(sorted(features))}: its files hold rows that do not count. "
                "Read it through its node, or rewrite it without"
            )
        return pa.table(table.get_add_actions(flatten=True))
    except TableNotFoundError:
        raise ObjectMissing(f"_delta_log in {store.uri}: is it the place of a lake?") from None
    except (DeltaError, OSError) as error:
        raise store.explain(error) or StoreRefused(f"{store.uri}: {error}") from error


def _column(listed: pa.Table, name: str) -> list[Any]:
    return list(listed[name].to_pylist()) if name in listed.column_names else [None] * len(listed)
