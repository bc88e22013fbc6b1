"""Conditions on rows, told with a read: what a task need not read, and what it does not pass on.

Owns the language, which is a part of SQL, and the test of rows and of bounds that stand for many. Never reads a row.

    bucket = 'orders' AND stream LIKE 'eu/%' AND timestamp >= '2026-01-31T12:00:00Z' AND tag IN ('a', 'b') AND seq < 100

Rows come through when every condition is true, as SQL has it: a comparison with null is not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CONDITIONS_MAX, VALUES_MAX = 64, 10_000
TEXTS = ("bucket", "stream", "content_type", "tag", "node")
NUMBERS = ("incarnation", "seq", "offset", "n", "group", "position")
MOMENT = "timestamp"
BOUNDED = ("bucket", "stream", "incarnation", "seq", "offset", MOMENT, "group", "position", "tag")
"""Columns with bounds in files. Those of `tag` are of the rows that have one; no condition that bounds can rule out is
true of a row without."""
COLUMNS = (*TEXTS, *NUMBERS, MOMENT)
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d{1,18})|(?P<name>`[^`]+`|[A-Za-z_]\w*)|(?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,))"
)
_SIGNS = {"=", "<>", "!=", "<", "<=", ">", ">="}
_TURNED = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_OF_SPARK = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Bounds = Callable[[str], tuple[Any, Any] | None]


class BadCondition(ValueError):
    """The message says what is wrong with it."""


class Condition(NamedTuple):
    column: str
    sign: str
    """One of SQL's comparisons, `in`, `prefix`, `null` or `not null`."""
    values: tuple[Any, ...] = ()
    """Of a timestamp microseconds since 1970."""

    def mask(self, rows: pa.Table) -> Any:
        column = pc.multiply(rows["ts_ms"], 1_000) if self.column == MOMENT else rows[self.column]
        if self.column in NUMBERS:
            column = pc.cast(column, pa.int64())
        if self.sign == "null":
            return pc.is_null(column)
        if self.sign == "not null":
            return pc.is_valid(column)
        if self.sign == "in":
            return pc.is_in(column, value_set=pa.array(self.values, column.type), skip_nulls=True)
        if self.sign == "prefix":
            found = pc.starts_with(column, self.values[0])
        else:
            found = _TURNED[self.sign](column, pa.scalar(self.values[0], column.type))
        return pc.fill_null(found, False)

    def column_of_spark(self) -> Any:
        from pyspark.sql import functions as F

        column = F.timestamp_millis(F.col("ts_ms")) if self.column == MOMENT else F.col(f"`{self.column}`")
        values = [F.timestamp_micros(F.lit(value)) if self.column == MOMENT else F.lit(value) for value in self.values]
        if self.sign == "null":
            return column.isNull()
        if self.sign == "not null":
            return column.isNotNull()
        if self.sign == "in":
            return column.isin(*values)
        if self.sign == "prefix":
            return column.startswith(self.values[0])
        return _OF_SPARK[self.sign](column, values[0])

    def is_outside(self, bounds: Bounds) -> bool:
        """No row comes through, as far as the column's bounds tell."""
        moment = self.column == MOMENT
        span = bounds("ts_ms" if moment else self.column)
        return span is not None and self.rules_out(*(value * 1_000 if moment else value for value in span))

    def rules_out(self, low: Any, high: Any) -> bool:
        """No row between these bounds, which are no nulls, comes through."""
        sign = self.sign
        if sign in ("null", "not null", "<>"):
            return False
        if sign in ("=", "in"):
            return not any(low <= value <= high for value in self.values)
        value = self.values[0]
        if sign == "prefix":
            return bool(high < value or (low > value and not low.startswith(value)))
        return bool({"<": low >= value, "<=": low > value, ">": high <= value, ">=": high < value}[sign])


class RowFilter(NamedTuple):
    """Pickles."""

    conditions: tuple[Condition, ...]
    text: str

    @property
    def columns(self) -> set[str]:
        """Of the lake."""
        return {"ts_ms" if one.column == MOMENT else one.column for one in self.conditions}

    def mask(self, rows: pa.Table) -> Any:
        whole: Any = pa.array(np.ones(len(rows), dtype=bool))
        for one in self.conditions:
            whole = pc.and_(whole, one.mask(rows))
        return whole

    def rules_out(self, bounds: Bounds) -> bool:
        """By the bounds of the lake's columns that have some."""
        return any(one.column in BOUNDED and one.is_outside(bounds) for one in self.conditions)

    def column(self) -> Any:
        """The same as Spark says it of the lake's columns."""
        from pyspark.sql import functions as F

        whole = F.lit(True)
        for one in self.conditions:
            whole = whole & one.column_of_spark()
        return whole

    def earliest_ms(self) -> int | None:
        """No row of before comes through; None when rows of any time may."""
        moments = [
            one.values[0] // 1_000 for one in self.conditions if one.column == MOMENT and one.sign in ("=", ">", ">=")
        ]
        return max(moments, default=None)

    def names(self) -> tuple[str | None, tuple[str, ...] | None]:
        """The only bucket and the only streams in it that come through, where conditions name them."""
        buckets = [one.values for one in self.conditions if one.column == "bucket" and one.sign in ("=", "in")]
        streams = [one.values for one in self.conditions if one.column == "stream" and one.sign in ("=", "in")]
        bucket = next((values[0] for values in buckets if len(values) == 1), None)
        return bucket, streams[0] if bucket is not None and streams else None


def row_filter(text: str) -> RowFilter:
    """Raises BadCondition."""
    words = _Words(text)
    found = [_condition(words)]
    while (word := words.next("AND, or the end")) is not None:
        if word.upper() != "AND" or words.kind != "name":
            raise BadCondition(f"expected AND before {word!r}: conditions are joined with AND alone")
        found.append(_condition(words))
        if len(found) > CONDITIONS_MAX:
            raise BadCondition(f"at most {CONDITIONS_MAX} conditions")
    return RowFilter(tuple(found), text)


class _Words:
    def __init__(self, text: str) -> None:
        self._words: Iterator[tuple[str, str]] = iter(_split(text))
        self.kind = ""

    def next(self, expected: str, needed: bool = False) -> str | None:
        self.kind, word = next(self._words, ("", ""))
        if not self.kind and needed:
            raise BadCondition(f"it ends where {expected} was expected")
        return word if self.kind else None

    def need(self, expected: str) -> str:
        return self.next(expected, needed=True) or ""


def _split(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    rest = text.rstrip()
    while at < len(rest):
        token = _TOKEN.match(rest, at)
        if token is None or token.lastgroup is None:
            raise BadCondition(f"it cannot be read from {rest[at:][:20]!r} on")
        found.append((token.lastgroup, token[token.lastgroup]))
        at = token.end()
    return found


def _condition(words: _Words) -> Condition:
    column = words.need("a column").strip("`").lower()
    if words.kind != "name" or column not in COLUMNS:
        raise BadCondition(f"expected a column and not {column!r}: there are {', '.join(COLUMNS)}")
    sign = words.need("a comparison").upper()
    if sign in _SIGNS:
        return Condition(column, "<>" if sign == "!=" else sign, (_value(words, column),))
    if sign == "IS":
        word = words.need("NULL").upper()
        negated = word == "NOT"
        if (words.need("NULL").upper() if negated else word) != "NULL":
            raise BadCondition(f"expected IS NULL or IS NOT NULL of {column}")
        return Condition(column, "not null" if negated else "null")
    if sign == "IN":
        if words.need("(") != "(":
            raise BadCondition(f"expected IN (…) of {column}")
        values = [_value(words, column)]
        while (word := words.need(")")) == ",":
            values.append(_value(words, column))
            if len(values) > VALUES_MAX:
                raise BadCondition(f"at most {VALUES_MAX} values of {column}")
        if word != ")":
            raise BadCondition(f"expected , or ) and not {word!r}")
        return Condition(column, "in", tuple(values))
    if sign == "LIKE" and column in TEXTS:
        pattern = _value(words, column)
        if not pattern.endswith("%") or set(pattern[:-1]) & set("%_\\"):
            raise BadCondition(f"LIKE takes a beginning with % behind it, as 'eu/%', and not {pattern!r}")
        return Condition(column, "prefix", (pattern[:-1],))
    raise BadCondition(f"expected a comparison, IN, LIKE or IS behind {column}, and not {sign!r}")


def _value(words: _Words, column: str) -> Any:
    word = words.need("a value")
    if column == MOMENT and words.kind == "name" and word.upper() == "TIMESTAMP":
        word = words.need("a date")
    if words.kind == "number" and column in NUMBERS:
        return int(word)
    if words.kind == "text":
        text = word[1:-1].replace("''", "'")
        if column in TEXTS:
            return text
        if column == MOMENT:
            return _moment(text)
    raise BadCondition(f"{column} is not compared with {word}")


def _moment(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadCondition(f"expected a date as 2026-01-31T12:00:00Z and not {text!r}") from None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    whole = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds
