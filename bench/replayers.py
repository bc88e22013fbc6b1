"""The replay load: a process with many connections that each read one stream from its beginning until it is up to date.

Owns the clock of a replay and checks its length; knows no peer by name. Run by `generator.run`.
"""

import asyncio
import gc
import json
import time

import uvloop

from bench import generator, proc
from bench.wire import STREAM_ROOT, Exchange, Malformed, request

CONNECT_AT_ONCE = 100
CONTENT_TYPE = "application/json"


class Replay:
    """Waves of replays: all clients start together, a wave ends with the last of them."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.port: int = spec["port"]
        self.streams = [f"bench/replay-{n:04d}" for n in range(spec["streams"])]
        self.durations_ns: list[int] = []
        self.bytes_count = 0
        self.left = 0
        self.over: asyncio.Future[None] | None = None

    def fill(self) -> int:
        """Every stream alike; returns the payload bytes of one."""
        size = self.spec["message_bytes"]
        messages = [{"n": n, "text": "x" * (size - len('{"n":00,"text":""}'))} for n in range(10, 10 + 90)]
        part = (messages * 2)[: self.spec["messages"]]
        body = json.dumps(part, separators=(",", ":")).encode()
        with Exchange(self.port) as exchange:
            for stream in self.streams:
                exchange.create(stream, CONTENT_TYPE)
                for _ in range(self.spec["posts"]):
                    exchange.append(stream, CONTENT_TYPE, body)
        return (len(body) - len(part) - 1) * self.spec["posts"]

    async def run(self) -> dict:
        payload_bytes = self.fill()
        await self._wave(payload_bytes)  # the first one warms caches and is not counted
        self.durations_ns.clear()
        self.bytes_count = 0
        gc.collect()
        gc.disable()
        cpu = proc.CpuWindow(self.spec["server_pid"])
        spent_s, waves = 0.0, 0
        while not waves or spent_s < self.spec["window_s"]:
            spent_s += await self._wave(payload_bytes)
            waves += 1
        shares = cpu.close()
        ordered_ns = sorted(self.durations_ns)
        return {
            "replays": len(ordered_ns),
            "waves": waves,
            "mb_per_s": round(self.bytes_count / 1e6 / spent_s, 1),
            "p50_ms": generator.percentile_ms(ordered_ns, 0.50),
            "p99_ms": generator.percentile_ms(ordered_ns, 0.99),
            **shares,
        }

    async def _connect(self, payload_bytes: int) -> list["Client"]:
        loop = asyncio.get_running_loop()
        clients: list[Client] = []
        for n in range(self.spec["clients"]):
            path = STREAM_ROOT + self.streams[n % len(self.streams)]
            client = Client(self, path, payload_bytes)
            await loop.create_connection(lambda client=client: client, "127.0.0.1", self.port)
            clients.append(client)
            if n % CONNECT_AT_ONCE == 0:
                await asyncio.sleep(0.005)
        return clients

    async def _wave(self, payload_bytes: int) -> float:
        """Seconds from the first request to the last byte. Connections are new: some servers close idle ones."""
        clients = await self._connect(payload_bytes)
        self.left = len(clients)
        self.over = asyncio.get_running_loop().create_future()
        began_s = time.perf_counter()
        for client in clients:
            client.begin()
        await self.over
        return time.perf_counter() - began_s

    def done(self, took_ns: int, bytes_count: int) -> None:
        self.durations_ns.append(took_ns)
        self.bytes_count += bytes_count
        self.left -= 1
        if not self.left and self.over is not None:
            self.over.set_result(None)

    def failed(self, why: Exception) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_exception(why)


class Client(asyncio.Protocol):
    """One connection and its replay: GET after GET until the server says that there is no more."""

    def __init__(self, replay: Replay, path: str, payload_bytes: int) -> None:
        self._replay = replay
        self._path = path
        self._wanted = payload_bytes
        self._head = b""
        self._left: int | None = None
        """Bytes of the body still to come; None while the head is read, -1 in a chunked body."""
        self._following = ""
        self._up_to_date = False
        self._finished = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def begin(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self._received = 0
        self._ask("-1")

    def _ask(self, offset: str) -> None:
        self._left = None
        self._tail = b""
        self.transport.write(request("GET", f"{self._path}?offset={offset}", self._replay.port))

    def data_received(self, data: bytes) -> None:
        try:
            if self._left is None:
                self._head += data
                end = self._head.find(b"\r\n\r\n")
                if end < 0:
                    return
                head, data = self._head[:end], self._head[end + 4 :]
                self._head = b""
                self._parse(head)
            self._take(data)
        except (Malformed, ValueError) as why:
            self._replay.failed(why if isinstance(why, Malformed) else Malformed(str(why)))

    def _parse(self, head: bytes) -> None:
        status, *rows = head.split(b"\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            raise Malformed(f"a replay was answered {status[:80]!r}")
        pairs = (row.partition(b":") for row in rows)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._following = headers[b"stream-next-offset"].decode()
        self._up_to_date = headers.get(b"stream-up-to-date") == b"true"
        chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._left = -1 if chunked else int(headers[b"content-length"])

    def _take(self, data: bytes) -> None:
        if self._left == -1:
            # Chunk sizes are few beside the payload: the end is recognised, and the body's length not checked.
            self._received += len(data)
            self._tail = (self._tail + data)[-7:]
            if self._tail.endswith(b"\r\n0\r\n\r\n") or self._tail == b"0\r\n\r\n":
                self._end()
            return
        self._received += len(data)
        self._left = (self._left or 0) - len(data)
        if self._left == 0:
            self._end()
        elif self._left < 0:
            raise Malformed("more arrived than was announced")

    def _end(self) -> None:
        if not self._up_to_date:
            self._ask(self._following)
            return
        if self._received < self._wanted:
            raise Malformed(f"a replay of {self._wanted} bytes ended after {self._received}")
        self._finished = True
        self._replay.done(time.perf_counter_ns() - self._began_ns, self._received)
        self.transport.abort()

    def connection_lost(self, why: Exception | None) -> None:
        if not self._finished:
            self._replay.failed(Malformed(f"a connection was lost: {why}"))


if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Replay(spec).run()))
