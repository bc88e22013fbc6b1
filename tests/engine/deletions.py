"""A group on a real log, catalog and lake, and the same streams as plain lists in which records are marked as deleted.
Owns the steps and the comparison of every way of reading. The model knows nothing of memory, log, lake or catalog."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine import listing
from headwater.engine.checkpoint import checkpoint
from headwater.engine.engine import Engine
from headwater.engine.feed import Feed
from headwater.engine.flush import Flusher
from headwater.engine.hot_records import walk
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.engine.recovery import recover
from headwater.errors import Failure
from headwater.lake.lake import DeltaLake
from headwater.lake.local import LocalStore
from headwater.log.wal import Wal
from headwater.model.commands import Append, Command, Create, DeleteRecords, Fork, Retention, Trim
from headwater.model.events import Created
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.ports import SystemRng
from tests.engine import HandClock, group_on, owned_on

KEYS = ("a/text", "a/json", "a/kept", "a/fork")
TAGS = (None, "x", "xy", "y")
KEPT_COUNT = 6
WITHIN_S = 30


@dataclass
class Listed:
    is_json: bool
    records: list[tuple[bytes, Labels | None]] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    """Numbers, also of what a trim let go of."""

    def edges(self) -> list[int]:
        found = [0]
        for payload, _ in self.records:
            found.append(found[-1] + len(payload))
        return found

    @property
    def live(self) -> list[int]:
        return [number for number in range(len(self.records)) if number not in self.dead]

    @property
    def first(self) -> int:
        return self.live[0] if self.live else len(self.records)

    def tagged(self, mark: str) -> list[int]:
        return [number for number in self.live if (one := self.records[number][1]) is not None and one.tag == mark]


class _Inbox:
    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Outcome) -> None:
        assert not self.future.done(), "answered twice"
        self.future.set_result(outcome)


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = HandClock()
        self.lake = DeltaLake(LocalStore(directory / "lake"), 1 << 20, self.clock, SystemRng())
        self.model: dict[str, Listed] = {}
        self.payloads_count = 0
        self._open()

    def _open(self) -> None:
        self.wal = Wal(self.directory / "wal", 512, 1)
        self.catalog = SqliteCatalog(self.directory / "catalog.db")
        self.group = group_on(self.wal, self.catalog, self.clock, asyncio.get_running_loop().call_soon)
        self.owned = owned_on(self.group, self.lake)
        recover(self.group)
        self.wal.start(self.group.progress)
        self.group.resolve_cold = self.owned.reads.resolve
        self.engine = Engine({0: self.owned}, 1, self.clock)

    def close(self) -> None:
        self.owned.reads.close()
        self.wal.close()
        self.catalog.close()

    def restart(self) -> None:
        self.close()
        self._open()

    async def submit(self, key: str, command: Command) -> Any:
        inbox = _Inbox()
        self.group.submit(key, command, inbox)
        return await asyncio.wait_for(inbox.future, WITHIN_S)

    async def asked(self, ask: Any, *arguments: Any) -> Any:
        """What a call gives to the function that it is given as its last argument."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ask(*arguments, future.set_result)
        return await asyncio.wait_for(future, WITHIN_S)

    # ---- steps ------------------------------------------------------------------------------------------------------

    async def create(self) -> None:
        for key in KEYS[:3]:
            self.model[key] = Listed(key.endswith("json"))
            kind = "application/json" if self.model[key].is_json else "text/plain"
            keep = Retention(records=KEPT_COUNT) if key.endswith("kept") else None
            assert isinstance(await self.submit(key, Create(key, kind, [], retention=keep)), Created)

    async def append(self, key: str, sizes: list[int], tags: list[str | None]) -> None:
        stream = self.model.get(key)
        if stream is None:
            return
        payloads, labels = [], list[Labels | None]()
        for size, tag in zip(sizes, tags, strict=False):
            self.payloads_count += 1
            text = (f"{self.payloads_count:03d}" * size)[: size + 2]
            payloads.append(f'"{text}"'.encode() if stream.is_json else text.encode())
            labels.append(None if tag is None else Labels(tag, key=f"k{self.payloads_count}"))
        await self.submit(key, Append(payloads, labels=labels if any(labels) else None))
        stream.records += zip(payloads, labels, strict=True)

    async def delete(self, key: str, match: tuple[str, str] | None, pick: int | None) -> None:
        stream = self.model.get(key)
        if stream is None or (match is None and pick is None):
            return
        before_seq = None if pick is None else pick % (len(stream.records) + 2)
        numbers = set(stream.live)
        if match is not None:
            mark = match[1]
            tags = {number: one.tag or "" for number in numbers if (one := stream.records[number][1]) is not None}
            equal = match[0] == "Eq"
            numbers = {number for number, tag in tags.items() if (tag == mark if equal else tag.startswith(mark))}
        if before_seq is not None:
            numbers = {number for number in numbers if number + 1 < before_seq}
        told = await self.asked(self.engine.delete_records, key, match, before_seq)
        assert not isinstance(told, Failure), told
        stream.dead |= numbers
        assert (told.deleted, told.head_seq) == (len(numbers), len(stream.records))
        if match is None and before_seq is not None:
            stream.dead |= set(range(min(before_seq - 1, len(stream.records))))
        assert told.earliest_seq == stream.first + 1

    async def delete_some(self, key: str, numbers: list[int]) -> None:
        stream = self.model.get(key)
        if stream is None:
            return
        edges, count = stream.edges(), len(stream.records)
        some = sorted({number % count for number in numbers}) if count else []
        await self.submit(key, DeleteRecords([Run(one, one + 1, edges[one], edges[one + 1]) for one in some]))
        stream.dead |= set(some)

    async def trim(self, key: str, pick: int) -> None:
        stream = self.model.get(key)
        if stream is not None:
            number = stream.first + pick % (len(stream.records) + 1 - stream.first)
            assert not isinstance(await self.submit(key, Trim(stream.edges()[number])), Failure)
            stream.dead |= set(range(number))

    async def retain(self) -> None:
        """The policy may let go of more than its due, never of what it has room for."""
        self.group.apply_retention()
        stream, kept = self.loaded(KEYS[2]), self.model[KEYS[2]]
        gone = {number for number in kept.live if number < stream.first_seq}
        assert not gone or (stream.evict_floor == max(gone) + 2 and len(kept.live) - len(gone) == KEPT_COUNT)
        kept.dead |= gone

    async def fork(self, key: str, pick: int) -> None:
        source = self.model[key]
        if KEYS[3] in self.model:
            return
        at = source.first + pick % (len(source.records) + 1 - source.first)
        event = await self.submit(KEYS[3], Create(KEYS[3], None, [], fork=Fork(key, source.edges()[at])))
        assert isinstance(event, Created), event
        dead = {number for number in source.dead if number < at}
        self.model[KEYS[3]] = Listed(source.is_json, source.records[:at], dead)

    async def flush(self, file_bytes_max: int) -> None:
        await Flusher(self.group, self.lake, 1, 1, file_bytes_max, lambda why: None).flush()

    async def checkpoint(self) -> None:
        await checkpoint(self.group)

    # ---- the comparison ---------------------------------------------------------------------------------------------

    def loaded(self, key: str) -> LoadedStream:
        return self.engine.find(key, False)

    async def check(self) -> None:
        for key, stream in self.model.items():
            self._check_facts(key, stream)
            await self._check_offsets(key, stream)
            await self._check_numbers(key, stream)
            await self._check_ids(key, stream)
            self._check_marks(key, stream)
        await self._check_feeds()

    def _check_facts(self, key: str, stream: Listed) -> None:
        loaded, live = self.loaded(key), stream.live
        assert (loaded.live_count, loaded.count) == (len(live), len(stream.records))
        assert loaded.live_bytes == sum(len(stream.records[number][0]) for number in live)
        assert (loaded.earliest_seq, loaded.earliest) == (stream.first + 1, stream.edges()[stream.first])
        bucket, _, name = key.partition("/")
        page = listing.page(self.group.loaded, bucket, "", "", 100, self.clock.ms)
        assert [one.records for one in page.streams if one.stream_id == name] == [len(live)]

    async def _check_offsets(self, key: str, stream: Listed) -> None:
        loaded, edges = self.loaded(key), stream.edges()
        for joined in (False, True):
            for bytes_max in (5, 1 << 20):
                for number in range(stream.first, len(edges)):
                    expected = [one for one in stream.live if one >= number]
                    offset, bodies, count = edges[number], list[bytes](), 0
                    for _ in range(len(edges) + 1):
                        part = await self.engine.read_now(loaded, offset, bytes_max, joined)
                        payloads = [bytes(payload) for payload in part.payloads]
                        body = (b"," if stream.is_json else b"").join(payloads)
                        assert len(body) == part.size + (part.count - 1 if stream.is_json and part.count else 0)
                        assert part.size <= bytes_max or part.count == 1
                        assert joined or part.count == len(payloads)
                        bodies += [body] if payloads else []
                        offset, count = part.end, count + part.count
                        assert part.up_to_date == (offset == edges[-1])
                        if part.up_to_date:
                            break
                        assert payloads, "nothing, and not at the tail"
                        assert offset in [edges[one] for one in expected], "it ends in a hole"
                    whole = (b"," if stream.is_json else b"").join(bodies)
                    wanted = [stream.records[one][0] for one in expected]
                    assert whole == (b"," if stream.is_json else b"").join(wanted)
                    assert (offset, count) == (edges[-1], len(expected))

    async def _check_numbers(self, key: str, stream: Listed) -> None:
        loaded, edges = self.loaded(key), stream.edges()
        for from_seq in range(len(stream.records) + 1):
            wanted = [(one + 1, *stream.records[one]) for one in stream.live if one >= from_seq]
            for count_max, bytes_max in ((2, 1 << 20), (1_000, 9), (1_000, 1 << 20)):
                found = await self.asked(self.engine.read_records, loaded, from_seq, count_max, bytes_max)
                assert [(one.seq, one.payload, one.labels) for one in found] == wanted[: len(found)]
                assert bool(found) == bool(wanted) and len(found) <= count_max
        for number in range(len(edges)):
            offset = await self.asked(self.engine.offset_of, loaded, number)
            assert offset == edges[next((one for one in stream.live if one >= number), len(stream.records))]

    async def _check_ids(self, key: str, stream: Listed) -> None:
        loaded, ids = self.loaded(key), list[tuple[int, int]]()
        wanted = [stream.records[one][0] for one in stream.live]
        ms = n = 0
        for _ in range(len(wanted) + 1):
            found = await self.asked(self.owned.by_id.read, loaded, ms, n, 3, 12)
            if not found:
                break
            ids += [one[:2] for one in found]
            assert [one[2] for one in found] == wanted[len(ids) - len(found) : len(ids)]
            ms, n = ids[-1][0], ids[-1][1] + 1
        assert len(ids) == len(wanted) and ids == sorted(set(ids))
        edges = stream.edges()
        for index, (ms, n) in enumerate(ids):
            place = await self.asked(self.owned.by_id.place, loaded, ms, n)
            assert (place.offset, place.seq) in [(edges[stream.live[index]], seq) for seq in (None, stream.live[index])]

    def _check_marks(self, key: str, stream: Listed) -> None:
        loaded, edges, marks = self.loaded(key), stream.edges(), self.owned.marks
        for tag in TAGS[1:]:
            wanted = [Run(one, one + 1, edges[one], edges[one + 1]) for one in stream.tagged(tag)]
            assert marks.find(loaded, f"t:{tag}", 1_000) == wanted
            assert marks.find(loaded, f"t:{tag}", 1) == wanted[:1]
        pairs = [(f"t:{tag}", one) for tag in ("x", "xy") for one in stream.tagged(tag)]
        found = marks.find_prefix(loaded, "t:x", 1_000)
        assert [(one.mark, one.run.first) for one in found] == pairs
        after, paged = ("", -1), []
        while some := marks.find_prefix(loaded, "t:x", 2, after):
            after = some[-1].mark, some[-1].run.first
            paged += some
        assert paged == found
        for number, (_, labels) in enumerate(stream.records):
            if labels is not None:
                found_number = [run.first for run in marks.find(loaded, f"k:{labels.key}", 2)]
                assert found_number == ([number] if number not in stream.dead else [])

    async def _check_feeds(self) -> None:
        """What memory holds, as those see it who read many streams by the position of the log."""
        streams = [self.loaded(key) for key in self.model]
        position = max(stream.cold_position for stream in streams)
        wanted: dict[str, list[bytes]] = {}
        for stream in streams:
            positions, timeline = stream.timeline.positions, stream.timeline
            first = timeline.seq + bisect_right(positions, position)
            listed = self.model[stream.key]
            wanted[stream.key] = [listed.records[one][0] for one in listed.live if one >= first]
        feed = Feed(self.group, position, lambda key: True)
        feed.include(streams)
        walked = await walk(self.group, position, 1 << 62, 1 << 40, 1 << 40, False)
        for batches in (list(feed.take()), walked.batches):
            found: dict[str, list[bytes]] = {key: [] for key in self.model}
            for batch in batches:
                found[batch.stream.key] += batch.payloads
            assert found == wanted
        feed.close()
