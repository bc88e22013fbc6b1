"""A read while the lake changes under it: whatever settles, moves and vanishes in between, each record comes once.
The node is a model with real files; between any two calls a group may settle, compact, or take files away. No Spark."""

from __future__ import annotations

import json
import secrets
import tempfile
from array import array
from collections.abc import Iterator
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.lake.layout import SCHEMA, WIDE
from headwater.lake.listing import encode_extents
from headwater.lake.local import LocalStore
from headwater.lake.writer import build
from headwater.model.deletions import Part
from headwater.model.extents import Extent, Run
from headwater.spark.group_states import Question, look
from headwater.spark.node import Answer, NodeRefused
from headwater.spark.options import parse
from headwater.spark.planning import furthest, plan, position_at
from headwater.spark.ranges import Range
from headwater.spark.reading import FilesGone, rows_of
from headwater.spark.rows import schema_of
from headwater.spark.stream_source import StreamReader

COLUMNS = list(SCHEMA.names)
NOTHING, FLUSH, PARTLY, COMPACT = range(4)


class Record(NamedTuple):
    position: int
    sid: int
    seq: int
    offset: int
    payload: bytes


class ModelNode:
    """Groups of a node, as the pipeline calls it."""

    url = "http://model"

    def __init__(self, *groups: ModelGroup) -> None:
        self.parts = groups
        self.owners: dict[int, str] = {}

    def plan(self, asked: dict[int, dict[str, Any]], choice: object = None) -> list[dict[str, Any]]:
        return [group.plan(asked.get(group.number), choice is not None) for group in self.parts]

    def feed(self, group: int, wanted: dict[str, Any]) -> Answer:
        return self.parts[group].feed(wanted["from"], wanted["to"], wanted.get("columns", SCHEMA.names))

    def expecting(self, seen: object) -> ModelNode:
        return self

    def lake_files(self, group: int) -> dict[str, Any]:
        return self.parts[group].lake_files()

    def lake_extents(self, group: int, files: list[str]) -> bytes:
        return self.parts[group].lake_extents(files)

    def json(self, method: str, path: str, body: object = None, *, repeat: bool | None = None) -> Any:
        return self._named(path).json(path)

    def _named(self, path: str) -> ModelGroup:
        assert path.startswith("/__headwater/groups/")
        return self.parts[int(path.split("/")[3])]


class ModelGroup:
    """Streams of one bucket; what is in `hot` is in memory, the rest in one of `files`."""

    def __init__(self, folder: Path, records: list[Record], actions: Iterator[int], number: int = 0) -> None:
        self.number = number
        self.folder = folder
        self.store = LocalStore(folder)
        self.records = records
        self.hot = list(records)
        self.files: dict[str, tuple[list[Record], list[Extent], int, int]] = {}
        """Records, live extents, bytes, rows."""
        self.gone: set[int] = set()
        """Streams that were deleted."""
        self.actions = actions
        self.vanish = True

    # ---- what happens to it ---------------------------------------------------------------------------------------

    def lake_position(self) -> int:
        return min((record.position for record in self.hot), default=self.synced + 1) - 1

    @property
    def synced(self) -> int:
        return self.records[-1].position

    def act(self, action: int) -> None:
        if action == FLUSH and self.hot:
            self.settle(self.hot)
        elif action == PARTLY and self.hot:
            # As the node does: the streams with the oldest records, with everything they hold.
            floors = {record.sid: record.position for record in reversed(self.hot)}
            oldest = sorted(floors, key=floors.__getitem__)[: max(1, len(floors) // 2)]
            self.settle([record for record in self.hot if record.sid in oldest])
        elif action == COMPACT and self.files:
            files = dict(self.files)
            self.write([record for held, *_ in files.values() for record in held if record.sid not in self.gone])
            for path in files:
                del self.files[path]
                if self.vanish:
                    self.store.delete(path)

    def settle(self, records: list[Record]) -> None:
        self.write(records)
        self.hot = [record for record in self.hot if record not in set(records)]

    def write(self, records: list[Record]) -> None:
        if not records:
            return
        runs = []
        for sid, held in groupby(sorted(records, key=lambda record: (record.sid, record.seq)), lambda one: one.sid):
            some = list(held)
            payloads = [record.payload for record in some]
            ends = array("Q", list(accumulate(map(len, payloads), initial=some[0].offset))[1:])
            times, zeros = array("Q", [one.position * 10 for one in some]), array("Q", [0] * len(some))
            positions = array("Q", [one.position for one in some])
            first = (some[0].seq, some[0].offset)
            runs.append(Run(f"model/{sid}", sid, "text/plain", *first, payloads, ends, times, zeros, positions))
        built = build(runs, self.number, secrets.token_hex(8), rows_per_group=8)
        self.store.put(built.file.path, built.data)
        self.files[built.file.path] = (list(records), built.extents, built.file.size_bytes, built.file.row_count)

    def delete(self, sid: int) -> None:
        self.gone.add(sid)
        self.hot = [record for record in self.hot if record.sid != sid]
        for path, (records, extents, size, rows) in list(self.files.items()):
            left = [extent for extent in extents if extent.sid != sid]
            self.files[path] = (records, left, size, rows)
            if not left:
                del self.files[path]

    # ---- what it answers ------------------------------------------------------------------------------------------

    def plan(self, wish: dict[str, Any] | None, chosen: bool) -> dict[str, Any]:
        """As the node does it: the cut first, then the count, then the files, then how far it is."""
        facts: dict[str, Any] = {}
        if wish is not None and "max_rows" in wish:
            start = max(wish["from"], self.lake_position())
            facts["cut"] = {"from": start, **self.cut(start, self.synced, wish["max_rows"])}
        if wish is not None and chosen:
            start = max(wish["from"], self.lake_position())
            held = [one for one in self.hot if one.position > start]
            told = {"rows": len(held), "bytes": sum(len(one.payload) for one in held), "oldest_ms": None}
            facts["matched"] = {"from": start, "position": max(start, self.synced), **told}
            self.act(next(self.actions))
        behind = self.settled if chosen else self.lake_position()
        if wish is not None and wish["from"] < behind:
            facts |= self.lake_files()
            for file in facts["files"] if chosen else ():
                held = [one for one in self.files[file["path"]][0] if one.position > wish["from"]]
                file["matched_rows"] = sum(one.sid not in self.gone for one in held)
        return self.state() | facts | {"losses": [], "more_losses": False}

    def state(self) -> dict[str, Any]:
        self.act(next(self.actions))
        log = {"log": f"{self.number}a", "incarnations": [[f"{self.number}a", 0]]}
        positions = {"position": self.synced, "lake_position": self.lake_position()}
        return {"group": self.number, **log, **positions, "hot_bytes": 10}

    def lake_files(self) -> dict[str, Any]:
        self.act(next(self.actions))
        # The position is taken first, and more may settle before the files are listed: as the node does it.
        position = self.lake_position()
        self.act(next(self.actions))
        listed = []
        for path, (records, extents, size, rows) in sorted(self.files.items()):
            at = [record.position for record in records]
            live = sum(extent.row_count for extent in extents)
            bounds = {"position_min": min(at), "position_max": max(at), "modified_ms": max(at) * 10 + 5}
            listed.append({"path": path, "bytes": size, "rows": rows, "live_rows": live, **bounds})
        return {"group": self.number, "lake_position": position, "lake": {"url": str(self.folder)}, "files": listed}

    def lake_extents(self, files: list[str]) -> bytes:
        self.act(next(self.actions))
        known = (self.files[path][1] for path in sorted(files) if path in self.files)
        return encode_extents(
            Part(extent, False)
            for held in known
            for extent in sorted(held, key=lambda one: (one.row_group, one.row_start))
        )

    def json(self, path: str) -> Any:
        assert "/losses" in path
        return {"losses": [], "more": False}

    def cut(self, after: int, until: int, rows_max: int) -> dict[str, int]:
        taken = [record for record in self.hot if after < record.position <= until]
        by_event = [list(held) for _, held in groupby(taken, lambda record: record.position)]
        rows, position = 0, until
        for number, held in enumerate(by_event):
            if number and rows + len(held) > rows_max:
                position = by_event[number - 1][0].position
                break
            rows += len(held)
        return {"position": position, "rows": rows, "bytes": 0}

    @property
    def settled(self) -> int:
        return max((record.position for held, *_ in self.files.values() for record in held), default=0)

    def feed(self, after: int, until: int, columns: list[str]) -> Answer:
        self.act(next(self.actions))
        self.check_behind_lake(after)
        page = [record for record in self.hot if after < record.position <= until]
        position = until
        if len(page) > 5:  # pages are short here
            position = page[5].position
            page = [record for record in page if record.position <= position]
        headers = {
            "headwater-position": str(position),
            "headwater-lake-position": str(self.lake_position()),
            "headwater-settled-position": str(self.settled),
        }
        schema = pa.schema([WIDE.field(name) for name in columns])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist([self.row(record) for record in page], WIDE).select(columns))
        return Answer(200, headers, sink.getvalue().to_pybytes())

    def check_behind_lake(self, after: int) -> None:
        if after < self.lake_position():
            raise NodeRefused("POST feed", 410, "offset_gone", "", {})

    def row(self, record: Record) -> dict[str, Any]:
        return {
            "bucket": "model",
            "stream": str(record.sid),
            "incarnation": record.sid,
            "seq": record.seq,
            "offset": record.offset,
            "ts_ms": record.position * 10,
            "n": 0,
            "group": self.number,
            "position": record.position,
            "tag": None,
            "node": None,
            "content_type": "text/plain",
            "payload": record.payload,
        }


def history(choices: list[int]) -> list[Record]:
    """An event for each choice, of one stream each, some of several records; positions have gaps as the log's do."""
    records: list[Record] = []
    tails: dict[int, tuple[int, int]] = {}
    for number, choice in enumerate(choices):
        sid = choice % 4 + 1
        for part in range(1 + choice % 3):
            seq, offset = tails.get(sid, (0, 0))
            payload = b"%d.%d" % (number, part)
            records.append(Record(number * 7 + 10, sid, seq, offset, payload))
            tails[sid] = (seq + 1, offset + len(payload))
    return records


def forever(actions: list[int]) -> Iterator[int]:
    """The actions as drawn, then nothing more: a lake that never rests cannot be read."""
    yield from actions
    while True:
        yield NOTHING


def read(node: ModelNode, wanted: dict[int, Range], parts_min: int | None = None) -> list[dict[str, Any]]:
    more = {} if parts_min is None else {"minPartitions": str(parts_min)}
    options = parse({"url": "http://model", **more})._replace(node=node)  # type: ignore[arg-type]
    planned = plan(options, node, wanted, COLUMNS)  # type: ignore[arg-type]
    return [
        row
        for tasks in planned.partitions(parts_min)
        for task in tasks
        for table in rows_of(planned.work._replace(node=node), task)  # type: ignore[arg-type]
        for row in table.to_pylist()
    ]


def assert_read(rows: list[dict[str, Any]], node: ModelNode, wanted: dict[int, Range]) -> None:
    expected = []
    for group in node.parts:
        after, until = wanted[group.number]
        found = (group.row(one) for one in group.records if after < one.position <= until)
        expected += [row for row in found if row["incarnation"] not in group.gone]

    def order(row: dict[str, Any]) -> tuple[int, int, int]:
        return row["group"], row["incarnation"], row["seq"]

    assert sorted(rows, key=order) == sorted(expected, key=order)


choices = st.lists(st.integers(0, 11), min_size=1, max_size=40)
happenings = st.lists(st.integers(NOTHING, COMPACT), max_size=30)
# The lake is ahead of its own position when the read begins; then, behind the listing, more settles or a file goes.
AHEAD = {"choice": [0, 1, 2, 3, 0, 2, 3], "before": [PARTLY], "after": 35, "width": 30, "parts_min": None}


@settings(deadline=None)
@example(**AHEAD, during=[NOTHING, NOTHING, NOTHING, NOTHING, PARTLY])
@example(**AHEAD, during=[NOTHING, NOTHING, NOTHING, NOTHING, COMPACT])
@example(**AHEAD, during=[NOTHING, NOTHING, NOTHING, PARTLY, NOTHING])
@given(choices, happenings, happenings, st.integers(0, 300), st.integers(0, 300), st.sampled_from([None, 1]))
def test_each_record_of_a_range_comes_once_whatever_happens_meanwhile(
    choice: list[int], before: list[int], during: list[int], after: int, width: int, parts_min: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = ModelGroup(Path(folder), history(choice), forever(during))
        for action in before:
            group.act(action)
        wanted = {0: Range(min(after, group.synced), min(after + width, group.synced))}
        node = ModelNode(group)
        assert_read(read(node, wanted, parts_min), node, wanted)


several = st.lists(st.tuples(choices, happenings, happenings, st.integers(0, 300)), min_size=2, max_size=3)


@settings(deadline=None)
@given(several, st.sampled_from([None, 1]))
def test_each_record_of_ranges_of_several_groups_comes_once(
    given: list[tuple[list[int], list[int], list[int], int]], parts_min: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        groups = []
        for number, (choice, before, during, _) in enumerate(given):
            groups.append(ModelGroup(Path(folder), history(choice), forever(during), number))
            for action in before:
                groups[-1].act(action)
        node = ModelNode(*groups)
        ends = [group.synced for group in groups]
        wanted = {number: Range(min(one[3], ends[number]), ends[number]) for number, one in enumerate(given)}
        assert_read(read(node, wanted, parts_min), node, wanted)


@settings(deadline=None)
@given(choices, happenings, happenings, st.integers(1, 4))
def test_records_of_deleted_streams_are_left_out_and_no_others(
    choice: list[int], before: list[int], during: list[int], gone: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = ModelGroup(Path(folder), history(choice), forever(during))
        for action in before:
            group.act(action)
        group.delete(gone)
        node, wanted = ModelNode(group), {0: Range(0, group.synced)}
        assert_read(read(node, wanted), node, wanted)


@settings(deadline=None)
@given(choices, happenings, happenings, st.integers(1, 10), st.sampled_from([None, {}]))
def test_limited_batches_together_are_the_whole_and_none_is_lost_between_them(
    drawn: list[int], before: list[int], during: list[int], rows_max: int, choice: dict[str, Any] | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = ModelGroup(Path(folder), history(drawn), forever(during))
        for action in before:
            group.act(action)
        node: Any = ModelNode(group)
        rows: list[dict[str, Any]] = []
        at, steps = 0, 0
        while at < group.synced:
            question = Question(at, rows_max)
            state = look(node, None, {0: question}, choice)[0]
            upto = furthest(node, None, 0, state, question, state.head.position, choice)
            assert at < upto <= group.synced
            rows += read(node, {0: Range(at, upto)})
            at = upto
            steps += 1
            assert steps <= 2 * len(group.records) + 10
        assert_read(rows, node, {0: Range(0, group.synced)})


@settings(deadline=None)
@given(several, st.integers(1, 10), st.booleans())
def test_batches_of_a_query_over_several_groups_share_its_limit_and_are_together_the_whole(
    given: list[tuple[list[int], list[int], list[int], int]], rows_max: int, restarts: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        groups = []
        for number, (choice, before, during, _) in enumerate(given):
            groups.append(ModelGroup(Path(folder), history(choice), forever(during), number))
            for action in before:
                groups[-1].act(action)
        node: Any = ModelNode(*groups)

        def reader() -> StreamReader:
            options = {"url": "http://model", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows_max)}
            found = StreamReader(options, schema_of(True))
            found._options = found._options._replace(node=node)
            return found

        query = reader()
        at = query.initialOffset()
        rows: list[dict[str, Any]] = []
        while (end := query.latestOffset(at, query.getDefaultReadLimit())) != at:
            query = reader() if restarts else query  # what it was told when the batch was cut is gone then
            batch = [row for part in query.partitions(at, end) for some in query.read(part) for row in some.to_pylist()]
            assert batch or any(group.records for group in groups)
            rows += batch
            at = json.loads(json.dumps(end))
            assert len(rows) <= sum(len(group.records) for group in groups)
        found = sorted((row["group"], row["incarnation"], row["seq"]) for row in rows)
        expected = [(group.number, one.sid, one.seq) for group in groups for one in group.records]
        assert found == sorted(expected)


@settings(deadline=None)
@given(choices, st.lists(st.sampled_from([FLUSH, COMPACT, NOTHING]), max_size=5), st.integers(0, 45))
def test_the_position_of_a_moment_is_that_of_its_first_record(
    choice: list[int], before: list[int], number: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = ModelGroup(Path(folder), history(choice), forever([]))
        for action in before:
            group.act(action)
        ms = (number * 7 + 10) * 10 - 3
        found = position_at(ModelNode(group), 0, None, ms)  # type: ignore[arg-type]
        later = [record.position for record in group.records if record.position * 10 >= ms]
        assert found == (min(later) - 1 if later else group.synced)


def test_a_file_that_several_tasks_share_and_that_vanished_is_told_of(tmp_path: Path) -> None:
    group = ModelGroup(tmp_path, history(list(range(12)) * 3), forever([]))
    group.act(FLUSH)
    node: Any = ModelNode(group)
    options = parse({"url": "http://model", "minPartitions": "3"})._replace(node=node)
    planned = plan(options, node, {0: Range(0, group.synced)}, COLUMNS)
    assert len(planned.tasks) > 1
    group.act(COMPACT)
    with pytest.raises(FilesGone, match="Run the query again"):
        list(rows_of(planned.work, planned.tasks[0]))


def test_a_read_that_is_planned_stays_the_same_while_its_files_are_there(tmp_path: Path) -> None:
    group = ModelGroup(tmp_path, history(list(range(12)) * 3), forever([]))
    group.vanish = False
    group.act(FLUSH)
    node: Any = ModelNode(group)
    options = parse({"url": "http://model", "minPartitions": "3"})._replace(node=node)
    planned = plan(options, node, {0: Range(0, group.synced)}, COLUMNS)
    group.act(COMPACT)
    rows = [row for task in planned.tasks for table in rows_of(planned.work, task) for row in table.to_pylist()]
    assert_read(rows, node, {0: Range(0, group.synced)})
