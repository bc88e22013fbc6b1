"""`headwater lake contents`: what a stopped node holds, counted and hashed, so that two copies can be told apart.
Owns what goes into the hash, and in which order. Never looks at records themselves: `lake verify` does."""

from __future__ import annotations

from pathlib import Path

import msgspec
from xxhash import xxh3_128

from headwater.cli.stopped_node import opened
from headwater.model.holes import totals
from headwater.model.names import bucket_of, stream_of
from headwater.model.row import StreamRow


class Contents(msgspec.Struct, frozen=True):
    position: int
    streams: int
    records: int
    """Those that streams still hold."""
    bytes: int
    digest: str
    """xxh3-128 of what `_facts` says of every stream, by incarnation."""
    files: list[str]
    """Files of the lake with records that streams hold."""
    blobs: list[str]
    """Snapshots that streams refer to."""


_pack = msgspec.msgpack.Encoder().encode


def count(data: Path, log_file_bytes: int) -> Contents:
    """What a node would come up with on this directory. Raises what `stopped.opened` raises."""
    digest = xxh3_128()
    streams = records = size = 0
    blobs: set[str] = set()
    with opened(data, log_file_bytes) as stopped:
        for row in stopped.streams():
            digest.update(_pack(_facts(row)))
            streams += 1
            deleted, deleted_bytes = totals(row.holes)
            records += row.count - row.first_seq - deleted
            size += row.tail - row.earliest - deleted_bytes
            if row.snapshot is not None:
                blobs.add(row.snapshot.blob)
        files = {extent.file for extent in stopped.extents()}
        return Contents(stopped.position, streams, records, size, digest.hexdigest(), sorted(files), sorted(blobs))


def _facts(row: StreamRow) -> tuple[object, ...]:
    """For ever: a backup is held against it years later. What it says of a stream only ever grows at the end."""
    producers = sorted((name, epoch, seq) for name, epoch, seq, _ in row.producers)
    snapshot = None if row.snapshot is None else (row.snapshot.offset, row.snapshot.blob, row.snapshot.size)
    place = (bucket_of(row.key), stream_of(row.key), row.sid, row.tail, row.count, producers)
    facts = (*place, row.content_type, row.earliest, row.first_seq, row.closed, row.stream_seq, snapshot)
    return (*facts, row.holes) if row.holes else facts
