"""The certificate changes while clients connect all the time: none of their requests fails, whatever is put there."""

from __future__ import annotations

import signal
import ssl
import threading
import time

from cryptography import x509

from tests.doors.tls.conftest import SecureNode
from tests.support.node import HOST

WAIT_S = 60.0
CLIENTS = 3
ROUNDS = 4


class Client(threading.Thread):
    """Connects anew for each append, until it is told to stop."""

    def __init__(self, secure: SecureNode, number: int) -> None:
        super().__init__()
        self.secure = secure
        self.path = f"/v1/stream/reloaded-{number}"
        self.stopping = threading.Event()
        self.done_count = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with self.secure.connect() as connection:
                    status = connection.request("POST", self.path, {"Content-Type": "text/plain"}, b"x").status
                if status != 204:
                    self.failures.append(str(status))
            except Exception as why:
                self.failures.append(repr(why))
            self.done_count += 1


def served(secure: SecureNode) -> int:
    """The serial number of the certificate that a new connection gets."""
    with secure.connect() as connection:
        assert isinstance(connection.socket, ssl.SSLSocket)
        shown = connection.socket.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def wait_until_served(secure: SecureNode, serial: int, often: int = 12) -> None:
    """Every worker has it: connections are spread over them."""
    deadline_s, seen = time.monotonic() + WAIT_S, 0
    while seen < often:
        seen = seen + 1 if served(secure) == serial else 0
        assert time.monotonic() < deadline_s, secure.node.output()


def test_certificates_change_under_load_and_no_request_fails(secure: SecureNode) -> None:
    with secure.connect() as kept:
        clients = [Client(secure, number) for number in range(CLIENTS)]
        for client in clients:
            assert kept.request("PUT", client.path, {"Content-Type": "text/plain"}).status in (200, 201)
            client.start()
        try:
            for number in range(ROUNDS):
                newer = secure.authority.server(f"newer-{number}")
                secure.pair.become(newer)
                if number % 2:
                    secure.node.signal(signal.SIGHUP)  # at once; otherwise the node finds it by itself
                wait_until_served(secure, newer.serial)
                broken = secure.pair.key.read_bytes()
                secure.pair.key.write_bytes(b"no key at all")
                secure.node.signal(signal.SIGHUP)
                assert served(secure) == newer.serial
                secure.pair.key.write_bytes(broken)
        finally:
            for client in clients:
                client.stopping.set()
            for client in clients:
                client.join(WAIT_S)
        assert [client.failures for client in clients] == [[]] * CLIENTS
        assert all(client.done_count > ROUNDS for client in clients)
        # Who was connected before all that still is.
        for client in clients:
            assert len(kept.request("GET", client.path).body) == client.done_count
    assert "is not taken" in secure.node.stderr() and "PRIVATE KEY" not in secure.node.output()


def test_a_signal_to_read_files_again_never_ends_a_node(secure: SecureNode) -> None:
    for _ in range(20):
        secure.node.signal(signal.SIGHUP)
    assert served(secure) == secure.pair.serial
    assert secure.node.running, HOST
