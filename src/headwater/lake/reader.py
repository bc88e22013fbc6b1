"""Reads records back out of the lake: one footer per file, one range per row group, both kept in a bounded cache.

Owns the check that what is served is what was written. Never downloads a whole file, and never plans: which extents to
read, and how far ahead, is the caller's matter.

A row group is served as a whole; the value buffer of its payload column *is* the joined bytes of its rows, so a byte
range of an extent is a slice of it. Arrow reads, checks and decodes without the GIL.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.lake.arrow_file import PyFile, open_parquet
from headwater.lake.cache import DiskCache, MemoryCache
from headwater.lake.labels import labels_of
from headwater.lake.layout import LABELS, SERVED
from headwater.lake.store import Data, LakeDamaged, ObjectMissing, ObjectStore
from headwater.model.extents import Extent, Stretch
from headwater.model.labels import Labels
from headwater.ports import breathe

_FOOTER_GUESS_BYTES = 64 << 10
"""Read from a file's end at once: the footer of about 60 row groups."""
_PARSED_FOOTER_FACTOR = 4
"""What a parsed footer takes in memory, about, for each of its bytes."""
_IDLE_MAX = 8
"""Files kept open: about as many as threads that read."""
_PIECE_BYTES = 1 << 20
"""Decoded at once while clients append: about half a millisecond's work."""
_PIECE_ROWS_MAX = 1 << 20
"""The number of rows is the footer's, and a damaged footer may name any."""
_MAGIC = b"PAR1"
_IDS = ("ts_ms", "n", "position")
_BODIES = ("offset", "payload")
_RECORDS, _COMMAS, _LABELLED = range(3)
"""What a decoded row group is for: records, bodies with commas, or records with their labels. Each is decoded and kept
by itself: who never asks for labels does not pay for them."""
_COLUMNS = {_RECORDS: SERVED, _COMMAS: _BODIES, _LABELLED: (*SERVED, *LABELS)}
_FOOTER_START = -1
"""Where the disk cache has a file's footer: no range begins there."""


class Columns(msgspec.Struct, frozen=True):
    """Records, as the columns a timeline holds them in."""

    start: int
    """Offset of the first record."""
    index: int
    """Which record of the extent that is."""
    payloads: list[bytes]
    ends: array[int]
    ms: array[int]
    n: array[int]
    positions: array[int]
    labels: list[Labels | None] | None = None
    """None: no record has any, or they were not asked for."""


class _Group(msgspec.Struct, frozen=True):
    """A decoded row group: views of Arrow's buffers, an item per row."""

    begins: memoryview
    ms: memoryview
    n: memoryview
    positions: memoryview
    value_ends: memoryview
    """One more than rows: where each payload begins in `values`, and where the last one ends; commas do not count."""
    values: memoryview
    labels: pa.Table | None
    """`LABELS`, as far as the file has them, when they were asked for."""


class Reader:
    """Thread-safe. Calls raise StoreUnavailable, StoreRefused, ObjectMissing or LakeDamaged, and change nothing."""

    def __init__(
        self,
        store: ObjectStore,
        cache: MemoryCache,
        disk: DiskCache | None = None,
        append_pressure: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._cache = cache
        self._disk = disk
        self._append_pressure = append_pressure
        self._idle = _Idle()

    def records(self, extent: Extent, from_offset: int, to_offset: int, labels: bool = False) -> Columns:
        """The extent's records that lie wholly between the two offsets; none when there is none.

        A record without bytes belongs to the range that begins where it lies.
        """
        kind = _LABELLED if labels else _RECORDS
        group = self._agreeing(self._group(extent.file, extent.row_group, kind), extent)
        first, last = self._rows(group, extent, from_offset, to_offset)
        if first >= last:
            return Columns(from_offset, first - extent.row_start, [], array("Q"), array("Q"), array("Q"), array("Q"))
        edges = group.value_ends[first : last + 1]
        base = edges[0]
        joined = bytes(group.values[base : edges[-1]])
        payloads = [joined[begin - base : end - base] for begin, end in pairwise(edges)]
        ends = array("Q", group.begins[first + 1 : last].tobytes())
        ends.append(group.begins[last - 1] + len(payloads[-1]))
        return Columns(
            group.begins[first],
            first - extent.row_start,
            payloads,
            ends,
            array("Q", group.ms[first:last].tobytes()),
            array("Q", group.n[first:last].tobytes()),
            array("Q", group.positions[first:last].tobytes()),
            self._labels(group, extent.file, first, last),
        )

    @staticmethod
    def _labels(group: _Group, file: str, first: int, last: int) -> list[Labels | None] | None:
        if group.labels is None:
            return None
        try:
            return labels_of(group.labels.slice(first, last - first))
        except ValueError as error:
            raise LakeDamaged(file, f"the labels of a record: {error}") from error

    def stretch(self, extent: Extent, from_offset: int, limit: int, commas: bool, wait: bool = True) -> Stretch | None:
        """The extent's records from `from_offset` on that end at or before `limit`, joined; the first of whatever size.

        With `commas` there is one between two records. Nothing is copied: the view is a slice of the cached row group,
        which it keeps in memory, and which all who read there share. Without `wait`, None when that is not cached.
        """
        group = self._checked(extent, commas, wait)
        if group is None:
            return None
        first, last = self._rows(group, extent, from_offset, limit)
        if first == extent.row_start + extent.row_count:
            return Stretch(from_offset, from_offset, 0, group.values[:0])
        last = max(last, first + 1)
        ends, begin = group.value_ends, group.begins[first]
        low, size = ends[first], ends[last] - ends[first]
        if commas:
            low += first - ends[0]
        data = group.values[low : low + size + (last - first - 1 if commas else 0)]
        return Stretch(begin, begin + size, last - first, data)

    def extents(self, file: str) -> list[Extent]:
        """The extents a file holds, found from its rows alone: what its writer said of it, if all is well.

        Reads every row group; for recovery and verification, not for serving.
        """
        found = []
        for number in range(self._footer(file).num_row_groups):
            group = self._group(file, number, _RECORDS)
            table = self._decode(file, number, ("incarnation", "seq"))
            sids, seqs = _integers(table["incarnation"], file), _integers(table["seq"], file)
            sizes = group.value_ends
            row, count = 0, len(sids)
            while row < count:
                end = row + 1
                while (
                    end < count
                    and sids[end] == sids[row]
                    and seqs[end] == seqs[end - 1] + 1
                    and group.begins[end] == group.begins[end - 1] + sizes[end] - sizes[end - 1]
                ):
                    end += 1
                start, length = group.begins[row], sizes[end] - sizes[row]
                first = (start, start + length, seqs[row], group.ms[row], group.n[row])
                found.append(Extent(sids[row], *first, file, number, row, end - row, group.positions[end - 1]))
                row = end
        return found

    def rows(self, file: str) -> list[int]:
        """How many rows each row group of a file has, as its footer says."""
        footer = self._footer(file)
        return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]

    def forget(self, file: str) -> None:
        """Drops what is kept of a file that no extent names any more."""
        self._cache.forget(lambda key: isinstance(key, tuple) and key[0] == file)
        self._idle.take(file)

    # ---- rows within a row group --------------------------------------------------------------------------------

    def _rows(self, group: _Group, extent: Extent, from_offset: int, to_offset: int) -> tuple[int, int]:
        low, high = extent.row_start, extent.row_start + extent.row_count
        first = bisect_left(group.begins, from_offset, low, high)
        if to_offset >= extent.end:
            return first, high
        last = bisect_left(group.begins, to_offset, low, high)
        if last > first:
            end = group.begins[last - 1] + group.value_ends[last] - group.value_ends[last - 1]
            last -= end > to_offset  # the last one that begins before `to_offset` may end after it
        return first, last

    def _checked(self, extent: Extent, commas: bool, wait: bool) -> _Group | None:
        """The extent's row group, when the extent describes it; None when it is not cached, without `wait`."""
        kind = _COMMAS if commas else _RECORDS
        if wait:
            return self._agreeing(self._group(extent.file, extent.row_group, kind), extent)
        group = self._cache.peek((extent.file, extent.row_group, kind))
        return None if group is None else self._agreeing(group, extent)

    @staticmethod
    def _agreeing(group: _Group, extent: Extent) -> _Group:
        low, high = extent.row_start, extent.row_start + extent.row_count
        if not 0 <= low < high <= len(group.begins):
            raise LakeDamaged(extent.file, f"row group {extent.row_group} has no rows {low} to {high}")
        size = group.value_ends[high] - group.value_ends[low]
        if group.begins[low] != extent.start or size != extent.end - extent.start:
            raise LakeDamaged(
                extent.file,
                f"rows {low} to {high} of row group {extent.row_group} hold {size} bytes from offset "
                f"{group.begins[low]}, not {extent.end - extent.start} from {extent.start}",
            )
        return group

    # ---- fetching and decoding ----------------------------------------------------------------------------------

    def _group(self, file: str, number: int, kind: int) -> _Group:
        return self._cache.get((file, number, kind), lambda: self._load_group(file, number, kind))

    def _load_group(self, file: str, number: int, kind: int) -> tuple[_Group, int]:
        # Bodies of responses hold no ids.
        commas = kind == _COMMAS
        table = self._decode(file, number, _COLUMNS[kind])
        payload = _flat(table["payload"], file)
        _, ends, values = payload.buffers()
        first, count = payload.offset, len(payload)
        if commas:
            values = _with_commas(payload)
        ms, n, positions = [memoryview(b"")] * 3 if commas else [_integers(table[name], file) for name in _IDS]
        group = _Group(
            _integers(table["offset"], file),
            ms,
            n,
            positions,
            memoryview(ends).cast("B").cast("i")[first : first + count + 1],
            memoryview(values).cast("B") if values is not None else memoryview(b""),
            table.select([name for name in LABELS if name in table.column_names]) if kind == _LABELLED else None,
        )
        size = len(group.values) + 4 * len(group.value_ends) + (1 if commas else 4) * 8 * count
        return group, size + (0 if group.labels is None else group.labels.nbytes)

    def _decode(self, file: str, number: int, names: tuple[str, ...]) -> pa.Table:
        footer = self._footer(file)
        if not 0 <= number < footer.num_row_groups:
            raise LakeDamaged(file, f"it has {footer.num_row_groups} row groups, not number {number}")
        if len(names) > len(SERVED):  # not every file has every label
            names = tuple(name for name in names if name in footer.schema.names)
        path = self._store.local_path(file)
        if path is not None:
            # Arrow reads the file by itself, and one that is open already is not opened again: a thread that comes back
            # into Python waits for the GIL each time, and the event loop keeps it while it sends.
            opened = self._idle.take(file)
            if opened is None:
                opened = self._parquet(file, number, footer, self._opened(file, path))
            rows = self._rows_of(file, number, names, opened)
            self._idle.give(file, opened)
            return rows
        start, length = _span(footer.row_group(number), names)

        def fetch() -> Data:
            return self._store.get_range(file, start, length)

        def parsed(data: Data) -> pa.Table:
            opened = self._parquet(file, number, footer, _Window(data, start))
            return self._rows_of(file, number, names, opened)

        if self._disk is None:
            return parsed(fetch())
        try:
            return parsed(self._disk.get(file, start, length, fetch))
        except LakeDamaged:
            # It may have been damaged on its way here, once: then the store still has it whole.
            self._disk.drop(file, start, length)
            return parsed(fetch())

    def _opened(self, file: str, path: str) -> pa.NativeFile:
        try:
            return pa.OSFile(path)
        except FileNotFoundError as error:
            raise ObjectMissing(file) from error
        except OSError as error:
            raise self._store.explain(error) or LakeDamaged(file, str(error)) from error

    def _parquet(
        self, file: str, number: int, footer: pq.FileMetaData, source: PyFile | pa.NativeFile
    ) -> pq.ParquetFile:
        with self._told(file, number):
            return open_parquet(source, footer)

    def _rows_of(self, file: str, number: int, names: tuple[str, ...], opened: pq.ParquetFile) -> pa.Table:
        columns, about = list(names), opened.metadata.row_group(number)
        with self._told(file, number):
            # One thread: the engine decides how many cold reads run at once.
            if about.total_byte_size < 2 * _PIECE_BYTES or not self._append_pressure():
                return opened.read_row_group(number, columns=columns, use_threads=False)
            rows = min(max(about.num_rows * _PIECE_BYTES // about.total_byte_size, 1), _PIECE_ROWS_MAX)
            pieces = []
            # They are joined later. That costs a copy, and lets other threads run meanwhile.
            for piece in opened.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
                pieces.append(piece)
                breathe()
            return pa.Table.from_batches(pieces)

    @contextmanager
    def _told(self, file: str, number: int) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise self._store.explain(error) or LakeDamaged(file, str(error)) from error
            raise LakeDamaged(file, f"row group {number}: {error}") from error

    def _footer(self, file: str) -> pq.FileMetaData:
        return self._cache.get((file, "footer"), lambda: self._load_footer(file))

    def _load_footer(self, file: str) -> tuple[pq.FileMetaData, int]:
        if self._disk is None:
            return _parsed_footer(file, self._fetch_footer(file))
        try:
            return _parsed_footer(file, self._disk.get(file, _FOOTER_START, None, lambda: self._fetch_footer(file)))
        except LakeDamaged:
            self._disk.drop(file, _FOOTER_START, None)
            return _parsed_footer(file, self._fetch_footer(file))

    def _fetch_footer(self, file: str) -> Data:
        """Exactly the footer, with what follows it."""
        tail, size = self._store.get_tail(file, _FOOTER_GUESS_BYTES)
        if len(tail) < 12 or bytes(tail[-4:]) != _MAGIC:
            raise LakeDamaged(file, "it does not end as a Parquet file does")
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > size:
            raise LakeDamaged(file, "its footer is larger than itself")
        if length > len(tail):
            tail = self._store.get_range(file, size - length, length)
        return tail[len(tail) - length :]


def _parsed_footer(file: str, data: Data) -> tuple[pq.FileMetaData, int]:
    try:
        # The parser takes a footer alone for a file: it begins with its magic, and ends with it.
        footer = pq.read_metadata(pa.BufferReader(pa.py_buffer(b"".join([_MAGIC, data]))))
    except (pa.ArrowException, OSError) as error:
        raise LakeDamaged(file, f"its footer: {error}") from error
    return footer, len(data) * _PARSED_FOOTER_FACTOR


class _Idle:
    """Local files that are open and not being read, those of the last reads. One reads a file at a time; another who
    comes meanwhile opens it for itself."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, pq.ParquetFile] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, file: str) -> pq.ParquetFile | None:
        with self._lock:
            return self._files.pop(file, None)

    def give(self, file: str, opened: pq.ParquetFile) -> None:
        with self._lock:
            self._files[file] = opened
            if len(self._files) > _IDLE_MAX:
                self._files.popitem(last=False)


class _Window(PyFile):
    """A part of a file that stands for the whole: what Arrow asks for lies within the part, or the file is damaged."""

    def __init__(self, data: Data, start: int) -> None:
        self._buffer = pa.py_buffer(data)
        self._start = start
        super().__init__(start + int(self._buffer.size))

    def fetched(self, start: int, length: int) -> pa.Buffer:
        if start < self._start:
            raise OSError("its footer points outside the row group")
        return self._buffer.slice(start - self._start, length)


def _span(row_group: pq.RowGroupMetaData, names: tuple[str, ...]) -> tuple[int, int]:
    """Where the columns lie in the file: start and length of one range around them all."""
    starts, ends = [], []
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        if column.path_in_schema in names:
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            starts.append(start)
            ends.append(start + column.total_compressed_size)
    return (min(starts), max(ends) - min(starts)) if starts else (0, 0)


def _flat(column: pa.ChunkedArray, file: str) -> pa.Array:
    if column.null_count:
        raise LakeDamaged(file, "a row lacks a value that every record has")
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _with_commas(payload: pa.Array) -> pa.Buffer:
    """All values in one buffer with a comma between two of them. Arrow joins without the GIL."""
    edges = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(array("i", (0, len(payload))))])
    joined = pc.binary_join(pa.ListArray.from_arrays(edges, payload), pa.scalar(b",", pa.binary()))
    return joined.buffers()[2]


def _integers(column: pa.ChunkedArray, file: str) -> memoryview:
    values = _flat(column, file)
    if values.type != pa.int64():
        raise LakeDamaged(file, f"a column holds {values.type}, not int64")
    view = memoryview(values.buffers()[1]).cast("B").cast("q")
    return view[values.offset : values.offset + len(values)]
