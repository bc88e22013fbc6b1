"""The part of JSON Schema that columns can be made of: what it means, and how the rest is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadBucketSchema
from headwater.model.json_schema import (
    DEPTH_MAX,
    FIELDS_MAX,
    SCHEMA_BYTES_MAX,
    Field,
    Fields,
    ListOf,
    MapOf,
    Plain,
    Shape,
    fields_of,
    schema_of,
)

plain = st.sampled_from(["boolean", "integer", "number", "string", "date", "date-time"]).map(Plain)  # type: ignore[arg-type]


def named(shapes: st.SearchStrategy[Shape]) -> st.SearchStrategy[Fields]:
    names = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4, unique_by=str.lower)
    return names.flatmap(
        lambda found: st.tuples(*(st.builds(Field, st.just(name), shapes, st.booleans()) for name in found)).map(Fields)
    )


shapes = st.recursive(plain, lambda inner: inner.map(ListOf) | inner.map(MapOf) | named(inner), max_leaves=8)


def read(document: Any) -> Fields:
    return fields_of(json.dumps(document).encode())


def one(schema: Any, **more: Any) -> Field:
    """What the schema of a single property means."""
    return read({"type": "object", "properties": {"x": schema}, **more}).fields[0]


@given(named(shapes))
def test_fields_that_are_written_down_are_read_back_the_same(fields: Fields) -> None:
    assert read(schema_of(fields)) == fields


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: (
            st.lists(v)
            | st.dictionaries(
                st.sampled_from(["type", "properties", "items", "required", "anyOf", "$ref", "format", "nullable", "x"])
                | st.text(max_size=2),
                v | st.sampled_from(["object", "array", "string", "#/$defs/x"]),
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_read_or_refused_with_a_message(document: Any) -> None:
    try:
        read(document)
    except BadBucketSchema as bad:
        assert bad.message().encode()


@pytest.mark.parametrize(
    ("schema", "shape"),
    [
        ({"type": "integer", "minimum": 0, "description": "how many"}, Plain("integer")),
        ({"type": "string", "format": "date-time"}, Plain("date-time")),
        ({"type": "string", "format": "uuid", "pattern": "^.*$"}, Plain("string")),
        ({}, Plain("string")),
        (True, Plain("string")),
        ({"type": "object"}, Plain("string")),
        ({"type": "array"}, Plain("string")),
        ({"enum": ["a", "b"]}, Plain("string")),
        ({"type": "array", "items": {"type": ["number", "null"]}}, ListOf(Plain("number"))),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, MapOf(Plain("boolean"))),
        ({"properties": {"y": {"type": "string"}}}, Fields((Field("y", Plain("string")),))),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, Plain("integer")),
    ],
)
def test_a_property_has_a_shape(schema: Any, shape: Shape) -> None:
    assert one(schema).shape == shape


@pytest.mark.parametrize("schema", [{"type": ["integer", "null"]}, {"type": "integer", "nullable": True}])
def test_what_may_be_null_is_not_required_even_where_it_is_named(schema: Any) -> None:
    assert not one(schema, required=["x"]).required
    assert one({"type": "integer"}, required=["x"]).required
    assert not one({"type": "integer"}).required


def test_a_reference_stands_for_what_the_document_has_there() -> None:
    definitions = {"$defs": {"Sum": {"type": "object", "properties": {"amount": {"type": "number"}}}}}
    assert one({"$ref": "#/$defs/Sum"}, **definitions).shape == Fields((Field("amount", Plain("number")),))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "integr"}, '/properties/x/type is "integr"'),
        ({"type": ["integer", "string"]}, '/properties/x/type is ["integer", "string"], and a column has one type'),
        ({"oneOf": []}, "/properties/x/oneOf is not among"),
        ({"type": "object", "properties": {"a/b": {"type": 1}}}, "/properties/x/properties/a~1b/type is 1"),
        ({"type": "array", "items": [{}]}, "/properties/x/items is a list"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "/properties/x/anyOf is a choice"),
        ({"$ref": "https://elsewhere/x.json"}, "/properties/x/$ref is"),
        ({"type": "null"}, '/properties/x/type is "null"'),
        ({"type": "object", "properties": {"a": {}, "A": {}}}, "differs from 'a' by case alone"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "/properties/x/required names 'b'"),
        (False, "/properties/x is false"),
    ],
)
def test_what_no_column_can_be_made_of_is_refused_by_its_place(schema: Any, told: str) -> None:
    with pytest.raises(BadBucketSchema) as refused:
        one(schema)
    assert told in refused.value.message()


NOT_RECORDS = [[], 1, {}, {"type": "string"}, {"type": "object"}, {"type": ["object", "null"], "properties": {"a": {}}}]


@pytest.mark.parametrize("document", NOT_RECORDS)
def test_a_record_is_an_object_with_fields(document: Any) -> None:
    with pytest.raises(BadBucketSchema):
        read(document)


def test_what_is_too_large_too_deep_or_endless_is_refused() -> None:
    deep: Any = {"type": "string"}
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(BadBucketSchema, match="levels deep"):
        one(deep)
    with pytest.raises(BadBucketSchema, match="refers to itself"):
        one({"$ref": "#/$defs/me"}, **{"$defs": {"me": {"$ref": "#/$defs/me"}}})
    doubling = {f"d{n}": {"properties": {c: {"$ref": f"#/$defs/d{n + 1}"} for c in "abcdef"}} for n in range(5)}
    with pytest.raises(BadBucketSchema, match=f"at most {FIELDS_MAX}"):
        one({"$ref": "#/$defs/d0"}, **{"$defs": {**doubling, "d5": {"type": "string"}}})
    with pytest.raises(BadBucketSchema, match="at most"):
        fields_of(b'{"type":"object","properties":{"a":{}},"title":"' + b"x" * SCHEMA_BYTES_MAX + b'"}')
    with pytest.raises(BadBucketSchema, match="none"):
        fields_of(b"[" * 60_000)


@pytest.mark.parametrize(
    "text", [b'{"\\ud800": 1}', '{"type": "object"}'.encode("utf-16"), b'{"default": NaN}', b"\xff", b"\xef\xbb\xbf{}"]
)
def test_text_that_others_could_not_read_is_no_document(text: bytes) -> None:
    with pytest.raises(BadBucketSchema, match="none"):
        fields_of(text)


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(BadBucketSchema, match="twice"):
        fields_of(b'{"type":"object","properties":{"a":{},"a":{}}}')
