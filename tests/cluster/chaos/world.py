"""The cluster under test, as faults and clients of a chaos run see it: parts by name, ways between them, clocks.

Owns where each part runs and what its nodes are told. With namespaces each part has a network of its own; without, all
are on loopback and no way can be cut.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from xxhash import xxh3_64_intdigest

from headwater.cluster_dev.child import CannotRun, Child
from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.loopback import ask
from headwater.cluster_dev.node_process import NodeProcess
from tests.cluster.chaos.connections import Address
from tests.cluster.chaos.network import Network
from tests.cluster.chaos.planted import SetClock

REPOSITORY = Path(__file__).resolve().parents[3]
WELL_S_MAX = 90.0
FLAGS = (
    *("--s3p", "off", "--webhook-allow-local"),
    # A live read tells soon that it is still there.
    *("--long-poll-timeout-ms", "2000", "--sse-keepalive-ms", "1000", "--sse-lifetime-ms", "30000"),
    # Checkpoints and snapshots fall between faults, and logs are purged while they are followed.
    *("--checkpoint-interval-ms", "2000"),
)


class World:
    def __init__(
        self,
        directory: Path,
        *,
        log: str,
        nodes: int = 3,
        groups: int = 8,
        s3: bool = False,
        network: Network | None = None,
        fault: str | None = None,
        source: Path | None = None,
    ) -> None:
        self.network = network
        self.fault = fault
        self.cluster = LocalCluster(directory, nodes=nodes, log=log, groups=groups, s3=s3)  # type: ignore[arg-type]
        self.clocks = [SetClock(directory / f"clock-{i}") for i in range(nodes)]
        if network is not None:
            for part in self.cluster.parts:
                place = network.place(part.name)
                part.host, part.wrapper = place.host, place.wrapper
        self.present_source = source or REPOSITORY / "src"
        self.use_source(self.present_source)

    def use_source(self, source: Path, *some: int) -> None:
        """Which code the nodes run from their next start on."""
        path = os.pathsep.join((str(source), str(REPOSITORY)))
        self.source = source
        # In their networks nodes do not listen on loopback. A source of before there were keys knows no such flag.
        knows_keys = (source / "headwater" / "access_settings.py").exists()
        is_open = ("--open-to-everyone",) if self.network is not None and knows_keys else ()
        for i in some or range(len(self.nodes)):
            node = self.nodes[i]
            # Once more: they are made before it is known where parts listen.
            node.flags = (*self.cluster.node_flags(), *FLAGS, *is_open)
            planted = ["--fault", self.fault] if self.fault else []
            node.command = (
                *(sys.executable, "-m", "tests.cluster.chaos.planted"),
                *("--clock", str(self.clocks[i].path), *planted),
            )
            node.environment = {**node.environment, "PYTHONPATH": path}

    # ---- parts ---------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeProcess]:
        return self.cluster.nodes

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.cluster.parts]

    @property
    def addresses(self) -> list[Address]:
        return [Address(node.name, node.host, node.port) for node in self.nodes]

    def part(self, name: str) -> Child:
        return next(part for part in self.cluster.parts if part.name == name)

    def owner_of(self, stream: str) -> int | None:
        """The node that owns a stream, by its place in `nodes`, as the first one that answers sees it."""
        status = self.cluster.status()
        if status is None:
            return None
        group = xxh3_64_intdigest(stream.encode()) % self.cluster.groups
        owner = next((one["owner"] for one in status["groups"] if one["group"] == group), None)
        address = next((one["address"] for one in status["nodes"] if one["node"] == owner), None)
        return next((i for i, node in enumerate(self.nodes) if node.address == address), None)

    def groups_of(self, i: int) -> list[int]:
        status = self.cluster.status() or {"nodes": []}
        return next((one["groups"] for one in status["nodes"] if one["address"] == self.nodes[i].address), [])

    def number_of(self, i: int) -> int | None:
        """The number that the cluster knows a node by."""
        status = self.cluster.status() or {"nodes": []}
        return next((one["node"] for one in status["nodes"] if one["address"] == self.nodes[i].address), None)

    def drain(self, i: int, draining: bool) -> bool:
        body = b'{"draining": %s}' % (b"true" if draining else b"false")
        return ask(self.nodes[i].url, "/__headwater/cluster/drain", "POST", body, 10.0).status == 200

    def log_leader(self) -> str | None:
        """The NATS server that leads the log of group 0."""
        leader = self.cluster.nats.leader_of("headwater-0")
        return None if leader is None else leader.name

    # ---- all of it -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.cluster.start()
        self.wait_well()

    def mend(self) -> None:
        """Ways are open, clocks are right, whatever was paused goes on, whatever is down starts."""
        if self.network is not None:
            self.network.heal()
        for clock in self.clocks:
            clock.set_ms(0)
        for part in self.cluster.parts:
            if part.paused:
                part.resume()
        # Servers first: a node does not begin without its log.
        for part in reversed(self.cluster.parts):
            if not part.running:
                part.start(wait=False)  # type: ignore[attr-defined]

    def wait_well(self, within_s: float = WELL_S_MAX) -> None:
        """Returns when every node runs and says that the cluster is well. Raises CannotRun, saying which does not."""
        deadline_s = time.monotonic() + within_s
        for server in self.cluster.nats:
            server.wait_ready()
        if self.cluster.s3 is not None:
            self.cluster.s3.wait_ready()
        for node in self.nodes:
            while not self.is_well(node):
                if not node.running:
                    raise CannotRun(f"{node.name} ended with {node.exit_code}\n{node.tail()}")
                if time.monotonic() > deadline_s:
                    raise CannotRun(f"{node.name} was not well again within {within_s:g} s\n{node.tail()}")
                time.sleep(0.05)

    def is_well(self, node: NodeProcess) -> bool:
        """It sees all others, and for each group an owner that is alive; and says so itself."""
        status = node.status()
        if status is None or not node.ready():
            return False
        alive = [one["node"] for one in status["nodes"] if one["alive"]]
        return len(alive) == len(self.nodes) and all(one["owner"] in alive for one in status["groups"])

    def close(self) -> None:
        self.cluster.close()
        if self.network is not None:
            self.network.close()
