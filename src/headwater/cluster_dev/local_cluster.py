"""A cluster on this machine: its nodes, the servers of its log and its object store, in one directory.

Owns the order in which parts start and stop, and what is shared by all nodes. All its processes end with this one.

    directory/
      cluster.json      what the cluster was made with; it cannot be started as another
      lock              locked while somebody runs the cluster
      secret            what its nodes know each other by
      logs/PART.log     output of each process
      node-I/data       a node's data directory
      nats-I/           a NATS server's configuration and files
      s3/               SeaweedFS's files
      shared/           without S3: lake, registrations and, for `objects`, the log
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from headwater.cluster_dev.binaries import NATS_SERVER, WEED, program, require_nats_client
from headwater.cluster_dev.child import CannotRun
from headwater.cluster_dev.nats_servers import NatsServer, NatsServers
from headwater.cluster_dev.node_process import COMMAND, NodeProcess
from headwater.cluster_dev.reserved_ports import ReservedPorts
from headwater.cluster_dev.s3_server import BUCKET, S3Server

SECRET_BYTES = 32
REPLICAS_MAX = 3
READY_S_MAX = 120.0
POLL_S = 0.1


class LocalCluster:
    """Starts with `start`, ends with `close`; as a context manager it does both. For one thread at a time.

    `nodes`, `nats` and `s3` are its parts: each can be started, stopped, killed, paused and resumed by itself. What one
    node alone is to have (`command`, `environment`, `flags`) is set on it before it starts.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        log: Literal["jetstream", "objects"] = "jetstream",
        groups: int = 16,
        nats: int = 3,
        s3: bool = True,
        port: int = 0,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """`port`: the first node's HTTP port, the next ones follow; 0: any. `nats`: servers, for the log `jetstream`.

        `flags`, `environment` and `command` are for every node. Nothing is started yet. Raises CannotRun.
        """
        self.directory = Path(directory).resolve()
        self.log = log
        self.groups = groups
        self.nodes: list[NodeProcess] = []
        self.nats = NatsServers()
        self.s3: S3Server | None = None
        self._flags, self._environment, self._command = flags, dict(environment or {}), command
        if log == "jetstream":
            program(NATS_SERVER)
            require_nats_client()
        if s3:
            program(WEED)
        nats = nats if log == "jetstream" else 0
        self._lock = self._locked({"log": log, "groups": groups, "nats": nats, "s3": s3})
        self._ports = ReservedPorts()
        self._spawner = ThreadPoolExecutor(1, "spawner")
        try:
            # Those that were asked for come first, so that none of the others is one of them.
            http_ports = [self._ports.take(port + i if port else 0) for i in range(nodes)]
            for i in range(nats):
                self.nats.append(NatsServer(i, *self._place(f"nats-{i}")))
            if s3:
                self.s3 = S3Server(*self._place("s3"))
            for taken in http_ports:
                self._add_node(taken)
        except BaseException:
            self.close()
            raise

    def add_node(self) -> NodeProcess:
        """One more, which is not started. It joins a cluster that runs."""
        return self._add_node(self._ports.take())

    def _add_node(self, http_port: int) -> NodeProcess:
        i = len(self.nodes)
        node = NodeProcess(i, http_port, self.node_flags(), *self._place(f"node-{i}"))
        credentials = {} if self.s3 is None else self.s3.credentials
        node.flags, node.command, node.environment = self._flags, self._command, {**credentials, **self._environment}
        self.nodes.append(node)
        return node

    def _place(self, part: str) -> tuple[Path, Path, Executor, ReservedPorts]:
        return self.directory / part, self.directory / "logs" / f"{part}.log", self._spawner, self._ports

    # ---- all of it -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when every node is ready, as `wait_ready` has it. Raises CannotRun, with nothing left running."""
        try:
            self.start_servers()
            for node in self.nodes:
                node.start(wait=False)
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def start_servers(self) -> None:
        """Everything but the nodes: what they need to start at all. Parts that run already are left alone."""
        self._write_secret()
        (self.directory / "shared").mkdir(exist_ok=True)
        self.nats.configure()
        if self.s3 is not None and not self.s3.running:
            self.s3.start(wait=False)
        self.nats.start()
        if self.s3 is not None:
            self.s3.wait_ready()

    def wait_ready(self, within_s: float = READY_S_MAX, balanced: bool = False) -> None:
        """Returns when the nodes that run see each other and agree on an owner of every group. Raises CannotRun.

        Each says of itself that it is ready before that: it may have joined, and others not know it yet. `balanced`: it
        waits until each group is with the node that is first in line for it, so that none is about to be handed over.
        """
        nodes = self._answering()
        for node in nodes:
            node.wait_listening()
        deadline_s = time.monotonic() + within_s
        while (reason := self._unready(nodes, balanced)) is not None:
            for node in nodes:
                if not node.running:
                    raise CannotRun(f"{node.name} {node.state} before the cluster was ready\n{node.tail()}")
            if time.monotonic() > deadline_s:
                raise CannotRun(f"the cluster was not ready within {within_s:g} s: {reason}")
            time.sleep(POLL_S)

    def _unready(self, nodes: Sequence[NodeProcess], balanced: bool) -> str | None:
        """What is missing yet; None when nothing is."""
        addresses = {node.public_address for node in nodes}
        owners: dict[int, int] | None = None
        for node in nodes:
            status = node.status()
            if status is None or not node.ready():
                return f"{node.name} does not say that it is ready"
            alive = {known["public_address"] for known in status["nodes"] if known["alive"]}
            if not addresses <= alive:
                return f"{node.name} does not see {', '.join(sorted(addresses - alive))}"
            numbers = {known["node"] for known in status["nodes"] if known["public_address"] in addresses}
            found = {group["group"]: group["owner"] for group in status["groups"]}
            # An owner that was killed a moment ago is one that others may still believe in.
            without = [group for group, owner in found.items() if owner not in numbers]
            if without:
                return f"{node.name} knows no owner that runs of groups {without}"
            if owners is not None and owners != found:
                return "the nodes do not agree on the owners of the groups"
            owners = found
            elsewhere = [group["group"] for group in status["groups"] if [group["owner"]] != group["in_line"][:1]]
            if balanced and elsewhere:
                return f"groups {elsewhere} are not with the node that is first in line"
        return None

    def _answering(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.running and not node.paused]

    def stop(self) -> None:
        """Tells every part to stop, the nodes first; returns when all have ended. One that takes too long is killed."""
        for parts in (self.nodes, self.nats):
            for part in parts:
                part.terminate()
            for part in parts:
                if not part.ended(part.stop_s_max):
                    part.kill()
        if self.s3 is not None:
            self.s3.stop()

    def kill(self) -> None:
        for part in self.parts:
            part.kill()

    def close(self) -> None:
        """Whatever runs is killed, ports and directory are given up. `stop` before it ends the parts in order."""
        self.kill()
        self._ports.release()
        self._spawner.shutdown()
        self._lock.close()

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def parts(self) -> list[NodeProcess | NatsServer | S3Server]:
        """Nodes first, and what they need behind them."""
        return [*self.nodes, *self.nats, *([self.s3] if self.s3 is not None else [])]

    # ---- nodes ---------------------------------------------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def start_node(self, i: int, wait: bool = True) -> None:
        """Returns when its doors are open and it says that the cluster is well; at once without `wait`."""
        self.nodes[i].start(wait)

    def stop_node(self, i: int) -> None:
        self.nodes[i].stop()

    def kill_node(self, i: int) -> None:
        self.nodes[i].kill()

    def pause_node(self, i: int) -> None:
        self.nodes[i].pause()

    def resume_node(self, i: int) -> None:
        self.nodes[i].resume()

    def status(self) -> dict[str, Any] | None:
        """The cluster as the first node that answers sees it (`GET /__headwater/cluster`); None when none answers."""
        for node in self._answering():
            if (found := node.status()) is not None:
                return found
        return None

    def node_numbered(self, number: int) -> NodeProcess:
        """The process of the node that has the number in the cluster; numbers are taken in no certain order.

        Raises LookupError when no node that answers knows it.
        """
        for known in (self.status() or {}).get("nodes", []):
            for node in self.nodes:
                if known["node"] == number and node.public_address == known["public_address"]:
                    return node
        raise LookupError(f"no process here is node {number} of the cluster")

    def node_flags(self) -> list[str]:
        """What every node of this cluster is told, for one that is started by other means too."""
        shared = self.directory / "shared"
        if self.s3 is not None:
            lake = ["--lake", f"s3://{BUCKET}/lake", "--lake-endpoint", self.s3.endpoint]
        else:
            lake = ["--lake", str(shared / "lake")]
        if self.log == "jetstream":
            monitors = ",".join(server.monitor for server in self.nats)
            replicas = min(REPLICAS_MAX, len(self.nats))
            log = ["--cluster", self.nats.url, "--cluster-monitors", monitors, "--cluster-replicas", str(replicas)]
        elif self.s3 is not None:
            log = ["--cluster", f"s3://{BUCKET}/cluster"]
        else:
            log = ["--cluster", (shared / "cluster").as_uri()]
        return [*log, *lake, "--cluster-secret-file", str(self._secret), "--groups", str(self.groups)]

    # ---- the directory -------------------------------------------------------------------------------------------

    @property
    def _secret(self) -> Path:
        return self.directory / "secret"

    def _write_secret(self) -> None:
        with suppress(FileExistsError):
            descriptor = os.open(self._secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(SECRET_BYTES))

    def _locked(self, made_with: dict[str, Any]) -> IO[bytes]:
        """The directory is this object's until the file is closed. Raises CannotRun."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = (self.directory / "lock").open("ab")
        except OSError as error:
            raise CannotRun(f"cannot use the directory {self.directory}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._compare(made_with)
        except BlockingIOError:
            lock.close()
            raise CannotRun(f"another process runs a cluster in {self.directory}: stop that one") from None
        except CannotRun:
            lock.close()
            raise
        return lock

    def _compare(self, made_with: dict[str, Any]) -> None:
        description = self.directory / "cluster.json"
        try:
            before = json.loads(description.read_bytes())
        except FileNotFoundError:
            description.write_text(json.dumps(made_with) + "\n")
            return
        if before != made_with:
            shown = ", ".join(f"{name} {value}" for name, value in before.items())
            raise CannotRun(f"{self.directory} holds a cluster with {shown}: ask for that, or name another directory")
