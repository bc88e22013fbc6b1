"""The loads of the lake's benchmarks: fill one long stream, read it from its beginning, append at a steady pace.

Owns the clocks of reads and paced appends; knows no peer by name. Run by `generator.run`.
"""

import asyncio
import gc
import json
import random
import re
import socket
import time

import uvloop

from bench import generator, proc
from bench.wire import STREAM_ROOT, Exchange, Malformed, ResponseReader, append_request

CONTENT_TYPE = "application/octet-stream"
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)
_NEXT = re.compile(rb"\r\nStream-Next-Offset: (\d+)", re.IGNORECASE)


def texts(size: int) -> list[bytes]:
    """Bodies like lines of JSON, which compress as such do. They repeat beyond the reach of the codec (64 KB)."""
    chance = random.Random(5)
    kinds = ("click", "view", "order", "cancel", "refund", "login")
    found = []
    for _ in range(16):
        lines = []
        while sum(map(len, lines)) < size:
            line = {"id": chance.getrandbits(48), "kind": chance.choice(kinds), "value": chance.random()}
            lines.append(json.dumps(line).encode() + b"\n")
        found.append(b"".join(lines)[:size])
    return found


def fill(spec: dict) -> dict:
    """Appends records of one size to one stream, many in flight on one connection."""
    port, size, depth = spec["port"], spec["record_bytes"], 64
    count = spec["bytes"] // size
    with Exchange(port) as exchange:
        exchange.create(spec["stream"], CONTENT_TYPE)
    bodies = [append_request(spec["stream"], port, CONTENT_TYPE, body) for body in texts(size)]
    reader = ResponseReader()
    sent = answered = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
        while answered < count:
            while sent < count and sent - answered < depth:
                link.sendall(bodies[sent % 16])
                sent += 1
            for response in reader.feed(link.recv(1 << 16)):
                if response.status // 100 != 2:
                    raise Malformed(f"an append answered {response.status} {response.body[:200]!r}")
                answered += 1
    return {"records": count}


def catch_up(spec: dict) -> dict:
    """Reads a stream from its beginning to its end, request after request, as fast as it comes."""
    port, target = spec["port"], spec.get("path") or STREAM_ROOT + spec["stream"]
    window = proc.CpuWindow(spec["server_pid"])
    taken, requests = Reading(port, target), 0
    began_ns = time.perf_counter_ns()
    while taken.bytes_count < spec["bytes"]:
        taken.next()
        requests += 1
    elapsed_s = (time.perf_counter_ns() - began_ns) / 1e9
    taken.close()
    shares = window.close()
    if taken.bytes_count != spec["bytes"]:
        raise Malformed(f"{taken.bytes_count} bytes came, not {spec['bytes']}")
    return {
        "mb_per_s": round(spec["bytes"] / 1e6 / elapsed_s, 1),
        "first_byte_ms": round(taken.first_byte_ns / 1e6, 3),
        "requests": requests,
        **shares,
    }


class Reading:
    """One connection that reads a stream piece by piece. `first_byte_ns` is of the first request."""

    def __init__(self, port: int, target: str) -> None:
        self._link = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._port, self._target = port, target
        self._buffer = memoryview(bytearray(1 << 20))
        self.offset = "-1"
        self.bytes_count = 0
        self.first_byte_ns = 0

    def next(self) -> int:
        began_ns = time.perf_counter_ns()
        request = f"GET {self._target}?offset={self.offset} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n"
        self._link.sendall(request.encode())
        head = b""
        while (head_end := head.find(b"\r\n\r\n")) < 0:
            data = self._link.recv(1 << 16)
            if not data:
                raise Malformed("the connection ended")
            head += data
        body = len(head) - head_end - 4
        if body and not self.first_byte_ns:
            self.first_byte_ns = time.perf_counter_ns() - began_ns
        length, offset = _LENGTH.search(head), _NEXT.search(head)
        if not head.startswith(b"HTTP/1.1 200") or length is None or offset is None:
            raise Malformed(f"a read answered {head[:200]!r}")
        size = int(length[1])
        while body < size:
            got = self._link.recv_into(self._buffer)
            if not got:
                raise Malformed("the connection ended")
            if not self.first_byte_ns:
                self.first_byte_ns = time.perf_counter_ns() - began_ns
            body += got
        self.offset = offset[1].decode()
        self.bytes_count += size
        return size

    def close(self) -> None:
        self._link.close()


def read_for_ever(spec: dict) -> dict:
    """Reads a stream over and over, with a pause after each answer, until the time is over: a neighbour, not a test."""
    until_s = time.monotonic() + spec["window_s"]
    total = 0
    while time.monotonic() < until_s:
        reading = Reading(spec["port"], spec["path"] or STREAM_ROOT + spec["stream"])
        while reading.bytes_count < spec["bytes"] and time.monotonic() < until_s:
            reading.next()
            time.sleep(spec["pause_s"])
        reading.close()
        total += reading.bytes_count
    return {"mb": round(total / 1e6, 1)}


class Paced(asyncio.Protocol):
    """Appends at fixed times, whatever became of the one before: waiting counts as latency."""

    def __init__(self, raw: bytes, interval_s: float, latencies_ns: list[int]) -> None:
        self._raw, self._interval_s, self._latencies_ns = raw, interval_s, latencies_ns
        self._reader = ResponseReader()
        self._due_ns: list[int] = []

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    async def run(self, start_s: float, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        at_s = start_s
        while at_s < until_s:
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            self._due_ns.append(int(at_s * 1e9))
            self._transport.write(self._raw)
            at_s += self._interval_s

    def data_received(self, data: bytes) -> None:
        for response in self._reader.feed(data):
            if response.status // 100 != 2:
                raise Malformed(f"an append answered {response.status}")
            self._latencies_ns.append(time.monotonic_ns() - self._due_ns.pop(0))


async def paced(spec: dict) -> dict:
    port, count = spec["port"], spec["connections"]
    with Exchange(port) as exchange:
        for n in range(count):
            exchange.create(f"bench/paced-{n}", CONTENT_TYPE)
    loop = asyncio.get_running_loop()
    latencies_ns: list[int] = []
    writers = []
    for n in range(count):
        raw = append_request(f"bench/paced-{n}", port, CONTENT_TYPE, b"x" * spec["body_bytes"])
        _, writer = await loop.create_connection(
            lambda raw=raw: Paced(raw, spec["interval_s"], latencies_ns), "127.0.0.1", port
        )
        writers.append(writer)
    gc.collect()
    gc.disable()
    window = proc.CpuWindow(spec["server_pid"])
    start_s = loop.time() + 0.1
    spread_s = spec["interval_s"] / count
    until_s = start_s + spec["window_s"]
    await asyncio.gather(*(writer.run(start_s + n * spread_s, until_s) for n, writer in enumerate(writers)))
    await asyncio.sleep(0.5)
    ordered = sorted(latencies_ns)
    return {
        "appends": len(ordered),
        "p50_ms": generator.percentile_ms(ordered, 0.5),
        "p99_ms": generator.percentile_ms(ordered, 0.99),
        "p999_ms": generator.percentile_ms(ordered, 0.999),
        **window.close(),
    }


WORK = {
    "fill": fill,
    "catch_up": catch_up,
    "read_for_ever": read_for_ever,
    "paced": lambda spec: uvloop.run(paced(spec)),
}

if __name__ == "__main__":
    generator.answer(lambda spec: WORK[spec["work"]](spec))
