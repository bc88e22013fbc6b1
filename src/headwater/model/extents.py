"""What moves between memory and the lake: runs of records going out, extents saying where they went.

Owns the two shapes. Never reads or writes either place.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from headwater.model.labels import Labels


class Run(msgspec.Struct, frozen=True):
    """A contiguous range of one stream's records, as columns, on its way to the lake."""

    key: str
    sid: int
    content_type: str
    seq_start: int
    start: int
    payloads: list[bytes]
    ends: array[int]
    ms: array[int]
    n: array[int]
    positions: array[int]
    labels: list[Labels | None] | None = None
    """One for each record; None: no record has any."""


class Extent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A contiguous range of one stream's records inside one row group of one file of the lake. Persisted."""

    sid: int
    start: int
    end: int
    seq_start: int
    ms: int
    n: int
    """Id of its first record."""
    file: str
    row_group: int
    row_start: int
    row_count: int
    position: int = 0
    """Log position of its last record; 0 when whoever wrote it did not say."""


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Extent]).decode


def packed(extents: Sequence[Extent]) -> bytes:
    """About 70 bytes for each, where an object takes 400. Persisted: in the log."""
    return _pack(extents)


def unpacked(extents: bytes) -> list[Extent]:
    """Raises msgspec.MsgspecError."""
    return _unpack(extents)


class Records(msgspec.Struct, frozen=True):
    """Records read back from the lake, as columns."""

    start: int
    seq_start: int
    payloads: list[bytes]
    ends: list[int]
    ms: list[int]
    n: list[int]
    positions: list[int]
    labels: list[Labels | None] | None = None
    """One for each record; None: no record has any, or they were not asked for."""


class Stretch(msgspec.Struct, frozen=True):
    """Neighbouring records read back as one buffer: what a body takes, without an object for each of them."""

    start: int
    end: int
    count: int
    data: memoryview
    """Their bytes, with a comma between two of them where that was asked for. Shared: it must not change."""
