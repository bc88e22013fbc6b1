"""Thousands of connections that never finish what they begin, at both doors: memory stays bounded, and everybody else
is served."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.doors.s3p import request
from tests.doors.s3p.client import OK, Client, s3p_port
from tests.support.guarded import bearer, guarded
from tests.support.node import HOST
from tests.support.waiting import until

HALF_OPEN_COUNT = 5_000
MEMORY_BYTES_MAX = 256 << 20
WAIT_S = 60.0
JSON = {"Content-Type": "application/json"}
PATIENT = ("--head-timeout-ms", "600000", "--body-timeout-ms", "600000", "--idle-timeout-ms", "600000")
HEAD = b"POST /v1/stream/shop/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer hw_"


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < HALF_OPEN_COUNT + 1_000:
        pytest.skip("this machine grants too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (HALF_OPEN_COUNT + 1_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.full
def test_5_000_half_open_connections_take_bounded_memory_and_others_are_served(
    tmp_path: Path, many_files: None
) -> None:
    """A quarter says nothing, another half a head, another a forged head without its body, another half a command."""
    with guarded(tmp_path, flags=("--s3p", f"{HOST}:0", *PATIENT)) as node, ExitStack() as held:
        ports = [node.node.port] * 3 + [s3p_port(node.node)]
        said = [b"", HEAD, HEAD + b"x\r\nContent-Length: 60000000\r\n\r\n", request(b"AUTH", b"x" * 10_000)[:-5]]
        node.call("PUT", "/v1/stream/shop/served")
        before = node.node.rss_bytes()
        for n in range(HALF_OPEN_COUNT):
            sock = held.enter_context(socket.create_connection((HOST, ports[n % 4]), WAIT_S))
            sock.sendall(said[n % 4])
            if n % 500 == 0:
                assert node.ask(None, "GET", "/healthz").status == 200
        with node.node.connect(WAIT_S) as connection, Client(s3p_port(node.node)) as client:
            for _ in range(50):
                headers = {**JSON, **bearer(node.admin)}
                assert connection.request("POST", "/v1/stream/shop/served", headers, b"1").status in (200, 204)
            assert client.call(b"AUTH", node.admin.encode()) == OK
        assert node.node.rss_bytes() - before < MEMORY_BYTES_MAX
        held.close()
        until(lambda: node.ask(node.admin, "GET", "/healthz").status == 200)
