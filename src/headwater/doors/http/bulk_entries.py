"""The body of a bulk append into its entries, in slices, and never more of them than may be.

Owns the shape of an entry and the limits on counts. Never submits anything and never looks at a stream.

Counts are judged before objects are made: msgpack says them in front of each array, and a JSON text is walked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from struct import Struct
from typing import Annotated

import msgspec

from headwater.doors.http.topics.records import Labelled
from headwater.errors import BadBody, TooManyRecords
from headwater.model import json_mode, json_slices

ENTRIES_MAX = 10_000
REQUEST_TIMES = 10
"""A request of many appends brings at most the records of this many full ones."""
AT_ONCE_BYTES_MAX = 64 * 1024
"""A longer request is read and submitted in slices."""
PIECE_BYTES = json_slices.PIECE_BYTES
SLICE_RECORDS = 1_000
"""Submitted in one slice, about: 0.3 µs each."""


class BulkEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a bulk append. Exactly one of `records`, `text` and `binary` brings data."""

    stream: str
    content_type: str | None = None
    records: list[msgspec.Raw] | None = None
    """JSON messages, one record each."""
    text: list[str] | None = None
    """UTF-8 records."""
    binary: list[bytes] | None = None
    """Binary records: base64 in JSON, raw in msgpack."""
    producer_id: str | None = None
    producer_epoch: int | None = None
    producer_seq: int | None = None
    stream_seq: str | None = None
    close: bool = False
    create: bool = False
    """The stream is made first, with `content_type`, when there is none."""
    labels: list[Labelled | None] | None = None
    """One for each record. In msgpack `meta` is a string, the text of a JSON object."""


class _Brought(msgspec.Struct):
    """What an entry brings, not looked at."""

    records: msgspec.Raw = msgspec.Raw(b"null")
    text: msgspec.Raw = msgspec.Raw(b"null")
    binary: msgspec.Raw = msgspec.Raw(b"null")
    labels: msgspec.Raw = msgspec.Raw(b"null")


Entries = Generator[None, None, list[BulkEntry]]
_json_entries = msgspec.json.Decoder(list[BulkEntry]).decode
_pack_entries = msgspec.msgpack.Decoder(list[BulkEntry]).decode
_json_entry = msgspec.json.Decoder(BulkEntry).decode
_json_brought = msgspec.json.Decoder(_Brought).decode
_pack_entry = msgspec.msgpack.Decoder(BulkEntry).decode
_pack_value = msgspec.msgpack.Decoder(msgspec.Raw).decode
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_U16, _U32 = Struct(">H"), Struct(">I")


class Pause:
    """Counts work done since the last slice ended."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0.0

    def is_due(self, records: int, size: int) -> bool:
        """True when what was done since this was last true is enough for a slice. Every item counts a little."""
        self._done += (records + 10) / SLICE_RECORDS + size / PIECE_BYTES
        if self._done < 1:
            return False
        self._done = 0.0
        return True


def bulk_entries(body: bytes, packed: bool, records_max: int) -> Entries:
    """Raises BadBody, or TooManyRecords when one entry or all together bring too many."""
    if len(body) <= AT_ONCE_BYTES_MAX:
        walk = _at_once(body, packed)
    else:
        walk = _packed(body, records_max) if packed else _plain(body, records_max)
    entries: list[BulkEntry] = []
    room = records_max * REQUEST_TIMES
    pause = Pause()
    try:
        for entry in walk:
            if entry is None:
                yield
                continue
            entries.append(entry)
            count = max(len(given or ()) for given in (entry.records, entry.text, entry.binary, entry.labels))
            if count > records_max:
                raise TooManyRecords(records_max)
            room -= count
            if room < 0:
                raise TooManyRecords(records_max * REQUEST_TIMES, REQUEST_TIMES)
            if packed and entry.records is not None:
                raise BadBody("msgpack entries bring text or binary, not records")
            if pause.is_due(count, 0):
                yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"expected a list of entries ({json_mode.fault(error, body)})") from None
    if not entries:
        raise BadBody("an empty list appends nothing")
    return entries


_Walk = Generator[BulkEntry | None, None, None]
"""Entries in order; None between slices."""


def _at_once(body: bytes, packed: bool) -> _Walk:
    entries = (_pack_entries if packed else _json_entries)(body)
    if len(entries) > ENTRIES_MAX:
        raise _too_many_entries()
    yield from entries


def _plain(body: bytes, records_max: int) -> _Walk:
    if body.lstrip(b" \t\r\n")[:1] != b"[":
        raise BadBody("expected a list of entries")
    try:
        texts = yield from json_mode.messages_in_slices(body, True, ENTRIES_MAX)
    except TooManyRecords:
        raise _too_many_entries() from None
    for text in texts:
        if len(text) > 2 * records_max and text.count(b",") >= records_max:
            brought = _json_brought(text)
            for field in (brought.records, brought.text, brought.binary, brought.labels):
                array = bytes(field)
                if array[:1] == b"[":
                    yield from json_slices.elements(array, 0, records_max)
        yield _json_entry(text)


def _packed(body: bytes, records_max: int) -> _Walk:
    count, at = _array_header(body)
    if count > ENTRIES_MAX:
        raise _too_many_entries()
    view = memoryview(body)
    for _ in range(count):
        size = _size_of(_pack_value, view[at : at + PIECE_BYTES])
        if size is None:
            # Longer than a piece: the count in front of its array is looked at before the array.
            try:
                size = _size_of(_counting(records_max), view[at:])
            except msgspec.ValidationError as error:
                raise TooManyRecords(records_max) if "of length <=" in str(error) else error from None
            yield None
        if size is None:
            raise BadBody("expected a list of entries (Input data was truncated)")
        yield _pack_entry(view[at : at + size])
        at += size
    if at != len(body):
        raise BadBody(f"expected a list of entries (trailing characters (byte {at}))")


def _array_header(body: bytes) -> tuple[int, int]:
    """How many elements the msgpack array has, and where the first begins."""
    first = body[0]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    if first == 0xDC and len(body) >= 3:
        return _U16.unpack_from(body, 1)[0], 3
    if first == 0xDD and len(body) >= 5:
        return _U32.unpack_from(body, 1)[0], 5
    raise BadBody("expected a list of entries")


def _size_of(decode: Callable[[memoryview], object], view: memoryview) -> int | None:
    """Length of the value that `view` begins with: the parser complains of what follows it. None: it does not end here.

    Raises msgspec.MsgspecError.
    """
    try:
        decode(view)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if trailing is not None:
            return int(trailing[1])
        if "truncated" in str(error):
            return None
        raise
    return len(view)


@lru_cache
def _counting(records_max: int) -> Callable[[memoryview], object]:
    """Decodes what an entry brings, and refuses an array by its count before it is read."""
    few = msgspec.Meta(max_length=records_max)
    texts, blobs = Annotated[list[str], few] | None, Annotated[list[bytes], few] | None
    labels = Annotated[list[msgspec.Raw], few] | None
    brought = msgspec.defstruct("Brought", [("text", texts, None), ("binary", blobs, None), ("labels", labels, None)])
    return msgspec.msgpack.Decoder(brought).decode


def _too_many_entries() -> BadBody:
    return BadBody(f"at most {ENTRIES_MAX} entries in one request")
