"""Patterns over stream paths: a table of meanings, and the search of many at once beside the obvious way.
It owns the slow matcher; it never starts a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import glob
from headwater.model.glob import Patterns, literal_prefix, matches

ALPHABET = ["a", "b", "events", "*", "**"]
patterns = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=6).map("/".join)
paths = st.lists(st.sampled_from(["a", "b", "events", "x"]), min_size=1, max_size=6).map("/".join)


def slowly(pattern: list[str], path: list[str]) -> bool:
    """The meaning as one would explain it."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(slowly(pattern[1:], path[at:]) for at in range(len(path) + 1))
    if not path:
        return False
    return pattern[0] in ("*", path[0]) and slowly(pattern[1:], path[1:])


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events", False),
        ("events/*", "events/a/b", False),
        ("events/**", "events", True),
        ("events/**", "events/a", True),
        ("events/**", "events/a/b/c", True),
        ("events/**", "eventsx/a", False),
        ("**", "a", True),
        ("**", "a/b/c", True),
        ("*", "a", True),
        ("*", "a/b", False),
        ("**/log", "log", True),
        ("**/log", "a/b/log", True),
        ("**/log", "a/b/logs", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/*/z", "a/z", False),
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("user-*", "user-1", False),  # a star is a whole segment or itself
        ("user-*", "user-*", True),
        ("a/%2A", "a/*", True),
        ("a/%2a", "a/b", False),
        ("a.c", "abc", False),
        ("a/*", "a/", True),
        ("ä/*", "ä/ö", True),
    ],
)
def test_a_pattern_means_what_the_table_says(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


@given(patterns, paths)
def test_one_pattern_agrees_with_the_obvious_matcher(pattern: str, path: str) -> None:
    assert matches(pattern, path) is slowly(pattern.split("/"), path.split("/"))


@given(st.lists(patterns, max_size=12), st.data())
def test_many_patterns_at_once_agree_with_each_of_them_alone(some: list[str], data: st.DataObject) -> None:
    index = Patterns()
    for number, pattern in enumerate(some):
        index.add(pattern, str(number))
    gone = data.draw(st.sets(st.integers(0, max(0, len(some) - 1)), max_size=len(some)))
    for number in gone:
        if number < len(some):
            index.remove(some[number], str(number))
    path = data.draw(paths)
    left = {str(n) for n, pattern in enumerate(some) if n not in gone and slowly(pattern.split("/"), path.split("/"))}
    assert index.matching(path) == left


@given(st.lists(patterns, min_size=1, max_size=8))
def test_an_index_that_lost_all_its_patterns_holds_nothing(some: list[str]) -> None:
    index = Patterns()
    for pattern in some:
        index.add(pattern, pattern)
    for pattern in some:
        index.remove(pattern, pattern)
        index.remove(pattern, "never added")
    assert not index._root.next


@given(patterns, paths)
def test_every_match_begins_with_the_literal_prefix(pattern: str, path: str) -> None:
    prefix, whole = literal_prefix(pattern)
    if matches(pattern, path):
        assert path == prefix or not prefix or path.startswith(prefix + "/")
        assert not whole or path == prefix


def test_a_pattern_with_many_wildcards_is_searched_in_bounded_steps() -> None:
    pattern = "/".join(["**", "a"] * glob.ANY_DEPTH_MAX)
    assert not matches(pattern, "/".join(["a"] * 200 + ["b"]))
