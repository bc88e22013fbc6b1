"""Turns the hot ranges of many streams into one sorted Parquet file, and says where each stream's records came to lie.

Owns the order of rows, the cut into row groups and the encoding. Never stores, commits or forgets anything.

The columns are built from the buffers the timeline holds already, one row group at a time: nothing here keeps the GIL
for longer than a slice of `SLICE_COUNT` runs or one row group's rows takes. Arrow works without the GIL.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.lake.bounds import Bounds
from headwater.lake.columns import SLICE_COUNT, Strings, numbers
from headwater.lake.labels import columns as label_columns
from headwater.lake.labels import need_wide
from headwater.lake.layout import PRUNED_BY, SCHEMA, WIDE, NewFile
from headwater.lake.names import data_key
from headwater.lake.store import Data
from headwater.model.extents import Extent, Run
from headwater.model.labels import Labels
from headwater.ports import breathe

ROWS_PER_GROUP = 4_096
BYTES_PER_GROUP = 2 << 20
"""A cold read fetches and decodes one row group: this bounds what it costs where records are large."""

# lz4 and not zstd level 1: a cold read waits for the decoding and a flush shares two cores with the appends.
# `python -m tests.lake.measure`, JSON records, medians of one run:
#
#                     4,096 records of 100 B per row group        2,098 of 1,000 B
#           none      read 0.50 ms   build  29 ms   1.05 × raw    0.93 ms    34 ms   1.01 ×
#           lz4            0.50 ms          19 ms   0.55 ×        1.24 ms   110 ms   0.65 ×
#           zstd 1         0.82 ms          46 ms   0.35 ×        2.16 ms   308 ms   0.38 ×
#
# Where rows only move to another file no client waits for the writing, but readers wait for the decoding: on a local
# disk lz4 stays the choice. Over a network of 100 MB/s the 1,000 B row group is fetched in 14 ms with lz4 and in 8 ms
# with zstd, which is more than its decoding costs; and there what is kept for long is paid for by the byte.
LZ4, ZSTD = "lz4", "zstd"
_CODEC = LZ4
_DICTIONARIES = ["bucket", "stream", "group", "tag", "node", "content_type"]
_BY_ROW = ("seq", "offset", "ts_ms", "tag")
"""Columns whose bounds are looked for row by row: 20 µs a row group of 4,096. Those of others the runs tell."""
_NUMBERS = ["incarnation", "seq", "offset", "ts_ms", "n", "position"]


class Built(msgspec.Struct, frozen=True):
    data: list[Data]
    """The file's bytes, for `ObjectStore.put` at `file.path`."""
    extents: list[Extent]
    """In the order of the rows: by stream, then by offset."""
    file: NewFile


class Ranged(Protocol):
    """A contiguous range of one stream's records: a `Run`, or rows that stand for one."""

    @property
    def start(self) -> int: ...
    @property
    def ends(self) -> array[int]: ...


Piece = tuple[int, int, int]
"""A run, by number, and which of its records: from, up to."""


def build(
    runs: Sequence[Run],
    group: int,
    token: str,
    rows_per_group: int = ROWS_PER_GROUP,
    bytes_per_group: int = BYTES_PER_GROUP,
) -> Built:
    """One file of all the runs' records. `token` makes its name unique.

    Runs without records are left out; at least one has some. Runs of one stream may come in any order but must not
    overlap. Raises ValueError when a run's payloads and offsets disagree.
    """
    runs, facts = _sorted([run for run in runs if run.payloads])
    known = {name: pc.min_max(facts[name]).as_py() for name in facts.column_names}
    path = data_key(group, known["position_max"]["max"], token)
    bounds = Bounds(group, _BY_ROW)
    for name in ("bucket", "stream", "incarnation"):
        bounds.low[name], bounds.high[name] = known[name]["min"], known[name]["max"]
    bounds.low["position"], bounds.high["position"] = known["position_min"]["min"], known["position_max"]["max"]
    sink = pa.BufferOutputStream()
    extents: list[Extent] = []
    wide = any(need_wide(run.labels) for run in runs)
    with parquet_writer(sink, _CODEC, wide) as writer:
        for number, pieces in enumerate(cut(runs, rows_per_group, bytes_per_group)):
            rows = _rows(runs, facts, pieces, group, path, number, extents, wide)
            writer.write_table(rows, row_group_size=len(rows))
            bounds.add(rows)
    data = memoryview(sink.getvalue()).cast("B")
    return Built([data], extents, NewFile(path, len(data), bounds.row_count, bounds.told(), wide))


SORTED_BY = ("bucket", "stream", "incarnation", "seq")
"""And so by offset too; the other way round records without bytes would be in doubt."""


def in_order(rows: pa.Table) -> bool:
    """True when no row is the same as or less than the one before it, by `SORTED_BY`."""
    if len(rows) < 2:
        return True
    before, after = rows.slice(0, len(rows) - 1), rows.slice(1)
    rising = same = None
    for name in SORTED_BY:
        less, equal = pc.less(before[name], after[name]), pc.equal(before[name], after[name])
        rising = less if rising is None else pc.or_(rising, pc.and_(same, less))
        same = equal if same is None else pc.and_(same, equal)
    found: bool = pc.all(rising).as_py()
    return found


def parquet_writer(sink: Any, codec: str, wide: bool) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        WIDE if wide else SCHEMA,
        compression=codec,
        use_dictionary=_DICTIONARIES,
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
        write_statistics=list(PRUNED_BY),
        write_page_checksum=True,  # the codec does not notice a flipped bit by itself
        sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index(name)) for name in SORTED_BY],
        store_schema=False,  # the plain Parquet types are the schema
    )


def _sorted(runs: list[Run]) -> tuple[list[Run], pa.Table]:
    """The runs by bucket, stream, incarnation and seq, and a table with a row of facts for each.

    Arrow sorts without the GIL, where 100,000 tuples would keep it for 100 ms. It compares names as UTF-8, as Spark.
    """
    if not runs:
        raise ValueError("a file without records")
    buckets, streams, types = Strings(), Strings(), Strings()
    sids, seqs, lowest, highest = array("q"), array("q"), array("q"), array("q")
    for start in range(0, len(runs), SLICE_COUNT):
        some = runs[start : start + SLICE_COUNT]
        keys = [run.key.partition("/") for run in some]
        buckets.extend(key[0] for key in keys)
        streams.extend(key[2] for key in keys)
        types.extend(run.content_type for run in some)
        sids.extend([run.sid for run in some])
        seqs.extend([run.seq_start for run in some])
        lowest.extend([run.positions[0] for run in some])
        highest.extend([run.positions[-1] for run in some])
        breathe()
    facts = {
        "bucket": buckets.array(),
        "stream": streams.array(),
        "incarnation": numbers(pa.int64(), sids),
        "seq": numbers(pa.int64(), seqs),
        "content_type": types.array(),
        "position_min": numbers(pa.int64(), lowest),
        "position_max": numbers(pa.int64(), highest),
    }
    table = pa.Table.from_arrays(list(facts.values()), names=list(facts))
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in SORTED_BY])
    indices = memoryview(order.buffers()[1]).cast("B").cast("Q")
    return [runs[index] for index in indices[: len(runs)]], table.take(order)


def cut(runs: Sequence[Ranged], rows_per_group: int, bytes_per_group: int) -> Iterator[list[Piece]]:
    """Row groups of about the wished size, in rows or in bytes. A run that fits into one is never split.

    A group may grow to one and a half times the wish, so that no run is cut for a few rows; a larger record is a group
    of its own.
    """
    rows_max, bytes_max = rows_per_group + rows_per_group // 2, bytes_per_group + bytes_per_group // 2
    pieces: list[Piece] = []
    rows = size = 0
    for number, run in enumerate(runs):
        low, count, ends = 0, len(run.ends), run.ends
        begin = run.start
        while low < count:
            rest_rows, rest_size = count - low, ends[-1] - begin
            if rows + rest_rows <= rows_max and size + rest_size <= bytes_max:
                high = count
            elif pieces and (
                (rest_rows <= rows_per_group and rest_size <= bytes_per_group)
                or rows * 4 >= rows_per_group * 3
                or size * 4 >= bytes_per_group * 3
            ):
                high = low  # it starts the next group: there it fits, or this one is nearly full anyway
            else:
                up_to = min(count, low + max(rows_per_group - rows, 1))
                high = max(low + 1, bisect_right(ends, begin + bytes_per_group - size, low, up_to))
            if high > low:
                pieces.append((number, low, high))
                rows += high - low
                size += ends[high - 1] - begin
                begin = ends[high - 1]
                low = high
            if low < count or rows >= rows_per_group or size >= bytes_per_group:
                yield pieces
                pieces, rows, size = [], 0, 0
    if pieces:
        yield pieces


def _rows(
    runs: list[Run],
    facts: pa.Table,
    pieces: list[Piece],
    group: int,
    path: str,
    row_group: int,
    extents: list[Extent],
    wide: bool,
) -> pa.Table:
    """The rows of one row group. Adds the extents they make to `extents`."""
    payloads: list[bytes] = []
    labels: list[Labels | None] | None = None
    begins, ms, n, positions = array("Q"), array("Q"), array("Q"), array("Q")
    seqs, owners = array("q"), array("i")
    row = size = 0
    for number, low, high in pieces:
        run = runs[number]
        ends = run.ends
        begin, end = ends[low - 1] if low else run.start, ends[high - 1]
        seq = run.seq_start + low
        count = high - low
        begins.append(begin)
        if count == 1:  # streams with a record each are common: no slices for them
            payloads.append(run.payloads[low])
            ms.append(run.ms[low])
            n.append(run.n[low])
            positions.append(run.positions[low])
            seqs.append(seq)
            owners.append(number)
        else:
            payloads += run.payloads[low:high]
            begins += ends[low : high - 1]
            ms += run.ms[low:high]
            n += run.n[low:high]
            positions += run.positions[low:high]
            seqs.extend(range(seq, seq + count))
            owners += array("i", (number,)) * count
        if run.labels is not None or labels is not None:
            labels = [None] * row if labels is None else labels
            labels += [None] * count if run.labels is None else run.labels[low:high]
        first = (run.sid, begin, end, seq, run.ms[low], run.n[low])
        extents.append(Extent(*first, path, row_group, row, count, positions[-1]))
        size += end - begin
        row += count
        if number % SLICE_COUNT == 0:
            breathe()
    value_ends = array("i", accumulate(map(len, payloads), initial=0))
    if value_ends[-1] != size or len(payloads) != row or not len(ms) == len(n) == len(positions) == row:
        raise ValueError("the columns of a run disagree")
    values = b"".join(payloads)
    owner = numbers(pa.int32(), owners)
    if labels is not None and len(labels) != row:
        raise ValueError("the columns of a run disagree")
    labelled = label_columns(labels, row, wide)
    columns = [
        facts["bucket"].take(owner),
        facts["stream"].take(owner),
        facts["incarnation"].take(owner),
        numbers(pa.int64(), seqs),
        numbers(pa.int64(), begins),
        numbers(pa.int64(), ms),
        numbers(pa.int64(), n),
        numbers(pa.int32(), array("i", (group,)) * row),
        numbers(pa.int64(), positions),
        labelled["tag"],
        labelled["node"],
        facts["content_type"].take(owner),
        pa.Array.from_buffers(pa.binary(), row, [None, pa.py_buffer(value_ends), pa.py_buffer(values)]),
        *([labelled["meta"], labelled["job"]] if wide else []),
    ]
    return pa.Table.from_arrays(columns, schema=WIDE if wide else SCHEMA)
