"""NATS servers of a local cluster: one, or several that have joined each other, as a log in JetStream needs them.

Owns their configuration files. A server keeps its name and its files from one life to the next, so it may be killed and
started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from headwater.cluster_dev.binaries import NATS_SERVER, program
from headwater.cluster_dev.child import Child
from headwater.cluster_dev.loopback import document, environment
from headwater.cluster_dev.reserved_ports import HOST, ReservedPorts

READY_S_MAX = 60.0
FILE_BYTES_MAX = "10GB"


class NatsServer(Child):
    def __init__(self, i: int, directory: Path, log: Path, spawner: Executor, ports: ReservedPorts) -> None:
        super().__init__(f"nats-{i}", log, spawner)
        self.directory = directory
        self.port, self.monitor_port, self.route_port = ports.take(), ports.take(), ports.take()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def monitor(self) -> str:
        return f"http://{HOST}:{self.monitor_port}"

    def configure(self, routes: Sequence[str]) -> None:
        """Writes its file; `routes` are the addresses at which the servers find each other, none when it is alone."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [
            f"server_name: {self.name}",
            f"listen: {self.address}",
            f"http: {HOST}:{self.monitor_port}",
            f'jetstream {{ store_dir: "{self.directory / "jetstream"}", sync_interval: always, '
            f"max_file: {FILE_BYTES_MAX} }}",
        ]
        if routes:
            peers = ", ".join(f"nats-route://{route}" for route in routes)
            lines.append(f"cluster {{ name: local, listen: {HOST}:{self.route_port}, routes: [{peers}] }}")
        self._file.write_text("\n".join(lines) + "\n")

    def start(self, wait: bool = True) -> None:
        """Returns when it has joined the others and holds what it should; that takes most of them to run."""
        self.spawn([program(NATS_SERVER), "-c", str(self._file)], environment())
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        self.wait_until(self.healthy, "ready", READY_S_MAX)

    def healthy(self) -> bool:
        answer = document(self.monitor, "/healthz")
        return answer is not None and answer.get("status") == "ok"

    def meta_leader(self) -> str:
        """The server that leads JetStream, as this one sees it; empty when there is none."""
        answer = document(self.monitor, "/jsz") or {}
        return str(answer.get("meta_cluster", {}).get("leader", ""))

    def leader_of(self, stream: str) -> str:
        """The server that leads the stream, as this one sees it; empty when it does not know."""
        answer = document(self.monitor, "/jsz?streams=1") or {}
        for account in answer.get("account_details") or []:
            for one in account.get("stream_detail") or []:
                if one["name"] == stream:
                    return str(one.get("cluster", {}).get("leader") or "")
        return ""

    @property
    def _file(self) -> Path:
        return self.directory / "nats.conf"


class NatsServers(list[NatsServer]):
    """All of them; an empty list when the log needs none."""

    @property
    def url(self) -> str:
        """What a node's setting `cluster` says."""
        return "nats://" + ",".join(server.address for server in self)

    def configure(self) -> None:
        routes = [f"{HOST}:{server.route_port}" for server in self] if len(self) > 1 else []
        for server in self:
            server.configure(routes)

    def start(self) -> None:
        """All together: a server alone does not get ready. Raises CannotRun."""
        for server in self:
            if not server.running:
                server.start(wait=False)
        for server in self:
            server.wait_ready()
        if len(self) > 1:
            self[0].wait_until(lambda: bool(self[0].meta_leader()), "led by one of the NATS servers", READY_S_MAX)

    def leader_of(self, stream: str) -> NatsServer | None:
        """The server that leads the stream, as those that answer see it; None when they do not agree."""
        leaders = {server.leader_of(stream) for server in self if server.running and not server.paused} - {""}
        return next((server for server in self if leaders == {server.name}), None)
