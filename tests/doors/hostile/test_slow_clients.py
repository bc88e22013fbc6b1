"""Clients that stall, trickle or send too much: they are cut off or held, and memory stays within bounds.
It asserts statuses, what arrives and how memory grows; how long anything takes is the benchmarks' matter."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.http import Connection, ConnectionEnded, Event, EventStream, encode_request
from tests.support.node import Node

MIB = 1 << 20
TEXT = {"Content-Type": "text/plain"}
SMALL_WINDOW_BYTES = 4096
TRICKLE_PAUSE_S = 0.02
TRICKLE_BYTES_MAX = 1_000

STALLED_READERS = 50
STALLED_STREAM_BYTES = 64 * MIB
STALLED_RECORD_BYTES = 64 * 1024
# Each asks for 64 MiB: without back-pressure they would hold 3.2 GiB, and 200 MiB with one page of an answer each.
# What is left is the write buffer of each connection, 256 KiB, and a slice of the stream on its way into it.
STALLED_GROWTH_BYTES_MAX = 32 * MIB

GIANT_RECORD_BYTES = 16 * MIB
GIANT_READERS = 20
# A copy for each reader would be 320 MiB; one that they share, and the one being made, are few.
GIANT_GROWTH_BYTES_MAX = 6 * GIANT_RECORD_BYTES

# What one idle SSE connection may cost the server, Python objects and buffers together.
IDLE_BYTES_MAX = 24 * 1024

BUSY_FOLLOWERS = 10
BUSY_RECORD_BYTES = 64 * 1024
BUSY_RECORDS = 512
# Followers share the 32 MiB of the stream itself; unbounded queues would add 32 MiB for each of the ten.
BUSY_GROWTH_BYTES_MAX = BUSY_RECORDS * BUSY_RECORD_BYTES + 64 * MIB


def _filled(node: Node, path: str, size_bytes: int, record_bytes: int = STALLED_RECORD_BYTES) -> None:
    with node.connect() as connection:
        assert connection.request("PUT", path, TEXT).status == 201
        for _ in range(size_bytes // record_bytes):
            assert connection.request("POST", path, TEXT, b"x" * record_bytes).status == 204


def _others_are_served(node: Node, rounds: int = 20) -> int:
    """Another client creates, appends and reads: the largest memory of the server meanwhile."""
    path = f"/v1/stream/other/{time.time_ns()}"
    largest = 0
    with node.connect() as connection:
        assert connection.request("PUT", path, TEXT).status == 201
        for n in range(rounds):
            assert connection.request("POST", path, TEXT, b"%d," % n).status == 204
            largest = max(largest, node.rss_bytes())
        body = connection.request("GET", f"{path}?offset=-1").body
        assert body == b"".join(b"%d," % n for n in range(rounds))
    return largest


@contextlib.contextmanager
def _open_files_allowed(count: int) -> Iterator[None]:
    """Let this process, and the servers it starts, hold that many sockets; skip where the machine forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this machine allows {hard} open files, {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- readers that do not read -------------------------------------------------------------------------------


def _stalled(node: Node, opened: contextlib.ExitStack, path: str, count: int) -> list[Connection]:
    """Connections that have asked for `path` and do not read."""
    connections = []
    for _ in range(count):
        connection = opened.enter_context(node.connect(receive_buffer_bytes=SMALL_WINDOW_BYTES))
        connection.send(encode_request("GET", path))
        connections.append(connection)
    return connections


@pytest.mark.full
@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"], ids=["catch-up", "long-poll", "sse"])
def test_stalled_readers_of_a_large_stream_hold_no_memory(tmp_path: Path, live: str) -> None:
    path = "/v1/stream/slow/large"
    with Node.started(tmp_path, memory=True) as node, contextlib.ExitStack() as opened:
        _filled(node, path, STALLED_STREAM_BYTES)
        before = _others_are_served(node)
        stalled = _stalled(node, opened, f"{path}?offset=-1{live}", STALLED_READERS)
        during = _others_are_served(node)
        assert during - before < STALLED_GROWTH_BYTES_MAX, f"{(during - before) / MIB:.1f} MiB"
        # It was held back, not dropped: who starts to read gets the whole answer.
        if "sse" not in live:
            answer = stalled[0].read_response()
            assert answer.status == 200
            assert answer.body == b"x" * len(answer.body)
            assert len(answer.body) >= MIB


@pytest.mark.full
@pytest.mark.parametrize("live", ["", "&live=sse"], ids=["catch-up", "sse"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "application/octet-stream"])
def test_stalled_readers_of_a_giant_record_share_it(tmp_path: Path, content_type: str, live: str) -> None:
    path = "/v1/stream/slow/giant"
    typed = {"Content-Type": content_type}
    record = b'"' + b"g" * (GIANT_RECORD_BYTES - 2) + b'"'
    with Node.started(tmp_path, memory=True) as node, contextlib.ExitStack() as opened:
        assert node.request("PUT", path, typed).status == 201
        assert node.request("POST", path, typed, record).status == 204
        before = _others_are_served(node)
        _stalled(node, opened, f"{path}?offset=-1{live}", GIANT_READERS)
        during = _others_are_served(node)
        assert during - before < GIANT_GROWTH_BYTES_MAX, f"{(during - before) / MIB:.1f} MiB"


@pytest.mark.full
def test_a_stalled_follower_of_a_busy_stream_costs_no_memory_and_misses_nothing(tmp_path: Path) -> None:
    path = "/v1/stream/slow/busy"
    with Node.started(tmp_path, memory=True) as node, contextlib.ExitStack() as opened:
        with node.connect() as writer:
            assert writer.request("PUT", path, TEXT).status == 201
            before = _others_are_served(node)
            followers = [
                EventStream(connection)
                for connection in _stalled(node, opened, f"{path}?offset=-1&live=sse", BUSY_FOLLOWERS)
            ]
            largest = 0
            for n in range(BUSY_RECORDS):
                assert writer.request("POST", path, TEXT, _busy_record(n)).status == 204
                largest = max(largest, node.rss_bytes())
        largest = max(largest, _others_are_served(node))
        assert largest - before < BUSY_GROWTH_BYTES_MAX, f"{(largest - before) / MIB:.1f} MiB"
        wanted = b"".join(map(_busy_record, range(BUSY_RECORDS)))
        for follower in followers:
            assert _followed(node, opened, path, follower, len(wanted)) == wanted


def _busy_record(n: int) -> bytes:
    return b"%08d " % n + b"y" * (BUSY_RECORD_BYTES - 10) + b";"


def _followed(node: Node, opened: contextlib.ExitStack, path: str, follower: EventStream, end: int) -> bytes:
    """What a follower receives up to `end`, reading on now, and reconnecting where its last control event says."""
    pieces: list[str] = []
    offset = "-1"
    for _ in range(100):
        unconfirmed: list[str] = []
        try:
            for event in follower:
                if event.name == "data":
                    unconfirmed.append(event.data)
                    continue
                pieces += unconfirmed
                unconfirmed = []
                offset = event.json()["streamNextOffset"]
                if int(offset) >= end:
                    return "".join(pieces).encode()
        except ConnectionEnded:
            pass  # Cut for being slow: it may come back.
        follower = EventStream.open(opened.enter_context(node.connect()), f"{path}?offset={offset}&live=sse")
    raise AssertionError(f"a follower did not catch up; it is at {offset}")


# --- idle followers, and the end of the server --------------------------------------------------------------


@pytest.mark.full
def test_a_thousand_idle_followers_are_cheap_and_are_told_when_the_server_stops(tmp_path: Path) -> None:
    _idle_followers(tmp_path, 1_000)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_five_thousand_idle_followers_are_cheap_and_are_told_when_the_server_stops(tmp_path: Path) -> None:
    _idle_followers(tmp_path, 5_000)


def _idle_followers(directory: Path, count: int) -> None:
    path = "/v1/stream/idle/a"
    flags = ("--sse-lifetime-ms", "600000")
    with (
        _open_files_allowed(count + 200),
        Node.started(directory, memory=True, flags=flags) as node,
        contextlib.ExitStack() as open_connections,
    ):
        assert node.request("PUT", path, TEXT).status == 201
        before = _others_are_served(node)
        followers: list[Iterator[Event]] = []
        streams: list[EventStream] = []
        for _ in range(count):
            connection = open_connections.enter_context(node.connect())
            stream = EventStream.open(connection, f"{path}?offset=now&live=sse")
            assert stream.head.status == 200, stream.head
            events = iter(stream)
            assert next(events).json()["upToDate"] is True
            streams.append(stream)
            followers.append(events)
        during = _others_are_served(node)
        assert (during - before) / count < IDLE_BYTES_MAX, f"{(during - before) / count:.0f} B a follower"
        # All of them are alive: one append reaches every one.
        assert node.request("POST", path, TEXT, b"hello").status == 204
        for events in followers:
            event = next(events)
            assert (event.name, event.data) == ("data", "hello")
            assert next(events).name == "control"
        assert node.terminate() == 0, node.output()
        for stream, events in zip(streams, followers, strict=True):
            final = list(events)
            assert [event.name for event in final] == ["control"], final
            assert final[0].json()["streamNextOffset"] == f"{5:020d}"
            assert "streamClosed" not in final[0].json()
            assert stream.ended_cleanly


def test_a_follower_that_does_not_read_cannot_keep_the_server_from_stopping(tmp_path: Path) -> None:
    path = "/v1/stream/idle/stalled"
    flags = ("--shutdown-grace-ms", "500")
    with Node.started(tmp_path, memory=True, flags=flags) as node:
        _filled(node, path, 8 * MIB)
        with node.connect(receive_buffer_bytes=SMALL_WINDOW_BYTES) as follower, node.connect() as idle:
            follower.send(encode_request("GET", f"{path}?offset=-1&live=sse"))
            idle.send(b"POST ")
            _others_are_served(node)
            assert node.terminate() == 0, node.output()


def test_requests_in_flight_are_answered_before_the_server_stops(tmp_path: Path) -> None:
    path = "/v1/stream/idle/poll"
    with Node.started(tmp_path, memory=True) as node:
        assert node.request("PUT", path, TEXT).status == 201
        with node.connect() as poller:
            poller.send(encode_request("GET", f"{path}?offset=now&live=long-poll"))
            _others_are_served(node)
            assert node.terminate() == 0, node.output()
            answer = poller.read_response()
            assert answer.status in (204, 503), answer
            assert poller.ended()


# --- requests that trickle in -------------------------------------------------------------------------------


def _trickle(connection: Connection, byte_at: Callable[[int], bytes]) -> None:
    """Send a byte at a time until the server has something to say, or has gone."""
    connection.socket.settimeout(TRICKLE_PAUSE_S)
    for n in range(TRICKLE_BYTES_MAX):
        try:
            connection.send(byte_at(n))
        except (BrokenPipeError, ConnectionResetError):
            break
        try:
            if connection.socket.recv(1, socket.MSG_PEEK) is not None:
                break
        except TimeoutError:
            continue
        except ConnectionResetError:
            break
    else:
        raise AssertionError("the server never cut the trickle off")
    connection.socket.settimeout(20)


def test_a_head_that_trickles_in_is_cut_off_with_408(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True, flags=("--head-timeout-ms", "300")) as node:
        with node.connect() as connection:
            connection.send(b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            _trickle(connection, lambda _: b"a")
            _assert_cut_off_with_408(connection)
        _others_are_served(node)


def test_a_body_that_trickles_in_is_cut_off_with_408(tmp_path: Path) -> None:
    flags = ("--head-timeout-ms", "60000", "--body-timeout-ms", "300")
    head = b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    with Node.started(tmp_path, memory=True, flags=flags) as node:
        assert node.request("PUT", "/v1/stream/a", TEXT).status == 201
        with node.connect() as connection:
            connection.send(head + b"Content-Length: 100000\r\n\r\n")
            _trickle(connection, lambda _: b"a")
            _assert_cut_off_with_408(connection)
        with node.connect() as connection:
            connection.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
            _trickle(connection, lambda n: b"1\r\na\r\n"[n % 6 : n % 6 + 1])
            _assert_cut_off_with_408(connection)
        assert node.request("GET", "/v1/stream/a?offset=-1").body == b"", "half a body was appended"
        _others_are_served(node)


def _assert_cut_off_with_408(connection: Connection) -> None:
    answer = connection.read_response()
    assert answer.status == 408, answer
    assert answer.json()["error"]["code"] == "request_timeout"
    assert answer.closes
    assert connection.ended()


def test_connections_that_send_nothing_do_not_disturb_others(tmp_path: Path) -> None:
    with (
        Node.started(tmp_path, memory=True, flags=("--idle-timeout-ms", "500")) as node,
        contextlib.ExitStack() as open_connections,
    ):
        silent = [open_connections.enter_context(node.connect()) for _ in range(100)]
        _others_are_served(node)
        # An idle connection ends without an answer: there is no request to answer.
        assert all(connection.ended() for connection in silent)
        _others_are_served(node)


# --- requests that are too large ----------------------------------------------------------------------------


def test_an_oversized_head_is_answered_431(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True, flags=("--head-bytes-max", "8KiB")) as node:
        for head in (
            b"GET /v1/stream/" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * 20_000 + b"\r\n\r\n",
            b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\n" + b"X-Many: %b\r\n" % (b"a" * 200) * 80 + b"\r\n",
            # Never ends: the limit must not wait for the end of the head.
            b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * 20_000,
        ):
            with node.connect() as connection:
                with contextlib.suppress(ConnectionError):
                    connection.send(head)
                answer = connection.read_response()
                assert answer.status == 431, (head[:80], answer)
                assert answer.json()["error"]["code"] == "head_too_large"
                assert connection.ended()
        _others_are_served(node)


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_an_oversized_body_is_answered_413_and_appends_nothing(tmp_path: Path, method: str) -> None:
    path = "/v1/stream/large/body"
    target = path if method == "POST" else f"{path}-new"
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n".encode()
    piece = b"1000\r\n" + b"z" * 4096 + b"\r\n"
    requests = {
        "declared": head + b"Content-Length: 1000000\r\n\r\n",
        "declared with the body": head + b"Content-Length: 300000\r\n\r\n" + b"z" * 300_000,
        "declared beyond any integer": head + b"Content-Length: 99999999999999999999\r\n\r\n",
        "expecting leave": head + b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n",
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + piece * 40,
        "chunked without an end": head + b"Transfer-Encoding: chunked\r\n\r\n" + b"fffffff\r\n" + b"z" * 200_000,
    }
    with Node.started(tmp_path, memory=True, flags=("--body-bytes-max", "128KiB")) as node:
        assert node.request("PUT", path, TEXT).status == 201
        for name, request in requests.items():
            with node.connect() as connection:
                with contextlib.suppress(ConnectionError):
                    connection.send(request)
                answer = connection.read_response(method)
                # A length no integer holds may also be refused as malformed: 400.
                allowed = (400, 413) if "integer" in name else (413,)
                assert answer.status in allowed, (name, answer)
                assert answer.json()["error"]["message"], name
                assert answer.informational == (), name
        assert node.request("GET", f"{path}?offset=-1").body == b""
        assert node.request("HEAD", f"{path}-new").status == 404
        exactly = b"z" * 128 * 1024
        assert node.request("POST", path, TEXT, exactly).status == 204
        _others_are_served(node)


def test_many_large_bodies_at_once_that_never_end_hold_bounded_memory(tmp_path: Path) -> None:
    flags = ("--body-bytes-max", "1MiB", "--hot-bytes-max", "64MiB")
    senders = 30
    with (
        Node.started(tmp_path, memory=True, flags=flags) as node,
        contextlib.ExitStack() as open_connections,
    ):
        assert node.request("PUT", "/v1/stream/large/many", TEXT).status == 201
        before = _others_are_served(node)
        for _ in range(senders):
            connection = open_connections.enter_context(node.connect())
            head = b"POST /v1/stream/large/many HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
            connection.send(head + b"Content-Length: 1048576\r\n\r\n" + b"q" * (MIB - 1))
        during = _others_are_served(node)
        # Each may hold one body of the allowed length, and a copy of it while it is put together.
        assert during - before < senders * 2 * MIB + 16 * MIB, f"{(during - before) / MIB:.1f} MiB"
