"""Client certificates as credentials: what their subjects may do, on one worker and on three, over HTTP and S3P."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.tls.conftest import S3P_READY
from tests.support.certificates import Authority, Pair
from tests.support.http import Connection, EventStream
from tests.support.node import HOST, Node

TEXT = {"Content-Type": "text/plain"}
WAIT_S = 60.0
SCOPES = """\
"CN=boss,O=Example" = ["admin"]
"CN=reader,O=Example" = ["read:orders"]
"CN=writer,O=Example" = ["append,create:orders/in/*"]
"""


class Guarded:
    """A node that asks for credentials, and clients with certificates by their names."""

    def __init__(self, node: Node, authority: Authority, scopes: Path) -> None:
        self.node = node
        self.authority = authority
        self.scopes = scopes
        self._pairs: dict[str, Pair] = {}

    def pair(self, name: str | None) -> Pair | None:
        if name is not None and name not in self._pairs:
            self._pairs[name] = self.authority.client(name)
        return None if name is None else self._pairs[name]

    def connect(self, name: str | None) -> Connection:
        return Connection(HOST, self.node.port, tls=self.authority.trusting(self.pair(name)))

    def settle(self) -> None:
        """Returns when every process has the rows as they are written first: connections are spread over them."""
        self.scopes.write_text(SCOPES)
        deadline_s, seen = time.monotonic() + WAIT_S, 0
        while seen < 12:
            seen = seen + 1 if self.status("reader", "GET", "/v1/stream/orders/in/5") == 200 else 0
            assert time.monotonic() < deadline_s, self.node.output()

    def status(self, name: str | None, method: str, path: str, body: bytes | None = None) -> int:
        with self.connect(name) as connection:
            return connection.request(method, path, TEXT, body).status


@pytest.fixture(scope="module", params=["1", "3"], ids=["one worker", "three workers"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[Guarded]:
    directory: Path = tmp_path_factory.mktemp("guarded")
    scopes = directory / "scopes.toml"
    scopes.write_text(SCOPES)
    pair = authority.server(f"guarded-{request.param}")
    asks = ("--tls-client-ca", str(authority.file), "--tls-client-certificates", "optional", "--auth", "on")
    flags = (*pair.flags, *asks, "--tls-client-scopes", str(scopes), "--s3p", f"{HOST}:0", "--workers", request.param)
    with Node.started(directory / "node", memory=True, flags=flags) as node:
        guarded = Guarded(node, authority, scopes)
        for n in range(6):
            assert guarded.status("boss", "PUT", f"/v1/stream/orders/in/{n}") == 201
        yield guarded
        assert "Traceback" not in node.stderr(), node.output()


def test_a_subject_may_do_what_its_row_says_and_nothing_else(guarded: Guarded) -> None:
    for n in range(6):
        path = f"/v1/stream/orders/in/{n}"
        assert guarded.status("writer", "POST", path, b"x") == 204
        assert guarded.status("writer", "GET", path) == 403
        assert guarded.status("reader", "GET", path) == 200
        assert guarded.status("reader", "POST", path, b"x") == 403
        assert guarded.status("stranger", "GET", path) == 401  # a good certificate of nobody in particular
        assert guarded.status(None, "GET", path) == 401
    assert guarded.status("reader", "GET", "/__headwater/config") == 403
    assert guarded.status("boss", "GET", "/__headwater/config") == 200


def test_the_same_bytes_of_somebody_else_are_judged_for_somebody_else(guarded: Guarded) -> None:
    """A head that was let through is remembered: not for connections that are somebody else's."""
    path = "/v1/stream/orders/in/0"
    with guarded.connect("writer") as writer, guarded.connect(None) as nobody, guarded.connect("reader") as reader:
        for _ in range(4):
            headers = {**TEXT, "Host": "same"}
            assert writer.request("POST", path, headers, b"x").status == 204
            assert nobody.request("POST", path, headers, b"x").status == 401
            assert reader.request("POST", path, headers, b"x").status == 403
            assert reader.request("GET", path, headers).status == 200
            assert nobody.request("GET", path, headers).status == 401
            assert writer.request("GET", path, headers).status == 403


def test_another_credential_counts_instead_of_the_certificate(guarded: Guarded) -> None:
    with guarded.connect("boss") as boss:
        answer = boss.request("GET", "/__headwater/config", {"Authorization": "Bearer hw_nobody_0000"})
        assert answer.status == 401


def test_a_changed_row_counts_for_those_who_are_connected_and_ends_what_they_may_not_read(guarded: Guarded) -> None:
    path = "/v1/stream/orders/in/1"
    with guarded.connect("reader") as live, guarded.connect("reader") as kept:
        events = iter(EventStream.open(live, f"{path}?offset=now&live=sse"))
        assert next(events).name == "control"
        assert kept.request("POST", path, TEXT, b"x").status == 403
        guarded.scopes.write_text(SCOPES.replace("read:orders", "append:orders"))
        try:
            deadline_s = time.monotonic() + WAIT_S
            while kept.request("POST", path, TEXT, b"x").status != 204:
                assert time.monotonic() < deadline_s
            for _ in events:  # what the other append brought, and then the end
                assert time.monotonic() < deadline_s
            assert kept.request("GET", path).status == 403
        finally:
            guarded.settle()
        assert kept.request("GET", path).status == 200


def test_rows_that_cannot_be_read_leave_those_that_are_in_force(guarded: Guarded) -> None:
    guarded.scopes.write_text('"CN=reader,O=Example" = ["fly:orders"]')
    try:
        deadline_s = time.monotonic() + WAIT_S
        while "'fly' is no action" not in guarded.node.stderr():
            assert time.monotonic() < deadline_s
        assert guarded.status("reader", "GET", "/v1/stream/orders/in/2") == 200
    finally:
        guarded.settle()


def test_over_s3p_the_certificate_is_the_credential_too(guarded: Guarded) -> None:
    found = re.search(S3P_READY, guarded.node.stderr())
    assert found is not None

    def replied(name: str | None, *commands: bytes) -> list[bytes]:
        plain = socket.create_connection((HOST, int(found[1])), WAIT_S)
        with guarded.authority.trusting(guarded.pair(name)).wrap_socket(plain, server_hostname=HOST) as client:
            got = []
            for command in commands:
                client.sendall(command)
                got.append(client.recv(65_536))
            return got

    for n in range(4):
        name = b"orders/in/%d" % n
        append = b"*4\r\n$6\r\nAPPEND\r\n$%d\r\n%b\r\n*0\r\n*1\r\n$1\r\nx\r\n" % (len(name), name)
        read = b"*3\r\n$4\r\nREAD\r\n$%d\r\n%b\r\n*0\r\n" % (len(name), name)
        assert [reply[:1] for reply in replied("writer", append, read)] == [b"$", b"-"]
        assert [reply[:1] for reply in replied("reader", append, read)] == [b"-", b"*"]
        assert [reply[:1] for reply in replied(None, append)] == [b"-"]
