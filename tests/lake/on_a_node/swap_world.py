"""Histories in which files of the lake are swapped: steps of their own, on lists and on real files.
Owns rewriting, as a job would do it. Whether a swap may be noticed is for the comparison: never."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.catalog.lake_files import LakeFiles
from headwater.engine.swap import Swapper
from headwater.lake.layout import ADDED, WIDE, widened
from headwater.lake.local import LocalStore
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.writer import SORTED_BY
from headwater.model.extents import Extent, Run
from headwater.ports import BlobsUnavailable, Lake, Writer
from tests.lake.on_a_node.world import ListLake, World

Live = dict[str, list[Extent]]
"""Live extents by file."""
Rewrite = Callable[[Live], list[str]]
"""Stores new files with exactly the rows that extents name, and returns their names."""


class SwapListLake(ListLake):
    """A lake of lists whose files can be swapped: a rewritten file holds each stretch of a stream as one run."""

    def rewrite(self, live: Live) -> list[str]:
        records: dict[int, dict[int, tuple[Run, int]]] = {}
        for extent in (one for some in live.values() for one in some):
            run = self.runs[extent.file, extent.sid, extent.row_group]
            for seq in range(extent.seq_start, extent.seq_start + extent.row_count):
                records.setdefault(extent.sid, {})[seq] = run, seq - run.seq_start
        if not records:
            return []
        self.files_count += 1
        file = f"data/{self.files_count}"
        for sid, found in records.items():
            seqs = sorted(found)
            edges = [0, *(at for at in range(1, len(seqs)) if seqs[at] != seqs[at - 1] + 1), len(seqs)]
            for number in range(len(edges) - 1):
                some = [found[seq] for seq in seqs[edges[number] : edges[number + 1]]]
                self.runs[file, sid, number] = _joined(some, seqs[edges[number]])
        return [file]

    def places(self, file: str) -> list[tuple[str, int, int]]:
        return [place for place in self.runs if place[0] == file]

    def relocation(
        self, remove: list[str], add: list[str], writer: Writer, check: Callable[[], None]
    ) -> ListRelocation:
        return ListRelocation(self, add)

    def relocate(self, remove: list[str], found: Any, writer: Writer) -> None:
        for file in remove:
            self.table.pop(file, None)
        self.table |= {file: self.places(file) for file in found.files}

    def reconcile(self, alive: dict[str, bool], fresh: set[str], writer: Writer) -> int:
        missing = [file for file, used in alive.items() if used and file not in self.table]
        self.table |= {file: self.places(file) for file in missing}
        return super().reconcile(alive, fresh, writer) + len(missing)


def _joined(records: list[tuple[Run, int]], seq: int) -> Run:
    run, row = records[0]
    start = run.ends[row - 1] if row else run.start
    columns = [[getattr(run, name)[row] for run, row in records] for name in ("ends", "ms", "n", "positions")]
    payloads = [run.payloads[row] for run, row in records]
    arrays = [array("Q", column) for column in columns]
    return Run(run.key, run.sid, run.content_type, seq, start, payloads, *arrays)


class ListRelocation:
    def __init__(self, lake: SwapListLake, add: list[str]) -> None:
        self._lake = lake
        self._add = add
        self._found: list[Extent] = []
        self.live_rows = self.dropped_rows = 0
        self.files: list[str] = []

    def match(self, live: Live) -> ListRelocation:
        """Three records to an extent, where they are neighbours and live."""
        extents = [one for some in live.values() for one in some]
        kept = {(one.sid, one.seq_start + row) for one in extents for row in range(one.row_count)}
        for place in (place for file in self._add for place in self._lake.places(file)):
            run = self._lake.runs[place]
            rows = [row for row in range(len(run.payloads)) if (run.sid, run.seq_start + row) in kept]
            self.dropped_rows += len(run.payloads) - len(rows)
            while rows:
                count = 1
                while count < min(3, len(rows)) and rows[count] == rows[0] + count:
                    count += 1
                self._found.append(self._extent(place, run, rows[0], count))
                del rows[:count]
        self.live_rows = sum(one.row_count for one in self._found)
        assert self.live_rows == len(kept), "a live row is missing from the new files"
        self.files = sorted({one.file for one in self._found})
        return self

    def _extent(self, place: tuple[str, int, int], run: Run, row: int, count: int) -> Extent:
        start, last = run.ends[row - 1] if row else run.start, row + count - 1
        first = (run.sid, start, run.ends[last], run.seq_start + row, run.ms[row], run.n[row])
        return Extent(*first, place[0], place[2], row, count, run.positions[last])

    def extents(self) -> Iterator[Extent]:
        return iter(self._found)


def rewriting(place: Path) -> Rewrite:
    """The same for a real table: two files where there are enough rows, of small row groups."""
    numbers = iter(range(1 << 30))

    def rewrite(live: Live) -> list[str]:
        tables = []
        for file, extents in live.items():
            opened = pq.ParquetFile(place / file)
            for extent in extents:
                group = widened(opened.read_row_group(extent.row_group), WIDE.names).cast(WIDE)
                tables.append(group.slice(extent.row_start, extent.row_count))
        if not tables:
            return []
        rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in SORTED_BY])
        wide = any(rows[field.name].null_count < len(rows) for field in ADDED)
        found = []
        for part in (rows.slice(0, len(rows) // 2), rows.slice(len(rows) // 2)):
            written = write_sorted(part.to_batches(), 0, f"rewritten{next(numbers)}", rows_per_group=3, wide=wide)
            if written is not None:
                LocalStore(place).put(written.file.path, written.data)
                found.append(written.file.path)
        return found

    return rewrite


class SwapWorld(World):
    def __init__(
        self,
        directory: Path,
        lake: Lake,
        rows: Callable[[], list[tuple[int, int, int, bytes]]],
        rewrite: Rewrite,
    ) -> None:
        super().__init__(directory, lake, rows)
        self._rewrite = rewrite
        self.swaps_count = 0

    def _lake_files(self) -> LakeFiles:
        return LakeFiles(self.directory / "catalog.db")

    def _swapper(self, lake: Any) -> Swapper:
        return Swapper(self.group, lake, self.flusher(), self._lake_files)

    async def _rewritten(self, pick: int) -> tuple[list[str], list[str]]:
        """Some files, and new ones with their live rows."""
        await self.checkpoint()
        files = sorted(name for name, used in self.catalog.alive().items() if used)
        chosen = [name for index, name in enumerate(files) if index == pick % len(files) or pick >> (index % 4) & 1]
        with closing(self._lake_files()) as lake_files:
            live = {name: lake_files.live_in(name) for name in chosen}
        return chosen, self._rewrite(live) if chosen else []

    async def swap(self, pick: int) -> None:
        old, new = await self._rewritten(pick)
        if old:
            swapper = self._swapper(self.lake)
            done = await swapper.swap(old, new)
            assert done.dropped_rows == 0
            if pick % 3 == 0:
                again = await swapper.swap(old, new)
                assert again == done
            self.swaps_count += 1

    async def swap_amid(self, pick: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Something else happens between the writing of the new files and their swap, and during it."""
        old, new = await self._rewritten(pick)
        if not old:
            return
        if pick % 2:
            await meanwhile()
            await self._swapper(self.lake).swap(old, new)
        else:
            task = asyncio.get_running_loop().create_task(self._swapper(self.lake).swap(old, new))
            await asyncio.sleep(0)
            await meanwhile()
            await task
        self.swaps_count += 1

    async def torn_swap(self, pick: int) -> None:
        """The catalog has the swap, and the node dies before the table shows it."""
        old, new = await self._rewritten(pick)
        if old:
            try:
                await self._swapper(_Silent(self.lake)).swap(old, new)
            except BlobsUnavailable:
                self.swaps_count += 1
        self.restart()
        if pick % 2:
            await self.flusher().follow()

    async def check_table(self) -> None:
        await self.flusher().follow()
        await super().check_table()


class _Silent:
    """A lake whose table does not answer."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def relocate(self, remove: list[str], found: Any, writer: Writer) -> None:
        raise BlobsUnavailable("the table is out of reach")
