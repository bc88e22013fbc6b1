"""WebSockets over real sockets: raw bytes, the client of the `websockets` package, and the one that Node.js brings.
The server is the HTTP listener with one route that echoes; no node runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headwater.config import Settings
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.server import HttpServer
from headwater.doors.http.websocket import WebSocket, WebSockets
from headwater.doors.http.wire import Budget
from tests.support.websockets import CLOSE, TEXT, Echo, Got, close, frame, parse, request

HOST = "127.0.0.1"
WITHIN_S = 30.0
BODY_BYTES_MAX = 1024 * 1024
NODE_SCRIPT = """
const [url, large] = [process.argv[1], "ü".repeat(200000)];
const facts = {got: [], closed: null};
const socket = new WebSocket(url);
socket.onopen = () => { socket.send("hello"); socket.send(large); socket.send("") };
socket.onmessage = ({data}) => {
  facts.got.push(data === large ? "large" : data);
  if (facts.got.length === 3) socket.close(4321, "enough");
};
socket.onclose = ({code, reason, wasClean}) => {
  console.log(JSON.stringify({...facts, closed: [code, reason, wasClean], extensions: socket.extensions}));
};
socket.onerror = ({message}) => { console.error(message); process.exitCode = 1 };
"""


class Served:
    """A listener on an event loop of its own thread, as the node has it: uvloop."""

    def __init__(self) -> None:
        self.settings = Settings(body_bytes_max=BODY_BYTES_MAX)
        self.bodies = Budget(1 << 30)
        self.sockets = WebSockets(self.settings, self.bodies)
        self.echoes: list[Echo] = []
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server: Any = None
        self.port = self.run(self._start())

    async def _start(self) -> int:
        routes: Any = self
        self.server = HttpServer(self.settings, routes, Responder("*", keeps_nothing=True), self.bodies)
        return int(await self.server.listen(HOST, 0))

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN_S)

    def handle(self, exchange: Exchange) -> None:
        """As `Routes`."""
        self.sockets.upgrade(exchange, self.make)

    def make(self, opened: WebSocket) -> Echo:
        self.echoes.append(Echo(opened))
        return self.echoes[-1]

    def stop(self) -> None:
        self.run(self.server.close(WITHIN_S))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"ws://{HOST}:{self.port}/v0/ws"


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    try:
        yield served
    finally:
        served.stop()
        assert not served.server.connections
        assert served.sockets.open_count == 0 and served.bodies.held == 0
        assert [echo.closed_count for echo in served.echoes] == [1] * len(served.echoes)


def everything(client: socket.socket) -> bytes:
    """What the server sends until it ends the connection, without a reset."""
    received = b""
    while data := client.recv(1 << 16):
        received += data
    return received


# ---- raw sockets ----------------------------------------------------------------------------------------------------


def test_a_handshake_frames_and_a_close_in_one_packet_are_all_answered(served: Served) -> None:
    with socket.create_connection((HOST, served.port), WITHIN_S) as client:
        client.sendall(request() + frame(TEXT, b"one") + frame(TEXT, b"two") + close(1000))
        head, _, rest = everything(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert parse(rest) == ([Got(TEXT, b"one"), Got(TEXT, b"two"), Got(CLOSE, b"\x03\xe8")], b"")


def test_a_client_that_still_sends_a_message_too_large_learns_why_it_was_ended(served: Served) -> None:
    with socket.create_connection((HOST, served.port), WITHIN_S) as client, ThreadPoolExecutor(1) as other:
        reading = other.submit(everything, client)
        client.sendall(request() + frame(TEXT, b"x" * (4 * BODY_BYTES_MAX), mask=b"\0\0\0\0"))
        _, _, rest = reading.result(WITHIN_S).partition(b"\r\n\r\n")
    frames, left = parse(rest)
    assert [got.payload[:2] for got in frames] == [(1009).to_bytes(2, "big")] and not left


def test_a_client_that_reads_nothing_is_not_read_and_gets_all_its_answers_later(served: Served) -> None:
    count, text = 400, b"x" * 50_000
    with socket.create_connection((HOST, served.port), WITHIN_S) as client, ThreadPoolExecutor(1) as other:
        # 20 MB of answers do not fit into the buffers in between: the server stops reading, so this blocks.
        sending = other.submit(client.sendall, request() + frame(TEXT, text) * count + close(1000))
        received = everything(client)
        sending.result(WITHIN_S)
    frames, left = parse(received.partition(b"\r\n\r\n")[2])
    assert frames == [Got(TEXT, text)] * count + [Got(CLOSE, b"\x03\xe8")] and not left
    assert served.echoes[0].refused == []


def test_a_listener_that_closes_ends_its_websockets_with_1001_and_waits_for_their_clients(served: Served) -> None:
    with socket.create_connection((HOST, served.port), WITHIN_S) as client, ThreadPoolExecutor(1) as other:
        client.sendall(request() + frame(TEXT, b"here"))
        received = b""
        while not received.endswith(b"\x81\x04here"):
            received += client.recv(1 << 16)
        closing = other.submit(lambda: served.run(served.server.close(WITHIN_S)))
        frames, _ = parse(client.recv(1 << 16))
        assert frames[0].opcode == CLOSE and frames[0].payload[:2] == (1001).to_bytes(2, "big")
        client.sendall(close(1001))
        assert client.recv(1) == b""
        client.close()
        closing.result(WITHIN_S)


# ---- clients that are not ours --------------------------------------------------------------------------------------


def test_the_client_of_the_websockets_package(served: Served) -> None:
    with connect(served.url, max_size=None) as client:
        for text in ("hello", "", "ü" * 200_000, '{"a": "€"}'):
            client.send(text)
            assert client.recv(WITHIN_S) == text
        client.send(["frag", "ments ", "of one"])
        assert client.recv(WITHIN_S) == "fragments of one"
        assert client.ping(b"are you there").wait(WITHIN_S)
        assert client.protocol.extensions == []  # it offers permessage-deflate
    assert client.close_code == 1000


@pytest.mark.parametrize(("sent", "code"), [(b"binary", 1003), ("x" * (BODY_BYTES_MAX + 1), 1009), ("leave", 4000)])
def test_the_client_of_the_websockets_package_is_told_why_it_was_ended(
    served: Served, sent: str | bytes, code: int
) -> None:
    with connect(served.url) as client, pytest.raises(ConnectionClosed) as ended:
        client.send(sent)
        client.recv(WITHIN_S)
    assert ended.value.rcvd is not None and ended.value.rcvd.code == code


def test_the_client_of_the_websockets_package_sees_a_refusal(served: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(served.url, additional_headers={"Sec-WebSocket-Version": "13"})  # it stands twice now
    assert refused.value.response.status_code == 400


def test_the_client_of_node_js(served: Served) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=WITHIN_S, check=True).stdout
    flags = ["--experimental-websocket"] if int(version.lstrip("v").split(".")[0]) < 22 else []
    made = subprocess.run(
        [node, *flags, "--input-type=module", "-e", NODE_SCRIPT, served.url],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert made.returncode == 0, made.stderr
    facts = json.loads(made.stdout)
    assert facts == {"got": ["hello", "large", ""], "closed": [4321, "enough", True], "extensions": ""}
