"""Several workers in trouble that no crash makes: addresses that are taken, a worker that hangs, impatient signals.
Real processes; waits for what is told, never for a time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.crash.workers import workers
from tests.support.node import Node, NotReady

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
TWO = ("--workers", "2")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_of_two_nodes_that_start_on_one_address_at_once_one_is_refused(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    nodes = [Node(tmp_path / name, flags=TWO, listen=address) for name in ("a", "b")]
    ready = 0
    try:
        for node in nodes:
            node.spawn()
        for node in nodes:
            try:
                node.wait_ready()
                ready += 1
            except NotReady as refused:
                assert "cannot listen on" in refused.stderr and refused.exit_code == 1
    finally:
        for node in nodes:
            node.kill()
    assert ready == 1


def test_one_address_for_both_doors_is_refused(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    node = Node(tmp_path, flags=(*TWO, "--s3p", address), listen=address)
    with pytest.raises(NotReady) as refused:
        node.start()
    assert "cannot listen on" in refused.value.stderr and refused.value.exit_code == 1


def test_the_address_stays_the_nodes_while_all_its_workers_are_gone(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=TWO) as node:
        for pid in workers(node).values():
            os.kill(pid, signal.SIGKILL)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", node.port))
                other.listen()
        assert node.request("GET", "/healthz").status == 200  # the connection waits for a worker


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_worker_that_hangs_is_told_of_by_the_others(tmp_path: Path, stopped: int) -> None:
    with Node.started(tmp_path, flags=TWO) as node:
        pid = workers(node)[stopped]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert node.request("GET", "/healthz").status == 200
            answer = node.request("GET", "/readyz")
            assert answer.status == 503 and f"worker {stopped} does not answer".encode() in answer.body
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_second_signal_to_end_does_not_make_it_a_crash(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=TWO) as node:
        process = node._process
        assert process is not None
        for _ in range(20):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
            try:
                process.wait(0.05)
                break
            except subprocess.TimeoutExpired:
                continue
        assert process.wait(60) == 0


@pytest.mark.parametrize("flags", [(), TWO], ids=["one worker", "two workers"])
def test_a_request_whose_body_is_arriving_when_the_node_stops_is_answered(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with Node.started(tmp_path, flags=flags) as node:
        assert node.request("PUT", "/v1/stream/a", {"Content-Type": "text/plain"}).status == 201
        with socket.create_connection(("127.0.0.1", node.port)) as sock:
            head = b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\n"
            sock.sendall(head + b"ab")
            # Once this is answered on another connection, the first half has arrived too: both are on loopback.
            assert node.request("GET", "/healthz").status == 200
            os.kill(node.pid, signal.SIGTERM)
            sock.sendall(b"cd")
            sock.settimeout(60)
            answer = b""
            while part := sock.recv(4096):
                answer += part
            assert answer.startswith(b"HTTP/1.1 204 ")
