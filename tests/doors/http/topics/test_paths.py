"""Paths and names of topics (contract: "Path"): the same stream, whatever way it is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.doors.http.topics.paths import VERBS, in_cursor, topic_key, topic_name, topic_path
from headwater.errors import BadName


@pytest.mark.parametrize(
    ("rest", "key", "verb"),
    [
        (b"orders", "_default/orders", ""),
        (b"orders/records", "_default/orders", "records"),
        (b"records", "_default/records", ""),
        (b"records/records", "_default/records", "records"),
        (b"shop/orders", "shop/orders", ""),
        (b"shop/orders/diff", "shop/orders", "diff"),
        (b"shop%2Frecords", "shop/records", ""),
        (b"shop%2frecords/ws", "shop/records", "ws"),
        (b"shop/a/b/c/sse", "shop/a/b/c", "sse"),
        (b"shop/a/nothing", "shop/a/nothing", ""),
        (b"%C3%A9", "_default/é", ""),
        (b"a%20b/queue", "_default/a b", "queue"),
        (b"a//b", "a//b", ""),
        (b"a/recor%64s", "a/records", ""),
    ],
)
def test_a_path_names_a_topic_and_a_verb(rest: bytes, key: str, verb: str) -> None:
    assert topic_path(rest, 1_024) == (key, verb)


@pytest.mark.parametrize(
    "rest", [b"", b"/", b"/records", b"a/", b"a//records", b"..", b"a/..", b"%2e%2e", b"a%00", b"%zz", b"%ff", b"__ds"]
)
def test_a_path_that_names_no_topic_is_refused(rest: bytes) -> None:
    with pytest.raises(BadName):
        topic_path(rest, 1_024)


def test_a_name_is_as_long_as_that_of_a_stream_may_be() -> None:
    assert topic_path(b"a" * 10, 10).key == "_default/aaaaaaaaaa"
    with pytest.raises(BadName, match="topic's name"):
        topic_path(b"a" * 11, 10)


def test_every_verb_of_the_contract_is_one() -> None:
    words = b"records diff sse ws delete claim ack nack extend work queue peek purge"
    assert frozenset(words.split()) == VERBS


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_the_name_of_a_topic_finds_it_again(name: str) -> None:
    try:
        key = topic_key(name, 1_024)
    except BadName:
        return
    assert topic_key(topic_name(key), 1_024) == key
    assert not set(in_cursor(topic_name(key))) & set(",: ")


@pytest.mark.parametrize("key", ["_default/a/b", "_default/__ds", "_default/_default", "shop/orders"])
def test_a_name_that_would_be_another_topics_is_told_in_full(key: str) -> None:
    assert topic_name(key) == (key if key != "_default/_default" else "_default")
    assert topic_key(topic_name(key), 1_024) == key
