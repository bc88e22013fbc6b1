"""Frames: the unit of a log on disk, each proving its own length, place and content.

Owns the byte layout and the scan of a log file. Never opens a file and never interprets a body.

    0   u32  size of the whole frame, header and checksum included
    4   u8   kind            (see KIND_*; numbers are never reused)
    5   u8   flags           (meaning belongs to the kind)
    6   u16  zero
    8   u64  position of the frame's first byte in its log
    16  ...  body
    -8  u64  xxh3-64 of everything before it

A MARK opens every batch that goes to disk in one write. Its body is the position up to which the log was known to be
on stable storage when the batch was written: a broken frame below a later mark's position is corruption of promised
data, a broken frame that no mark vouches for is the torn end of the last write. An END closes a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

KIND_MARK = 1
KIND_END = 2
KIND_APPENDED = 3
KIND_COLD = 4

HEADER = Struct("<IBBHQ")
CHECKSUM = Struct("<Q")
HEADER_SIZE = HEADER.size
CHECKSUM_SIZE = CHECKSUM.size
OVERHEAD = HEADER_SIZE + CHECKSUM_SIZE

_MARK_HEAD = Struct("<IBBHQQ")
MARK_SIZE = _MARK_HEAD.size + CHECKSUM_SIZE
END_SIZE = OVERHEAD


class Frame(NamedTuple):
    position: int
    end: int
    kind: int
    flags: int
    body: memoryview


def mark(position: int, synced: int) -> bytes:
    head = _MARK_HEAD.pack(MARK_SIZE, KIND_MARK, 0, 0, position, synced)
    return head + CHECKSUM.pack(xxh3_64_intdigest(head))


def end(position: int) -> bytes:
    head = HEADER.pack(END_SIZE, KIND_END, 0, 0, position)
    return head + CHECKSUM.pack(xxh3_64_intdigest(head))


def read_one(data: memoryview, at: int, base: int) -> Frame | None:
    """The frame at index `at` of a file that starts at log position `base`, or None when no intact frame is there."""
    if at + OVERHEAD > len(data):
        return None
    size, kind, flags, zero, position = HEADER.unpack_from(data, at)
    if size < OVERHEAD or zero or position != base + at or at + size > len(data):
        return None
    stop = at + size - CHECKSUM_SIZE
    if CHECKSUM.unpack_from(data, stop)[0] != xxh3_64_intdigest(data[at:stop]):
        return None
    return Frame(position, position + size, kind, flags, data[at + HEADER_SIZE : stop])


def scan(data: memoryview, base: int) -> Iterator[Frame]:
    """Intact frames from the start of a file, until the first place where there is none."""
    at = 0
    while (frame := read_one(data, at, base)) is not None:
        yield frame
        at = frame.end - base


def synced_by(frame: Frame) -> int:
    """The position a mark vouches for."""
    return int(CHECKSUM.unpack_from(frame.body, 0)[0])


def vouched_beyond(data: memoryview, base: int, broken: int) -> int | None:
    """The position of a later mark that says the log was on stable storage beyond `broken`; None when there is none.

    Looks at every byte after the broken place, because its length field cannot be trusted: linear in the file, and
    only ever run when something is broken.
    """
    needle = HEADER.pack(MARK_SIZE, KIND_MARK, 0, 0, 0)[:8]
    raw = bytes(data)
    at = raw.find(needle, max(0, broken - base))
    while at >= 0:
        frame = read_one(data, at, base)
        if frame is not None and synced_by(frame) > broken:
            return frame.position
        at = raw.find(needle, at + 1)
    return None
