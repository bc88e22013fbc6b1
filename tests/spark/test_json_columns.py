"""JSON records as columns: what fits, what does not, and that the quick way and the exact way say the same."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.spark import json_columns
from headwater.spark.json_columns import JsonColumns
from headwater.spark.json_values import Unfit, Unsupported, reader

UTC_US = pa.timestamp("us", "UTC")
PLAIN = {"i": pa.int64(), "n": pa.float64(), "s": pa.string(), "b": pa.bool_(), "d": pa.date32(), "t": UTC_US}
SCHEMA = pa.schema(
    [
        *PLAIN.items(),
        ("small", pa.int16()),
        ("list", pa.list_(pa.field("element", pa.int64()))),
        ("times", pa.list_(pa.field("element", UTC_US))),
        ("in", pa.struct([("i", pa.int32()), ("t", UTC_US), ("l", pa.list_(pa.string()))])),
    ]
)

MOMENTS = (
    *("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+02:00", "2026-01-31 12:00:00", "2026-01-31", "x", ""),
    *("0001-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-31T24:00:00Z", "9999-12-31T23:59:59Z"),
    "2026-01-31T12:00:00.1234567Z",
)
moments = st.sampled_from(MOMENTS)
floats = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(1 << 64), 1 << 64) | st.integers(-40_000, 40_000)
values = st.recursive(
    st.none() | st.booleans() | whole | st.text() | moments | floats,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("itlx"), inner, max_size=3),
    max_leaves=6,
)
inside = {"i": st.integers(-9, 9), "t": moments, "x": st.text(), "l": st.lists(st.text())}
of_type = {
    "i": st.integers(-(1 << 63), (1 << 63) - 1),
    "n": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "s": st.text(),
    "b": st.booleans(),
    "d": st.dates().map(str),
    "t": moments,
    "small": st.integers(-(1 << 15), (1 << 15) - 1),
    "list": st.lists(st.none() | st.integers(-9, 9), max_size=3),
    "times": st.lists(st.none() | moments, max_size=2),
    "in": st.fixed_dictionaries({}, optional=inside),
    "other": values,
}
fitting = st.fixed_dictionaries({}, optional={name: st.none() | found for name, found in of_type.items()})
records = fitting | st.dictionaries(st.sampled_from([*of_type, "more"]), values) | values


def written(record: Any, spaced: bool) -> bytes:
    return json.dumps(record, ensure_ascii=spaced, indent=1 if spaced else None).encode(errors="surrogatepass")


def parsed(payloads: list[bytes], schema: pa.Schema = SCHEMA, kind: str = "application/json", **more: Any) -> list[Any]:
    """Of each record its values, or None when it does not fit."""
    columns = JsonColumns(schema, **more)
    made = columns.parse(pa.array(payloads, pa.binary()), pa.array([kind] * len(payloads)))
    assert [column.type for column in made.columns] == [field.type for field in schema]
    for column in made.columns:
        column.validate(full=True)
    rows = zip(*(column.to_pylist() for column in made.columns), strict=True)
    return [None if unfit else row for row, unfit in zip(rows, made.unfit.to_pylist(), strict=True)]


@settings(max_examples=150)
@given(st.lists(st.tuples(records, st.booleans()), max_size=80))
def test_records_are_the_same_at_once_and_one_by_one(given: list[tuple[Any, bool]]) -> None:
    payloads = [written(record, spaced) for record, spaced in given]
    exact = [row for payload in payloads for row in parsed([payload], kind="text/plain")]
    assert repr(parsed(payloads)) == repr(exact)


@given(st.lists(fitting, max_size=50))
def test_what_fits_is_what_json_says(given: list[dict[str, Any]]) -> None:
    schema = pa.schema([(name, kind) for name, kind in PLAIN.items() if name not in "dt"])
    rows = parsed([written(record, False) for record in given], schema)
    for record, row in zip(given, rows, strict=True):
        assert row == tuple(record.get(name) for name in schema.names)


@given(st.binary(max_size=30))
def test_bytes_that_nobody_looked_at_before_are_read_or_do_not_fit(payload: bytes) -> None:
    try:
        is_object = isinstance(json.loads(payload), dict)
    except ValueError:
        is_object = False
    assert (parsed([payload], kind="text/plain") != [None]) <= is_object


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "9223372036854775807", 9223372036854775807),
        (pa.int64(), "9223372036854775808", Unfit),
        (pa.int8(), "128", Unfit),
        (pa.int64(), "1.0", Unfit),
        (pa.int64(), '"1"', Unfit),
        (pa.int64(), "true", Unfit),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "1e999", Unfit),
        (pa.string(), "1.10", "1.10"),
        (pa.string(), '{"a": [1 ]}', '{"a": [1 ]}'),
        (pa.string(), '"\\u00e9\\u0000"', "é\0"),
        (pa.bool_(), '"true"', Unfit),
        (pa.date32(), '"2026-01-31"', date(2026, 1, 31)),
        (pa.date32(), '"2026-02-30"', Unfit),
        (pa.date32(), "5", Unfit),
        (UTC_US, '"2026-01-31T12:00:00.5+02:00"', datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC)),
        (UTC_US, '"2026-01-31 12:00:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (UTC_US, '"2026-01-31T12:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (UTC_US, '"2026-01-31"', datetime(2026, 1, 31, tzinfo=UTC)),
        (UTC_US, '"2026-01-31T12:00:00+24:00"', Unfit),
        (UTC_US, "1769860800", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (UTC_US, "1e9", Unfit),
        (pa.decimal128(5, 2), "1.005", Decimal("1.01")),
        (pa.decimal128(5, 2), '"12.5"', Decimal("12.50")),
        (pa.decimal128(5, 2), "1000", Unfit),
        (pa.map_(pa.string(), pa.int64()), '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (pa.list_(pa.int64()), '[1, "2"]', Unfit),
        (pa.struct([("a", pa.int64())]), '{"b": 1}', {"a": None}),
        (pa.struct([("a", pa.int64())]), "[]", Unfit),
    ],
)
def test_a_value_fits_a_type_or_does_not(kind: pa.DataType, text: str, value: Any) -> None:
    [row] = parsed([b'{"x": %s}' % text.encode()], pa.schema([("x", kind)]))
    assert row == (None if value is Unfit else (value,))


@pytest.mark.parametrize("payload", [b"null", b"5", b"[]", b"", b"{", b'{"i": 1} {"i": 2}', b'"x"'])
def test_what_is_no_object_fits_nothing(payload: bytes) -> None:
    rows = parsed([b'{"i": 1}', payload, b'{"i": 2}'], pa.schema([("i", pa.int64())]), "text/plain")
    assert rows == [(1,), None, (2,)]


def test_a_field_that_is_required_is_there_and_not_null() -> None:
    schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
    assert parsed([b'{"i": 1}', b'{"s": "x"}', b'{"i": null}'], schema, required=["i"]) == [(1, None), None, None]
    assert JsonColumns(schema, ["i"]).reason(b"{}") == "i should be there and not null and is missing"


def test_a_reason_leads_to_the_value() -> None:
    columns = JsonColumns(SCHEMA)
    assert columns.reason(b'{"in": {"l": [1, 2]}, "list": [1, "x"]}') == 'list[1] should be bigint and is "x"'
    assert columns.reason(b"[1]") == "the record should be a JSON object and is [1]"


def test_one_record_that_does_not_fit_costs_a_few_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b'{"i": %d}' % n for n in range(4_096)]
    payloads[1_000] = b'{"i": "x"}'
    slow: list[int] = []
    whole = JsonColumns._one_by_one

    def counted(self: JsonColumns, given: pa.Array) -> Any:
        slow.append(len(given))
        return whole(self, given)

    monkeypatch.setattr(JsonColumns, "_one_by_one", counted)
    rows = parsed(payloads, pa.schema([("i", pa.int64())]))
    assert rows.count(None) == 1 and rows[4_095] == (4_095,)
    assert sum(slow) <= 2 * json_columns.FEW


@pytest.mark.parametrize("kind", [pa.binary(), pa.timestamp("us"), pa.uint8(), pa.map_(pa.int64(), pa.string())])
def test_a_type_that_no_value_is_read_as_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(Unsupported):
        reader(kind)


def test_zero_keeps_its_sign_and_a_small_number_is_zero() -> None:
    rows = parsed([b'{"n": -0.0}', b'{"n": 1e-400}', b'{"n": -0}'], pa.schema([("n", pa.float64())]))
    assert [math.copysign(1, row[0]) for row in rows] == [-1, 1, -1]
