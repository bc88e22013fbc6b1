"""Labels and deleted records on their way into the lake and in it, beside plain lists: whatever settles, moves or
restarts, the rows that count are those of records that are there, with their labels; and a rewrite leaves no byte of
the others, except where a fork reads them."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from headwater.catalog.lake_files import LakeFiles
from headwater.engine.hot_records import walk
from headwater.lake.labels import labels_of
from headwater.lake.lake import DeltaLake
from headwater.lake.local import LocalStore
from headwater.lake.verify import verify
from headwater.model.commands import Append, Create, DeleteRecords, Fork
from headwater.model.events import Appended, Created, RecordsDeleted
from headwater.model.extents import Extent
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.stream import Unchanged
from headwater.ports import SystemClock, SystemRng
from tests.lake.on_a_node.swap_world import SwapWorld, rewriting

FAR = 1 << 62
Rows = dict[tuple[int, int], tuple[bytes, Labels | None]]
"""By incarnation and number."""


class Record(NamedTuple):
    payload: bytes
    labels: Labels | None


class Topic:
    def __init__(self, sid: int, shared: list[Record], deleted: set[int], parent: Topic | None) -> None:
        self.sid = sid
        self.records = shared
        self.own_from = len(shared)
        self.deleted = deleted
        self.parent = parent

    def edges(self) -> list[int]:
        edges = [0]
        for record in self.records:
            edges.append(edges[-1] + len(record.payload))
        return edges

    def rows(self) -> Rows:
        """Its own, as the lake tells of them."""
        numbers = range(self.own_from, len(self.records))
        return {(self.sid, number): self.records[number] for number in numbers if number not in self.deleted}


class Topics:
    def __init__(self, directory: Path, seed: int) -> None:
        self.place = directory / "lake"
        self.store = LocalStore(self.place)
        self.lake = DeltaLake(self.store, 1 << 20, SystemClock(), SystemRng())
        self.world = SwapWorld(directory, self.lake, lambda: [], rewriting(self.place))
        self.rng = random.Random(seed)
        self.topics: dict[str, Topic] = {}

    async def create(self, key: str) -> None:
        event = await self.world.submit(key, Create(key, "text/plain", []))
        assert isinstance(event, Created)
        self.topics[key] = Topic(event.sid, [], set(), None)

    async def fork(self, key: str, source: str) -> None:
        of = self.topics[source]
        event = await self.world.submit(key, Create(key, None, [], fork=Fork(source)))
        assert isinstance(event, Created)
        self.topics[key] = Topic(event.sid, list(of.records), set(of.deleted), of)

    async def append(self, key: str) -> None:
        rng, topic = self.rng, self.topics[key]
        count = rng.randrange(1, 6)
        first = len(topic.records)
        payloads = [b"<%d/%d>" % (topic.sid, first + i) for i in range(count)]
        labels: list[Labels | None] | None = None
        if rng.random() < 0.6:
            labels = [
                None
                if rng.random() < 0.3
                else Labels(f"t{i}", "n" if i % 2 else None, b'{"i":%d}' % i if rng.random() < 0.5 else None)
                for i in range(count)
            ]
        event = await self.world.submit(key, Append(payloads, labels=labels))
        assert isinstance(event, Appended)
        topic.records += map(Record, payloads, labels or [None] * count)

    async def delete(self, key: str) -> None:
        rng, topic = self.rng, self.topics[key]
        edges, runs = topic.edges(), []
        at = 0 if rng.random() < 0.4 else rng.randrange(len(topic.records) + 1)
        while at < len(topic.records) and len(runs) < 3:
            last = min(len(topic.records), at + rng.randrange(1, 5))
            runs.append(Run(at, last, edges[at], edges[last]))
            topic.deleted.update(range(at, last))
            at = last + rng.randrange(1, 4)
        event = await self.world.submit(key, DeleteRecords(runs))
        assert isinstance(event, RecordsDeleted | Unchanged)

    async def step(self) -> None:
        rng, world = self.rng, self.world
        act = rng.choice(
            ("append", "append", "append", "delete", "delete", "flush", "swap", "restart", "fork", "checkpoint")
        )
        key = rng.choice(list(self.topics))
        if act == "append":
            await self.append(key)
        elif act == "delete":
            await self.delete(key)
        elif act == "flush":
            await world.flusher(rng.choice((20, 1 << 20))).flush()
        elif act == "swap":
            await world.swap(rng.randrange(16))
        elif act == "restart":
            world.restart()
        elif act == "fork" and len(self.topics) < 6:
            await self.fork(f"some/{len(self.topics)}", key)
        elif act == "checkpoint":
            await world.checkpoint()

    # ---- what there is ----------------------------------------------------------------------------------------

    def in_rows(self, file: str, extent: Extent) -> Rows:
        rows = pq.ParquetFile(self.place / file).read_row_group(extent.row_group)
        rows = rows.slice(extent.row_start, extent.row_count)
        labels = labels_of(rows) or [None] * len(rows)
        places = zip(rows["incarnation"].to_pylist(), rows["seq"].to_pylist(), strict=True)
        return dict(zip(places, zip(rows["payload"].to_pylist(), labels, strict=True), strict=True))

    async def found(self) -> tuple[Rows, Rows]:
        """What is shown of lake and memory, and what is kept there for forks alone."""
        await self.world.checkpoint()
        shown: Rows = {}
        kept: Rows = {}
        with closing(LakeFiles(self.world.directory / "catalog.db")) as book:
            counts = book.row_counts()
            for file in counts:
                parts = list(book.live_parts(file))
                for part in parts:
                    (kept if part.deleted else shown).update(self.in_rows(file, part.extent))
                assert counts[file].live == sum(part.extent.row_count for part in parts)
                assert counts[file].deleted == sum(part.extent.row_count for part in parts if part.deleted)
        walked = await walk(self.world.group, 0, FAR, FAR, FAR, payload_only=True)
        for batch in walked.batches:
            for index, payload in enumerate(batch.payloads):
                place = batch.stream.sid, batch.seq + index
                assert place not in shown, "a record is in the lake and in memory"
                shown[place] = payload, None if batch.labels is None else batch.labels[index]
        return shown, kept

    async def check(self) -> None:
        shown, kept = await self.found()
        expected: Rows = {}
        for topic in self.topics.values():
            expected |= topic.rows()
        assert shown == expected
        held = shown | kept | self.hot_rows()
        for topic in self.topics.values():
            # A fork finds everything that it has and has not deleted itself.
            source, until = topic.parent, topic.own_from
            while source is not None:
                for number in range(source.own_from, until):
                    if number not in topic.deleted:
                        assert held[source.sid, number] == topic.records[number]
                source, until = source.parent, source.own_from
        await self.world.flusher().follow()
        with closing(LakeFiles(self.world.directory / "catalog.db")) as book:
            if book.files():
                report = verify(self.store, self.lake.files(), book, True, lambda *_: None)
                assert report.findings == []

    def hot_rows(self) -> Rows:
        """All that memory holds, also what only forks read."""
        found: Rows = {}
        for stream in self.world.group.loaded.holding.values():
            timeline = stream.timeline
            labels = timeline.labels or [None] * len(timeline.payloads)
            for index, payload in enumerate(timeline.payloads):
                found[stream.sid, timeline.seq + index] = payload, labels[index]
        return found

    def payloads_in_files(self) -> set[bytes]:
        files = [path for path in self.lake.files()]
        return {payload for file in files for payload in pq.read_table(self.place / file)["payload"].to_pylist()}


def played(tmp_path: Path, seed: int, play: Any) -> None:
    async def run() -> None:
        topics = Topics(tmp_path, seed)
        try:
            await play(topics)
        finally:
            topics.world.close()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_count_are_those_of_records_that_are_there(tmp_path: Path, seed: int) -> None:
    async def play(topics: Topics) -> None:
        await topics.create("some/0")
        await topics.create("some/1")
        for number in range(40):
            await topics.step()
            if number % 8 == 7:
                await topics.check()

    played(tmp_path, seed, play)


def test_a_rewrite_leaves_no_byte_of_deleted_records(tmp_path: Path) -> None:
    async def play(topics: Topics) -> None:
        await topics.create("some/0")
        await topics.create("some/1")
        for _ in range(12):
            await topics.append("some/0")
            await topics.append("some/1")
        await topics.world.flusher().flush()
        for _ in range(4):
            await topics.delete("some/0")
            await topics.delete("some/1")
        alive = {payload for topic in topics.topics.values() for payload, _ in topic.rows().values()}
        dead = {record.payload for topic in topics.topics.values() for record in topic.records} - alive
        assert dead and dead <= topics.payloads_in_files()
        await topics.check()
        await topics.world.swap(15)
        assert topics.payloads_in_files() == alive
        await topics.check()
        topics.world.restart()
        await topics.check()

    played(tmp_path, 1, play)


def test_a_file_of_deleted_records_alone_is_swapped_for_nothing(tmp_path: Path) -> None:
    async def play(topics: Topics) -> None:
        await topics.create("some/0")
        for _ in range(3):
            await topics.append("some/0")
            await topics.world.flusher().flush()
        topic = topics.topics["some/0"]
        edges, last = topic.edges(), len(topic.records) - 1
        # Neither the first nor the last record: the files between them hold nothing any more.
        await topics.world.submit("some/0", DeleteRecords([Run(1, last, edges[1], edges[last])]))
        topic.deleted = set(range(1, last))
        await topics.check()
        await topics.world.swap(15)
        await topics.check()
        assert topics.payloads_in_files() == {topic.records[0].payload, topic.records[last].payload}

    played(tmp_path, 3, play)


def test_what_is_deleted_while_a_rewrite_is_under_way_stays_deleted(tmp_path: Path) -> None:
    async def play(topics: Topics) -> None:
        await topics.create("some/0")
        for _ in range(5):
            await topics.append("some/0")
        await topics.world.flusher().flush()
        for pick in (14, 15):
            await topics.world.swap_amid(pick, lambda: topics.delete("some/0"))
            await topics.check()

    played(tmp_path, 5, play)
