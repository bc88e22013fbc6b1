"""The pipelined load of B7: a process of its own that keeps N connections busy, a fixed pipeline in flight on each.

Owns the timed window; speaks RESP framing, which S3P shares, and knows no peer by name. Run by `generator.run`.
"""

import asyncio
import gc
import socket
import time

import uvloop

from bench import generator, proc

ERRORS_SHOWN = 3


class Load:
    """One closed-loop run, as told by the spec (see `s3p.load_spec` for its fields)."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.port: int = spec["port"]
        self.depth: int = spec["depth"]
        self.latencies_ns: list[int] = []
        self.errors: list[str] = []
        self.lost = 0
        self.running = True

    async def run(self) -> dict:
        spec = self.spec
        self._prepare()
        pipelines = [one.encode("latin-1") for one in spec["pipelines"]]
        loop = asyncio.get_running_loop()
        clients = [Client(self, pipeline) for pipeline in pipelines]
        for client in clients:
            await loop.create_connection(lambda client=client: client, "127.0.0.1", self.port)
        gc.collect()
        gc.disable()
        for client in clients:
            client.fire()
        await asyncio.sleep(spec["warmup_s"])
        self.latencies_ns.clear()
        cpu = proc.CpuWindow(spec["server_pid"])
        await asyncio.sleep(spec["window_s"])
        shares = cpu.close()
        latencies_ns = sorted(self.latencies_ns)
        self.running = False
        for client in clients:
            client.transport.abort()
        if self.errors:
            raise generator.Failed(f"the server refused commands: {self.errors}")
        commands = len(latencies_ns) * self.depth
        return {
            "commands": commands,
            "commands_per_s": round(commands / cpu.elapsed_s, 1),
            "records_per_s": round(commands * spec["records"] / cpu.elapsed_s, 1),
            # From the first byte of a pipeline to the last reply of it.
            "p50_ms": generator.percentile_ms(latencies_ns, 0.50),
            "p99_ms": generator.percentile_ms(latencies_ns, 0.99),
            "server_cpu_us_per_command": round(cpu.server_s * 1e6 / commands, 2) if commands else None,
            **shares,
            "connections_lost": self.lost,
        }

    def _prepare(self) -> None:
        """Sends what has to come first (creating the streams), one reply line each."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            for one in self.spec["before"]:
                connection.sendall(one.encode("latin-1"))
                answer = connection.recv(4096)
                if not answer.startswith(b"+OK"):
                    raise generator.Failed(f"{one!r} was answered {answer!r}")


class Client(asyncio.Protocol):
    """One connection: the same pipeline again and again, each when the one before it is answered.

    A reply is two lines, `$15` and the id: that many line ends are waited for, which is all the parsing there is.
    """

    __slots__ = ("_lines", "_load", "_pipeline", "_sent_ns", "_wanted", "_write", "transport")

    def __init__(self, load: Load, pipeline: bytes) -> None:
        self._load = load
        self._pipeline = pipeline
        self._wanted = 2 * load.depth
        self._lines = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._write = transport.write

    def fire(self) -> None:
        self._sent_ns = time.perf_counter_ns()
        self._write(self._pipeline)

    def data_received(self, data: bytes) -> None:
        if data[:1] == b"-" or b"\n-" in data:
            if len(self._load.errors) < ERRORS_SHOWN:
                self._load.errors.append(data[:200].decode("latin-1"))
            return
        self._lines += data.count(b"\n")
        if self._lines >= self._wanted:
            load, now_ns = self._load, time.perf_counter_ns()
            load.latencies_ns.append(now_ns - self._sent_ns)
            self._lines = 0
            if load.running:
                self._sent_ns = now_ns
                self._write(self._pipeline)

    def connection_lost(self, _: Exception | None) -> None:
        if self._load.running:
            self._load.lost += 1


if __name__ == "__main__":
    generator.answer(lambda spec: uvloop.run(Load(spec).run()))
