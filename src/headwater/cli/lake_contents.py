"""`headwater lake contents`: what a stopped node holds, counted and hashed, so that two copies can be told apart.
Owns what goes into the hash, and in which order. Never looks at records themselves: `lake verify` does."""

from __future__ import annotations

from pathlib import Path

import msgspec
from xxhash import xxh3_128

from headwater.cli.stopped_node import opened
from headwater.data_directory import DataDirectory
from headwater.model.names import bucket_of, stream_of
from headwater.model.row import StreamRow


class GroupContents(msgspec.Struct, frozen=True):
    group: int
    position: int
    streams: int
    records: int
    """Those that streams still hold."""
    bytes: int
    digest: str
    """xxh3-128 of what `_facts` says of every stream, by incarnation."""


class Contents(msgspec.Struct, frozen=True):
    groups: list[GroupContents]
    files: list[str]
    """Files of the lake with records that streams hold."""
    blobs: list[str]
    """Snapshots that streams refer to."""


_pack = msgspec.msgpack.Encoder().encode


def count(data: Path, log_file_bytes: int) -> Contents:
    """What a node would come up with on this directory. Raises what `stopped_node.opened` and DataDirectory raise."""
    files: set[str] = set()
    blobs: set[str] = set()
    numbers = range(DataDirectory(data).groups() or 1)
    groups = [_count(data, log_file_bytes, number, files, blobs) for number in numbers]
    return Contents(groups, sorted(files), sorted(blobs))


def _count(data: Path, log_file_bytes: int, group: int, files: set[str], blobs: set[str]) -> GroupContents:
    digest = xxh3_128()
    streams = records = size = 0
    with opened(data, log_file_bytes, group) as stopped:
        for row in stopped.streams():
            digest.update(_pack(_facts(row)))
            streams += 1
            records += row.count - row.first_seq
            size += row.tail - row.earliest
            if row.snapshot is not None:
                blobs.add(row.snapshot.blob)
        files |= {extent.file for extent in stopped.extents()}
        return GroupContents(group, stopped.position, streams, records, size, digest.hexdigest())


def _facts(row: StreamRow) -> tuple[object, ...]:
    """For ever: a backup is held against it years later. What it says of a stream only ever grows at the end."""
    producers = sorted((name, epoch, seq) for name, epoch, seq, _ in row.producers)
    snapshot = None if row.snapshot is None else (row.snapshot.offset, row.snapshot.blob, row.snapshot.size)
    place = (bucket_of(row.key), stream_of(row.key), row.sid, row.tail, row.count, producers)
    return (*place, row.content_type, row.earliest, row.first_seq, row.closed, row.stream_seq, snapshot)
