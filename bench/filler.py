"""The filling load: a process that creates very many empty streams in one bucket, over many connections at once.

Owns the pace of a fill; measures only how long it took. Run by `generator.run`.
"""

import asyncio
import time
from collections import deque

import uvloop

from bench import generator
from bench.wire import Malformed, ResponseReader, request

CONTENT_TYPE = "text/plain"


def create_request(port: int, bucket: str, number: int) -> bytes:
    """Numbers are spread over the alphabet, as names of users or documents are; not in order of creation."""
    name = f"{number * 2654435761 % (1 << 32):08x}-{number:08d}"
    return request("PUT", f"/ds/{bucket}/{name}", port, [("Content-Type", CONTENT_TYPE)], b"")


class Fill:
    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.next = spec["first"]
        self.end = spec["first"] + spec["count"]
        self.again: list[int] = []
        """Refused because the node was busy; sent once more."""
        self.answered = 0
        self.over: asyncio.Future[None]

    async def run(self) -> dict:
        loop = asyncio.get_running_loop()
        self.over = loop.create_future()
        connections = [Connection(self) for _ in range(self.spec["connections"])]
        for connection in connections:
            await loop.create_connection(lambda connection=connection: connection, "127.0.0.1", self.spec["port"])
        began_s = time.perf_counter()
        for connection in connections:
            connection.refill()
        await self.over
        elapsed_s = time.perf_counter() - began_s
        for connection in connections:
            connection.transport.close()
        return {"streams": self.spec["count"], "seconds": round(elapsed_s, 2)}


class Connection(asyncio.Protocol):
    """Keeps `depth` creations in flight, pipelined."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._reader = ResponseReader()
        self._in_flight: deque[int] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def refill(self) -> None:
        fill, spec = self._fill, self._fill.spec
        parts = []
        while len(self._in_flight) < spec["depth"] and (fill.again or fill.next < fill.end):
            if fill.again:
                number = fill.again.pop()
            else:
                number, fill.next = fill.next, fill.next + 1
            parts.append(create_request(spec["port"], spec["bucket"], number))
            self._in_flight.append(number)
        if parts:
            self.transport.write(b"".join(parts))

    def data_received(self, data: bytes) -> None:
        fill = self._fill
        for response in self._reader.feed(data):
            number = self._in_flight.popleft()
            if response.status == 503:
                fill.again.append(number)
                continue
            if response.status != 201 and not fill.over.done():
                why = f"stream {number} answered {response.status} {response.body[:200]!r}"
                fill.over.set_exception(Malformed(why))
            fill.answered += 1
        if fill.again:
            # The node takes no more for now, and its Retry-After says to wait a second.
            if not self._in_flight:
                asyncio.get_running_loop().call_later(1.0, self.refill)
        elif len(self._in_flight) <= fill.spec["depth"] // 2:
            self.refill()
        if fill.answered == fill.spec["count"] and not fill.over.done():
            fill.over.set_result(None)

    def connection_lost(self, why: Exception | None) -> None:
        if not self._fill.over.done():
            self._fill.over.set_exception(Malformed(f"a connection was lost: {why}"))


if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Fill(spec).run()))
