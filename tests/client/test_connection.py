"""The connection that the command line and Spark share, against a server that plays a script."""

from __future__ import annotations

import select

import pytest

from headwater.client.connection import Answer, Connection, Lost, NobodyListens, NotHttp, address
from tests.support.scripted import Script, answer, scripted, sse

DONE = answer("204 No Content")


def connected(script: Script) -> Connection:
    server = address(script.url)
    assert server is not None
    return Connection(server, 30)


def test_requests_share_a_connection_until_one_asks_for_a_fresh_one() -> None:
    with scripted([DONE, DONE], [DONE]) as script:
        connection = connected(script)
        connection.request("GET", "/1")
        connection.request("GET", "/2")
        connection.request("DELETE", "/3", fresh=True)
        assert [line.split()[1] for line in script.lines] == ["/1", "/2", "/3"]


def test_a_kept_connection_that_the_server_ended_is_replaced_before_it_is_used() -> None:
    with scripted([DONE], [DONE]) as script:
        connection = connected(script)
        connection.request("POST", "/s", body=b"1")
        assert select.select([connection._http.sock], [], [], 30)[0], "the script ends its connection"
        connection.request("POST", "/s", body=b"2")
        assert [request.body for request in script.received] == [b"1", b"2"]


def test_after_a_lost_answer_the_next_request_connects_again() -> None:
    with scripted([], [DONE]) as script:
        connection = connected(script)
        with pytest.raises(Lost):
            connection.request("GET", "/s")
        assert connection.request("GET", "/s").status == 204


def test_a_body_that_is_refused_before_it_was_read_brings_the_refusal() -> None:
    large = b"x" * (32 * 1024 * 1024)
    with scripted([answer("413 Content Too Large", body=b"too large")], body_bytes_read=0) as script:
        assert connected(script).request("POST", "/s", body=large).error() == ("", "too large")


def test_a_success_in_the_middle_of_a_body_is_no_success() -> None:
    large = b"x" * (32 * 1024 * 1024)
    with scripted([DONE], body_bytes_read=0) as script, pytest.raises(Lost):
        connected(script).request("POST", "/s", body=large)


def test_a_port_where_nobody_listens_is_told_from_a_lost_connection() -> None:
    with scripted() as script:
        pass
    with pytest.raises(NobodyListens):
        connected(script).request("GET", "/")


def test_what_is_not_http_is_told_from_a_lost_connection() -> None:
    with scripted([b"-ERR unknown command\r\n"]) as script, pytest.raises(NotHttp):
        connected(script).request("GET", "/")


def test_a_body_that_breaks_off_raises_after_the_chunks_that_came() -> None:
    with scripted([sse(b"a", b"b", whole=False)]) as script:
        came: list[bytes] = []
        with pytest.raises(Lost), connected(script).streamed("/s") as (head, chunks):
            assert head.status == 200
            came.extend(chunks)
    with scripted([sse(b"a", b"b")]) as script, connected(script).streamed("/s") as (_, chunks):
        assert b"".join(chunks) == b"ab"


def test_an_error_is_read_from_the_body_whoever_wrote_it() -> None:
    assert Answer(409, {}, b'{"error":{"code":"closed","message":"it is"}}').error() == ("closed", "it is")
    assert Answer(502, {}, b"Bad\nGateway").error() == ("", "Bad")
    assert Answer(502, {}, b"").error() == ("", "the server answered 502 Bad Gateway")
