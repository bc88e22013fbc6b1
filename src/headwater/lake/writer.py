"""Turns the hot ranges of many streams into one sorted Parquet file, and says where each stream's records came to lie.

Owns the order of rows, the cut into row groups and the encoding. Never stores, commits or forgets anything.

The columns are built from the buffers the timeline holds already, one row group at a time: nothing here keeps the GIL
for longer than a slice of `_SLICE_COUNT` runs or one row group's rows takes. Arrow works without the GIL.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.lake.layout import PRUNED_BY, SCHEMA, Extent, NewFile, data_key, statistics
from headwater.lake.store import Data
from headwater.model.names import bucket_of, stream_of

ROWS_PER_GROUP = 4_096
BYTES_PER_GROUP = 2 << 20
"""A cold read fetches and decodes one row group: this bounds what it costs where records are large."""

# lz4 and not zstd level 1: a cold read waits for the decoding, and compaction may still choose zstd for what is old.
# Medians of one run on 2 cores, 4,096 JSON records of 100 B per row group, ms to read one / share of the raw size:
# CODEC_TABLE
_CODEC = "lz4"
_DICTIONARIES = ["bucket", "stream", "group", "tag", "node", "content_type"]
_NUMBERS = ["incarnation", "seq", "offset", "ts_ms", "n", "position"]
_SLICE_COUNT = 1_024
_BREATH_S = 0.000_05
"""Long enough to let a waiting thread have the GIL; time.sleep(0) may take it right back."""


class Run(msgspec.Struct, frozen=True):
    """Consecutive records of one stream: the columns of its timeline, by reference. They must not change any more."""

    key: str
    sid: int
    content_type: str
    seq_start: int
    start_offset: int
    payloads: Sequence[bytes]
    ends: array[int]
    """Offset after each record."""
    ms: array[int]
    n: array[int]
    positions: array[int]


class Built(msgspec.Struct, frozen=True):
    data: list[Data]
    """The file's bytes, for `ObjectStore.put` at `file.path`."""
    extents: list[Extent]
    """In the order of the rows: by stream, then by offset."""
    file: NewFile


class _Piece(msgspec.Struct):
    run: Run
    low: int
    high: int


def build(
    runs: Sequence[Run],
    group: int,
    token: str,
    rows_per_group: int = ROWS_PER_GROUP,
    bytes_per_group: int = BYTES_PER_GROUP,
) -> Built:
    """One file of all the runs' records. `token` makes its name unique; there must be at least one record.

    Runs of one stream may come in any order but must not overlap. Nothing outside is touched.
    """
    runs = _sorted([run for run in runs if run.payloads])
    if not runs:
        raise ValueError("a file without records")
    position_max = max(run.positions[-1] for run in runs)
    path = data_key(group, position_max, token)
    sink = pa.BufferOutputStream()
    extents: list[Extent] = []
    row_count = 0
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression=_CODEC,
        use_dictionary=_DICTIONARIES,
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        write_statistics=list(PRUNED_BY),
        write_page_checksum=True,  # neither codec notices a flipped bit by itself
        sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index(name)) for name in _SORTED_BY],
        store_schema=False,  # the plain Parquet types are the schema
    ) as writer:
        for row_group, pieces in enumerate(_cut(runs, rows_per_group, bytes_per_group)):
            table, rows = _table(pieces, group, path, row_group, extents)
            writer.write_table(table, row_group_size=max(rows, 1))
            row_count += rows
    data = memoryview(sink.getvalue())
    low: dict[str, str | int] = {"group": group, "position": min(run.positions[0] for run in runs)}
    high: dict[str, str | int] = {"group": group, "position": position_max}
    low["incarnation"], high["incarnation"] = min(run.sid for run in runs), max(run.sid for run in runs)
    low["bucket"], high["bucket"] = bucket_of(runs[0].key), bucket_of(runs[-1].key)
    low["stream"], high["stream"] = min(stream_of(run.key) for run in runs), max(stream_of(run.key) for run in runs)
    return Built([data], extents, NewFile(path, len(data), row_count, statistics(row_count, low, high)))


_SORTED_BY = ("bucket", "stream", "incarnation", "offset")


def _sorted(runs: list[Run]) -> list[Run]:
    """By bucket, stream, incarnation, offset. Names compare as UTF-8 does: code points are in the same order."""
    if len(runs) <= _SLICE_COUNT:
        return sorted(runs, key=_order)
    # A sort of 100,000 tuples would keep the GIL for 100 ms; Arrow sorts without it.
    slices = []
    for start in range(0, len(runs), _SLICE_COUNT):
        keys = [_order(run) for run in runs[start : start + _SLICE_COUNT]]
        slices.append(pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*keys, strict=True)], _SORTED_BY))
        time.sleep(_BREATH_S)
    table = pa.Table.from_batches(slices)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in _SORTED_BY])
    return [runs[index] for index in memoryview(order.buffers()[1]).cast("B").cast("Q")[: len(runs)]]


def _order(run: Run) -> tuple[str, str, int, int]:
    bucket, _, stream = run.key.partition("/")
    return bucket, stream, run.sid, run.start_offset


def _cut(runs: list[Run], rows_per_group: int, bytes_per_group: int) -> Iterator[list[_Piece]]:
    """Row groups of about the wished size, in rows or in bytes. A run that fits into one is never split.

    A group may grow to one and a half times the wish, so that a run need not be cut for a few rows; a record larger
    than that is a group of its own.
    """
    rows_max, bytes_max = rows_per_group + rows_per_group // 2, bytes_per_group + bytes_per_group // 2
    pieces: list[_Piece] = []
    rows = size = 0
    for run in runs:
        low, count = 0, len(run.payloads)
        while low < count:
            begin = run.ends[low - 1] if low else run.start_offset
            rest_rows, rest_size = count - low, run.ends[-1] - begin
            if rows + rest_rows <= rows_max and size + rest_size <= bytes_max:
                high = count
            elif pieces and (
                (rest_rows <= rows_per_group and rest_size <= bytes_per_group)
                or rows * 4 >= rows_per_group * 3
                or size * 4 >= bytes_per_group * 3
            ):
                high = low  # it starts the next group: there it fits, or this one is nearly full anyway
            else:
                high = _fitting(run.ends, low, low + max(rows_per_group - rows, 1), begin + bytes_per_group - size)
            if high > low:
                pieces.append(_Piece(run, low, high))
                rows += high - low
                size += run.ends[high - 1] - begin
                low = high
            if rows >= rows_per_group or size >= bytes_per_group or low < count:
                yield pieces
                pieces, rows, size = [], 0, 0
    if pieces:
        yield pieces


def _fitting(ends: array[int], low: int, high: int, offset: int) -> int:
    """The end of the longest piece from `low` that stays below `high` and ends at or before `offset`; one at least."""
    from bisect import bisect_right

    return max(low + 1, bisect_right(ends, offset, low, min(high, len(ends))))


def _table(
    pieces: list[_Piece], group: int, path: str, row_group: int, extents: list[Extent]
) -> tuple[pa.Table, int]:
    """The rows of one row group, and their count. Adds the extents they make to `extents`."""
    payloads: list[bytes] = []
    begins, ms, n, positions = array("Q"), array("Q"), array("Q"), array("Q")
    sids, seqs, names, types = array("q"), array("q"), array("i"), array("i")
    buckets: list[str] = []
    streams: list[str] = []
    type_numbers: dict[str, int] = {}
    row = 0
    for number, piece in enumerate(pieces):
        run, low, high = piece.run, piece.low, piece.high
        ends = run.ends
        count = high - low
        begin = ends[low - 1] if low else run.start_offset
        seq = run.seq_start + low
        if count == 1:
            payloads.append(run.payloads[low])
            begins.append(begin)
            ms.append(run.ms[low])
            n.append(run.n[low])
            positions.append(run.positions[low])
            sids.append(run.sid)
            seqs.append(seq)
            names.append(number)
            types.append(type_numbers.setdefault(run.content_type, len(type_numbers)))
        else:
            payloads += run.payloads[low:high]
            begins.append(begin)
            begins += ends[low : high - 1]
            ms += run.ms[low:high]
            n += run.n[low:high]
            positions += run.positions[low:high]
            sids += array("q", (run.sid,)) * count
            seqs.extend(range(seq, seq + count))
            names += array("i", (number,)) * count
            types += array("i", (type_numbers.setdefault(run.content_type, len(type_numbers)),)) * count
        bucket, _, stream = run.key.partition("/")
        buckets.append(bucket)
        streams.append(stream)
        extents.append(Extent(run.sid, begin, ends[high - 1], seq, path, row_group, row, count))
        row += count
        if number % _SLICE_COUNT == _SLICE_COUNT - 1:
            time.sleep(_BREATH_S)
    value_ends = array("i", accumulate(map(len, payloads), initial=0))
    if value_ends[-1] != sum(piece.run.ends[piece.high - 1] for piece in pieces) - sum(
        extent.start for extent in extents[-len(pieces) :]
    ):
        raise ValueError("payloads and offsets of a run disagree")
    time.sleep(_BREATH_S)
    values = b"".join(payloads)
    nothing = pa.nulls(row, pa.string())
    columns = [
        _named(names, buckets),
        _named(names, streams),
        _numbers(pa.int64(), sids),
        _numbers(pa.int64(), seqs),
        _numbers(pa.int64(), begins),
        _numbers(pa.int64(), ms),
        _numbers(pa.int64(), n),
        _numbers(pa.int32(), array("i", (group,)) * row),
        _numbers(pa.int64(), positions),
        nothing,
        nothing,
        _named(types, list(type_numbers)),
        pa.Array.from_buffers(pa.binary(), row, [None, pa.py_buffer(value_ends), pa.py_buffer(values)]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA), row


def _numbers(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _named(indices: array[int], names: list[str]) -> pa.Array:
    """A string per row, by number."""
    return pc.take(pa.array(names, pa.string()), _numbers(pa.int32(), indices))
