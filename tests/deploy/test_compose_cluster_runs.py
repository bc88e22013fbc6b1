"""The services of deploy/compose.cluster.yaml as processes on this machine: their commands, files and variables, word
for word, with addresses of loopback in place of names. What is not tried: Docker itself, and the images of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from headwater.cluster_dev.child import Child
from headwater.cluster_dev.loopback import answers_well, document, environment
from headwater.cluster_dev.node_process import COMMAND
from headwater.cluster_dev.reserved_ports import HOST, ReservedPorts
from headwater.log.jetstream_servers import MONITOR_PORT, facts_of, refusals
from tests.deploy.test_compose_cluster import DEPLOY, NATS_FILE, NODES, SERVERS, service
from tests.deploy.tools import program, ran
from tests.support.http import request

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

WAIT_S = 120.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "headwater", "AWS_SECRET_ACCESS_KEY": "0123456789abcdef"}
NATS_PORTS = (4222, MONITOR_PORT, 6222)
NODE_PORTS = (4437, 4438, 4439)
S3_PORT = 8333
WEED_PARTS = ("master", "volume", "filer", "s3")
TEXT = {"Content-Type": "text/plain"}


class Machine:
    """All services, and which port of this machine stands for which of theirs."""

    def __init__(self, folder: Path, spawner: ThreadPoolExecutor) -> None:
        self.folder = folder
        self.reserved = ReservedPorts()
        wanted = {name: NATS_PORTS for name in SERVERS} | {name: NODE_PORTS for name in NODES} | {"s3": (S3_PORT,)}
        self.ports = {(name, port): self.reserved.take() for name, ports in wanted.items() for port in ports}
        self.parts = {name: Child(name, folder / "logs" / name, spawner) for name in wanted}
        self.weed_ports = {f"{one}.port{two}": self.reserved.take() for one in WEED_PARTS for two in ("", ".grpc")}
        self.weed_ports["s3.port"] = self.ports["s3", S3_PORT]

    def here(self, text: str, own: str) -> str:
        """`text` with addresses of this machine: what a service calls 0.0.0.0 is its own."""
        for (name, port), taken in self.ports.items():
            text = text.replace(f"{name}:{port}", f"{HOST}:{taken}")
            if name == own:
                text = text.replace(f"0.0.0.0:{port}", f"{HOST}:{taken}")
        return text

    def url(self, name: str, port: int) -> str:
        return f"http://{HOST}:{self.ports[name, port]}"

    def variables(self, name: str) -> dict[str, str]:
        return {one: self.here(value, name) for one, value in service(name).get("environment", {}).items()}

    def start(self, name: str, command: list[str], variables: Mapping[str, str]) -> None:
        self.parts[name].spawn(command, {**environment(), **variables})

    def start_nats(self, name: str) -> None:
        files = self.folder / name
        files.mkdir()
        text = self.here(NATS_FILE.read_text(), name).replace("/data", str(files))
        (files / "nats.conf").write_text(text)
        tool = program("nats-server", "make setup")
        where = service(name)["command"][-1]
        command = [str(files / "nats.conf") if word == where else word for word in service(name)["command"]]
        self.start(name, [tool, *command], self.variables(name))

    def start_s3(self) -> None:
        files = self.folder / "s3"
        files.mkdir()
        words = [word.replace("/data", str(files)) for word in service("s3")["command"]]
        words = [word.replace("-ip=s3", f"-ip={HOST}").replace("0.0.0.0", HOST) for word in words]
        ports = [f"-{name}={port}" for name, port in self.weed_ports.items()]
        self.start("s3", [program("weed", "make setup"), *words, *ports], CREDENTIALS)

    def start_node(self, name: str) -> None:
        given = self.variables(name) | {
            "HEADWATER_CONFIG": str(DEPLOY / "container.toml"),
            "HEADWATER_AUTH": "auto",  # on this machine's own addresses: what is asked here is not who asks
            "HEADWATER_LISTEN": f"{HOST}:{self.ports[name, 4437]}",
            "HEADWATER_S3P": f"{HOST}:{self.ports[name, 4438]}",
            "HEADWATER_DATA": str(self.folder / name),
            "HEADWATER_CLUSTER_SECRET_FILE": str(self.folder / "secret"),
            # In containers the monitoring port is the same for all, and found without being told.
            "HEADWATER_CLUSTER_MONITORS": ",".join(self.url(server, MONITOR_PORT) for server in SERVERS),
        }
        self.start(name, [*COMMAND, "serve"], {**given, **CREDENTIALS})

    def wait_healthy(self, name: str) -> None:
        """As its health check in the file has it."""
        asked = service(name)["healthcheck"]["test"][-1].partition(f"{HOST}:")[2]
        port, _, path = asked.partition("/")
        self.parts[name].wait_until(lambda: answers_well(self.url(name, int(port)), f"/{path}"), "healthy", WAIT_S)

    def close(self) -> None:
        for part in self.parts.values():
            part.kill()
        for port in self.weed_ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)
        self.reserved.release()


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    with ThreadPoolExecutor(1) as spawner:
        made = Machine(folder, spawner)
        try:
            yield made
        finally:
            made.close()


def test_the_services_are_a_cluster(tmp_path: Path) -> None:
    secret = service("secret")
    assert ran(*secret["entrypoint"], *secret["command"], cwd=tmp_path).returncode == 0
    with machine(tmp_path) as here:
        for name in SERVERS:
            here.start_nats(name)
        here.start_s3()
        for name in (*SERVERS, "s3"):
            here.wait_healthy(name)
        for name in SERVERS:
            monitor = here.url(name, MONITOR_PORT)
            facts = facts_of(document(monitor, "/varz"))
            assert facts.name == name and refusals(facts, monitor) == []
        for name in NODES:
            here.start_node(name)

        def is_whole(name: str) -> bool:
            told = document(here.url(name, 4437), "/__headwater/cluster")
            if told is None:
                return False
            owned = all(group["owner"] is not None for group in told["groups"])
            return owned and sum(node["alive"] for node in told["nodes"]) == len(NODES)

        for name in NODES:
            here.parts[name].wait_until(partial(is_whole, name), "one of a whole cluster", WAIT_S)
        first, second, third = (here.ports[name, 4437] for name in NODES)
        assert request(first, "PUT", "/v1/stream/kept", TEXT).status == 201
        assert request(second, "POST", "/v1/stream/kept", TEXT, b"kept").status in (200, 204)
        assert request(third, "GET", "/v1/stream/kept?offset=-1").body == b"kept"
        here.parts[NODES[1]].terminate()
        assert here.parts[NODES[1]].ended(WAIT_S) and here.parts[NODES[1]].exit_code == 0
