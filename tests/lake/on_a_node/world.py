"""A group with its lake on real files, and the same streams as plain lists: what every history is held against.
Owns the steps and the comparison. The model knows nothing of memory, log, lake or catalog."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.engine.flush import Flusher
from headwater.engine.pending_answers import Outcome
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import ReadsById
from headwater.engine.recovery import recover
from headwater.errors import BadQuery, Failure, OffsetBeyondTail, OffsetGone, StreamNotFound, StreamSoftDeleted
from headwater.log.wal import Wal
from headwater.model.commands import Append, Command, Create, Delete, Fork, PublishSnapshot, Trim
from headwater.model.events import Appended, Created, Deleted, SnapshotPublished, Trimmed
from headwater.model.extents import Extent, Records, Run, Stretch
from headwater.model.stream import Unchanged
from headwater.model.stream_state import initial_id
from headwater.ports import GcFiles, Lake, LakeGcResult, Pending, Writer
from tests.engine import HandClock, group_on

LOG_FILE_BYTES = 512
TTL_MS = 50_000


class ListLake:
    """A lake that keeps its runs in lists: two records to an extent, so that reads cross many."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, int, int], Run] = {}
        self.table: dict[str, list[tuple[str, int, int]]] = {}
        self.files_count = 0
        self.at_hand: set[tuple[Extent, bool]] = set()

    def settle(self, runs: list[Run], writer: Writer) -> tuple[str, list[Extent]]:
        self.files_count += 1
        file = f"data/{self.files_count}"
        extents = []
        for run in runs:
            starts = [run.start, *run.ends[:-1]]
            self.runs[file, run.sid, 0] = run
            for row in range(0, len(run.payloads), 2):
                count = min(2, len(run.payloads) - row)
                place = (run.sid, starts[row], run.ends[row + count - 1], run.seq_start + row)
                position = run.positions[row + count - 1]
                extents.append(Extent(*place, run.ms[row], run.n[row], file, 0, row, count, position))
        self.table[file] = [(file, run.sid, 0) for run in runs]
        return file, extents

    def reconcile(self, alive: dict[str, bool], fresh: set[str], writer: Writer) -> int:
        stray = [file for file in self.table if file not in alive and file not in fresh]
        for file in stray:
            del self.table[file]
        return len(stray)

    def read(self, extent: Extent, start: int, end: int, labels: bool = False) -> Records:
        run = self.runs[extent.file, extent.sid, extent.row_group]
        edges = [run.start, *run.ends]
        inside = range(extent.row_start, extent.row_start + extent.row_count)
        rows = [row for row in inside if start <= edges[row] < end]
        first = rows[0] if rows else extent.row_start
        return Records(
            edges[first] if rows else start,
            run.seq_start + first,
            [run.payloads[row] for row in rows],
            [run.ends[row] for row in rows],
            [run.ms[row] for row in rows],
            [run.n[row] for row in rows],
            [run.positions[row] for row in rows],
        )

    def stretch(self, extent: Extent, start: int, limit: int, commas: bool, wait: bool) -> Stretch | None:
        if not wait and (extent, commas) not in self.at_hand:
            return None
        self.at_hand.add((extent, commas))
        found = ListLake.read(self, extent, start, extent.end)
        count = sum(end <= limit for end in found.ends) or min(1, len(found.ends))
        data = (b"," if commas else b"").join(found.payloads[:count])
        return Stretch(found.start, found.ends[count - 1] if count else start, count, memoryview(data))

    ahead_bytes_max = 1 << 20

    def prepare(self, extent: Extent, commas: bool) -> None:
        self.at_hand.add((extent, commas))

    def sweep(
        self,
        writer: Writer,
        lake_files: GcFiles,
        pending: Callable[[], Pending],
        grace_ms: int,
        check: Callable[[], None],
    ) -> LakeGcResult:
        raise AssertionError("no history here asks for it")

    def rows(self) -> list[tuple[int, int, int, bytes]]:
        """(sid, seq, offset, payload) of every row that the table holds."""
        found = []
        for file, places in self.table.items():
            for place in places:
                run = self.runs[place]
                assert place[0] == file
                starts = array("Q", [run.start, *run.ends[:-1]])
                for index, payload in enumerate(run.payloads):
                    found.append((run.sid, run.seq_start + index, starts[index], payload))
        return found


# ---- the model ----------------------------------------------------------------------------------------------------


@dataclass
class Listed:
    """A stream that keeps everything in a list."""

    sid: int
    is_json: bool
    records: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(ms, n, payload), those of ancestors first."""
    own_from: int = 0
    """How many of the records are its ancestors'."""
    gone_count: int = 0
    """How many it has let go."""
    closed: bool = False
    ttl: bool = False
    deadline_ms: int = 1 << 62
    parent: Listed | None = None
    children: int = 0
    soft: bool = False

    def edges(self) -> list[int]:
        """Where each record begins, and the tail."""
        found = [0]
        for _, _, payload in self.records:
            found.append(found[-1] + len(payload))
        return found

    @property
    def tail(self) -> int:
        return sum(len(payload) for _, _, payload in self.records)

    def add(self, ms: int, n: int, payloads: list[bytes]) -> None:
        self.records += [(ms, n + index, payload) for index, payload in enumerate(payloads)]


class _Inbox:
    def __init__(self) -> None:
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Outcome) -> None:
        assert not self.future.done(), "answered twice"
        self.future.set_result(outcome)


class World:
    """Drives group and model side by side. `check` compares everything that a reader can ask."""

    def __init__(self, directory: Path, lake: Lake, rows: Callable[[], list[tuple[int, int, int, bytes]]]) -> None:
        self.directory = directory
        self.lake = lake
        self.rows = rows
        self.clock = HandClock()
        self.model: dict[str, Listed] = {}
        self.payloads_count = 0
        self.cold_reads_count = 0
        self._open()

    def _open(self) -> None:
        self.wal = Wal(self.directory / "wal", LOG_FILE_BYTES, 1)
        self.catalog = SqliteCatalog(self.directory / "catalog.db")
        self.group = group_on(self.wal, self.catalog, self.clock, asyncio.get_running_loop().call_soon)
        recover(self.group)
        self.wal.start(self.group.progress)
        self.reads = Reads(self.group, self.lake)
        self.group.resolve_cold = self.reads.resolve
        self.by_id = ReadsById(self.group, self.reads)

    def flusher(self, file_bytes_max: int = 1 << 30) -> Flusher:
        """The group's flusher with another size of files."""
        return Flusher(self.group, self.lake, 1, 1, file_bytes_max, lambda why: None)

    def close(self) -> None:
        self.cold_reads_count += self.reads.reads_count
        self.reads.close()
        self.wal.close()
        self.catalog.close()

    def restart(self) -> None:
        self.close()
        self._open()

    async def submit(self, key: str, command: Command) -> Outcome:
        inbox = _Inbox()
        self.group.submit(key, command, inbox)
        return await asyncio.wait_for(inbox.future, 30)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def fresh(self, sizes: list[int], is_json: bool) -> list[bytes]:
        made = []
        for size in sizes:
            self.payloads_count += 1
            text = f"{self.payloads_count:04d}"
            text = (text * (size // 4 + 1))[:size]
            made.append(f'"{text}"'.encode() if is_json else text.encode())
        return made

    def expire(self) -> None:
        """What the clock has taken by now."""
        for key, stream in list(self.model.items()):
            if stream.deadline_ms <= self.clock.ms and not stream.soft:
                self._remove(key)

    def _remove(self, key: str) -> None:
        stream = self.model[key]
        if stream.children:
            stream.soft, stream.deadline_ms = True, 1 << 62
            return
        del self.model[key]
        parent = stream.parent
        while parent is not None:
            parent.children -= 1
            if parent.children or not parent.soft:
                return
            del self.model[next(name for name, one in self.model.items() if one is parent)]
            parent = parent.parent

    def touched(self, stream: Listed) -> None:
        if stream.ttl:
            stream.deadline_ms = self.clock.ms + TTL_MS

    async def create(self, key: str, sizes: list[int], is_json: bool, ttl: bool) -> None:
        if key in self.model:
            return
        payloads = self.fresh(sizes, is_json)
        kind = "application/json" if is_json else "text/plain"
        event = await self.submit(key, Create(key, kind, payloads, TTL_MS if ttl else None))
        assert isinstance(event, Created), event
        stream = self.model[key] = Listed(event.sid, is_json, ttl=ttl)
        stream.add(*initial_id(event), payloads)
        self.touched(stream)

    async def fork(self, key: str, source_key: str, pick: int | None, sub: int, sizes: list[int]) -> None:
        source = self.model.get(source_key)
        if key in self.model or source is None or source.soft:
            return
        edges = source.edges()
        count = len(source.records) if pick is None else source.gone_count + pick % (len(edges) - source.gone_count)
        following = [payload for _, _, payload in source.records[count:]]
        offset = None if pick is None else edges[count]
        prefix: list[bytes] = []
        if offset is None or not following:
            sub = 0
        elif source.is_json:
            sub = min(sub, len(following))
            count += sub
        else:
            sub = min(sub, len(following[0]))
            if sub == len(following[0]):
                count += 1
            elif sub:
                prefix = [following[0][:sub]]
        payloads = self.fresh(sizes, source.is_json)
        event = await self.submit(key, Create(key, None, payloads, fork=Fork(source_key, offset, sub)))
        assert isinstance(event, Created), (event, offset, sub)
        stream = Listed(event.sid, source.is_json, source.records[:count], count, source.gone_count, parent=source)
        stream.add(*initial_id(event), prefix + payloads)
        stream.ttl = source.ttl
        self.touched(stream)
        source.children += 1
        self.model[key] = stream

    async def append(self, key: str, sizes: list[int], close: bool) -> None:
        stream = self.model.get(key)
        payloads = self.fresh(sizes, stream is not None and stream.is_json)
        event = await self.submit(key, Append(payloads, close=close))
        if stream is None or stream.soft or stream.closed:
            assert isinstance(event, Failure | Unchanged), event
            return
        assert isinstance(event, Appended), event
        assert event.start == stream.tail
        stream.add(event.ms, event.n, payloads)
        stream.closed = close
        self.touched(stream)

    async def let_go(self, key: str, pick: int, snapshot: bool) -> None:
        stream = self.model.get(key)
        if stream is None or stream.soft:
            return
        edges = stream.edges()
        count = stream.gone_count + pick % (len(edges) - stream.gone_count)
        command: Command = Trim(edges[count])
        if snapshot:
            command = PublishSnapshot(edges[count], "text/plain", f"snapshots/{stream.sid}/{pick}", 5)
        event = await self.submit(key, command)
        if isinstance(event, Unchanged):
            assert count == stream.gone_count
        else:
            assert isinstance(event, Trimmed | SnapshotPublished), event
            assert event.first_seq == count
        stream.gone_count = count

    async def delete(self, key: str) -> None:
        stream = self.model.get(key)
        event = await self.submit(key, Delete())
        if stream is None or stream.soft:
            assert isinstance(event, StreamNotFound | StreamSoftDeleted), event
            return
        assert isinstance(event, Deleted) and event.soft == (stream.children > 0), event
        self._remove(key)

    async def flush(self, file_bytes_max: int) -> None:
        await self.flusher(file_bytes_max).flush()

    async def flush_stream(self, key: str, file_bytes_max: int) -> None:
        """One stream alone: records that are older than its own stay in memory."""
        stream = self.group.loaded.find(key)
        if stream is not None:
            others = {sid: held.floor for sid, held in self.group.loaded.holding.items() if held is not stream}
            await self.flusher(file_bytes_max).flush_stream(stream)
            assert {sid: held.floor for sid, held in self.group.loaded.holding.items()} == others

    async def flush_all(self) -> None:
        await self.flusher().flush_all()
        assert not self.group.loaded.holding and self.group.loaded.hot_bytes == 0

    async def flush_amid(self, file_bytes_max: int, meanwhile: Callable[[], Any]) -> None:
        """A flush during which something else happens: its records are already cut, its file not yet logged."""
        task = asyncio.get_running_loop().create_task(self.flush(file_bytes_max))
        await asyncio.sleep(0)
        await meanwhile()
        await task

    async def torn_flush(self, file_bytes_max: int) -> None:
        """The table has taken a file, and the node dies before the log says so."""
        runs, _, _ = await self.flusher(file_bytes_max)._collect()
        if runs:
            self.lake.settle(runs, Writer(0))
        self.restart()

    async def checkpoint(self) -> None:
        await checkpoint(self.group)

    def evict(self) -> None:
        for _ in range(2):
            self.group.loaded.evict(0, 100)

    def walk(self, ms: int) -> None:
        self.clock.ms += ms
        self.expire()
        self.group.expire_due(100)
        self.group.expire_unloaded(100)

    # ---- what has to hold -------------------------------------------------------------------------------------------

    async def check(self, pick: int, bytes_max: int) -> None:
        loaded = self.group.loaded
        assert loaded.hot_bytes == sum(stream.timeline.held_bytes for stream in loaded.by_key.values())
        floor = self.group.log_floor()
        for live in loaded.by_key.values():
            timeline = live.timeline
            assert timeline.seq + len(timeline.payloads) == live.count
            if timeline.payloads:
                assert floor < timeline.positions[0], f"{live.key} could be trimmed away"
                assert live.sid in loaded.holding
        for key, stream in list(self.model.items()):
            await self._check(key, stream, pick, bytes_max)

    async def _check(self, key: str, stream: Listed, pick: int, bytes_max: int) -> None:
        if stream.soft:
            try:
                self.group.find(key, touch=False)
            except StreamSoftDeleted:
                return
            raise AssertionError(f"{key} is there, though only forks keep it")
        live = self.group.find(key, touch=False)
        edges = stream.edges()
        facts = (live.count, live.first_seq, live.earliest, live.visible, live.closed_visible)
        expected = (len(stream.records), stream.gone_count, edges[stream.gone_count], stream.tail, stream.closed)
        assert facts == expected, key
        kept = range(stream.gone_count, len(edges))
        for first in {kept[0], kept[pick % len(kept)], kept[-1]}:
            await self._check_read(live, stream, edges, first, bytes_max)
            await self._check_read(live, stream, edges, first, 1 << 30)
        await self._check_refusals(live, stream, edges, pick)
        await self._check_ids(live, stream, edges, pick, bytes_max)

    async def _check_read(self, live: Any, stream: Listed, edges: list[int], first: int, bytes_max: int) -> None:
        part = await asyncio.wait_for(self.reads.read_now(live, edges[first], bytes_max), 30)
        count = len(part.payloads)
        assert part.payloads == [payload for _, _, payload in stream.records[first : first + count]]
        assert count or first == len(stream.records)
        assert count <= 1 or sum(map(len, part.payloads)) <= bytes_max
        assert (part.start, part.end) == (edges[first], edges[first + count])
        assert part.up_to_date == (part.end == stream.tail)
        assert part.closed == (stream.closed and part.up_to_date)
        joined = await asyncio.wait_for(self.reads.read_now(live, edges[first], bytes_max, joined=True), 30)
        between = b"," if stream.is_json else b""
        assert between.join(joined.payloads) == between.join(part.payloads)
        assert joined.count == part.count == count
        assert (joined.start, joined.end, joined.up_to_date) == (part.start, part.end, part.up_to_date)

    async def _check_refusals(self, live: Any, stream: Listed, edges: list[int], pick: int) -> None:
        between = [begin + 1 for begin, end in pairwise(edges[stream.gone_count :]) if end - begin > 1]
        wrong: list[tuple[int, type[Failure]]] = [(stream.tail + 1, OffsetBeyondTail)]
        wrong += [(between[pick % len(between)], BadQuery), (between[-1], BadQuery)] if between else []
        wrong += [(edges[stream.gone_count] - 1, OffsetGone)] if edges[stream.gone_count] else []
        for offset, failure in wrong:
            try:
                part = await asyncio.wait_for(self.reads.read_now(live, offset, 1 << 30, pick % 2 == 0), 30)
            except Failure as refusal:
                assert isinstance(refusal, failure), (offset, refusal)
            else:
                raise AssertionError(f"{live.key} was read from {offset}: {part.payloads}")

    async def _check_ids(self, live: Any, stream: Listed, edges: list[int], pick: int, bytes_max: int) -> None:
        ids = [(0, 0), *((ms, n) for ms, n, _ in stream.records), (1 << 62, 0)]
        assert ids == sorted(set(ids)), live.key
        for ms, n in {ids[pick % len(ids)], ids[-2]}:
            matching = [record for record in stream.records[stream.gone_count :] if record[:2] >= (ms, n)]
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.by_id.read(live, ms, n, 5, bytes_max, future.set_result)
            found = await asyncio.wait_for(future, 30)
            assert not isinstance(found, Failure), found
            assert found == matching[: len(found)] and bool(found) == bool(matching)
            future = asyncio.get_running_loop().create_future()
            self.by_id.place(live, ms, n, future.set_result)
            place = await asyncio.wait_for(future, 30)
            assert place.offset == edges[len(stream.records) - len(matching)]

    async def check_table(self) -> None:
        """After a full flush: the table holds each record once, and every record of every stream."""
        await self.flush_all()
        rows = self.rows()
        assert len({(sid, seq) for sid, seq, _, _ in rows}) == len(rows), "a record is in the table twice"
        by_sid: dict[int, dict[int, tuple[int, bytes]]] = {}
        for sid, seq, offset, payload in rows:
            by_sid.setdefault(sid, {})[seq] = (offset, payload)
        for key, stream in self.model.items():
            edges = stream.edges()
            for seq in range(max(stream.own_from, stream.gone_count), len(stream.records)):
                found = by_sid.get(stream.sid, {}).get(seq)
                assert found == (edges[seq], stream.records[seq][2]), (key, seq)
