"""Turns rows that are sorted already into one Parquet file of the lake, as a flush of them would have written it.

Owns how far ahead has to be looked for a cut into row groups. Never sorts, stores or commits: whoever moves rows from
file to file does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.bounds import Bounds
from headwater.lake.layout import SCHEMA, WIDE, NewFile
from headwater.lake.names import data_key
from headwater.lake.store import Data
from headwater.lake.writer import BYTES_PER_GROUP, LZ4, ROWS_PER_GROUP, SORTED_BY, cut, in_order, parquet_writer

_WINDOW_GROUPS = 16
"""So many row groups of rows are held at a time."""
_PART_BYTES = 1 << 20


class Written(msgspec.Struct, frozen=True):
    data: list[Data]
    """The file's bytes, for `ObjectStore.put` at `file.path`."""
    file: NewFile


def write_sorted(
    batches: Iterable[pa.RecordBatch],
    group: int,
    token: str,
    codec: str = LZ4,
    rows_per_group: int = ROWS_PER_GROUP,
    bytes_per_group: int = BYTES_PER_GROUP,
    wide: bool = False,
) -> Written | None:
    """One file of rows that come sorted by `SORTED_BY`, in batches of any size; None when there are none.

    Their columns are those of `SCHEMA`, or of `WIDE`; others of theirs are left out.
    Row groups are cut as `build` cuts them. Holds some row groups of rows at a time, and the encoded file. Raises
    ValueError when rows are not in order, there twice, or of another group.
    """
    sink = _Parts()
    stream = pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), _PART_BYTES)
    bounds = Bounds(group)
    schema = WIDE if wide else SCHEMA
    with parquet_writer(stream, codec, wide) as writer:
        for rows in _grouped(batches, schema, bounds, rows_per_group, bytes_per_group):
            writer.write_table(rows, row_group_size=len(rows))
    stream.close()
    if not bounds.row_count:
        return None
    path = data_key(group, bounds.high["position"], token)
    size = sum(map(len, sink.parts))
    return Written(sink.parts, NewFile(path, size, bounds.row_count, bounds.told(), wide))


class _Parts:
    """Takes a file's bytes as they are written, without ever joining or moving them."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Data] = []

    def write(self, data: bytes) -> int:
        self.parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Everything is there already."""

    def close(self) -> None:
        """Nothing is held open."""


class _Rows(msgspec.Struct, frozen=True):
    """Consecutive rows of one stream: where their bytes begin, and where each one's end."""

    start: int
    ends: Any


def _grouped(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, bounds: Bounds, rows_per_group: int, bytes_per_group: int
) -> Iterator[pa.Table]:
    """The rows in row groups, looking only as far ahead as a cut depends on what follows."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in chain(batches, (None,)):
        if batch is not None:
            waiting.append(batch.select(schema.names).cast(schema))
            rows += len(batch)
            size += pc.sum(pc.binary_length(waiting[-1]["payload"])).as_py() or 0
            if rows < _WINDOW_GROUPS * rows_per_group and size < _WINDOW_GROUPS * bytes_per_group:
                continue
        if not rows:
            return
        window = pa.Table.from_batches(waiting, schema)
        counts = _counts(window, rows_per_group, bytes_per_group)
        if batch is not None:
            # How far the last run goes on is not known yet, and so neither where the group before it ends.
            counts = counts[:-2]
        at = 0
        for count in counts:
            group = window.slice(at, count)
            bounds.add(group)
            yield group
            at += count
        rest = window.slice(at)
        waiting, rows = rest.to_batches(), len(rest)
        size = pc.sum(pc.binary_length(rest["payload"])).as_py() or 0


def _counts(window: pa.Table, rows_per_group: int, bytes_per_group: int) -> list[int]:
    """How many rows each row group takes. Raises ValueError when the rows are not in order."""
    count = len(window)
    keys = window.select(SORTED_BY).combine_chunks()
    if not in_order(keys):
        raise ValueError("rows are not in order, or there twice")
    before, after = keys.slice(0, count - 1), keys.slice(1)
    step = pc.subtract(after["seq"], before["seq"])
    apart = pc.or_(pc.not_equal(before["incarnation"], after["incarnation"]), pc.not_equal(step, 1))
    # In one piece: pyarrow before 26 crashes on an array of no pieces, which is what a single row leaves.
    firsts = [0, *(index + 1 for index in pc.indices_nonzero(apart.combine_chunks()).to_pylist()), count]
    sizes = pc.binary_length(window["payload"]).to_pylist()
    edges = memoryview(array("q", accumulate(sizes, initial=0)))
    runs = [_Rows(edges[low], edges[low + 1 : high + 1]) for low, high in pairwise(firsts)]
    return [sum(high - low for _, low, high in pieces) for pieces in cut(runs, rows_per_group, bytes_per_group)]
