"""One JSON value as a value of a column: the slow, exact way, which says what is wrong.

Owns what fits a column. Never looks at more than one record; `json_columns` does many at once, with the same result.

    BOOLEAN            true, false
    whole numbers      digits alone, as many as the type holds: 1.0 is none
    DOUBLE, FLOAT      any number that is not beyond a double
    DECIMAL            any number, or a string that is one, rounded to its places
    STRING             a string; of anything else the JSON text, as it stands there
    DATE               "2026-01-31"
    TIMESTAMP          "2026-01-31T12:00:00.5+02:00", UTC without a zone; a whole number is seconds since 1970
    ARRAY, STRUCT, MAP arrays and objects whose parts fit; fields that a STRUCT does not name are left out
    null               fits everything
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

Reader = Callable[[bytes], Any]
"""From the text of a JSON value to what Arrow takes for a column. Raises Unfit."""

_INTEGER = re.compile(rb"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(?:[Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_DAY_0 = date(1970, 1, 1)
_MOMENT_0 = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX = 253_402_300_799
"""The end of the year 9999."""
_TOLD_CHARS_MAX = 60
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


class Unfit(ValueError):
    """A value does not fit: `path` leads to it, `wanted` is the type in Spark's words."""

    def __init__(self, wanted: str, value: bytes, path: str = "") -> None:
        self.wanted, self.value, self.path = wanted, value, path
        super().__init__(self.message())

    def message(self) -> str:
        text = self.value.decode(errors="replace")
        shown = text if len(text) <= _TOLD_CHARS_MAX else f"{text[:_TOLD_CHARS_MAX]}…"
        return f"{self.path or 'the record'} should be {self.wanted} and is {shown}"


class Unsupported(ValueError):
    """No JSON value is read as this type."""


def fields_in(record: bytes) -> dict[str, bytes]:
    """The fields of a record, each as it stands there; of several of one name the last. Raises Unfit."""
    return _object(record, "a JSON object")


def reader(kind: pa.DataType) -> Reader:
    """Raises Unsupported."""
    exact = _reader(kind)

    def read(raw: bytes) -> Any:
        return None if raw == b"null" else exact(raw)

    return read


def _reader(kind: pa.DataType) -> Reader:
    if pa.types.is_string(kind):
        return _string
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_signed_integer(kind):
        return _whole(kind.bit_width)
    if pa.types.is_floating(kind):
        return _floating
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _timestamp
    if pa.types.is_list(kind):
        return _list(kind.value_type)
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _map(kind.item_type)
    raise Unsupported(str(kind))


def _string(raw: bytes) -> str:
    try:
        return _text(raw) if raw[:1] == b'"' else raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unfit("string", raw) from None


def _boolean(raw: bytes) -> bool:
    if raw not in (b"true", b"false"):
        raise Unfit("boolean", raw)
    return raw == b"true"


def _whole(bits: int) -> Reader:
    name = {8: "tinyint", 16: "smallint", 32: "int"}.get(bits, "bigint")
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(raw: bytes) -> int:
        if len(raw) > 20 or _INTEGER.fullmatch(raw) is None or not low <= int(raw) <= high:
            raise Unfit(name, raw)
        return int(raw)

    return read


def _floating(raw: bytes) -> float:
    if _NUMBER.fullmatch(raw) is None or math.isinf(found := float(raw)):
        raise Unfit("double", raw)
    return found


def _decimal(precision: int, scale: int) -> Reader:
    wanted, place, context = f"decimal({precision},{scale})", Decimal(1).scaleb(-scale), Context(precision)

    def read(raw: bytes) -> Decimal:
        text = raw[1:-1] if raw[:1] == b'"' else raw
        if len(text) > 400 or _NUMBER.fullmatch(text) is None:
            raise Unfit(wanted, raw)
        try:
            return Decimal(text.decode()).quantize(place, ROUND_HALF_UP, context)
        except InvalidOperation:
            raise Unfit(wanted, raw) from None

    return read


def _date(raw: bytes) -> int:
    """Days since 1970."""
    found = _DATE.fullmatch(_string(raw)) if raw[:1] == b'"' else None
    try:
        if found is not None:
            return (date(*map(int, found.groups())) - _DAY_0).days
    except ValueError:
        pass
    raise Unfit("date", raw)


def _timestamp(raw: bytes) -> int:
    """Microseconds since 1970."""
    if raw[:1] != b'"':
        if len(raw) > 15 or _INTEGER.fullmatch(raw) is None or not -62_135_596_800 <= int(raw) <= _SECONDS_MAX:
            raise Unfit("timestamp", raw)
        return int(raw) * 1_000_000
    found = _MOMENT.fullmatch(_string(raw))
    try:
        if found is not None:
            year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
            at = datetime(year, month, day, hour, minute, second, int((found[7] or "0")[:6].ljust(6, "0")), UTC)
            if found[8] is not None:
                hours, minutes = int(found[9]), int(found[10] or 0)
                if hours > 23 or minutes > 59:
                    raise ValueError
                ahead = timedelta(hours=hours, minutes=minutes)
                at = at.replace(tzinfo=timezone(-ahead if found[8] == "-" else ahead))
            return (at - _MOMENT_0) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        pass
    raise Unfit("timestamp", raw)


def _list(kind: pa.DataType) -> Reader:
    read = reader(kind)

    def items(raw: bytes) -> list[Any]:
        if raw[:1] != b"[":
            raise Unfit("array", raw)
        try:
            found = _items(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Unfit("array", raw) from None
        return [_within(read, bytes(one), f"[{at}]") for at, one in enumerate(found)]

    return items


def _struct(kind: pa.DataType) -> Reader:
    readers = {field.name: reader(field.type) for field in kind}

    def fields(raw: bytes) -> dict[str, Any]:
        found = _object(raw, "struct")
        return {
            name: _within(read, found[name], f".{name}") if name in found else None for name, read in readers.items()
        }

    return fields


def _map(kind: pa.DataType) -> Reader:
    read = reader(kind)

    def pairs(raw: bytes) -> list[tuple[str, Any]]:
        return [(name, _within(read, value, f".{name}")) for name, value in _object(raw, "map").items()]

    return pairs


def _object(raw: bytes, wanted: str) -> dict[str, bytes]:
    if raw.lstrip(b" \t\r\n")[:1] != b"{":
        raise Unfit(wanted, raw)
    try:
        return {name: bytes(value) for name, value in _fields(raw).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unfit(wanted, raw) from None


def _within(read: Reader, raw: bytes, step: str) -> Any:
    try:
        return read(raw)
    except Unfit as unfit:
        raise Unfit(unfit.wanted, unfit.value, f"{step}{unfit.path}") from None
