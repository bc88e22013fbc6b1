"""The load of B14's queues: a process that fills a queue and then works it off with N workers, one connection each.

Owns the timed window. A worker takes a batch of jobs, acknowledges it, and takes the next. Two doors: a queue topic
over HTTP, and a Redis list (`BLMOVE` to a list of jobs in work, then `LREM` from there). Run by `generator.run`.

The queue never runs empty while it is measured: the window ends when as few jobs are left as the workers could take.
"""

import asyncio
import gc
import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import uvloop

from bench import generator, proc
from bench.wire import Exchange, ResponseReader, request

TOPIC = "bench-jobs"
READY, IN_WORK = "bench:ready", "bench:in-work"
JOB_BYTES = 100
FILL_HTTP_RECORDS, FILL_REDIS_VALUES = 5_000, 1_000
WAIT_S = 1
ERRORS_SHOWN = 3
JSON_BODY = [("Content-Type", "application/json")]


class Job(msgspec.Struct):
    """Both fields are sent back as they came."""

    seq: msgspec.Raw
    lease_id: msgspec.Raw


class Claimed(msgspec.Struct):
    jobs: list[Job]


class Acked(msgspec.Struct):
    acked: list[int]


read_claimed = msgspec.json.Decoder(Claimed).decode
read_acked = msgspec.json.Decoder(Acked).decode


def job(number: int) -> str:
    """Every job is another one, and all have the same length."""
    return f"job-{number:09d}-".ljust(JOB_BYTES, "x")


class Load:
    """One closed-loop run, as told by the spec (see `queues.load_spec` for its fields)."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.port: int = spec["port"]
        self.batch: int = spec["batch"]
        self.jobs: int = spec["jobs"]
        self.claimed = self.done = 0
        self.empty_claims = 0
        self.latencies_ns: list[int] = []
        self.errors: list[str] = []
        self.lost = 0
        self.running = True
        self.over = asyncio.Event()
        self._claimed_max = spec["jobs"] - spec["workers"] * spec["batch"]

    async def run(self) -> dict:
        spec = self.spec
        door = DOORS[spec["door"]]
        door.fill(self)
        loop = asyncio.get_running_loop()
        workers: list[Worker] = [door(self) for _ in range(spec["workers"])]
        for worker in workers:
            await loop.create_connection(lambda worker=worker: worker, "127.0.0.1", self.port)
        gc.collect()
        gc.disable()
        for worker in workers:
            worker.claim()
        await self._wait(spec["warmup_s"])
        if self.over.is_set():
            raise generator.Failed(f"the run ended within its warm-up, {self.done} jobs done: {self.errors}")
        self.latencies_ns.clear()
        done, self.empty_claims = self.done, 0
        cpu = proc.CpuWindow(spec["server_pid"])
        await self._wait(spec["window_s"])
        shares = cpu.close()
        pairs, latencies_ns = self.done - done, sorted(self.latencies_ns)
        self.running = False
        for worker in workers:
            worker.transport.abort()
        if self.errors:
            raise generator.Failed(f"the server refused requests: {self.errors}")
        return {
            "pairs": pairs,
            "pairs_per_s": round(pairs / cpu.elapsed_s, 1),
            # From a claim sent until its acknowledgement is answered.
            "p50_ms": generator.percentile_ms(latencies_ns, 0.50),
            "p99_ms": generator.percentile_ms(latencies_ns, 0.99),
            "server_cpu_us_per_pair": round(cpu.server_s * 1e6 / pairs, 2) if pairs else None,
            "window_s": round(cpu.elapsed_s, 2),
            **shares,
            "empty_claims": self.empty_claims,
            "connections_lost": self.lost,
        }

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.over.wait(), seconds)
        except TimeoutError:
            pass

    def took(self, jobs: int) -> None:
        self.claimed += jobs
        if self.claimed >= self._claimed_max:
            self.over.set()

    def finished(self, jobs: int, sent_ns: int) -> None:
        self.done += jobs
        self.latencies_ns.append(time.perf_counter_ns() - sent_ns)

    def refused(self, answer: bytes) -> None:
        if len(self.errors) < ERRORS_SHOWN:
            self.errors.append(answer[:300].decode("latin-1"))
        self.over.set()


class Worker(asyncio.Protocol, ABC):
    """One connection with one request, or one pipeline of commands, in flight."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sent_ns = 0
        self.taken = 0
        """Jobs that wait for their acknowledgement; none: a claim is under way."""

    @staticmethod
    @abstractmethod
    def fill(load: Load) -> None:
        """Makes the queue and puts all jobs of the run into it."""

    @abstractmethod
    def claim(self) -> None:
        """Sends the next claim."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        if self.load.running:
            self.load.lost += 1

    def acknowledged(self) -> None:
        self.load.finished(self.taken, self.sent_ns)
        self.taken = 0
        if self.load.running:
            self.claim()


class TopicWorker(Worker):
    """A worker of a queue topic."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._reader = ResponseReader()
        self._claim = claim_request(load.port, load.batch)

    @staticmethod
    def fill(load: Load) -> None:
        port = load.port
        config = {"durability": "fsync", "queue": {"leases_durable": load.spec["leases_durable"]}}
        with Exchange(port) as exchange:
            made = exchange.send(topic_request("PUT", TOPIC, port, config))
            if made.status != 201:
                raise generator.Failed(f"the queue was not made: {made.status} {made.body[:300]!r}")
            for first in range(0, load.jobs, FILL_HTTP_RECORDS):
                until = min(first + FILL_HTTP_RECORDS, load.jobs)
                body = {"records": [{"data": job(n)} for n in range(first, until)], "disable_backpressure": True}
                answer = exchange.send(topic_request("POST", f"{TOPIC}/records", port, body))
                if answer.status != 200:
                    raise generator.Failed(f"jobs were refused: {answer.status} {answer.body[:300]!r}")

    def claim(self) -> None:
        self.sent_ns = time.perf_counter_ns()
        self.transport.write(self._claim)

    def data_received(self, data: bytes) -> None:
        for response in self._reader.feed(data):
            if response.status != 200:
                self.load.refused(response.body)
            elif self.taken:
                if len(read_acked(response.body).acked) != self.taken:
                    self.load.refused(response.body)
                else:
                    self.acknowledged()
            elif jobs := read_claimed(response.body).jobs:
                self.taken = len(jobs)
                self.load.took(self.taken)
                self.transport.write(ack_request(self.load.port, jobs))
            else:
                self.load.empty_claims += 1
                self.claim()


def topic_request(method: str, topic_and_verb: str, port: int, body: object) -> bytes:
    return request(method, f"/v0/topics/{topic_and_verb}", port, JSON_BODY, json.dumps(body).encode())


def claim_request(port: int, batch: int) -> bytes:
    return topic_request("POST", f"{TOPIC}/claim", port, {"max": batch, "wait_ms": WAIT_S * 1000})


def ack_request(port: int, jobs: Sequence[Job]) -> bytes:
    # Built by hand: encoding objects takes as long as all else that a worker does here.
    acks = b",".join([b'{"seq":%b,"lease_id":%b}' % (bytes(one.seq), bytes(one.lease_id)) for one in jobs])
    return b"%b%d\r\n\r\n%b" % (_ack_head(port), len(acks) + 11, b'{"acks":[%b]}' % acks)


_ACK_HEADS: dict[int, bytes] = {}


def _ack_head(port: int) -> bytes:
    if port not in _ACK_HEADS:
        whole = request("POST", f"/v0/topics/{TOPIC}/ack", port, JSON_BODY, b"")
        _ACK_HEADS[port] = whole.removesuffix(b"0\r\n\r\n")
    return _ACK_HEADS[port]


class ListWorker(Worker):
    """A worker of a Redis list. Redis moves one value a command: for a batch it gets as many in one pipeline."""

    VALUE_REPLY_BYTES = len(f"${JOB_BYTES}\r\n") + JOB_BYTES + 2
    REMOVED = b":1\r\n"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._held = b""
        self._claim = command("BLMOVE", READY, IN_WORK, "RIGHT", "LEFT", str(WAIT_S)) * load.batch
        self._claimed_bytes = self.VALUE_REPLY_BYTES * load.batch
        self._removed = self.REMOVED * load.batch

    @staticmethod
    def fill(load: Load) -> None:
        with socket.create_connection(("127.0.0.1", load.port), timeout=60) as link:
            for first in range(0, load.jobs, FILL_REDIS_VALUES):
                until = min(first + FILL_REDIS_VALUES, load.jobs)
                link.sendall(command("LPUSH", READY, *map(job, range(first, until))))
                if (answer := link.recv(4096)) != b":%d\r\n" % until:
                    raise generator.Failed(f"jobs were refused: {answer[:300]!r}")

    def claim(self) -> None:
        self.sent_ns = time.perf_counter_ns()
        self.transport.write(self._claim)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self.taken:
            if len(self._held) >= len(self._removed):
                if self._held != self._removed:
                    self.load.refused(self._held)
                    return
                self._held = b""
                self.acknowledged()
        elif self._held[:2] == b"$1" and len(self._held) >= self._claimed_bytes:
            self.taken = self.load.batch
            self.load.took(self.taken)
            values, self._held = values_of(self._held), b""
            self.transport.write(b"".join([remove_command(value) for value in values]))
        elif self._held[:2] != b"$1"[: len(self._held)]:  # an error, or nothing within the wait
            self.load.refused(self._held)


def command(*words: str) -> bytes:
    return "".join([f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]).encode()


def values_of(replies: bytes) -> list[bytes]:
    """The values in replies that all have the length of a job."""
    size = ListWorker.VALUE_REPLY_BYTES
    return [replies[end - 2 - JOB_BYTES : end - 2] for end in range(size, len(replies) + 1, size)]


_REMOVE_HEAD = command("LREM", IN_WORK, "1", "").removesuffix(b"$0\r\n\r\n") + b"$%d\r\n" % JOB_BYTES


def remove_command(value: bytes) -> bytes:
    return b"%b%b\r\n" % (_REMOVE_HEAD, value)


DOORS: dict[str, type[Worker]] = {"topic": TopicWorker, "list": ListWorker}

if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Load(spec).run()))
