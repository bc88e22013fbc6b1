"""JSON records as columns, many at a time: Arrow's parser where it says the same as `json_values`, and that elsewhere.

Owns which records go which way. A record's columns do not depend on the records beside it, and each record is parsed
once: twice or more only those beside one that does not fit, or that Arrow's parser does not take.

    records -> all objects of JSON streams? -> Arrow (1.4 M rows/s with six fields on one core)
                    no, or it refuses: a few are read one by one (0.1 M rows/s) where it did, and what lies around
                    them is tried again
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headwater.spark.json_values import Reader, Unfit, fields_in, reader

FEW = 8
"""So many records are read one by one where Arrow's parser refused one, and twice as many when it refuses the next."""
FEW_MAX = 1_024
BLOCK = 8_192
"""Records that Arrow's parser is given at once. A block with one that it refuses is read about twice."""
_ROW = re.compile(r" in row ([0-9]+)$")
_MOMENT = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_DATE = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"
_JSON = "application/json"
_UTC = pa.timestamp("us", "UTC")


class _Refused(ValueError):
    """Not for Arrow's parser, for whatever reason: it says nothing about the record."""


class Parsed(NamedTuple):
    columns: list[pa.Array]
    """One for each field; null where the record does not fit."""
    unfit: pa.Array
    """Which records do not fit; all false, or one true at least."""


class _Span(NamedTuple):
    """Records from one place to another, which one way was not tried for yet."""

    start: int
    end: int
    few: int = FEW
    slow: bool = False

    @property
    def size(self) -> int:
        return self.end - self.start

    def around(self, at: int | None) -> list[_Span]:
        """What it falls into: before, at and after a record that was refused, or two halves when nobody knows which."""
        if at is None or at >= self.size:
            middle = self.start + self.size // 2
            return [_Span(self.start, middle), _Span(middle, self.end)]
        begin = self.start + at
        few = min(2 * self.few, FEW_MAX) if at == 0 else FEW
        last = min(begin + few, self.end)
        parts = [_Span(self.start, begin), _Span(begin, last, slow=True), _Span(last, self.end, few)]
        return [part for part in parts if part.size]


class JsonColumns:
    """Fields of records as columns of these types. A record fits when each of them does, and is not null where it is
    required. Raises Unsupported for a type that no value is read as."""

    def __init__(self, fields: pa.Schema, required: Sequence[str] = ()) -> None:
        self._fields = fields
        self._readers: dict[str, Reader] = {field.name: reader(field.type) for field in fields}
        self._required = frozenset(required)
        kinds = [_arrow_reads(field.type) for field in fields]
        physical = [field.with_type(kind) for field, kind in zip(fields, kinds, strict=True) if kind is not None]
        self._physical = pa.schema(physical) if len(physical) == len(fields) and len(fields) else None

    def parse(self, payloads: pa.Array, content_types: pa.Array) -> Parsed:
        """`payloads` are binary. Records of streams whose content type is JSON are known to be JSON, each one value."""
        payloads = payloads.cast(pa.binary()) if not pa.types.is_binary(payloads.type) else payloads
        certain = pc.and_(pc.equal(content_types, _JSON), pc.starts_with(payloads, b"{")).fill_null(False)
        parts = list(self._parts(payloads, certain))
        if len(parts) == 1:
            return parts[0]
        columns = [
            pa.concat_arrays([part.columns[at] for part in parts]) if parts else pa.array([], field.type)
            for at, field in enumerate(self._fields)
        ]
        unfit = pa.concat_arrays([part.unfit for part in parts]) if parts else pa.array([], pa.bool_())
        return Parsed(columns, unfit)

    def reason(self, payload: bytes) -> str:
        """Why a record does not fit."""
        try:
            self._record(payload)
        except Unfit as unfit:
            return unfit.message()
        return "the record fits"

    # ---- many ---------------------------------------------------------------------------------------------------

    def _parts(self, payloads: pa.Array, certain: pa.Array) -> Iterator[Parsed]:
        starts = range(0, len(payloads), BLOCK)
        waiting = [_Span(start, min(start + BLOCK, len(payloads))) for start in reversed(starts)]
        while waiting:
            span = waiting.pop()
            part = payloads.slice(span.start, span.size)
            refused_at: int | None = None
            if self._physical is not None and not span.slow:
                refused_at = pc.index(certain.slice(span.start, span.size), False).as_py()
                if refused_at < 0:
                    try:
                        yield self._at_once(part, self._physical)
                        continue
                    except pa.ArrowInvalid as error:
                        told = _ROW.search(str(error))
                        refused_at = None if told is None else int(told[1])
                    except _Refused:
                        refused_at = None
            if self._physical is None or span.slow or span.size <= FEW:
                yield self._one_by_one(part)
            else:
                waiting.extend(reversed(span.around(refused_at)))

    def _at_once(self, payloads: pa.Array, physical: pa.Schema) -> Parsed:
        payloads.cast(pa.string())  # Arrow's parser does not look whether text is UTF-8
        # Each with a line's end behind it, side by side in one buffer. The parser cuts its input at the last one alone.
        text = pc.binary_join_element_wise(payloads, b"", b"\n").buffers()[2]
        found = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(text.size + 1, 1024)),
            parse_options=pj.ParseOptions(explicit_schema=physical, unexpected_field_behavior="ignore"),
        )
        if len(found) != len(payloads):
            raise _Refused
        columns = [_converted(found[field.name].combine_chunks(), field.type) for field in self._fields]
        for field, column in zip(self._fields, columns, strict=True):
            if field.name in self._required and column.null_count:
                raise _Refused
        return Parsed(columns, pa.repeat(False, len(payloads)))

    # ---- one by one ---------------------------------------------------------------------------------------------

    def _one_by_one(self, payloads: pa.Array) -> Parsed:
        rows: list[list[Any] | None] = []
        for payload in payloads.to_pylist():
            try:
                rows.append(self._record(payload))
            except Unfit:
                rows.append(None)
        columns = [
            pa.array([None if row is None else row[at] for row in rows], field.type)
            for at, field in enumerate(self._fields)
        ]
        return Parsed(columns, pa.array([row is None for row in rows], pa.bool_()))

    def _record(self, payload: bytes | None) -> list[Any]:
        """The values of its fields. Raises Unfit."""
        found = fields_in(b"" if payload is None else payload)
        values = []
        for name, read in self._readers.items():
            try:
                value = read(found[name]) if name in found else None
            except Unfit as unfit:
                raise Unfit(unfit.wanted, unfit.value, f"{name}{unfit.path}") from None
            if value is None and name in self._required:
                raise Unfit("there and not null", found.get(name, b"missing"), name)
            values.append(value)
        return values


# ---- what Arrow's parser reads exactly as `json_values` does -----------------------------------------------------


def _arrow_reads(kind: pa.DataType) -> pa.DataType | None:
    """The type that Arrow's parser is told for it; None where it cannot do it."""
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return kind
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = _arrow_reads(kind.value_type)
        return None if inner is None else pa.list_(kind.value_field.with_type(inner))
    if pa.types.is_struct(kind):
        fields = [(field, _arrow_reads(field.type)) for field in kind]
        if any(inner is None for _, inner in fields):
            return None
        return pa.struct([field.with_type(inner) for field, inner in fields])
    return None


def _converted(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises _Refused, ArrowInvalid."""
    if found.type == kind:
        return found
    if pa.types.is_timestamp(kind):
        return _moments(found).cast(kind)
    if pa.types.is_date(kind):
        _all_match(found, _DATE)
        return found.cast(kind)
    if pa.types.is_list(kind):
        values = _converted(found.values, kind.value_type)
        return pa.ListArray.from_arrays(found.offsets, values, type=kind, mask=found.is_null())
    if pa.types.is_struct(kind):
        inner = [_converted(found.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=found.is_null())
    return found.cast(kind, safe=not pa.types.is_floating(kind))


def _moments(found: pa.Array) -> pa.Array:
    """Moments that all have a zone, or all have none."""
    matched = pc.match_substring_regex(found, _MOMENT + r"(Z|[+-][0-9]{2}:[0-9]{2})$")
    if pc.all(matched).as_py() is not False:
        return found.cast(_UTC)
    _all_match(found, _MOMENT + "$")
    return found.cast(pa.timestamp("us")).cast(_UTC)


def _all_match(found: pa.Array, pattern: str) -> None:
    if pc.all(pc.match_substring_regex(found, pattern)).as_py() is False:
        raise _Refused
