"""S3P of a real node with two workers: streams of both on one connection, forks across groups, a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.doors.s3p.names import key_of
from headwater.engine.engine import xxh3_64_intdigest
from tests.doors.s3p.client import OK, Client, Ended, Error, append_request, id_of, s3p_node
from tests.support.node import Node

WORKERS = 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with s3p_node(tmp_path_factory.mktemp("node"), flags=("--workers", f"{WORKERS}", "--groups", f"{WORKERS}")) as node:
        yield node
        assert '"request failed"' not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


def name(group: int, at: int = 0) -> bytes:
    """A name whose home is that group."""
    names = (b"s%d" % n for n in range(1_000))
    return [one for one in names if xxh3_64_intdigest(key_of(one).encode()) % WORKERS == group][at]


def worker(node: Node) -> int:
    """The process id of one of its workers."""
    return int(Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()[0])


def everything(client: Client, stream: bytes) -> list[bytes]:
    """A READ of a fork may end where its own records begin."""
    records: list[bytes] = []
    min_id = "0-0"
    while found := client.read(stream, min_id=min_id):
        assert isinstance(found, list)
        records += [record for _, record in found]
        ms, n = id_of(found[-1][0])
        min_id = f"{ms}-{n + 1}"
    return records


def test_one_connection_reaches_the_streams_of_every_worker_in_order(pair: Node) -> None:
    with Client.of(pair) as client:
        for group in range(WORKERS):
            assert client.create(name(group)) == OK
        for n in range(200):
            client.send(append_request(name(n % WORKERS), b"%d" % n))
        assert all(isinstance(client.reply(), bytes) for _ in range(200))
        for group in range(WORKERS):
            assert everything(client, name(group)) == [b"%d" % n for n in range(group, 200, WORKERS)]


@pytest.mark.parametrize("group", range(WORKERS))
def test_a_fork_is_reached_wherever_the_connection_is(pair: Node, group: int) -> None:
    source, fork, other = name(group, 1), name(1 - group, 2), name(1 - group, 3 + group)
    with Client.of(pair) as near, Client.of(pair) as far:
        # The first command takes a connection to the worker that owns its stream.
        assert near.create(source) == OK and far.create(other) == OK
        assert isinstance(near.append(source, b"a"), bytes)
        headers = {"Stream-Forked-From": f"/v1/stream/{source.decode()}"}
        assert pair.request("PUT", f"/v1/stream/{fork.decode()}", headers).status == 201
        for client in (near, far):
            assert isinstance(client.append(fork, b"b"), bytes)
        for client in (near, far):
            assert everything(client, fork) == [b"a", b"b", b"b"]
        # The name is free again at once, whoever had the stream.
        assert far.delete(fork) == OK
        assert far.create(fork) == OK
        assert near.read(fork) == []


def test_a_worker_that_dies_is_a_reason_to_retry_and_the_connection_goes_on(pair: Node) -> None:
    with Client.of(pair) as first, Client.of(pair) as second:
        clients = [first, second]
        for group, client in enumerate(clients):
            assert client.create(name(group, 5)) == OK
        os.kill(worker(pair), signal.SIGKILL)
        # One of the two was connected to it.
        alive = [client for client in clients if _lives(client)]
        assert len(alive) == 1
        [client] = alive
        group = 1 - clients.index(client)
        while isinstance(refused := client.append(name(group, 5), b"x"), Error):
            assert refused.code == "ERR_UNAVAILABLE"
        assert isinstance(client.append(name(1 - group, 5), b"y"), bytes)
        assert everything(client, name(group, 5))[-1] == b"x"


def _lives(client: Client) -> bool:
    try:
        return client.read(b"nowhere") is not None
    except (Ended, OSError):
        return False
