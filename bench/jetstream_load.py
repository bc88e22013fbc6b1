"""The load on bare JetStream: N clients that publish to streams with three copies and await each answer.

Owns the few words of the NATS protocol that this takes, so that the client costs as little as that of `load`. Run by
`generator.run`.
"""

import asyncio
import gc
import json
import os
import time

import uvloop

from bench import generator, proc

REPLICAS = 3
MAKE_TRIES, MAKE_AGAIN_S = 60, 0.5
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


class Publisher(asyncio.Protocol):
    """One connection with one message in flight."""

    def __init__(self, load: "Load", subject: str, inbox: str, body: bytes) -> None:
        self._load = load
        self._inbox = inbox
        self._message = f"PUB {subject} {inbox} {len(body)}\r\n".encode() + body + b"\r\n"
        self._held = b""
        self._sent_ns = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.write(CONNECT + f"SUB {self._inbox} 1\r\nPING\r\n".encode())

    def ask(self, subject: str, body: bytes) -> None:
        self.transport.write(f"PUB {subject} {self._inbox} {len(body)}\r\n".encode() + body + b"\r\n")

    def fire(self) -> None:
        self._load.in_flight += 1
        self._sent_ns = time.perf_counter_ns()
        self.transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            if data.startswith((b"MSG ", b"HMSG "), at):
                size = int(data[at:end].rpartition(b" ")[2])
                if len(data) < end + 4 + size:
                    break
                self._answered(data[end + 2 : end + 2 + size])
                at = end + 4 + size
                continue
            if data.startswith(b"PING", at):
                self.transport.write(b"PONG\r\n")
            elif data.startswith(b"PONG", at) and not self.ready.done():
                self.ready.set_result(None)
            elif data.startswith(b"-ERR", at):
                self._load.errors.append(data[at:end].decode())
            at = end + 2
        self._held = data[at:]

    def _answered(self, body: bytes) -> None:
        if self._load.on_answer is not None:
            self._load.on_answer(json.loads(body))
            return
        if b"stream_create_response" in body:
            return  # late, of a try that had been given up
        self._load.in_flight -= 1
        if b'"seq"' in body:
            self._load.latencies_ns.append(time.perf_counter_ns() - self._sent_ns)
        else:
            self._load.errors.append(body.decode(errors="replace"))
        if self._load.running:
            self.fire()


class Load:
    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.latencies_ns: list[int] = []
        self.errors: list[str] = []
        self.in_flight = 0
        self.running = True
        self.on_answer = None

    async def connect(self, n: int) -> Publisher:
        spec = self.spec
        subject = f"bare.{n % spec['streams']}"
        publisher = Publisher(self, subject, f"_INBOX.bench{os.getpid()}-{n}", spec["body"].encode())
        port = spec["ports"][n % len(spec["ports"])]
        await asyncio.get_running_loop().create_connection(lambda: publisher, "127.0.0.1", port)
        await publisher.ready
        return publisher

    async def make_streams(self, publisher: Publisher) -> None:
        for n in range(self.spec["streams"]):
            config = {"name": f"bare-{n}", "subjects": [f"bare.{n}"], "num_replicas": REPLICAS, "storage": "file"}
            for left in reversed(range(MAKE_TRIES)):
                answered = asyncio.get_running_loop().create_future()
                self.on_answer = answered.set_result
                publisher.ask(f"$JS.API.STREAM.CREATE.bare-{n}", json.dumps(config).encode())
                found = await asyncio.wait_for(answered, 30)
                if "error" not in found:
                    break
                if not left:
                    raise generator.Failed(f"the stream bare-{n} cannot be made: {found['error']}")
                await asyncio.sleep(MAKE_AGAIN_S)
        self.on_answer = None

    async def run(self) -> dict:
        publishers = [await self.connect(n) for n in range(self.spec["connections"])]
        await self.make_streams(publishers[0])
        gc.collect()
        gc.disable()
        for publisher in publishers:
            publisher.fire()
        await asyncio.sleep(self.spec["warmup_s"])
        self.latencies_ns.clear()
        cpu = proc.CpuWindow(self.spec["server_pid"], self.spec["parts"])
        await asyncio.sleep(self.spec["window_s"])
        result = {**cpu.close(), **generator.rates(self.latencies_ns, cpu)}
        self.running = False
        if self.errors:
            raise generator.Failed(f"JetStream refused: {self.errors[0]}")
        for publisher in publishers:
            publisher.transport.close()
        return {**result, "refused": {}, "connections_lost": 0}


if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Load(spec).run()))
