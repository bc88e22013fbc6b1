"""Schemas of JSON records: the part of JSON Schema that columns can be made of, read into fields and written back.

Owns that part, its limits, and the words for what is beyond it. Never looks at a record: a schema describes, and what
does not keep to it is the reader's to deal with.

    {"type": "object", "properties": {…}, "required": […]}     named fields; nested ones too
    {"type": "object", "additionalProperties": {…}}            values of one kind by any name
    {"type": "array", "items": {…}}
    boolean, integer, number, string; string with the format date-time or date
    ["string", "null"], "nullable": true, anyOf with null      may be null
    {}, an object or array of which nothing is said            its text, as it stands in the record
    {"$ref": "#/$defs/Name"}                                   what the document has there
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from headwater.errors import BadBucketSchema

SCHEMA_BYTES_MAX = 64 * 1024
DEPTH_MAX = 16
FIELDS_MAX = 1_000
"""In the whole schema."""

Kind = Literal["boolean", "integer", "number", "string", "date", "date-time"]


@dataclass(frozen=True, slots=True)
class Plain:
    kind: Kind
    """`string` is any text, and the JSON text of what is none."""


@dataclass(frozen=True, slots=True)
class ListOf:
    items: Shape


@dataclass(frozen=True, slots=True)
class MapOf:
    values: Shape


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    shape: Shape
    required: bool = False
    """It is there and not null. A table asks that of a record's own fields, not of those inside them."""


@dataclass(frozen=True, slots=True)
class Fields:
    fields: tuple[Field, ...]


Shape = Plain | ListOf | MapOf | Fields

_SCALARS: tuple[Kind, ...] = ("boolean", "integer", "number", "string")
_FORMATS: dict[str, Kind] = {"date": "date", "date-time": "date-time"}
_USED = {"type", "properties", "required", "additionalProperties", "items", "format", "nullable", "anyOf", "$ref"}
_TOLD = {
    *("$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "title", "description", "default", "example"),
    *("examples", "deprecated", "readOnly", "writeOnly", "enum", "const", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties", "propertyNames", "contentEncoding", "contentMediaType"),
}
"""What says nothing about columns: it is kept and not looked at."""
_REF = ("#/$defs/", "#/definitions/")


def fields_of(text: bytes) -> Fields:
    """The fields that a document describes. Raises BadBucketSchema, which names the place of what is wrong."""
    return _Reading(document_of(text)).fields()


def document_of(text: bytes) -> dict[str, Any]:
    """The document as it is, if it is one. Raises BadBucketSchema."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise BadBucketSchema(f"a schema has at most {SCHEMA_BYTES_MAX} bytes")
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        raise BadBucketSchema(f"a schema is a JSON document, and this is none: {error}") from None
    if not isinstance(found, dict):
        raise BadBucketSchema("a schema is a JSON object")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no value")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands in one object twice")
    return found


class _Reading:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._count = 0

    def fields(self) -> Fields:
        shape, nullable = self._shape(self._document, "", 0)
        if not isinstance(shape, Fields):
            raise _bad("", 'describes no fields: a record is {"type": "object", "properties": {…}}')
        if nullable:
            raise _bad("", "says that a record may be null: a record is an object")
        return shape

    def _shape(self, node: Any, path: str, depth: int) -> tuple[Shape, bool]:
        """What it is, and whether it may be null."""
        self._counted(path)
        if depth > DEPTH_MAX:
            raise _bad(path, f"is more than {DEPTH_MAX} levels deep, or refers to itself")
        if node is True:
            return Plain("string"), True
        if not isinstance(node, dict):
            raise _bad(path, f"is {_shown(node)}, and a schema is an object")
        strange = [key for key in node if key not in _USED and key not in _TOLD and not key.startswith("x-")]
        if strange:
            raise _bad(f"{path}/{strange[0]}", "is not among what a bucket's schema may say; leave it out")
        if "$ref" in node:
            return self._referred(node, path, depth)
        if "anyOf" in node:
            return self._any_of(node, path, depth)
        kind, nullable = _type_of(node, path)
        if kind is None:
            kind = "object" if "properties" in node else "array" if "items" in node else None
        return self._of(kind, node, path, depth), nullable

    def _of(self, kind: str | None, node: Mapping[str, Any], path: str, depth: int) -> Shape:
        if kind == "object":
            return self._object(node, path, depth)
        if kind == "array":
            items = node.get("items", True)
            if isinstance(items, list):
                raise _bad(f"{path}/items", "is a list of schemas: an array's items have one schema")
            return (
                Plain("string") if items is True or items == {} else ListOf(self._inside(items, path, "items", depth))
            )
        if kind == "string":
            return Plain(_FORMATS.get(str(node.get("format")), "string"))
        return Plain("string" if kind is None else next(one for one in _SCALARS if one == kind))

    def _object(self, node: Mapping[str, Any], path: str, depth: int) -> Shape:
        given, others = node.get("properties", {}), node.get("additionalProperties", True)
        if not isinstance(given, dict):
            raise _bad(f"{path}/properties", f"is {_shown(given)}, and it is an object of schemas by name")
        required = node.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise _bad(f"{path}/required", "is a list of names")
        unknown = [name for name in required if name not in given]
        if unknown and given:
            raise _bad(f"{path}/required", f"names {unknown[0]!r}, which properties does not have")
        if given:
            return self._named(given, set(required), path, depth)
        if isinstance(others, dict) and others:
            return MapOf(self._inside(others, path, "additionalProperties", depth))
        return Plain("string")

    def _named(self, given: Mapping[str, Any], required: set[str], path: str, depth: int) -> Fields:
        found: list[Field] = []
        seen: dict[str, str] = {}
        for name, schema in given.items():
            here = f"{path}/properties/{_pointer(name)}"
            if not name:
                raise _bad(here, "has no name")
            same = seen.setdefault(name.lower(), name)
            if same != name:
                raise _bad(here, f"differs from {same!r} by case alone, and columns do not")
            shape, nullable = self._shape(schema, here, depth + 1)
            found.append(Field(name, shape, name in required and not nullable))
        return Fields(tuple(found))

    def _inside(self, node: Any, path: str, key: str, depth: int) -> Shape:
        return self._shape(node, f"{path}/{key}", depth + 1)[0]

    def _any_of(self, node: Mapping[str, Any], path: str, depth: int) -> tuple[Shape, bool]:
        choices = node["anyOf"]
        if not isinstance(choices, list) or "type" in node:
            raise _bad(f"{path}/anyOf", "is one schema and null, and stands alone")
        rest = [(at, one) for at, one in enumerate(choices) if one != {"type": "null"}]
        if len(rest) != 1:
            raise _bad(
                f"{path}/anyOf", "is a choice between several types, and a column has one: only null may be beside it"
            )
        at, only = rest[0]
        shape, nullable = self._shape(only, f"{path}/anyOf/{at}", depth + 1)
        return shape, nullable or len(choices) > 1

    def _referred(self, node: Mapping[str, Any], path: str, depth: int) -> tuple[Shape, bool]:
        target = node["$ref"]
        for start in _REF:
            if isinstance(target, str) and target.startswith(start):
                there = self._document.get(start.strip("#/"), {})
                name = target.removeprefix(start).replace("~1", "/").replace("~0", "~")
                if isinstance(there, dict) and name in there:
                    return self._shape(there[name], path, depth + 1)
        raise _bad(f"{path}/$ref", f"is {_shown(target)}, and it has to name something in $defs, as #/$defs/Name")

    def _counted(self, path: str) -> None:
        self._count += 1
        if self._count > FIELDS_MAX:
            raise _bad(path, f"is one too many: a schema has at most {FIELDS_MAX} fields, items and values")


def _type_of(node: Mapping[str, Any], path: str) -> tuple[str | None, bool]:
    given, nullable = node.get("type"), node.get("nullable", False)
    if not isinstance(nullable, bool):
        raise _bad(f"{path}/nullable", "is true or false")
    if given is None and "type" not in node:
        return None, ("properties" not in node and "items" not in node) or nullable
    kinds = given if isinstance(given, list) else [given]
    rest = [kind for kind in kinds if kind != "null"]
    if len(rest) != 1:
        raise _bad(f"{path}/type", f"is {_shown(given)}, and a column has one type: only null may be beside it")
    if rest[0] not in (*_SCALARS, "object", "array"):
        names = ", ".join((*_SCALARS, "object", "array"))
        raise _bad(f"{path}/type", f"is {_shown(rest[0])}, and there are {names}, and null beside one of them")
    return str(rest[0]), nullable or len(rest) < len(kinds)


def schema_of(fields: Fields) -> dict[str, Any]:
    """A document that describes these fields."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_said(fields)}


def _said(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, Plain):
        if shape.kind in _FORMATS:
            return {"type": "string", "format": shape.kind}
        return {"type": shape.kind}
    if isinstance(shape, ListOf):
        return {"type": "array", "items": _said(shape.items)}
    if isinstance(shape, MapOf):
        return {"type": "object", "additionalProperties": _said(shape.values)}
    if isinstance(shape, Fields):
        properties = {field.name: _said(field.shape) for field in shape.fields}
        required = [field.name for field in shape.fields if field.required]
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
    assert_never(shape)


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _bad(path: str, what: str) -> BadBucketSchema:
    return BadBucketSchema(f"{path or 'the schema'} {what}")
