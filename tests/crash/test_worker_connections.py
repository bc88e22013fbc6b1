"""Connections of many clients to a node of several workers: each reaches the worker of its stream, whoever accepts it,
and strange ones get their answers as well."""

from __future__ import annotations

import multiprocessing
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import pytest

from tests.crash.workers import TEXT, create, name_in, path_of, serving
from tests.support.http import Connection, encode_request
from tests.support.node import HOST, Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

WORKERS = 3
CLIENTS, CONNECTIONS = 4, 125
NAMES = [name_in(number % WORKERS, WORKERS, "connections", number) for number in range(2 * WORKERS)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=["--workers", str(WORKERS)]) as node:
        create(node, NAMES)
        for name in NAMES:
            assert node.request("POST", path_of(name), TEXT, content(name)).status == 204
        yield node


def content(name: str) -> bytes:
    return f"what is in {name}".encode()


def counts(node: Node) -> tuple[int, int, int]:
    found = node.request("GET", "/__headwater/metrics").json()
    return found["connections_handed_over"], found["connections_taken_over"], found["requests_forwarded"]


def ask_one_after_another(port: int, seed: int) -> int:
    """Opens connections and keeps them; asks the next one when the last was answered, and then all of them again."""
    right = 0
    with ExitStack() as opened:
        connections = []
        for number in range(CONNECTIONS):
            connections.append(opened.enter_context(Connection(HOST, port, 60)))
            right += ask(connections[-1], NAMES[(seed + number) % len(NAMES)])
        for number, connection in enumerate(connections):
            right += ask(connection, NAMES[(seed + number) % len(NAMES)])
    return right


def ask_all_at_once(port: int, seed: int) -> int:
    """Opens all connections, asks on all of them, and then reads the answers."""
    right = 0
    with ExitStack() as opened:
        connections = [opened.enter_context(Connection(HOST, port, 60)) for _ in range(CONNECTIONS)]
        names = [NAMES[(seed + number) % len(NAMES)] for number in range(CONNECTIONS)]
        for connection, name in zip(connections, names, strict=True):
            connection.send(encode_request("GET", f"{path_of(name)}?offset=-1"))
        for connection, name in zip(connections, names, strict=True):
            answer = connection.read_response()
            right += answer.status == 200 and answer.body == content(name)
    return right


def ask(connection: Connection, name: str) -> bool:
    answer = connection.request("GET", f"{path_of(name)}?offset=-1")
    return answer.status == 200 and answer.body == content(name)


def by_clients(asking, node: Node) -> list[int]:
    with ProcessPoolExecutor(CLIENTS, multiprocessing.get_context("spawn")) as clients:
        return list(clients.map(asking, [node.port] * CLIENTS, range(CLIENTS)))


def test_connections_of_many_clients_are_served_by_the_worker_of_their_stream(node: Node) -> None:
    before = counts(node)
    assert by_clients(ask_one_after_another, node) == [2 * CONNECTIONS] * CLIENTS
    sent, received, forwarded = (now - then for now, then in zip(counts(node), before, strict=True))
    # So few at a time wait to be handed over that none is left where it came in. By chance a third of them came in at
    # the right worker.
    assert sent == received and forwarded == 0
    assert sent > CLIENTS * CONNECTIONS / 2


def test_connections_that_come_all_at_once_get_right_answers(node: Node) -> None:
    assert by_clients(ask_all_at_once, node) == [CONNECTIONS] * CLIENTS
    sent, received, _ = counts(node)
    assert sent == received


def test_a_request_that_comes_byte_by_byte_is_answered_wherever_it_comes_in(node: Node) -> None:
    for name in NAMES:
        with node.connect() as connection:
            for byte in encode_request("GET", f"{path_of(name)}?offset=-1"):
                connection.send(bytes([byte]))
            assert connection.read_response().body == content(name)
            assert ask(connection, NAMES[0]) and ask(connection, NAMES[1])


def test_silent_connections_hold_up_nobody_and_are_served_when_they_speak(node: Node) -> None:
    with ExitStack() as opened:
        silent = [opened.enter_context(node.connect()) for _ in range(40)]
        for number in range(40):
            with node.connect() as connection:
                assert ask(connection, NAMES[number % len(NAMES)])
        for number, connection in enumerate(silent):
            assert ask(connection, NAMES[number % len(NAMES)])
        assert {serving(node, connection) for connection in silent} == set(range(WORKERS))


def test_connections_that_close_at_once_leave_nothing_behind(node: Node) -> None:
    for number in range(60):
        connection = node.connect()
        if number % 3:
            connection.send(b"GET /v1/str" if number % 3 == 1 else encode_request("GET", path_of(NAMES[0])))
        if number % 2:  # by a reset
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    for name in NAMES:
        with node.connect() as connection:
            assert ask(connection, name)
    assert "Traceback" not in node.stderr() and "lost" not in node.stderr(), node.stderr()
