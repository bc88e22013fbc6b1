"""Fields as Spark's columns and back, what a sample of records has, and what that makes of a table's columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.model.json_schema import Field, Fields, ListOf, MapOf, Plain, Shape
from headwater.spark import json_types
from headwater.spark.job_runs import JobRefused
from headwater.spark.json_columns import JsonColumns
from headwater.spark.json_types import TooManyFields, ddl, fields_of, inferred, struct_of
from headwater.spark.schema_evolution import Sampled, evolved, fitted
from headwater.spark.selection import Selection

plain = st.sampled_from(["boolean", "integer", "number", "string", "date", "date-time"]).map(Plain)  # type: ignore[arg-type]
names = st.text(st.characters(codec="utf-8", categories=["L", "Nd"]), min_size=1, max_size=4)


def named(shapes: st.SearchStrategy[Shape], required: st.SearchStrategy[bool]) -> st.SearchStrategy[Fields]:
    def of(found: list[str]) -> st.SearchStrategy[Fields]:
        return st.tuples(*(st.builds(Field, st.just(name), shapes, required) for name in found)).map(Fields)

    return st.lists(names, min_size=1, max_size=3, unique_by=str.lower).flatmap(of)


shapes = st.recursive(
    plain, lambda inner: inner.map(ListOf) | inner.map(MapOf) | named(inner, st.just(False)), max_leaves=6
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abB"), inner, max_size=2),
    max_leaves=6,
)
records = st.lists(st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=3), max_size=12)


@given(named(shapes, st.booleans()))
def test_columns_of_fields_are_fields_again(fields: Fields) -> None:
    assert fields_of(struct_of(fields)) == fields


@given(records)
def test_every_record_of_a_sample_fits_the_columns_that_were_inferred_from_it(sample: list[dict[str, Any]]) -> None:
    payloads = [json.dumps(record).encode() for record in sample]
    fields = inferred(payloads)
    assert [field.name for field in fields.fields] == sorted({name for record in sample for name in record})
    columns = JsonColumns(to_arrow_schema(struct_of(fields), timezone="UTC"))
    parsed = columns.parse(pa.array(payloads, pa.binary()), pa.array(["application/json"] * len(payloads)))
    assert not any(parsed.unfit.to_pylist())
    for at, field in enumerate(fields.fields):
        for record, value in zip(sample, parsed.columns[at].to_pylist(), strict=True):
            assert (value is None) == (record.get(field.name) is None)
            if isinstance(field.shape, Plain) and field.shape.kind in ("boolean", "integer", "number"):
                assert value == (None if record.get(field.name) is None else record[field.name])


@given(records, st.randoms())
def test_the_order_of_a_sample_changes_nothing_but_where_types_were_mixed(sample: list[Any], random: Any) -> None:
    payloads = [json.dumps(record).encode() for record in sample]
    shuffled = [*payloads]
    random.shuffle(shuffled)
    assert inferred(shuffled) == inferred(payloads)


def test_a_sample_is_read_as_json_says() -> None:
    payloads = [
        '{"i": 1, "n": 1, "e": [], "o": {}, "m": 1, "b": 9223372036854775808, "": 1, "nil": null}',
        *("[1]", "nonsense"),
        '{"n": 0.5, "m": "x", "l": [1, null], "s": {"a time": "2026-01-31T12:00:00Z"}}',
    ]
    assert ddl(struct_of(inferred(payloads))) == (
        "b double, e array<string>, i bigint, l array<bigint>, m string, n double, nil string, o string, "
        "s struct<`a time`: string>"
    )
    assert [field.name for field in inferred(payloads, with_unknown=False).fields] == [*"bilmnos"]


def test_a_sample_of_endless_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_types, "FIELDS_MAX", 3)
    with pytest.raises(TooManyFields):
        inferred([json.dumps({f"id{n}": 1}) for n in range(4)])


@pytest.mark.parametrize("kind", [T.BinaryType(), T.TimestampNTZType(), T.ArrayType(T.BinaryType())])
def test_a_type_without_a_word_in_json_schema_has_no_fields(kind: T.DataType) -> None:
    assert fields_of(T.StructType().add("x", kind)) is None


@pytest.mark.parametrize(
    ("selection", "bucket"),
    [
        (Selection(), None),
        (Selection(bucket="orders"), "orders"),
        (Selection(pattern="orders/**"), "orders"),
        (Selection(pattern="*/x"), None),
        (Selection(pattern="**"), None),
        (Selection(streams=frozenset({("a", "x"), ("a", "y")})), "a"),
        (Selection(streams=frozenset({("a", "x"), ("b", "y")})), None),
    ],
)
def test_a_choice_is_in_one_bucket_or_may_be_in_several(selection: Selection, bucket: str | None) -> None:
    assert selection.single_bucket() == bucket


# ---- what becomes of a table's columns ---------------------------------------------------------------------------


def sampled(*given: Any) -> list[Sampled]:
    return [Sampled("orders", "a", seq, json.dumps(record).encode()) for seq, record in enumerate(given)]


OLD = T.StructType().add("i", "long").add("t", "timestamp").add("in", T.StructType().add("a", "string"))


def test_new_fields_are_new_columns_and_those_inside_columns_are_left_out() -> None:
    found = evolved(OLD, sampled({"i": 1, "t": "2026-01-31T12:00:00Z"}, {"in": {"b": 1}, "k": 0.5, "nil": None}), "t")
    assert ddl(found.schema) == "i bigint, t timestamp, in struct<a: string>, k double"
    assert (found.added, found.left_out) == (["k"], ["in.b"])


def test_a_column_that_does_not_hold_the_values_is_refused_with_an_example() -> None:
    sample = sampled({"i": 1}, [1], {"i": 2.5}, {"i": 3.5, "t": "soon"})
    with pytest.raises(JobRefused) as refused:
        evolved(OLD, sample, "./orders")
    assert "column i is bigint in the table and double in the records: record 2 of stream orders/a has i 2.5" in str(
        refused.value
    )
    assert (
        'column t is timestamp in the table and string in the records: record 3 of stream orders/a has t "soon"'
        in str(refused.value)
    )
    assert "--overwrite" in refused.value.advice and "quarantine" in refused.value.advice


@pytest.mark.parametrize(
    ("was", "now", "stays"),
    [
        ("long", "integer", "bigint"),
        ("double", "integer", "double"),
        ("double", "float", "double"),
        ("long", "long", "bigint"),
        ("integer", "long", None),
        ("double", "long", None),
        ("long", "string", None),
        ("string", "long", None),
    ],
)
def test_a_table_keeps_a_type_that_holds_more_and_refuses_any_other(was: str, now: str, stays: str | None) -> None:
    def arrow(kind: str) -> pa.Schema:
        return to_arrow_schema(T.StructType().add("x", kind), timezone="UTC")

    given = T.StructType().add("x", now, False)
    if stays is None:
        with pytest.raises(JobRefused, match=r"column x is \w+ in the table and \w+ in the schema of bucket b"):
            fitted(given, arrow(now), arrow(was), "t", "the schema of bucket b (version 2)")
        return
    found = fitted(given, arrow(now), arrow(was), "t", "the schema")
    assert (found["x"].dataType.simpleString(), found["x"].nullable) == (stays, False)


def test_a_column_that_only_the_schema_has_is_left_to_be_added() -> None:
    given = T.StructType().add("x", "long").add("new", "string")
    columns = to_arrow_schema(given, timezone="UTC")
    assert fitted(given, columns, pa.schema([columns.field(0)]), "t", "the schema") == given
