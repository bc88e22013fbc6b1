"""What is done to a cluster: each fault begins, lasts, and is mended, and all of it follows from a seed.

Owns the kinds of faults. Never looks at what clients were told.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater.cluster_dev.child import CannotRun
from tests.cluster.chaos.connections import now_s
from tests.cluster.chaos.world import World

HOUR_MS = 3_600_000
ZOMBIE_S = 8.0
"""Longer than a lease, the silence before a claim, and the claim."""
EMPTY_S_MAX = 60.0


@dataclass
class Fault:
    """One that was injected. Times are those of the clients' record."""

    kind: str
    on: str
    start_s: float
    mended_s: float = 0.0
    well_s: float = 0.0
    """When every node said again that the cluster is well."""
    pause_s: float = 0.0
    """The longest time in which a stream took nothing, of all streams. Filled in when the run is over."""
    notes: list[str] = field(default_factory=list)


class Faults:
    """Injects by name. `lasting` returns when the fault is over, but not before the cluster is well again."""

    def __init__(
        self, world: World, rng: random.Random, streams: Sequence[str], older_source: Path | None = None
    ) -> None:
        self._world = world
        self._streams = streams
        self._rng = rng
        self._older_source = older_source
        self._kinds: dict[str, Callable[[], str]] = {
            "kill_node": self._kill_node,
            "pause_node": self._pause_node,
            "zombie": self._zombie,
            "kill_all_nodes": self._kill_all_nodes,
            "pause_all_nodes": self._pause_all_nodes,
            "restart_node": self._restart_node,
            "rolling_restart": self._rolling_restart,
            "drain": self._drain,
            "clock_step": self._clock_step,
        }
        if world.cluster.nats:
            self._kinds |= {
                "kill_log_leader": self._kill_log_leader,
                "kill_nats": lambda: self._kill_some("nats", 1),
                "pause_nats": lambda: self._pause_some("nats", 1),
                "kill_most_nats": lambda: self._kill_some("nats", 2),
                "pause_most_nats": lambda: self._pause_some("nats", 2),
                "hang_and_kill_nats": self._hang_and_kill_nats,
                "kill_all_nats": lambda: self._kill_some("nats", 3),
            }
        if world.cluster.s3 is not None:
            self._kinds |= {
                "kill_s3": lambda: self._kill_some("s3", 1),
                "pause_s3": lambda: self._pause_some("s3", 1),
            }
        if world.network is not None:
            self._kinds |= {
                "isolate_node": lambda: self._cut(self._node_name(), self._all_but, both=True),
                "isolate_node_outward": lambda: self._cut(self._node_name(), self._all_but, outward=True),
                "isolate_node_inward": lambda: self._cut(self._node_name(), self._all_but),
                "split_nodes": lambda: self._cut(self._node_name(), self._other_nodes, both=True),
                "split_nodes_one_way": lambda: self._cut(self._node_name(), self._other_nodes, outward=True),
            }
            if world.cluster.nats or world.cluster.s3 is not None:
                self._kinds |= {
                    "cut_from_servers": lambda: self._cut(self._node_name(), self._servers, both=True),
                    "cut_from_servers_one_way": lambda: self._cut(self._node_name(), self._servers),
                }
            if world.cluster.nats:
                self._kinds |= {
                    "isolate_nats": lambda: self._cut(self._one("nats"), self._all_but, both=True),
                    "isolate_nats_one_way": lambda: self._cut(self._one("nats"), self._all_but, outward=True),
                }
        if older_source is not None:
            self._kinds["upgrade"] = self._upgrade

    @property
    def kinds(self) -> list[str]:
        return sorted(self._kinds)

    def lasting(self, kind: str) -> Fault:
        """Raises CannotRun when the cluster does not get well again."""
        fault = Fault(kind, "", now_s())
        fault.on = self._kinds[kind]()
        self._world.mend()
        fault.mended_s = now_s()
        self._world.wait_well()
        fault.well_s = now_s()
        return fault

    # ---- whom ----------------------------------------------------------------------------------------------------

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._world.names if name.startswith(prefix)]

    def _one(self, prefix: str) -> str:
        return self._rng.choice(self._names(prefix))

    def _node_name(self) -> str:
        """A node that owns one of the streams, if that can be told: others would not be missed."""
        owner = self._world.owner_of(self._rng.choice(self._streams))
        return self._one("node") if owner is None else self._world.nodes[owner].name

    def _all_but(self, name: str) -> list[str]:
        return [other for other in self._world.names if other != name]

    def _other_nodes(self, name: str) -> list[str]:
        return [other for other in self._names("node") if other != name]

    def _servers(self, name: str) -> list[str]:
        return [other for other in self._world.names if not other.startswith("node")]

    def _hold(self, least_s: float, most_s: float) -> None:
        time.sleep(self._rng.uniform(least_s, most_s))

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def _kill_node(self) -> str:
        name = self._node_name()
        self._world.part(name).kill()
        self._hold(0.0, 5.0)
        return name

    def _pause_node(self) -> str:
        name = self._node_name()
        self._world.part(name).pause()
        self._hold(0.2, 5.0)
        return name

    def _zombie(self) -> str:
        """Others own its groups when it wakes, and its clients are still connected."""
        name = self._node_name()
        self._world.part(name).pause()
        time.sleep(ZOMBIE_S)
        self._world.part(name).resume()
        self._hold(1.0, 3.0)
        return name

    def _kill_all_nodes(self) -> str:
        names = self._names("node")
        for name in names:
            self._world.part(name).kill()
        return ", ".join(names)

    def _pause_all_nodes(self) -> str:
        names = self._names("node")
        for name in names:
            self._world.part(name).pause()
        self._hold(1.0, 6.0)
        return ", ".join(names)

    def _restart_node(self) -> str:
        name = self._node_name()
        node = self._world.part(name)
        node.stop()
        node.start(wait=False)  # type: ignore[attr-defined]
        return name

    def _rolling_restart(self) -> str:
        for node in self._world.nodes:
            node.stop()
            node.start(wait=False)
            self._world.wait_well()
        return "all nodes in turn"

    def _drain(self) -> str:
        name = self._node_name()
        i = self._names("node").index(name)
        if not self._world.drain(i, True):
            raise CannotRun(f"{name} does not drain")
        deadline_s = now_s() + EMPTY_S_MAX
        while self._world.groups_of(i):
            if now_s() > deadline_s:
                raise CannotRun(f"{name} still owns {self._world.groups_of(i)} {EMPTY_S_MAX:g} s after it was drained")
            time.sleep(0.05)
        if not self._world.drain(i, False):
            raise CannotRun(f"{name} drains for ever")
        return name

    def _clock_step(self) -> str:
        i = self._names("node").index(self._node_name())
        step_ms = self._rng.choice((-HOUR_MS, HOUR_MS))
        self._world.clocks[i].set_ms(step_ms)
        self._hold(1.0, 4.0)
        if self._rng.random() < 0.5:
            # Its groups move while clocks disagree.
            self._world.nodes[i].kill()
            self._hold(3.0, 5.0)
        return f"{self._world.nodes[i].name} by {step_ms // HOUR_MS:+d} h"

    def _upgrade(self) -> str:
        """Nodes of the older source, which a run begins with, are replaced one by one; later, down and up again."""
        older, present = self._older_source, self._world.present_source
        if older is None:
            raise CannotRun("there is no older source to upgrade from")
        sources = (present,) if self._world.source == older else (older, present)
        for source in sources:
            for i, node in enumerate(self._world.nodes):
                self._world.use_source(source, i)
                node.stop()
                node.start(wait=False)
                self._world.wait_well()
        return "up" if len(sources) == 1 else "down, and up again"

    # ---- servers -------------------------------------------------------------------------------------------------

    def _kill_some(self, prefix: str, count: int) -> str:
        names = self._rng.sample(self._names(prefix), count)
        for name in names:
            self._world.part(name).kill()
        self._hold(0.5, 5.0)
        return ", ".join(names)

    def _pause_some(self, prefix: str, count: int) -> str:
        names = self._rng.sample(self._names(prefix), count)
        for name in names:
            self._world.part(name).pause()
        self._hold(0.5, 6.0)
        return ", ".join(names)

    def _hang_and_kill_nats(self) -> str:
        """What nodes send meanwhile gets no answer, and is gone with the servers."""
        names = self._names("nats")
        for name in names:
            self._world.part(name).pause()
        self._hold(5.0, 7.0)
        for name in names:
            self._world.part(name).kill()
        return ", ".join(names)

    def _kill_log_leader(self) -> str:
        name = self._world.log_leader() or self._one("nats")
        self._world.part(name).kill()
        self._hold(3.0, 8.0)
        return name

    # ---- ways ----------------------------------------------------------------------------------------------------

    def _cut(self, name: str, others: Callable[[str], list[str]], both: bool = False, outward: bool = False) -> str:
        """What is cut comes from the others, unless it is `outward`, or `both`."""
        network = self._world.network
        if network is None:
            raise CannotRun("there are no ways to cut: all parts are on loopback")
        for other in others(name):
            if both or outward:
                network.cut(name, other)
            if both or not outward:
                network.cut(other, name)
        self._hold(2.0, 8.0)
        return name
