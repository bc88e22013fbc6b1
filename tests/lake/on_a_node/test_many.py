"""Very many streams, nearly all of them idle: they cost disk, and neither memory nor a place in a restarted node.
`pytest -m soak tests/lake/on_a_node/test_many.py`; SOAK_STREAMS asks for another number of them than a million."""

from __future__ import annotations

import os
import random
import socket
import time
from pathlib import Path

import pytest

from tests.lake.on_a_node.surface import append, content, flush, metric
from tests.support.node import Node

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7_200)]

STREAMS = int(os.environ.get("SOAK_STREAMS", 1_000_000))
LOADED_MAX = 1_000
PIPELINED = 500
GROWTH_BYTES_MAX = 200 << 20
"""What all idle streams together may add to the node's memory; a few hundred bytes for each would be over it."""
IDLE_S_MAX = 600.0


def key_of(number: int) -> str:
    """Spread over the alphabet, as names of users or documents are."""
    return f"many/{number * 2654435761 % (1 << 32):08x}-{number:08d}"


def create_all(node: Node, first: int, until: int) -> None:
    """Pipelined on one connection: a round trip for each would take hours."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=120) as link:
        for start in range(first, until, PIPELINED):
            numbers = range(start, min(until, start + PIPELINED))
            head = f" HTTP/1.1\r\nHost: 127.0.0.1:{node.port}\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
            link.sendall("".join(f"PUT /ds/{key_of(number)}{head}" for number in numbers).encode())
            answers = b""
            while answers.count(b"\r\n\r\n") < len(numbers):
                received = link.recv(1 << 20)
                assert received, "the connection ended"
                answers += received
            assert answers.count(b"HTTP/1.1 201 ") == len(numbers), answers[:500]


def become_idle(node: Node) -> None:
    flush(node)
    deadline_s = time.monotonic() + IDLE_S_MAX
    while metric(node, "streams_loaded") > LOADED_MAX:
        assert time.monotonic() < deadline_s, "streams stay loaded"
        time.sleep(0.25)


def test_a_million_idle_streams_cost_no_memory_and_are_all_there_after_a_kill(tmp_path: Path) -> None:
    flags = ("--streams-loaded-max", str(LOADED_MAX), "--checkpoint-interval-ms", "1000", "--flush-bytes", "1MiB")
    with Node.started(tmp_path, flags=flags) as node:
        assert node.request("PUT", "/ds/many").status == 201
        warm = STREAMS // 5
        written = random.Random(8).sample(range(STREAMS), STREAMS // 1_000)
        for first, until in ((0, warm), (warm, STREAMS)):
            create_all(node, first, until)
            with node.connect() as connection:
                for number in written:
                    if first <= number < until:
                        append(connection, key_of(number), f"record of {number}".encode())
            become_idle(node)
            if not first:
                before_bytes = node.rss_bytes()
        assert node.rss_bytes() - before_bytes < GROWTH_BYTES_MAX
        for _ in range(2):
            assert node.request("GET", "/ds/many").json()["streams"] == STREAMS
            for number in written[:50]:
                assert content(node, key_of(number)) == f"record of {number}".encode()
            with node.connect() as connection:
                for number in range(0, STREAMS, STREAMS // 100):
                    assert connection.request("HEAD", f"/ds/{key_of(number)}").status == 200
                assert connection.request("HEAD", f"/ds/{key_of(STREAMS)}").status == 404
            node.kill()
            node.start()
            assert metric(node, "streams_loaded") <= LOADED_MAX * 2
