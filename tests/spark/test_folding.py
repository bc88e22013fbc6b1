"""The ways to fold, without Spark: each against a slow, obvious model, in one step and in several.
Records are bytes as a stream holds them; what is compared is the published body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.folding import (
    JSON,
    BadFold,
    Fold,
    FoldFailed,
    Record,
    applied,
    found_at,
    load_function,
    merged,
    pointer,
)

KEYS = st.sampled_from(["a", "b", "ä", "", 1, 1.5, True, None, "1", [1], {"x": 1}])
EVENTS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"id": KEYS, "v": st.integers(0, 9)}, optional={"op": st.sampled_from(["set", "delete"])}
        ),
        st.just({"no": "key"}),
        st.just([1, 2]),
        st.just("text"),
    ),
    max_size=30,
)
PATCHES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3), st.booleans()),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


def encoded(values: list[Any]) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def fold_in(fold: Fold, records: list[bytes], cuts: list[int], kind: str = JSON) -> bytes:
    """Folds with a snapshot after each cut."""
    body: bytes | None = None
    for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
        folder = fold.folder(body, kind)
        for record in records[start:end]:
            folder.feed([record])
        body = folder.finish().body
    assert body is not None
    return body


def last_model(events: list[Any]) -> list[Any]:
    state: dict[str, Any] = {}
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("id"), str | int | float):
            continue
        key = json.dumps(event["id"])
        state.pop(key, None)
        if event.get("op") != "delete":
            state[key] = event
    return list(state.values())


@given(EVENTS, st.lists(st.integers(0, 30), max_size=3))
def test_the_last_value_per_key_is_what_a_dictionary_holds_in_one_step_or_several(
    events: list[Any], cuts: list[int]
) -> None:
    fold = Fold.of("last", ["/id"], "/op=delete")
    at = sorted(cut for cut in cuts if cut <= len(events))
    assert json.loads(fold_in(fold, encoded(events), at)) == last_model(events)


@given(st.lists(PATCHES, max_size=12), st.lists(st.integers(0, 12), max_size=2))
def test_merge_patches_make_the_document_that_applying_them_one_by_one_makes(
    patches: list[Any], cuts: list[int]
) -> None:
    def patched(target: Any, patch: Any) -> Any:  # as RFC 7396 writes it
        if not isinstance(patch, dict):
            return patch
        target = dict(target) if isinstance(target, dict) else {}
        for name, value in patch.items():
            if value is None:
                target.pop(name, None)
            else:
                target[name] = patched(target.get(name), value)
        return target

    state: Any = {}
    for patch in patches:
        state = patched(state, patch)
    at = sorted(cut for cut in cuts if cut <= len(patches))
    assert json.loads(fold_in(Fold.of("merge"), encoded(patches), at)) == state


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_merge_patch_standard_hold(target: Any, patch: Any, result: Any) -> None:
    assert merged(target, patch) == result


@pytest.mark.parametrize(
    ("kind", "records", "body"),
    [
        ("text/plain", [b"one ", b"two"], b"one two"),
        ("application/json", [b'{"a":1}', b"[2]", b'"x"'], b'[{"a":1},[2],"x"]'),
        ("Application/JSON; charset=utf-8", [b"1", b"2"], b"[1,2]"),
    ],
)
def test_concatenated_records_keep_their_bytes_in_one_step_or_two(kind: str, records: list[bytes], body: bytes) -> None:
    fold = Fold.of("concat")
    assert fold_in(fold, records, [], kind) == body
    assert fold_in(fold, records, [1], kind) == body
    assert fold.folder(None, kind).finish().content_type == kind


def test_records_of_the_last_value_keep_their_bytes_and_those_without_a_key_are_counted() -> None:
    folder = Fold.of("last", ["/headers/key", "/type"]).folder(None, JSON)
    kept = b'{ "headers": {"key": "a"}, "type":"x", "n": 1.0 }'
    folder.feed([b'{"headers":{"key":"a"},"type":"x"}', b'{"headers":"flat","type":"x"}', b'{"type":"x"}', kept])
    assert folder.finish() == (b"[" + kept + b"]", JSON, 2)


def test_a_pointer_reaches_into_arrays_and_escaped_names() -> None:
    document = {"a/b": [{"~": 7}], "0": "zero"}
    assert found_at(document, pointer("/a~1b/0/~0")) == 7
    assert found_at(document, pointer("/0")) == "zero"
    folder = Fold.of("last", ["/list/1"]).folder(None, JSON)
    folder.feed([b'{"list":[0,"a"],"n":1}', b'{"list":[0,"a"],"n":2}', b'{"list":[0]}'])
    assert folder.finish().body == b'[{"list":[0,"a"],"n":2}]'


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("newest",), "there is no mode"),
        (("last",), "takes a key"),
        (("merge", ["/id"]), "takes a key"),
        (("last", ["id"]), "no JSON pointer"),
        (("last", ["/id"], "/op"), "/pointer=value"),
        (("merge", [], "/op=x"), "only keys can be deleted"),
        (("function",), "takes a function"),
        (("concat", [], None, "a:b"), "takes a function"),
    ],
)
def test_a_fold_that_cannot_be_is_refused_with_the_reason(arguments: tuple[Any, ...], complaint: str) -> None:
    with pytest.raises(BadFold, match=complaint):
        Fold.of(*arguments)


def test_a_snapshot_of_another_making_is_not_folded_upon() -> None:
    for fold in (Fold.of("last", ["/id"]), Fold.of("concat")):
        with pytest.raises(FoldFailed, match="no JSON array"):
            fold.folder(b'{"an":"object"}', JSON)
    with pytest.raises(FoldFailed, match="cannot be read as JSON"):
        Fold.of("merge").folder(b"\x00", JSON)


RECORDS = [Record(0, 0, 5, None, b"x")]


@pytest.mark.parametrize(
    ("returned", "body", "kind"),
    [
        (b"raw", b"raw", "application/octet-stream"),
        ("text", b"text", "text/plain; charset=utf-8"),
        ({"n": 1}, b'{"n":1}', JSON),
        ((b"<a/>", "text/html"), b"<a/>", "text/html"),
    ],
)
def test_a_function_may_return_bytes_text_a_document_or_a_type_with_it(returned: Any, body: bytes, kind: str) -> None:
    found = applied(lambda previous, records: returned, None, RECORDS)
    assert found is not None
    assert (found.body, found.content_type) == (body, kind)


def test_a_function_that_fails_or_returns_something_else_is_told_and_none_publishes_nothing() -> None:
    assert applied(lambda previous, records: None, b"", RECORDS) is None
    for wrong in (lambda previous, records: 1 // 0, lambda previous, records: 3.5):
        with pytest.raises(FoldFailed):
            applied(wrong, None, RECORDS)


@pytest.mark.parametrize("text", ["json", "json:", ":loads", "json:nothing_here", "no.such.module:f", "json:__doc__"])
def test_a_function_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(BadFold):
        load_function(text)


def test_a_function_is_found_by_its_name() -> None:
    assert load_function("json:dumps") is json.dumps
