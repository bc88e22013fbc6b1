"""The fan-out load: a process with one writer and many SSE subscribers of one stream.

Owns the clock between an append sent and its last delivery; knows no peer by name. Run by `generator.run`.
"""

import asyncio
import gc
import time

import uvloop

from bench import generator, proc
from bench.wire import STREAM_ROOT, Exchange, Response, ResponseReader, append_request, request

MESSAGE_BYTES = 100
CONNECT_AT_ONCE = 50
DRAIN_SECONDS_MAX = 10.0
APPENDS_MIN = 10
PATIENCE_SECONDS_MAX = 20.0
# A message is padding and then its number between two bytes that no SSE framing or control event contains:
# the last number in what arrived says how far a subscriber is, also when messages were joined into one event.
MARK, END = b"#", b"~"
NUMBER_DIGITS = 8


def message(number: int) -> bytes:
    tail = b"%s%0*d%s" % (MARK, NUMBER_DIGITS, number, END)
    return b"m" * (MESSAGE_BYTES - len(tail)) + tail


class Fanout:
    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.port: int = spec["port"]
        self.sent_ns: list[int] = []
        self.waiting_for: list[int] = []
        self.last_ns: list[int] = []
        self.connected = 0
        self.cut = 0
        self.refused = 0
        self.bad_answer = ""
        self.writing = True
        self.closing = False

    async def run(self) -> dict:
        loop = asyncio.get_running_loop()
        self.prepare()
        transports = await self._subscribe()
        writer = Writer(self)
        transport, _ = await loop.create_connection(lambda: writer, "127.0.0.1", self.port)
        gc.collect()
        gc.disable()
        writer.send()
        await asyncio.sleep(self.spec["warmup_s"])
        first = len(self.sent_ns)
        cpu = proc.CpuWindow(self.spec["server_pid"])
        await asyncio.sleep(self.spec["window_s"])
        # A peer so slow that its window holds next to nothing gets more time, rather than no p99.
        patient_until = time.monotonic() + PATIENCE_SECONDS_MAX
        while len(self.sent_ns) - first < APPENDS_MIN and time.monotonic() < patient_until:
            await asyncio.sleep(0.05)
        shares = cpu.close()
        self.writing = False
        drained_by = time.monotonic() + DRAIN_SECONDS_MAX
        while any(self.waiting_for[first:]) and time.monotonic() < drained_by:
            await asyncio.sleep(0.02)
        whole = [n for n in range(first, len(self.sent_ns)) if not self.waiting_for[n]]
        delays_ns = sorted(self.last_ns[n] - self.sent_ns[n] for n in whole)
        self.closing = True
        for one in (transport, *transports):
            one.abort()
        return {
            "appends": len(self.sent_ns) - first,
            "p50_ms": generator.percentile_ms(delays_ns, 0.50),
            "p99_ms": generator.percentile_ms(delays_ns, 0.99),
            "max_ms": generator.percentile_ms(delays_ns, 1.0),
            **shares,
            "missing": sum(self.waiting_for[first:]),
            "refused": self.refused,
            "cut": self.cut,
        }

    # ---- what another kind of stream does in its own way ----

    def prepare(self) -> None:
        with Exchange(self.port) as exchange:
            exchange.create(self.spec["stream"], "text/plain")

    def tail_request(self) -> bytes:
        path = f"{STREAM_ROOT}{self.spec['stream']}?offset=now&live=sse"
        return request("GET", path, self.port, [("Accept", "text/event-stream")])

    def write_request(self, number: int) -> bytes:
        return append_request(self.spec["stream"], self.port, "text/plain", message(number))

    def answered(self, response: Response) -> None:
        if response.status // 100 != 2:
            self.refused += 1

    # ----

    async def _subscribe(self) -> list[asyncio.BaseTransport]:
        loop = asyncio.get_running_loop()
        raw = self.tail_request()
        count, transports = self.spec["subscribers"], []
        deadline = time.monotonic() + 30
        while len(transports) < count:
            for _ in range(min(CONNECT_AT_ONCE, count - len(transports))):
                transport, _ = await loop.create_connection(lambda: Subscriber(self), "127.0.0.1", self.port)
                transport.write(raw)
                transports.append(transport)
            while self.connected < len(transports):
                if self.bad_answer or self.cut or time.monotonic() > deadline:
                    why = self.bad_answer or f"{self.cut} were cut"
                    raise generator.Failed(f"{self.connected} of {count} subscribers are connected; {why}")
                await asyncio.sleep(0.005)
        return transports

    def delivered(self, first: int, last: int) -> None:
        """One subscriber now has messages first..last."""
        for number in range(first, last + 1):
            self.waiting_for[number] -= 1
            if not self.waiting_for[number]:
                self.last_ns[number] = time.perf_counter_ns()


class Writer(asyncio.Protocol):
    """Appends every interval, or as soon as the last append was answered when that took longer."""

    def __init__(self, fanout: Fanout) -> None:
        self._fanout = fanout
        self._reader = ResponseReader()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def send(self) -> None:
        fanout = self._fanout
        if not fanout.writing:
            return
        number = len(fanout.sent_ns)
        raw = fanout.write_request(number)
        fanout.waiting_for.append(fanout.spec["subscribers"])
        fanout.last_ns.append(0)
        fanout.sent_ns.append(time.perf_counter_ns())
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        for response in self._reader.feed(data):
            self._fanout.answered(response)
            spent_s = (time.perf_counter_ns() - self._fanout.sent_ns[-1]) / 1e9
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._fanout.spec["interval_ms"] / 1e3 - spent_s), self.send)


class Subscriber(asyncio.Protocol):
    __slots__ = ("_fanout", "_held", "_in_body", "_next")

    def __init__(self, fanout: Fanout) -> None:
        self._fanout = fanout
        self._held = b""
        self._in_body = False
        self._next = 0

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
            self._held = b""
        if not self._in_body:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._held = head
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._fanout.bad_answer = repr(head[:200])
                return
            self._in_body = True
            self._fanout.connected += 1
        mark, end = data.rfind(MARK), data.rfind(END)
        if mark > end:  # a number cut in two by the network
            self._held = data[mark:]
        if end >= 0:
            number = int(data[end - NUMBER_DIGITS : end])
            self._fanout.delivered(self._next, number)
            self._next = number + 1

    def connection_lost(self, _: Exception | None) -> None:
        if not self._fanout.closing:
            self._fanout.cut += 1


if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Fanout(spec).run()))
