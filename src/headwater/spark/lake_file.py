"""A file of the lake as a job reads it: from its first row to its last, every page checked, and which rows are live.

Owns reading by row groups in bounded pieces, and the translation of extents into rows of a file. Never plans, and
never serves a record: the node's reader does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.lake.arrow_file import PyFile, open_parquet
from headwater.lake.layout import SCHEMA, widened
from headwater.lake.names import data_group
from headwater.lake.store import Data, LakeDamaged, ObjectStore, StoreError
from headwater.spark.node import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES = 16 << 20
"""About so much of a file is decoded at once."""
_TAIL_BYTES = 64 << 10
FILES_PER_CALL = 1_000
EXTENTS_PER_CALL = 500_000
"""Of rows that might each be an extent: the node answers with at most two million."""

T = TypeVar("T")


class _Object(PyFile):
    """An object as a file that Arrow reads ranges of. Its end, where the footer is, is fetched once."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        tail, size = store.get_tail(key, _TAIL_BYTES)
        super().__init__(size)
        self._store, self._key = store, key
        self._tail = memoryview(tail)
        self.failure: StoreError | None = None
        """Why a range could not be read: Arrow makes a plain OSError of it."""

    def fetched(self, start: int, length: int) -> Data:
        kept_from = self._size - len(self._tail)
        if start >= kept_from:
            return self._tail[start - kept_from : start - kept_from + length]
        try:
            return self._store.get_range(self._key, start, length)
        except StoreError as error:
            self.failure = error
            raise OSError(error.reason) from error


class LakeFile:
    """Raises LakeDamaged, ObjectMissing, StoreUnavailable or StoreRefused, at once or while it is read."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self.path = path
        self._object = _Object(store, path)
        self.size_bytes = self._object.size()

        def opened() -> pq.ParquetFile:
            return open_parquet(self._object, ahead=True)

        self._file = self._checked(opened)
        self.footer: Any = self._file.metadata
        counts = [self.footer.row_group(number).num_rows for number in range(self.footer.num_row_groups)]
        self.group_starts: NDArray[np.int64] = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        """The row of the file that each row group begins with, and after the last one their number."""
        found = self._file.schema_arrow
        self._names = set(found.names)
        wrong = [
            field.name
            for field in SCHEMA
            if field.name not in found.names or found.field(field.name).type != field.type
        ]
        if wrong:
            raise LakeDamaged(path, f"its columns {', '.join(wrong)} are missing or of another type")

    @property
    def row_count(self) -> int:
        return int(self.group_starts[-1])

    def rows(self, columns: Sequence[str], groups: Iterable[int] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """The rows in pieces of some row groups each, and the row of the file that the piece begins with."""
        piece: list[int] = []
        size = 0
        for number in range(self.footer.num_row_groups) if groups is None else groups:
            weight = self._weight(number, columns)
            if piece and (size + weight > PIECE_BYTES or number != piece[-1] + 1):
                yield self._piece(piece, columns)
                piece, size = [], 0
            piece.append(number)
            size += weight
        if piece:
            yield self._piece(piece, columns)

    def _piece(self, groups: list[int], columns: Sequence[str]) -> tuple[int, pa.Table]:
        def read() -> pa.Table:
            # One thread: Spark decides how many tasks run at once.
            held = [name for name in columns if name in self._names]
            return widened(self._file.read_row_groups(groups, columns=held, use_threads=False), columns)

        return int(self.group_starts[groups[0]]), self._checked(read)

    def _weight(self, number: int, columns: Sequence[str]) -> int:
        group = self.footer.row_group(number)
        held = (group.column(index) for index in range(group.num_columns))
        return sum(one.total_uncompressed_size for one in held if one.path_in_schema in columns)

    def _checked(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except (pa.ArrowException, OSError, KeyError) as error:
            if self._object.failure is not None:
                raise self._object.failure from error
            raise LakeDamaged(self.path, str(error).partition("\n")[0]) from error


# ---- live rows ---------------------------------------------------------------------------------------------------


def extents_of(node: Node, files: Sequence[tuple[str, int]], shown: bool = False) -> Iterator[tuple[str, pa.Table]]:
    """The live extents of each file (path, number of rows), in order of row group and row; a few calls for all.

    With `shown` without those of deleted records, which only forks read.
    """
    for group, some in _calls(files):
        found = pa.ipc.open_stream(node.lake_extents(group, some)).read_all()
        if shown and "deleted" in found.column_names:
            found = found.filter(pc.invert(found["deleted"]))
        runs = pc.run_end_encode(found["file"].combine_chunks()) if len(found) else None
        edges = [0, *(runs.run_ends.to_pylist() if runs is not None else ())]
        held = dict(zip(runs.values.to_pylist() if runs is not None else (), pairwise(edges), strict=True))
        for path in some:
            low, high = held.get(path, (0, 0))
            yield path, found.slice(low, high - low)


def _calls(files: Sequence[tuple[str, int]]) -> Iterator[tuple[int, list[str]]]:
    """What each call asks for: a group, and files of it."""
    some: list[str] = []
    group = rows = 0
    for path, row_count in files:
        other = data_group(path)
        full = len(some) == FILES_PER_CALL or rows + row_count > EXTENTS_PER_CALL
        if some and (full or other != group):
            yield group, some
            some, rows = [], 0
        group = other
        some.append(path)
        rows += row_count
    if some:
        yield group, some


def spans(file: LakeFile, extents: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which rows of the file the extents are, from and up to. Raises LakeDamaged when it has no such rows."""
    groups = extents["row_group"].to_numpy()
    starts, counts = extents["row_start"].to_numpy(), extents["row_count"].to_numpy()
    if len(groups):
        known = (groups >= 0) & (groups < len(file.group_starts) - 1)
        rows = np.diff(file.group_starts)[np.where(known, groups, 0)]
        if not known.all() or (starts < 0).any() or (counts <= 0).any() or (starts + counts > rows).any():
            raise LakeDamaged(file.path, "the catalog refers to rows that it does not have")
    first = file.group_starts[groups] + starts
    return first, first + counts


def live_mask(starts: NDArray[np.int64], ends: NDArray[np.int64], at: int, count: int) -> NDArray[np.bool_] | None:
    """Which of `count` rows from `at` on lie in a span; None when all do."""
    cover = np.zeros(count + 1, dtype=np.int64)
    np.add.at(cover, np.clip(starts - at, 0, count), 1)
    np.add.at(cover, np.clip(ends - at, 0, count), -1)
    mask = np.cumsum(cover[:-1]) > 0
    return None if mask.all() else mask
