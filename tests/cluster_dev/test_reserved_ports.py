"""Ports that stay a cluster's own while nobody listens on them."""

from __future__ import annotations

import socket

import pytest

from headwater.cluster_dev.child import CannotRun
from headwater.cluster_dev.reserved_ports import HOST, ReservedPorts


def listen(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((HOST, port))
    server.listen()
    return server


def test_a_server_can_listen_on_a_reserved_port_again_and_again() -> None:
    ports = ReservedPorts()
    port = ports.take()
    for _ in range(3):
        with listen(port) as server, socket.create_connection((HOST, port)):
            server.accept()[0].close()
    ports.release()


def test_a_reserved_port_is_not_given_to_who_asks_for_it_plainly() -> None:
    ports = ReservedPorts()
    port = ports.take()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, port))
    ports.release()
    with socket.socket() as other:
        other.bind((HOST, port))


def test_all_reserved_ports_differ() -> None:
    ports = ReservedPorts()
    taken = [ports.take() for _ in range(200)]
    assert len(set(taken)) == len(taken)
    ports.release()


def test_a_port_that_somebody_listens_on_is_refused_with_what_to_do() -> None:
    with listen(0) as server:
        port = server.getsockname()[1]
        message = rf"cannot use port {port} .*\(Address already in use\): stop what listens there, or choose another"
        with pytest.raises(CannotRun, match=message):
            ReservedPorts().take(port)


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(CannotRun, match="cannot use port 65536"):
        ReservedPorts().take(65536)
