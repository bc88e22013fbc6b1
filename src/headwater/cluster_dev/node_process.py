"""A node of a local cluster: `headwater serve` as a child process, with a data directory of its own.

Owns its command line. Its addresses are the same from one life to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from headwater.cluster_dev.child import Child
from headwater.cluster_dev.loopback import answers_well, document, environment
from headwater.cluster_dev.reserved_ports import HOST, ReservedPorts

LISTENING_S_MAX = READY_S_MAX = 120.0
READY_LINE = "headwater ready on "
COMMAND = (sys.executable, "-m", "headwater")


class NodeProcess(Child):
    stop_s_max = 60.0

    def __init__(
        self,
        i: int,
        http_port: int,
        cluster_flags: Sequence[str],
        directory: Path,
        log: Path,
        spawner: Executor,
        ports: ReservedPorts,
    ) -> None:
        """`cluster_flags`: what all nodes are told alike."""
        super().__init__(f"node-{i}", log, spawner)
        self.directory = directory
        self.port, self.s3p_port, self.cluster_port = http_port, ports.take(), ports.take()
        self._cluster_flags = cluster_flags
        self.command: Sequence[str] = COMMAND
        """What stands before `serve`; another one takes effect at the next start."""
        self.environment: Mapping[str, str] = {}
        """Variables beside those of this process."""
        self.flags: Sequence[str] = ()
        """What stands behind all other flags, and wins over them."""

    @property
    def public_address(self) -> str:
        """What the cluster tells clients of it."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.public_address}"

    @property
    def address(self) -> str:
        """Where other nodes connect."""
        return f"{HOST}:{self.cluster_port}"

    @property
    def s3p_address(self) -> str:
        return f"{HOST}:{self.s3p_port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def start(self, wait: bool = True) -> None:
        """Returns when its doors are open and it says that the cluster is well.

        That takes other nodes and the log: `wait=False` returns at once, and `wait_listening` when the doors are open.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        serve = [
            *("serve", "--listen", self.public_address, "--s3p", self.s3p_address, "--data", str(self.data)),
            *("--cluster-listen", self.address),
        ]
        # Written at once, so that the ready line is seen when it is true.
        variables = {**environment(), "PYTHONUNBUFFERED": "1", **self.environment}
        self.spawn([*self.command, *serve, *self._cluster_flags, *self.flags], variables)
        if wait:
            self.wait_ready()

    def wait_listening(self) -> None:
        self.wait_until(lambda: READY_LINE in self.output(), "listening", LISTENING_S_MAX)

    def wait_ready(self) -> None:
        self.wait_listening()
        self.wait_until(self.ready, "ready", READY_S_MAX)

    def ready(self) -> bool:
        return answers_well(self.url, "/readyz")

    def status(self) -> dict[str, Any] | None:
        """The cluster as this node sees it; None when it does not answer."""
        found = document(self.url, "/__headwater/cluster")
        return found if isinstance(found, dict) else None
