"""The lake as the data pipeline plans by it: which files there are, what in them is live, and whose it is.

Owns the Arrow shapes of extents and streams. Never reads an object: all of it is known to catalog and table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from headwater.lake.columns import Strings, numbers
from headwater.lake.layout import FileInfo
from headwater.model.deletions import Part
from headwater.model.names import bucket_of, stream_of
from headwater.model.row import StreamRow
from headwater.ports import RowCounts

EXTENTS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        *(
            pa.field(name, pa.int64(), nullable=False)
            for name in ("incarnation", "start", "end", "seq_start", "row_group", "row_start", "row_count")
        ),
        pa.field("deleted", pa.bool_(), nullable=False),  # their stream has deleted these records; only forks read them
    ]
)
STREAMS = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("tail", pa.int64(), nullable=False),
        pa.field("earliest", pa.int64(), nullable=False),  # offset of the oldest record kept
        pa.field("first_seq", pa.int64(), nullable=False),  # its number
        pa.field("count", pa.int64(), nullable=False),  # number of the record that comes next
        pa.field("cold_end", pa.int64(), nullable=False),  # offset up to which its own records are in the lake
        pa.field("closed", pa.bool_(), nullable=False),
        pa.field("snapshot_offset", pa.int64()),
        pa.field("created_ms", pa.int64(), nullable=False),
        pa.field("last_ms", pa.int64(), nullable=False),  # of the newest record's id; 0 when there is none
        pa.field("deleted", pa.bool_(), nullable=False),  # only forks keep it
        pa.field("forked_from", pa.int64()),  # incarnation of the source
        pa.field("fork_at", pa.int64()),  # its own records begin here; those before are the source's
        pa.field("holes", pa.binary()),  # deleted records after the first one kept (see `model.holes`)
    ]
)
_BATCH_COUNT = 16_384
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def list_files(table: dict[str, FileInfo], live: dict[str, RowCounts]) -> list[dict[str, Any]]:
    """What is told of each file that extents refer to. Raises KeyError for one that the table does not hold."""
    found = []
    for path, rows in sorted(live.items()):
        info = table[path]
        found.append(
            {
                "path": path,
                "bytes": info.size_bytes,
                "rows": rows.live if info.row_count is None else info.row_count,
                "live_rows": rows.live,
                "deleted_rows": rows.deleted,
                "position_min": info.position_min,
                "position_max": info.position_max,
                "modified_ms": info.modified_ms,
                "ms_min": info.ms_min,
                "ms_max": info.ms_max,
            }
        )
    return found


def encode_extents(parts: Iterable[Part]) -> bytes:
    """Arrow IPC, in the order given."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EXTENTS, options=_COMPRESSED) as writer:
        rest = iter(parts)
        while told := list(islice(rest, _BATCH_COUNT)):
            some = [part.extent for part in told]
            columns = [
                _strings([extent.file for extent in some]),
                _integers([extent.sid for extent in some]),
                _integers([extent.start for extent in some]),
                _integers([extent.end for extent in some]),
                _integers([extent.seq_start for extent in some]),
                _integers([extent.row_group for extent in some]),
                _integers([extent.row_start for extent in some]),
                _integers([extent.row_count for extent in some]),
                pa.array([part.deleted for part in told], pa.bool_()),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=EXTENTS))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def encode_streams(rows: Sequence[StreamRow]) -> bytes:
    """Arrow IPC, in the order given."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STREAMS, options=_COMPRESSED) as writer:
        for at in range(0, len(rows), _BATCH_COUNT):
            some = rows[at : at + _BATCH_COUNT]
            columns = [
                _strings([bucket_of(row.key) for row in some]),
                _strings([stream_of(row.key) for row in some]),
                _integers([row.sid for row in some]),
                _strings([row.content_type for row in some]),
                _integers([row.tail for row in some]),
                _integers([row.earliest for row in some]),
                _integers([row.first_seq for row in some]),
                _integers([row.count for row in some]),
                _integers([row.cold_end for row in some]),
                pa.array([row.closed for row in some], pa.bool_()),
                pa.array([None if row.snapshot is None else row.snapshot.offset for row in some], pa.int64()),
                _integers([row.created_ms for row in some]),
                _integers([row.last_ms for row in some]),
                pa.array([row.soft_deleted for row in some], pa.bool_()),
                pa.array([None if row.forked is None else row.forked.sid for row in some], pa.int64()),
                pa.array([None if row.forked is None else row.forked.at for row in some], pa.int64()),
                pa.array([row.holes or None for row in some], pa.binary()),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=STREAMS))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _integers(values: list[int]) -> pa.Array:
    return numbers(pa.int64(), array("q", values))


def _strings(values: list[str]) -> pa.Array:
    column = Strings()
    column.extend(values)
    return column.array()
