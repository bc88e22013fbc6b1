"""The entries of a quorum log: their layout, and the one way to read them in order.

Owns what makes an entry valid, and where a reader stands. Never talks to a medium and never repairs anything.

    0   4s   "HWQ1"
    4   u8   kind            (see KIND_*; numbers are never reused)
    5   u8   format version of the entry
    6   u16  zero
    8   u64  incarnation of the log: chosen at random by its first claim
    16  u64  number of the entry
    24  u64  epoch of the owner that wrote it; of a claim: the epoch that it begins
    32  u64  log position of its first event
    40  16s  token: no other entry has it
    56  u64  size of the body
    64  u64  xxh3-64 of everything before it, and of a claim's body; frames prove themselves
    72  ...  body: of a BATCH the frames of its events (none: a barrier), of a CLAIM its msgpack

The first entry is a claim. It may stand at a position above 0: then the log continues another one that is no more, and
a catalog that is true for that position holds what it held (see `cluster.new_log`).

An epoch begins with a claim and ends with the first entry that is not of it. What follows up to the next claim of a
higher epoch is void: it was sent by an owner that did not yet know that it had lost the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec
from xxhash import xxh3_64_intdigest

from headwater.log import entries, frames
from headwater.model.events import Event

KIND_BATCH = 1
KIND_CLAIM = 2
FORMAT = 1
"""The newest version of an entry that this code reads, and the one it writes."""
TOKEN_BYTES = 16

_MAGIC = b"HWQ1"
_HEAD = Struct("<4sBBHQQQQ16sQ")
_CHECKSUM = Struct("<Q")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size


class LogDamaged(Exception):
    """The log does not hold what it must. Nothing from there on was applied: the operator has to choose."""

    def __init__(self, number: int, position: int, what: str) -> None:
        super().__init__(
            f"the log is damaged at entry {number}, position {position}: {what}. Nothing from there on was applied, "
            "and nothing was changed. Restore the log's storage, or restore the group from a backup"
        )
        self.number = number
        self.position = position


class FormatUnknown(Exception):
    """An entry of a later version of the server: a node that cannot read it does not own the group."""

    def __init__(self, number: int, format: int) -> None:
        super().__init__(
            f"entry {number} of the log has format version {format}, and this server reads up to {FORMAT}: "
            "upgrade this node"
        )
        self.number = number
        self.format = format


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Who owns the group from this entry on."""

    owner: str
    address: str
    cluster_format: int = 1
    """The cluster's format version: rises only when every member can read what comes with it."""
    epoch: int = 0
    """Given by the log when the claim is made."""
    incarnation: str = ""
    """Id of the incarnation of the log that it begins (see `model.lineage`), chosen at random by who claims."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a reader of the log stands: a catalog snapshot keeps one, and a start goes on from it."""

    number: int = 1
    """The next entry."""
    position: int = 0
    epoch: int = 0
    """Of the last claim before it."""
    ended: bool = False
    """True behind the end of that epoch: only a claim counts next."""
    incarnation: int = 0
    """0: not known yet, the first entry says it."""


def encode_entry(kind: int, at: Cursor, token: bytes, parts: list[bytes]) -> bytes:
    """The entry to be written at the cursor."""
    size = sum(map(len, parts))
    head = _HEAD.pack(_MAGIC, kind, FORMAT, 0, at.incarnation, at.number, at.epoch, at.position, token, size)
    covered = head if kind == KIND_BATCH else b"".join((head, *parts))
    return b"".join((head, _CHECKSUM.pack(xxh3_64_intdigest(covered)), *parts))


CONTINUES_AT = 2
"""The number of the first entry of a log that goes on where another one ended, which is lost: it is read like one whose
beginning was purged. (A new cluster's log that continues another one begins with entry 1: see `cluster.new_log`.)"""


def continuing_entry(position: int, incarnation: int, token: bytes, claim: Claim) -> bytes:
    """The first entry of such a log: a claim that says from which position on, in its own epoch."""
    at = Cursor(CONTINUES_AT, position, claim.epoch, False, incarnation)
    return encode_entry(KIND_CLAIM, at, token, [encode_claim(claim)])


class Reader:
    """Reads entries in order. `cursor` and `claim` stand after the last entry that was taken."""

    def __init__(self, cursor: Cursor = Cursor(), claim: Claim | None = None) -> None:  # noqa: B008 - frozen
        self.cursor = cursor
        self.claim = claim

    def begin(self, number: int, data: bytes) -> None:
        """Stands before this entry, whatever it says: nothing before it is held any more. Raises LogDamaged."""
        if len(data) < HEAD_BYTES or data[:4] != _MAGIC:
            raise LogDamaged(number, 0, "that is not an entry of a log")
        _, kind, _, _, incarnation, _, epoch, position, _, _ = _HEAD.unpack_from(data)
        if number == 1 and kind != KIND_CLAIM:
            raise LogDamaged(number, position, "a log begins with a claim, and this is none")
        self.cursor = Cursor(number, position, epoch - (kind == KIND_CLAIM), False, incarnation)

    def take(self, number: int, data: bytes) -> list[tuple[int, Event]]:
        """The entry's events, each with the position after it; none for a claim, a barrier, or what is void.

        Raises LogDamaged or FormatUnknown, and then stands where it stood.
        """
        at = self.cursor
        if number != at.number:
            raise LogDamaged(at.number, at.position, f"entry {number} came instead of entry {at.number}")
        if len(data) < HEAD_BYTES or data[:4] != _MAGIC:
            raise LogDamaged(number, at.position, "that is not an entry of a log")
        _, kind, version, _, incarnation, own_number, epoch, position, _, size = _HEAD.unpack_from(data)
        body = memoryview(data)[HEAD_BYTES:]
        covered = data[: _HEAD.size] if kind == KIND_BATCH else data[: _HEAD.size] + data[HEAD_BYTES:]
        if size != len(body) or _CHECKSUM.unpack_from(data, _HEAD.size)[0] != xxh3_64_intdigest(covered):
            raise LogDamaged(number, at.position, "its checksum does not hold")
        if at.incarnation and incarnation != at.incarnation:
            raise LogDamaged(number, at.position, "it belongs to another log: the log was deleted and made again")
        if own_number != number:
            raise LogDamaged(number, at.position, f"it was written as entry {own_number}")
        if version > FORMAT or kind not in (KIND_BATCH, KIND_CLAIM):
            raise FormatUnknown(number, version)
        if kind == KIND_CLAIM and epoch > at.epoch:
            self._expect(number, at.position, position)
            self.claim = _decode_claim(number, position, body)
            self.cursor = Cursor(number + 1, position, epoch, False, incarnation)
            return []
        if epoch > at.epoch:
            raise LogDamaged(number, at.position, f"it is of epoch {epoch}, and the claim that began it is missing")
        if kind == KIND_CLAIM or epoch != at.epoch or at.ended:
            self.cursor = Cursor(number + 1, at.position, at.epoch, True, incarnation)
            return []
        self._expect(number, at.position, position)
        events = list(_decode_events(number, position, body))
        self.cursor = Cursor(number + 1, position + len(body), epoch, False, incarnation)
        return events

    def _expect(self, number: int, expected: int, position: int) -> None:
        if position != expected:
            raise LogDamaged(number, expected, f"it begins at position {position}: something before it is missing")


def _decode_events(number: int, position: int, body: memoryview) -> Iterator[tuple[int, Event]]:
    end = position
    for frame in frames.scan(body, position):
        end = frame.end
        try:
            yield end, entries.decode(frame)
        except entries.BadEntry as error:
            raise LogDamaged(number, frame.position, str(error)) from error
    if end != position + len(body):
        raise LogDamaged(number, end, "no intact frame is there")


def encode_claim(claim: Claim) -> bytes:
    return msgspec.msgpack.encode(claim)


def _decode_claim(number: int, position: int, body: memoryview) -> Claim:
    try:
        return msgspec.msgpack.decode(body, type=Claim)
    except msgspec.MsgspecError as error:
        raise LogDamaged(number, position, f"its claim cannot be read: {error}") from error
