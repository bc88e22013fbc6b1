"""Deleted records at the HTTP door: no way of reading shows them, and every reader gets past them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwater.engine.topic_deletes import RecordsGone
from headwater.model.commands import Append, DeleteRecords
from headwater.model.holes import Run
from headwater.model.labels import Labels
from tests.doors.http.extensions.surface import token
from tests.support.http import EventStream, Response
from tests.support.two_members import TwoMembers, two_members

KEY = "town/s"
PATH = "/v1/stream/town/s"
TEXT = [("Content-Type", "text/plain")]
JSON = [("Content-Type", "application/json")]


@pytest.fixture
def node() -> Iterator[TwoMembers]:
    with two_members(1) as node:
        yield node


class _Nobody:
    def resolve(self, outcome: object) -> None:
        assert not isinstance(outcome, Exception), outcome


def submit(node: TwoMembers, command: Any) -> None:
    node.run(lambda: node.members[0].engine.submit(KEY, command, _Nobody()))


def delete(node: TwoMembers, *numbers: int, size: int = 2) -> None:
    runs = [Run(one, one + 1, size * one, size * (one + 1)) for one in numbers]
    submit(node, DeleteRecords(runs))


def fill(node: TwoMembers, count: int = 6, headers: Any = TEXT) -> None:
    assert node.request(0, "PUT", PATH, headers).status == 201
    if headers is JSON:
        assert (
            node.request(0, "POST", PATH, JSON, b"[" + b",".join(b"%d" % (10 + n) for n in range(count)) + b"]").status
            < 300
        )
    for number in range(count if headers is TEXT else 0):
        assert node.request(0, "POST", PATH, TEXT, b"%d;" % number).status < 300


def get(node: TwoMembers, query: str, headers: Any = ()) -> Response:
    return node.request(0, "GET", f"{PATH}?{query}", headers)


def test_a_read_passes_over_them_and_its_next_offset_lies_behind(node: TwoMembers) -> None:
    fill(node)
    delete(node, 1, 2, 4)
    answer = get(node, "offset=-1")
    assert (answer.status, answer.body) == (200, b"0;3;5;")
    assert (answer.header("stream-next-offset"), answer.header("stream-up-to-date")) == (token(12), "true")
    first = get(node, "offset=-1&max_bytes=2")
    assert (first.body, first.header("stream-next-offset")) == (b"0;", token(6))
    second = get(node, f"offset={token(6)}&max_bytes=2")
    assert (second.body, second.header("stream-next-offset")) == (b"3;", token(10))
    for inside in (2, 3, 4, 6):
        assert get(node, f"offset={token(inside)}").body == b"3;5;"


def test_a_reader_who_stands_in_a_hole_at_the_tail_is_up_to_date(node: TwoMembers) -> None:
    fill(node)
    delete(node, 4, 5)
    for offset in (8, 10, 12):
        answer = get(node, f"offset={token(offset)}")
        assert (answer.status, answer.body) == (200, b"")
        assert (answer.header("stream-next-offset"), answer.header("stream-up-to-date")) == (token(12), "true")
    assert get(node, f"offset={token(6)}").header("stream-next-offset") == token(12)


def test_an_array_has_no_trace_of_them(node: TwoMembers) -> None:
    fill(node, headers=JSON)
    delete(node, 1, 4, 5)
    assert get(node, "offset=-1").json() == [10, 12, 13]
    assert get(node, f"offset={token(8)}").json() == []


def test_an_answer_that_was_kept_is_not_taken_for_the_one_without_them(node: TwoMembers) -> None:
    fill(node)
    before = get(node, "offset=-1").header("etag")
    assert before is not None
    assert get(node, "offset=-1", [("If-None-Match", before)]).status == 304
    delete(node, 2)
    after = get(node, "offset=-1", [("If-None-Match", before)])
    assert (after.status, after.body) == (200, b"0;1;3;4;5;")
    assert get(node, "offset=-1", [("If-None-Match", after.header("etag") or "")]).status == 304


def test_a_long_poll_waits_behind_them(node: TwoMembers) -> None:
    fill(node)
    delete(node, 3, 4, 5)
    with node.connect(0) as connection:
        connection.send(
            b"GET %b?offset=%b&live=long-poll HTTP/1.1\r\nHost: h\r\n\r\n" % (PATH.encode(), token(6).encode())
        )
        while not node.run(lambda: node.members[0].engine.find(KEY, False).followers):
            pass
        assert node.request(0, "POST", PATH, TEXT, b"6;").status < 300
        answer = connection.read_response()
    assert (answer.status, answer.body, answer.header("stream-next-offset")) == (200, b"6;", token(14))


def test_events_leave_them_out_also_for_who_comes_to_the_same_place_later(node: TwoMembers) -> None:
    fill(node, 4)
    with node.connect(0) as first:
        events = iter(EventStream.open(first, f"{PATH}?offset=-1&live=sse"))
        assert next(events).data == "0;1;2;3;"
        delete(node, 1, 3)
        with node.connect(0) as second:
            others = iter(EventStream.open(second, f"{PATH}?offset=-1&live=sse"))
            assert next(others).data == "0;2;"
            assert token(8) in next(others).data
            assert next(events).name == "control"
            assert node.request(0, "POST", PATH, TEXT, b"4;").status < 300
            assert (next(events).data, next(others).data) == ("4;", "4;")


def test_records_go_by_tag_by_its_beginning_and_by_number(node: TwoMembers) -> None:
    fill(node, 0)
    tags = ["a", "ab", None, "a", "b", "ab"]
    labels = [None if tag is None else Labels(tag) for tag in tags]
    submit(node, Append([b"%d;" % n for n in range(6)], labels=labels))
    engine, told = node.members[0].engine, list[Any]()

    def asked(match: tuple[str, str] | None, before_seq: int | None) -> RecordsGone:
        node.run(lambda: engine.delete_records(KEY, match, before_seq, told.append))
        gone = told.pop()
        assert isinstance(gone, RecordsGone)
        return gone

    assert asked(("Eq", "a"), 3) == RecordsGone(1, 2, 6)
    assert get(node, f"offset={token(2)}").body == b"1;2;3;4;5;"
    assert asked(("Eq", "a"), None) == RecordsGone(1, 2, 6)
    assert asked(("Eq", "a"), None) == RecordsGone(0, 2, 6)
    assert get(node, f"offset={token(2)}").body == b"1;2;4;5;"
    assert asked(("Glob", "a"), None) == RecordsGone(2, 3, 6)
    assert get(node, f"offset={token(4)}").body == b"2;4;"
    assert asked(None, 4) == RecordsGone(1, 5, 6)
    assert get(node, f"offset={token(8)}").body == b"4;"
    assert asked(None, None) == RecordsGone(1, 7, 6)
    assert get(node, f"offset={token(12)}").body == b""
