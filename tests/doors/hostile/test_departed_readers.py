"""Readers that wait for records and go away: what the node held for them comes back at once.
Keep-alives and time-outs are longer here than the tests wait: a node that waited for one of them would not pass."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.s3p.client import Client, read_request, s3p_node
from tests.support.http import EventStream, encode_request
from tests.support.node import Node
from tests.support.waiting import until

READERS = 150
WAIT_S = 40.0
HOUR_MS = "3600000"
TEXT = {"Content-Type": "text/plain"}
PATH = "/v1/stream/departed"
FLAGS = ("--sse-keepalive-ms", "600000", "--sse-lifetime-ms", HOUR_MS, "--long-poll-timeout-ms", "600000")

LIVE = {
    "long-poll": f"{PATH}?offset=now&live=long-poll",
    "sse": f"{PATH}?offset=-1&live=sse",
    "tail": "/__headwater/tail?stream=departed",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with s3p_node(tmp_path_factory.mktemp("node"), memory=True, flags=FLAGS) as node:
        assert node.request("PUT", PATH, TEXT, b"hello").status == 201
        yield node
        assert "Traceback" not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


def connections(node: Node) -> int:
    """Descriptors of accepted connections, those that are not closed yet among them."""
    found, inodes = 0, established()
    for name in os.listdir(f"/proc/{node.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{node.pid}/fd/{name}").removeprefix("socket:").strip("[]") in inodes
    return found


def established() -> set[str]:
    """Inodes of this machine's TCP sockets that do not listen."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {fields[9] for fields in lines if fields[3] != "0A"}


@pytest.mark.parametrize("kind", LIVE)
def test_readers_that_close_give_their_descriptors_back(node: Node, kind: str) -> None:
    readers = [node.connect() for _ in range(READERS)]
    for reader in readers:
        reader.send(encode_request("GET", LIVE[kind]))
        if kind != "long-poll":
            assert reader.read_head().status == 200
    until(lambda: connections(node) >= READERS, "the readers were never there")
    for reader in readers:
        reader.close()
    until(lambda: connections(node) == 0, "readers that went away are still held")


def test_blocked_reads_of_clients_that_close_give_their_descriptors_back(node: Node) -> None:
    with Client.of(node) as writer:
        writer.create(b"blocked")
    readers = [Client.of(node) for _ in range(READERS)]
    for reader in readers:
        reader.send(read_request(b"blocked", block=60_000))
    until(lambda: connections(node) >= READERS, "the readers were never there")
    for reader in readers:
        reader.close()
    until(lambda: connections(node) == 0, "readers that went away are still held")


def test_a_long_poll_that_half_closes_is_answered_at_once(node: Node) -> None:
    with node.connect() as connection:
        connection.send(encode_request("GET", LIVE["long-poll"]))
        connection.socket.shutdown(socket.SHUT_WR)
        answer = connection.read_response()
        assert answer.status == 204 and answer.header("stream-next-offset") is not None
        assert connection.ended()


def test_a_follower_that_half_closes_is_told_where_to_resume(node: Node) -> None:
    with node.connect() as connection:
        stream = EventStream.open(connection, LIVE["sse"])
        connection.socket.shutdown(socket.SHUT_WR)
        events = list(stream)
        assert stream.ended_cleanly and events[0].data == "hello"
        assert events[-1].name == "control" and events[-1].json()["upToDate"] is True


def test_what_was_asked_for_before_a_half_close_is_still_answered(node: Node) -> None:
    requests = [
        encode_request("POST", PATH, TEXT, b"!"),
        encode_request("GET", LIVE["long-poll"]),
        encode_request("POST", PATH, TEXT, b"!"),
        encode_request("GET", f"{PATH}?offset=-1"),
    ]
    with node.connect() as connection:
        connection.send(b"".join(requests))
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.read_response().status == 204
        assert connection.read_response().status in (200, 204)
        assert connection.read_response().status == 204
        assert connection.read_response().body.endswith(b"!!")
        assert connection.ended()


def test_a_large_answer_goes_on_to_a_client_that_half_closed(node: Node) -> None:
    path = "/v1/stream/large"
    body = b"x" * 8_000_000
    assert node.request("PUT", path, TEXT, body).status == 201
    with node.connect(receive_buffer_bytes=4096) as connection:
        connection.send(encode_request("GET", f"{path}?offset=-1"))
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.read_response().body == body
        assert connection.ended()


def test_an_idle_connection_that_half_closes_ends(node: Node) -> None:
    for sent in (b"", b"GET / HTT", encode_request("GET", f"{PATH}?offset=-1")):
        with node.connect() as connection:
            connection.send(sent)
            if sent.endswith(b"\r\n\r\n"):
                assert connection.read_response().status == 200
            connection.socket.shutdown(socket.SHUT_WR)
            assert connection.ended(), sent


def test_a_blocked_read_that_half_closes_is_answered_and_what_is_behind_it_too(node: Node) -> None:
    with Client.of(node) as client:
        client.create(b"halved")
        client.send(read_request(b"halved", block=60_000) + read_request(b"halved", block=60_000))
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.reply(), client.reply()] == [[], []]
        assert client.ended()
