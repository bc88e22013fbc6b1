"""Content types: what a stream or a snapshot may have, and what readers are told of one that an earlier version stored.
It holds the rule against the grammar of RFC 9110, 8.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadContentType
from headwater.model import content_types
from headwater.model.commands import Create, PublishSnapshot
from headwater.model.events import Created
from headwater.model.stream import Limits, decide, decide_snapshot
from headwater.model.stream_state import Stream, born

TOKEN = st.text("!#$%&'*+.^_`|~0123456789ABCXYZabcxyz-", min_size=1, max_size=8)
QUOTED = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)
SPACES = st.sampled_from(["", " ", "  "])
PARAMETER = st.builds("{}={}".format, TOKEN, TOKEN | QUOTED)
PART = st.builds("{};{}{}".format, SPACES, SPACES, PARAMETER) | st.just(";")
VALID = st.builds(lambda kind, sub, parts: f"{kind}/{sub}{''.join(parts)}", TOKEN, TOKEN, st.lists(PART, max_size=3))


@given(VALID)
def test_every_content_type_of_the_grammar_is_taken(text: str) -> None:
    media = content_types.check(text)
    assert media == text.partition(";")[0].strip().lower()
    assert content_types.shown(text) == text


@given(VALID, st.integers(0, 60), st.characters(max_codepoint=0x1F) | st.characters(min_codepoint=0x7F))
def test_one_character_that_is_not_printable_ascii_spoils_it(text: str, at: int, char: str) -> None:
    with pytest.raises(BadContentType):
        content_types.check(text[:at] + char + text[at:])


@pytest.mark.parametrize(
    "text",
    ["", " ", "text", "/", "text/", "/plain", "text/plain/x", "te xt/x", "text/plain; charset", "text/plain; =x",
     "text/plain; charset =utf-8", 'text/plain; a="b', 'text/plain; a="b"c', 'text/plain; a="\\', " text/plain",
     "text/plain ", "text/plain, text/html", "text/plain;\tcharset=utf-8", "a/" + "b" * 9_000],
)  # fmt: skip
def test_what_is_no_media_type_is_refused(text: str) -> None:
    with pytest.raises(BadContentType):
        content_types.check(text)


def test_a_content_type_has_a_bounded_size() -> None:
    assert content_types.check("text/plain", 10)
    with pytest.raises(BadContentType):
        content_types.check("text/plain1", 10)


@given(st.text(max_size=40) | st.builds("{}{}".format, VALID, st.text(max_size=10)))
def test_whatever_was_stored_is_shown_as_a_content_type(stored: str) -> None:
    shown = content_types.shown(stored)
    content_types.check(shown, 10_000)
    assert shown in (stored, content_types.normalise(stored), content_types.DEFAULT)


def test_a_stored_type_with_broken_parameters_is_shown_without_them() -> None:
    assert content_types.shown("application/json; a=b\r\nX: y") == "application/json"
    assert content_types.shown("text/plain\r\nX: y") == content_types.DEFAULT


@pytest.mark.parametrize("text", ["text/plain\r\nX: y", "text/plain; a=b\r\nX: y", "text/plain; é=x", "\x1b[0m"])
def test_no_door_can_store_a_content_type_that_is_none(text: str) -> None:
    with pytest.raises(BadContentType):
        decide(None, Create("a/b", text, []), 0, 1, Limits())
    created = decide(None, Create("a/b", None, []), 0, 1, Limits())
    assert isinstance(created, Created)
    stream = Stream(born(created, 1))
    with pytest.raises(BadContentType):
        decide_snapshot(stream, PublishSnapshot(0, text, "blob", 0), 0)
