"""The connection on an event loop, against a server that plays a script: the same promises as the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from headwater.client.async_connection import AsyncConnection
from headwater.client.connection import Answer, CannotBeSent, Lost, NobodyListens, NotHttp, address
from tests.support.scripted import Script, answer, scripted

T = TypeVar("T")
DONE = answer("204 No Content")
LARGE = b"x" * (32 * 1024 * 1024)


def connected(script: Script, use: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    server = address(script.url)
    assert server is not None

    async def used() -> T:
        connection = AsyncConnection(server)
        try:
            return await use(connection)
        finally:
            connection.close()
            await connection.ended()

    return asyncio.run(used())


def asked(script: Script, method: str = "GET", path: str = "/s", body: bytes | None = None) -> Answer:
    return connected(script, lambda connection: connection.request(method, path, {}, body, 30))


def test_requests_share_a_connection() -> None:
    async def two(connection: AsyncConnection) -> bool:
        await connection.request("POST", "/1", {"X-A": "ä"}, b"one", 30)
        await connection.request("POST", "/2", {}, b"two", 30)
        return connection.usable

    with scripted([DONE, DONE, DONE]) as script:
        assert connected(script, two)
        assert [(request.line, request.body) for request in script.received] == [
            ("POST /1 HTTP/1.1", b"one"),
            ("POST /2 HTTP/1.1", b"two"),
        ]
        assert script.received[0].headers["x-a"] == "ä"


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (answer("200 OK", body=b"hello"), b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer("200 OK", body=b"hello"), b"hello"),
        (answer("200 OK"), b""),
    ],
)
def test_a_body_is_read_however_it_is_framed(raw: bytes, body: bytes) -> None:
    with scripted([raw]) as script:
        got = asked(script)
    assert (got.status, got.body) == (200, body)
    assert "link" not in got.headers


def test_an_answer_to_head_has_headers_and_no_body() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nStream-Next-Offset: 7\r\n\r\n"
    with scripted([head]) as script:
        got = asked(script, "HEAD")
    assert (got.next_offset, got.body) == ("7", b"")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_a_lost_one(raw: bytes) -> None:
    with scripted([raw]) as script, pytest.raises(Lost):
        asked(script)


def test_a_connection_that_failed_is_not_usable() -> None:
    async def failed(connection: AsyncConnection) -> bool:
        with pytest.raises(Lost):
            await connection.request("GET", "/s", {}, None, 30)
        return connection.usable

    with scripted([]) as script:
        assert not connected(script, failed)


def test_an_answer_that_asks_for_the_end_or_more_than_was_asked_for_ends_the_connection() -> None:
    async def then_usable(connection: AsyncConnection) -> bool:
        assert (await connection.request("GET", "/s", {}, None, 30)).status == 200
        return connection.usable

    for raw in (answer("200 OK", [("Connection", "close")]), answer("200 OK") + b"what is this"):
        with scripted([raw, DONE]) as script:
            assert not connected(script, then_usable)


def test_what_is_not_http_is_told_from_a_lost_connection() -> None:
    with scripted([b"-ERR unknown command\r\n"]) as script, pytest.raises(NotHttp):
        asked(script)


def test_a_port_where_nobody_listens_is_told_from_a_lost_connection() -> None:
    with scripted() as script:
        pass
    with pytest.raises(NobodyListens):
        asked(script)


def test_a_server_that_says_nothing_is_a_lost_one_after_its_time() -> None:
    with scripted([b"HTTP/1.1 200 OK\r\n", DONE]) as script, pytest.raises(Lost, match="within"):
        connected(script, lambda connection: connection.request("GET", "/s", {}, None, 0.05))


def test_a_body_that_is_refused_before_it_was_read_brings_the_refusal() -> None:
    with scripted([answer("413 Content Too Large", body=b"too large")], body_bytes_read=0) as script:
        assert asked(script, "POST", body=LARGE).error() == ("", "too large")


def test_a_success_in_the_middle_of_a_body_is_no_success() -> None:
    with scripted([DONE], body_bytes_read=0) as script, pytest.raises(Lost):
        asked(script, "POST", body=LARGE)


def test_a_line_end_in_a_header_is_never_sent() -> None:
    with scripted([DONE]) as script:
        with pytest.raises(CannotBeSent):
            connected(script, lambda connection: connection.request("GET", "/s", {"X": "a\r\nY: b"}, None, 30))
        assert script.received == []
