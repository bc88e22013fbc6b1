"""Thousands of connections that never finish their handshake: memory stays bounded, and everybody else is served."""

from __future__ import annotations

import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwater.doors.secure_door import HANDSHAKES_MAX, WAITING_MAX
from tests.doors.tls.conftest import SecureNode
from tests.support.certificates import Authority
from tests.support.node import HOST, Node

HALF_OPEN_COUNT = 5_000
MEMORY_BYTES_MAX = 256 << 20
WAIT_S = 60.0
PATIENT = ("--tls-handshake-timeout-ms", "300000")


def hello() -> bytes:
    """A whole ClientHello, as a client would send it."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


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
    authority: Authority, tmp_path: Path, many_files: None
) -> None:
    """A third says nothing, a third half of a ClientHello, a third all of it and not what comes after."""
    pair, said = authority.server("attacked"), hello()
    with Node.started(tmp_path, memory=True, flags=(*pair.flags, *PATIENT)) as node, ExitStack() as held:
        secure = SecureNode(node, pair, authority)
        assert secure.metric("tls_handshakes_open") <= 1
        before = node.rss_bytes()
        for n in range(HALF_OPEN_COUNT):
            sock = held.enter_context(socket.create_connection((HOST, node.port), WAIT_S))
            sock.sendall((b"", said[: len(said) // 2], said)[n % 3])
            if n % 500 == 0:
                with secure.connect() as connection:
                    assert connection.request("GET", "/healthz").status == 200
        with secure.connect() as connection:
            connection.request("PUT", "/v1/stream/served", {"Content-Type": "text/plain"})
            for _ in range(50):
                assert (
                    connection.request("POST", "/v1/stream/served", {"Content-Type": "text/plain"}, b"x").status == 204
                )
            figures = connection.request("GET", "/__headwater/metrics").json()
        assert figures["tls_handshakes_open"] <= HANDSHAKES_MAX
        assert figures["tls_silent_connections"] <= WAITING_MAX
        assert figures["tls_displaced"] >= HALF_OPEN_COUNT * 2 // 3 - HANDSHAKES_MAX - 100
        assert node.rss_bytes() - before < MEMORY_BYTES_MAX


def test_a_handshake_that_takes_too_long_is_cut_off_and_so_is_silence(secure: SecureNode) -> None:
    """The node's limit is a second."""
    said = hello()
    with ExitStack() as held:
        socks = [held.enter_context(socket.create_connection((HOST, secure.node.port), WAIT_S)) for _ in range(9)]
        for n, sock in enumerate(socks):
            sock.sendall((b"", said[:40], said)[n % 3])
        for sock in socks:
            while True:  # the last third gets the server's part of the handshake first
                try:
                    if not sock.recv(65_536):
                        break
                except ConnectionError:
                    break
    deadline_s = time.monotonic() + WAIT_S
    while secure.metric("tls_handshakes_open") or secure.metric("tls_silent_connections"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_handshake_byte_by_byte_is_a_handshake(secure: SecureNode) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secure.authority.trusting().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with socket.create_connection((HOST, secure.node.port), WAIT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    sock.sendall(bytes((byte,)))
                incoming.write(sock.recv(65_536))
        client.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        sock.sendall(outgoing.read())
        found = b""
        while not found:
            incoming.write(sock.recv(65_536))
            try:
                found = client.read(65_536)
            except ssl.SSLWantReadError:
                continue
        assert found.startswith(b"HTTP/1.1 200 ")
