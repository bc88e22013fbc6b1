"""What a lake row is: the columns of every Parquet file, and the values that say where records lie.

Owns names, types and the statistics other readers prune by. Never reads or writes a file.

A file's rows are sorted by (bucket, stream, incarnation, seq), in row groups; `names` says what it is called. A row is
a record. Columns are only ever added, at the end, nullable: numbers and names here are for ever.

A file has the columns of `SCHEMA`, or of `WIDE` when one of its records has what those that were added are for. The
table has them from the first such file on (docs/decisions/0021).
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),  # the stream's sid: delete + recreate is another one
        pa.field("seq", pa.int64(), nullable=False),  # 0, 1, 2… in its stream
        pa.field("offset", pa.int64(), nullable=False),  # payload bytes of the stream before this record
        pa.field("ts_ms", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),  # the record's id is <ts_ms>-<n>
        pa.field("group", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),  # log position after the event that brought it
        pa.field("tag", pa.string()),
        pa.field("node", pa.string()),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""Plain types only: Spark reads no `large_*` and no dictionaries."""

ADDED = (
    pa.field("meta", pa.string()),  # the text of a JSON object
    pa.field("job", pa.string()),  # {"key": …, "deliver_at": …}, each only if it is known
)
WIDE = pa.schema([*SCHEMA, *ADDED])

LABELS = ("tag", "node", "meta", "job")
"""What records carry beside their payload (see `labels`). Null where they carry none."""

PRUNED_BY = ("bucket", "stream", "incarnation", "seq", "offset", "ts_ms", "group", "position", "tag")
"""Columns with statistics in every file, row group and Delta action: docs/decisions/0039 has what each one costs. Files
of older versions lack those of some."""

SERVED = ("offset", "ts_ms", "n", "position", "payload")
"""What a read of records needs. From the first to the last they are one range of the file."""

_STATISTIC_CHARS_MAX = 256


class NewFile(msgspec.Struct, frozen=True):
    """A file that is stored but not in the table yet: what a commit says of it."""

    path: str
    size_bytes: int
    row_count: int
    statistics: str
    """Delta's JSON: numRecords, minValues, maxValues, nullCount."""
    wide: bool = False
    """It has the columns of `WIDE`."""


class FileInfo(msgspec.Struct, frozen=True):
    """A file of the table. What its statistics do not tell is None: others may commit files too."""

    path: str
    size_bytes: int
    modified_ms: int
    row_count: int | None
    group: int | None
    position_min: int | None
    position_max: int | None
    ms_min: int | None = None
    """Of its records' times."""
    ms_max: int | None = None


_LISTED = (
    *("path", "size_bytes", "modification_time", "num_records", "min.group", "min.position", "max.position"),
    *("min.ts_ms", "max.ts_ms"),
)
"""Columns of Delta's flat list of files, in the order of `FileInfo`'s fields."""


def listed_files(listed: pa.Table) -> dict[str, FileInfo]:
    """The files of a table's version, by path, from Delta's flat list of them."""
    absent = [None] * len(listed)
    columns = [listed[name].to_pylist() if name in listed.column_names else absent for name in _LISTED]
    return {row[0]: FileInfo(*row) for row in zip(*columns, strict=True)}


class _Statistics(msgspec.Struct):
    numRecords: int
    minValues: dict[str, str | int]
    maxValues: dict[str, str | int]


_statistics = msgspec.json.Decoder(_Statistics).decode


def info_of(file: NewFile, modified_ms: int) -> FileInfo:
    """What the table says of a file once it has it."""
    told = _statistics(file.statistics)
    low, high = told.minValues, told.maxValues
    bounds = (low.get("group"), low.get("position"), high.get("position"), low.get("ts_ms"), high.get("ts_ms"))
    numbers = (value if isinstance(value, int) else None for value in bounds)
    return FileInfo(file.path, file.size_bytes, modified_ms, told.numRecords, *numbers)


def statistics(
    row_count: int,
    low: dict[str, str | int | None],
    high: dict[str, str | int | None],
    tagless_count: int | None = None,
) -> str:
    """The JSON of an add action. A long name is left out: cut short, it would bound the wrong side.

    So is what is not known (None). `tagless_count`: rows without a tag.
    """
    kept = [name for name in PRUNED_BY if not _unfit(low.get(name)) and not _unfit(high.get(name))]
    nulls = dict.fromkeys((field.name for field in SCHEMA if not field.nullable and field.name in PRUNED_BY), 0)
    if tagless_count is not None:
        nulls["tag"] = tagless_count
    document = {
        "numRecords": row_count,
        "minValues": {name: low[name] for name in kept},
        "maxValues": {name: high[name] for name in kept},
        "nullCount": nulls,
    }
    return msgspec.json.encode(document).decode()


def widened(rows: pa.Table, names: Container[str]) -> pa.Table:
    """With every one of the columns that were added, null where the rows have none."""
    for field in ADDED:
        if field.name in names and field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    return rows


def _unfit(value: str | int | None) -> bool:
    return value is None or (isinstance(value, str) and len(value) > _STATISTIC_CHARS_MAX)
