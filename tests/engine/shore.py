"""A group beside a lake that is a dictionary; the threads that read it are real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.engine.flush import cut
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import Place, ReadsById, Record
from headwater.engine.record_reads import RecordReads, TopicRecord
from headwater.errors import Failure
from headwater.model.commands import Append
from headwater.model.extents import Extent, Records, Run
from headwater.ports import BlobsUnavailable, Writer
from tests.engine import KEY, Bench


class DictLake:
    """Extents of two records each, so that a search has something to search."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, int], Run] = {}
        self.reads_count = 0
        self.away = False

    def settle(self, runs: list[Run], writer: Writer) -> tuple[str, list[Extent]]:
        file = f"file{len(self.runs)}"
        extents = []
        for run in runs:
            self.runs[file, run.sid] = run
            starts = [run.start, *run.ends[:-1]]
            for row in range(0, len(run.payloads), 2):
                count = min(2, len(run.payloads) - row)
                place = (run.sid, starts[row], run.ends[row + count - 1], run.seq_start + row)
                extents.append(Extent(*place, run.ms[row], run.n[row], file, 0, row, count))
        return file, extents

    def read(self, extent: Extent, start: int, end: int, labels: bool = False) -> Records:
        if self.away:
            raise BlobsUnavailable("gone fishing")
        self.reads_count += 1
        run = self.runs[extent.file, extent.sid]
        starts = [run.start, *run.ends[:-1]]
        rows = range(extent.row_start, extent.row_start + extent.row_count)
        rows = [row for row in rows if start <= starts[row] < end]
        first = rows[0] if rows else extent.row_start
        return Records(
            starts[first],
            run.seq_start + first,
            [run.payloads[row] for row in rows],
            [run.ends[row] for row in rows],
            [run.ms[row] for row in rows],
            [run.n[row] for row in rows],
            [run.positions[row] for row in rows],
            [run.labels[row] for row in rows] if labels and run.labels is not None else None,
        )

    def reconcile(self, alive: dict[str, bool], fresh: set[str], writer: Writer) -> int:
        return 0


class Shore(Bench):
    """A group beside a lake. Runs inside an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lake = DictLake()
        self.reads = Reads(self.group, self.lake)
        self.by_id = ReadsById(self.group, self.reads)
        self.by_number = RecordReads(self.group, self.reads)

    def append(self, ms: int, *payloads: bytes, key: str = KEY) -> None:
        self.submit(Append(list(payloads), ms=ms), key)
        self.sync()

    def flush(self, key: str = KEY, bytes_max: int = 1 << 30) -> None:
        """The oldest records leave memory for the lake."""
        stream = self.group.loaded.find(key)
        assert stream is not None
        run = cut(stream, self.log.synced, bytes_max)
        if run is not None:
            file, extents = self.lake.settle([run], Writer(0))
            self.group.settle(file, extents, {stream.sid: stream})
            self.sync()

    async def read(
        self, ms: int, n: int, count_max: int = 1_000, bytes_max: int = 1 << 30, key: str = KEY
    ) -> list[Record] | Failure:
        stream = self.group.find(key, touch=False)
        return await self._asked(lambda done: self.by_id.read(stream, ms, n, count_max, bytes_max, done))

    async def place(self, ms: int, n: int, key: str = KEY) -> Place | Failure:
        stream = self.group.find(key, touch=False)
        return await self._asked(lambda done: self.by_id.place(stream, ms, n, done))

    async def records(
        self, from_seq: int, count_max: int = 1_000, bytes_max: int = 1 << 30, key: str = KEY
    ) -> list[TopicRecord] | Failure:
        stream = self.group.find(key, touch=False)
        return await self._asked(lambda done: self.by_number.read(stream, from_seq, count_max, bytes_max, done))

    async def offset_of(self, number: int, key: str = KEY) -> int | Failure:
        stream = self.group.find(key, touch=False)
        return await self._asked(lambda done: self.by_number.offset_of(stream, number, done))

    async def _asked(self, ask: Callable[[Callable[[object], None]], None]):  # type: ignore[no-untyped-def]
        future = asyncio.get_running_loop().create_future()
        ask(future.set_result)
        return await asyncio.wait_for(future, 30)


def asked(play) -> None:  # type: ignore[no-untyped-def]
    async def run() -> None:
        shore = Shore()
        try:
            await play(shore)
        finally:
            shore.reads.close()

    asyncio.run(run())
