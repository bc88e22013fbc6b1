"""The append load: a process of its own that keeps N connections busy, one append in flight on each.

Owns the timed window and its latencies; knows no peer by name and never retries. Run by `generator.run`.
"""

import asyncio
import gc
import signal
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle

import uvloop

from bench import generator, proc
from bench.wire import Exchange, ResponseReader, append_request, owner_port

DRAIN_SECONDS_MAX = 5.0


class Load:
    """One closed-loop run, as told by the spec (see `append.load_spec` for its fields)."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.port: int = spec["port"]
        authority = spec.get("tls_authority")
        self.tls = None if authority is None else ssl.create_default_context(cafile=authority)
        self.authorization: str | None = spec.get("authorization")
        self.latencies_ns: list[int] = []
        self.refused: Counter[int] = Counter()
        self.lost = 0
        self.running = True
        self.in_flight = 0

    def prepare(self) -> list[list[bytes]]:
        """Create one stream per connection and build the requests that each connection repeats, in their order."""
        content_type, body = self.spec["content_type"], self.spec["body"].encode()
        streams = [f"{self.spec['prefix']}/{n:05d}" for n in range(self.spec["connections"])]
        with Exchange(self.port, tls=self.tls, authorization=self.authorization) as exchange:
            for stream in streams:
                exchange.create(stream, content_type)
        self.ports = self._ports(streams)
        raw = [append_request(stream, self.port, content_type, body, self.authorization) for stream in streams]
        if self.spec["mix"]:
            # At any time they are all at different streams, as those are that keep to one.
            return [raw[first:] + raw[:first] for first in range(len(raw))]
        return [[one] for one in raw]

    def _ports(self, streams: list[str]) -> list[int]:
        """Where each stream's connection goes: to the one server, to several in turn, or to the owner among them."""
        several = self.spec.get("ports") or [self.port]
        if not self.spec.get("at_owners"):
            return [several[n % len(several)] for n in range(len(streams))]
        return [owner_port(stream, self.port) for stream in streams]

    async def run(self) -> dict:
        requests = self.prepare()
        loop = asyncio.get_running_loop()
        appenders = [Appender(self, repeated) for repeated in requests]
        for appender, port in zip(appenders, self.ports, strict=True):
            await loop.create_connection(lambda appender=appender: appender, "127.0.0.1", port, ssl=self.tls)
        gc.collect()
        gc.disable()
        for appender in appenders:
            appender.fire()
        await asyncio.sleep(self.spec["warmup_s"])
        cpu, perf = self._open_window()
        await asyncio.sleep(self.spec["window_s"])
        result = self._close_window(cpu, perf)
        drained_by = loop.time() + DRAIN_SECONDS_MAX
        while self.in_flight and loop.time() < drained_by:
            await asyncio.sleep(0.01)
        for appender in appenders:
            appender.transport.close()
        return result

    def _open_window(self) -> tuple[proc.CpuWindow, subprocess.Popen[str] | None]:
        perf = None
        if event := self.spec.get("perf_event"):
            command = ["perf", "stat", "-x,", "-e", event, "-p", str(self.spec["server_pid"])]
            perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.latencies_ns.clear()
        self.refused.clear()
        return proc.CpuWindow(self.spec["server_pid"], self.spec.get("parts")), perf

    def _close_window(self, cpu: proc.CpuWindow, perf: subprocess.Popen[str] | None) -> dict:
        shares = cpu.close()
        self.running = False
        result = {
            **generator.rates(self.latencies_ns, cpu),
            **shares,
            "refused": {str(status): count for status, count in self.refused.items()},
            "connections_lost": self.lost,
        }
        if perf is not None:
            perf.send_signal(signal.SIGINT)
            counted = perf.communicate(timeout=5)[1].split(",")[0]
            appends = result["appends"]
            result["instructions_per_append"] = round(float(counted) / appends) if appends else None
        return result


class Appender(asyncio.Protocol):
    """One connection with one append in flight, always the same requests in turn."""

    __slots__ = ("_load", "_next", "_reader", "_sent_ns", "_write", "transport")

    def __init__(self, load: Load, requests: Sequence[bytes]) -> None:
        self._load = load
        self._next = cycle(requests).__next__
        self._reader = ResponseReader()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._write = transport.write

    def fire(self) -> None:
        self._load.in_flight += 1
        self._sent_ns = time.perf_counter_ns()
        self._write(self._next())

    def data_received(self, data: bytes) -> None:
        # With one request in flight, a 204 that ends in an empty line is exactly one whole response. This
        # test takes 0.2 us and the reader 4 us, which would make the generator the slower side in memory.
        if data[9:12] == b"204" and data[-4:] == b"\r\n\r\n" and not self._reader.partial:
            load, now_ns = self._load, time.perf_counter_ns()
            load.latencies_ns.append(now_ns - self._sent_ns)
            if load.running:
                self._sent_ns = now_ns
                self._write(self._next())
            else:
                load.in_flight -= 1
            return
        for response in self._reader.feed(data):
            self._load.in_flight -= 1
            if response.status // 100 == 2:
                self._load.latencies_ns.append(time.perf_counter_ns() - self._sent_ns)
            else:
                self._load.refused[response.status] += 1
            if self._load.running:
                self.fire()

    def connection_lost(self, _: Exception | None) -> None:
        if self._load.running:
            self._load.lost += 1
            self._load.in_flight -= 1


if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Load(spec).run()))
