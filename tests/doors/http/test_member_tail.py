"""What another process's tail tells, however its bytes are cut: whole appends and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.doors.http.member_tail import MemberTail, Refused, positions_of
from headwater.errors import MemberUnavailable

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
OPENING = b"event: open\nid: 1:4,3:9\ndata:{}\n\n"
APPENDS = [
    (b'event: data\ndata:{"data":"id: 9"}\n\nevent: data\n', b"id: 1:5,3:9", b'\ndata:{"data":"b"}\n\n', {1: 5, 3: 9}),
    (b"event: data\n", b"id: 1:5,3:12", b"\ndata:{\ndata:id: 7\ndata:}\n\n", {1: 5, 3: 12}),
]
TEXT = b":\n" + b"".join(APPENDS[0][:3]) + b":\n:\n" + b"".join(APPENDS[1][:3])


class Wire:
    """A transport that remembers whether it is to be read."""

    def __init__(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None: ...


def opened(wire: Any, data: bytes) -> MemberTail:
    tail = MemberTail(1)
    tail.connection_made(wire)
    for at in range(len(data)):
        tail.data_received(data[at : at + 1])
    return tail


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_appends_are_taken_whole_however_they_arrive(size: int) -> None:
    async def body() -> None:
        wire = Wire()
        tail = opened(wire, HEAD + OPENING)
        assert tail._opened.result() == {1: 4, 3: 9}
        assert not wire.reading
        found: list[Any] = []
        tail.attach(lambda: found.extend(tail.take()), lambda: None)
        tail.resume()
        for at in range(0, len(TEXT), size):
            tail.data_received(TEXT[at : at + size])
        assert found == [(positions, before, behind) for before, _, behind, positions in APPENDS]

    asyncio.run(body())


def test_what_was_not_taken_is_offered_again() -> None:
    async def body() -> None:
        tail = opened(Wire(), HEAD + OPENING)
        tail.data_received(TEXT + b"event: da")
        assert next(tail.take())[0] == {1: 5, 3: 9}
        assert [positions for positions, _, _ in tail.take()] == [{1: 5, 3: 12}]
        assert list(tail.take()) == []
        tail.data_received(b"ta\nid: 1:6,3:12\ndata:1\n\n")
        assert [positions for positions, _, _ in tail.take()] == [{1: 6, 3: 12}]

    asyncio.run(body())


def test_a_refusal_is_known_when_the_answer_ends_and_an_end_before_the_opening_is_none() -> None:
    async def body() -> None:
        refused = opened(Wire(), b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nDate: x\r\n\r\n{}\n\n")
        assert not refused._opened.done()
        refused.connection_lost(None)
        error = refused._opened.exception()
        assert isinstance(error, Refused)
        assert (error.status, error.headers, error.body) == (404, [("Content-Type", "application/json")], b"{}\n\n")
        for data in (b"", HEAD[:9], HEAD, HEAD + OPENING[:-1]):
            gone = opened(Wire(), data)
            gone.connection_lost(None)
            assert isinstance(gone._opened.exception(), MemberUnavailable)

    asyncio.run(body())


@pytest.mark.parametrize(
    "token", ["", ":", "0:", ":1", "0:1,", "0:1,0:2", "0:-1", "0:1:2", "a:1", "0:" + "9" * 21, "٣:1"]
)
def test_what_is_no_token_is_none(token: str) -> None:
    assert positions_of(token) is None
