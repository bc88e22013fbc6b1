"""A fault inside the server, put there on purpose: the client is told with an id, the log has the trace, others go on.
The node runs in this process, on a thread of its own, so that a handler can be made to fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import structlog
from structlog.testing import capture_logs

from headwater.catalog.sqlite import SqliteCatalog
from headwater.doors.http import live_reads, many_streams_tail, sse
from headwater.doors.http.bulk_append import Batches
from headwater.doors.http.connection import Connection as HttpConnection
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.respond import Responder
from headwater.doors.http.snapshots import Snapshots
from headwater.doors.http.subscriptions import Subscriptions
from headwater.doors.http.wire import RequestParser
from headwater.doors.s3p import outcomes
from headwater.doors.s3p import replies as s3p_replies
from headwater.engine import group
from headwater.engine.reads_by_id import ReadsById
from tests.doors.s3p.client import Client, Error
from tests.support.here import Here
from tests.support.http import ConnectionEnded, Response

TEXT = {"Content-Type": "text/plain"}
PATH = "/_default/s"


class Fault(Exception):
    """What is put into handlers."""


def broken(*_: object, **__: object) -> NoReturn:
    raise Fault("on purpose\r\n\x1b[31m")


async def broken_later(*_: object, **__: object) -> NoReturn:
    await asyncio.sleep(0)
    raise Fault("on purpose, later")


@pytest.fixture(scope="module")
def running() -> Iterator[Here]:
    with Here.started(memory=True, long_poll_timeout_ms="1500") as node:
        yield node


@pytest.fixture
def node(running: Here) -> Iterator[Here]:
    """The node with a stream that holds `hello`; it still serves after the test."""
    structlog.reset_defaults()
    assert running.request("PUT", PATH, TEXT, b"hello").status == 201
    yield running
    assert running.request("GET", PATH).body == b"hello"
    assert running.request("DELETE", PATH).status == 204


@contextmanager
def logged(count: int = 1) -> Iterator[list[Any]]:
    """The faults that are logged inside: so many, each with its trace and an id."""
    with capture_logs() as events:
        yield events
    found = [event for event in events if event["event"] == "request failed"]
    assert len(found) == count, events
    for event in found:
        assert event["exc_info"] and len(event["request_id"]) == 16


def assert_told(answer: Response, events: list[Any], has_body: bool = True) -> None:
    assert answer.status == 500
    told = answer.header("headwater-request-id")
    assert told == events[-1]["request_id"]
    if has_body:
        error = answer.json()["error"]
        assert (error["code"], error["request_id"], error["retryable"]) == ("internal_error", told, False)


HANDLERS: dict[str, tuple[type, str, Callable[..., Any], tuple[str, str, dict[str, str], bytes]]] = {
    "a look at a stream": (DurableStreams, "_head", broken, ("HEAD", PATH, {}, b"")),
    "a read": (DurableStreams, "_catch_up", broken, ("GET", PATH, {}, b"")),
    "a creation": (DurableStreams, "_created", broken, ("PUT", PATH, TEXT, b"")),
    "an append's answer": (DurableStreams, "_appended", broken, ("POST", PATH + "-other", TEXT, b"x")),
    "the engine under an append": (group, "decide", broken, ("POST", PATH, TEXT, b"x")),
    "the catalog": (SqliteCatalog, "load", broken, ("GET", PATH + "-other", {}, b"")),
    "a long-poll that times out": (
        DurableStreams, "_answer_long_poll", broken, ("GET", f"{PATH}?offset=now&live=long-poll", {}, b""),
    ),
    "SSE before its first byte": (
        DurableStreams, "_cursor", broken, ("GET", f"{PATH}?offset=-1&live=sse&cursor=1", {}, b""),
    ),
    "a coroutine": (Snapshots, "_bootstrap", broken_later, ("GET", f"{PATH}/bootstrap", {}, b"")),
    "bulk append": (Batches, "_wish", broken, ("POST", "/__headwater/append", {}, b'[{"stream":"s","text":["x"]}]')),
    "subscriptions": (
        Subscriptions, "_show", broken_later, ("GET", "/v1/stream/__ds/subscriptions/x", {}, b""),
    ),
    "a refusal's own answer": (DurableStreams, "_get", lambda *_: _refuse(), ("GET", PATH, {}, b"")),
}  # fmt: skip


def _refuse() -> NoReturn:
    from headwater.errors import BadQuery

    raise BadQuery("x", "half a pair: \ud800")  # its message cannot be encoded


@pytest.mark.parametrize("name", HANDLERS)
def test_a_fault_in_a_handler_is_a_500_with_an_id(node: Here, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    where, method, fault, asked = HANDLERS[name]
    with node.connect() as connection, logged() as events:
        with monkeypatch.context() as patched:
            patched.setattr(where, method, fault)
            answer = connection.request(asked[0], asked[1], asked[2], asked[3])
        assert_told(answer, events, has_body=asked[0] != "HEAD")
        # The connection is as good as before.
        assert connection.request("GET", "/healthz").status == 200


def test_a_fault_among_pipelined_requests_is_answered_in_its_turn(node: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with node.connect() as connection, logged() as events:
        monkeypatch.setattr(DurableStreams, "_head", broken)
        read = f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        connection.send(read + read.replace(b"GET", b"HEAD") + read)
        assert connection.read_response().body == b"hello"
        assert_told(connection.read_response("HEAD"), events, has_body=False)
        assert connection.read_response().body == b"hello"


def test_a_fault_in_the_parser_is_a_500_and_the_connection_ends(node: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with node.connect() as connection, logged() as events:
        with monkeypatch.context() as patched:
            patched.setattr(RequestParser, "feed", broken)
            answer = connection.request("GET", PATH)
        assert_told(answer, events)
        assert answer.closes


def test_a_fault_while_many_wait_harms_only_its_own(node: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who follow a stream are woken in one pass: one that fails must not keep the others from their data."""
    woken: list[object] = []
    wake = live_reads.LongPoll._leave

    def first_fails(poll: live_reads.LongPoll) -> None:
        wake(poll)
        woken.append(poll)
        if len(woken) == 1:
            broken()

    path = "/_default/followed"
    assert node.request("PUT", path, TEXT).status == 201
    with node.connect() as one, node.connect() as two, logged():
        monkeypatch.setattr(live_reads.LongPoll, "_leave", first_fails)
        for connection in (one, two):
            connection.send(f"GET {path}?offset=-1&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while not woken and node.request("GET", "/__headwater/metrics").json()["long_polls_open"] < 2:
            time.sleep(0.01)
        assert node.request("POST", path, TEXT, b"news").status == 204
        answers = sorted(connection.read_response().status for connection in (one, two))
        assert answers in ([200, 500], [204, 500])
    assert node.request("DELETE", path).status == 204


@pytest.mark.parametrize(
    ("where", "name", "path"),
    [
        (sse, "control_event", f"{PATH}?offset=-1&live=sse"),
        (many_streams_tail, "_events", "/__headwater/tail?stream=s&from=start"),
    ],
)
def test_a_fault_in_an_answer_that_has_begun_ends_the_connection(
    node: Here, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, path: str
) -> None:
    with node.connect() as connection, logged():
        monkeypatch.setattr(where, name, broken)
        with pytest.raises(ConnectionEnded):
            connection.request("GET", path)


def test_a_fault_on_the_clock_ends_one_connection_and_not_the_clock(
    node: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked = threading.Event()

    def tick(*_: object) -> None:
        if ticked.is_set():
            return
        ticked.set()
        broken()

    with node.connect() as connection, logged(), monkeypatch.context() as patched:
        patched.setattr(HttpConnection, "tick", tick)
        assert ticked.wait(30)
        with pytest.raises((ConnectionEnded, ConnectionError)):
            connection.request("GET", PATH)
    # The clock still ends what waits too long.
    assert node.request("GET", f"{PATH}?offset=now&live=long-poll").status == 204


def test_a_fault_in_the_answer_to_a_fault_still_has_an_id(node: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Responder.failure
    calls: list[object] = []

    def once(responder: Responder, failure: Any, *rest: Any) -> bytes:
        calls.append(failure)
        return broken() if len(calls) == 1 else real(responder, failure, *rest)

    monkeypatch.setattr(Responder, "failure", once)
    with logged() as events:
        assert_told(node.request("GET", "/v1/stream/never"), events)


# ---- S3P ------------------------------------------------------------------------------------------------------------


def s3p(node: Here) -> Client:
    return Client(node.s3p_port)


def assert_internal(reply: object, events: list[Any]) -> None:
    assert isinstance(reply, Error) and reply.code == "ERR_INTERNAL", reply
    assert events[-1]["request_id"] in reply.message


@pytest.mark.parametrize(
    ("where", "name"),
    [(outcomes, "replied"), (group, "decide"), (SqliteCatalog, "load")],
    ids=["reply", "engine", "catalog"],
)
def test_a_fault_under_an_append_is_an_error_reply(
    node: Here, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    with s3p(node) as client, logged() as events:
        with monkeypatch.context() as patched:
            patched.setattr(where, name, broken)
            reply = client.append(b"elsewhere", b"x")
        assert_internal(reply, events)
        assert client.read(b"s") is not None  # the connection is as good as before


def test_a_fault_under_a_read_is_an_error_reply(node: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3p(node) as client, logged() as events:
        with monkeypatch.context() as patched:
            patched.setattr(ReadsById, "read", broken)
            reply = client.read(b"s")
        assert_internal(reply, events)
        assert isinstance(client.read(b"s"), list)


def test_a_fault_in_a_reply_is_an_error_reply_in_its_turn(node: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3p(node) as client, logged() as events:
        with monkeypatch.context() as patched:
            patched.setattr(s3p_replies, "records", broken)
            reply = client.read(b"s")
        assert_internal(reply, events)
