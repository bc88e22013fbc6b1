"""Clients that misbehave, in a process of their own: they hold until their stdin is closed.

Owns four roles: `stall` asks for 64 MB and never reads, `drip` sends a byte a second, `idle` holds SSE open, `greedy`
appends as fast as it is answered, from an address of its own, whatever the answers are. All but the first come back
when they are cut, as a bad client would; one that never reads never learns of it.
"""

import asyncio
import json
import socket
import sys
from collections import Counter

import uvloop

from bench import proc
from bench.wire import STREAM_ROOT, append_request, request

CONNECT_AT_ONCE = 50
SETTLE_SECONDS = 2.0
COME_BACK_SECONDS = 1.0
STALLED_RECEIVE_BYTES = 4096
DRIP_SECONDS = 1.0
GREEDY_ADDRESS = "127.0.0.2"
GREEDY_IN_FLIGHT = 8
"""On each connection."""


class Hostile:
    def __init__(self, spec: dict) -> None:
        self.port: int = spec["port"]
        self.role: str = spec["role"]
        self.count: int = spec["count"]
        self.idle_streams: int = spec["idle_streams"]
        self.seen: Counter[str] = Counter()
        self.leaving = False

    def request_for(self, index: int) -> bytes:
        if self.role == "stall":
            return request("GET", f"{STREAM_ROOT}hostile/big?offset=-1", self.port)
        if self.role == "drip":
            return append_request("hostile/slow", self.port, "application/octet-stream", b"d" * 100)
        if self.role == "greedy":
            return append_request("hostile/greedy", self.port, "application/octet-stream", b"g" * 100)
        path = f"{STREAM_ROOT}hostile/idle-{index % self.idle_streams}?offset=now&live=sse"
        return request("GET", path, self.port, [("Accept", "text/event-stream")])

    async def run(self) -> None:
        clients = [Client(self, self.request_for(n)) for n in range(self.count)]
        for at in range(0, self.count, CONNECT_AT_ONCE):
            await asyncio.gather(*(one.connect() for one in clients[at : at + CONNECT_AT_ONCE]))
        dripping = asyncio.create_task(self._drip(clients)) if self.role == "drip" else None
        await asyncio.sleep(SETTLE_SECONDS)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        self.leaving = True
        if dripping is not None:
            dripping.cancel()
        held = sum(one.held for one in clients)
        for one in clients:
            one.leave()
        print(json.dumps({"held_at_end": held, **self.seen}), flush=True)

    async def _drip(self, clients: list["Client"]) -> None:
        while True:
            for one in clients:
                one.drip()
                await asyncio.sleep(DRIP_SECONDS / len(clients))


class Client(asyncio.Protocol):
    def __init__(self, hostile: Hostile, raw: bytes) -> None:
        self._hostile = hostile
        self._raw = raw
        self._sent_bytes = 0
        self._answered = False
        self.held = False
        self._unread: socket.socket | None = None

    async def connect(self) -> None:
        role, end = self._hostile.role, socket.socket()
        end.setblocking(False)
        if role == "stall":  # a small window, so that nearly all of the answer stays with the server
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_RECEIVE_BYTES)
        if role == "greedy":
            end.bind((GREEDY_ADDRESS, 0))
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(end, ("127.0.0.1", self._hostile.port))
            if role == "stall":  # no transport: one would read
                await loop.sock_sendall(end, self._raw)
                self._unread, self.held = end, True
            else:
                await loop.create_connection(lambda: self, sock=end)
        except OSError:
            end.close()
            self._hostile.seen["connect_failed"] += 1
            self._come_back()

    def leave(self) -> None:
        if self._unread is not None:
            self._unread.close()
        elif self.held:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.held = True
        self._answered, self._sent_bytes = False, 0
        if self._hostile.role == "greedy":
            transport.write(self._raw * GREEDY_IN_FLIGHT)
        elif self._hostile.role != "drip":
            transport.write(self._raw)

    def drip(self) -> None:
        if self.held:
            at = self._sent_bytes % len(self._raw)
            self.transport.write(self._raw[at : at + 1])
            self._sent_bytes += 1

    def data_received(self, data: bytes) -> None:
        if self._hostile.role == "greedy":
            answers = data.count(b"HTTP/1.1 ")
            self._hostile.seen["answered"] += answers
            self._hostile.seen["refused"] += data.count(b"HTTP/1.1 429")
            self.transport.write(self._raw * answers)
            return
        if not self._answered:
            self._answered = True
            self._hostile.seen[f"answered_{data[9:12].decode('ascii', 'replace')}"] += 1

    def connection_lost(self, _: Exception | None) -> None:
        self.held = False
        if not self._hostile.leaving:
            self._hostile.seen["cut"] += 1
            self._come_back()

    def _come_back(self) -> None:
        if not self._hostile.leaving:
            loop = asyncio.get_running_loop()
            loop.call_later(COME_BACK_SECONDS, lambda: loop.create_task(self.connect()))


if __name__ == "__main__":
    proc.raise_descriptor_limit()
    uvloop.run(Hostile(json.loads(sys.stdin.readline())).run())
