"""A pretended cluster: an HTTP server per node that answers the admin calls from one state in memory.

Owns the state, which tests change as a cluster would. What a real cluster answers is the business of
test_real_cluster.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Facts = dict[str, Any]


class Pretended:
    """`nodes_count` nodes that own the groups in turn, each standby for those of the one before it."""

    def __init__(self, nodes_count: int = 3, groups_count: int = 4) -> None:
        self.lock = threading.RLock()
        self.calls: list[tuple[str, str, Any]] = []
        """(method, path, body) of everything that changes something."""
        self.asked: list[int] = []
        """Which nodes were asked, in order."""
        self.servers: list[ThreadingHTTPServer | None] = []
        self.settled = True
        self.refuse: dict[str, tuple[int, str]] = {}
        """By path: the status and message to answer with."""
        self.refuse_times: dict[str, int] = {}
        """How often, of paths that are refused only at first."""
        self.on_call: Callable[[str, Any], None] = lambda path, body: None
        self.views: dict[int, Callable[[Facts], Facts]] = {}
        """By node: how it sees things otherwise than they are."""
        self.nodes: list[Facts] = [
            {
                "node": number,
                "id": f"{number:016x}",
                "run": f"run-{number}-1",
                "address": f"127.0.0.1:{4440 + number}",
                "public_address": "",
                "version": "1.0",
                "zone": "",
                "started_ms": 1_000,
                "reads_format": 1,
                "alive": True,
                "draining": False,
            }
            for number in range(nodes_count)
        ]
        self.owners: list[int | None] = [group % nodes_count for group in range(groups_count)]
        self.epochs = [1] * groups_count
        self.snapshots: list[Facts | None] = [{"position": 80, "log_floor": 60, "epoch": 1} for _ in self.owners]
        self.states: list[str] = ["owner"] * groups_count
        self.heads = [0] * groups_count

    # ---- what happens in it -----------------------------------------------------------------------------------------

    def standby(self, group: int) -> list[int]:
        owner = self.owners[group]
        able = [node["node"] for node in self.nodes if node["alive"] and not node["draining"] and node["node"] != owner]
        return able[:1]

    def hand_over(self, node: int) -> None:
        """The groups of a node go to their standbys."""
        with self.lock:
            for group, owner in enumerate(self.owners):
                if owner == node and (standby := self.standby(group)):
                    self.owners[group] = standby[0]
                    self.epochs[group] += 1

    def restarted(self, node: int, version: str = "1.0") -> None:
        with self.lock:
            run = self.nodes[node]["run"]
            fields = {"run": run + "+", "draining": False, "alive": True, "version": version}
            self.nodes[node] |= fields

    def seen(self, by: int) -> Facts:
        with self.lock:
            groups: list[Facts] = [
                {
                    "group": group,
                    "owner": owner,
                    "epoch": self.epochs[group],
                    "in_line": [node["node"] for node in self.nodes if node["alive"]],
                    "ready": self.standby(group),
                }
                for group, owner in enumerate(self.owners)
            ]
            nodes = [
                node
                | {"groups": [group for group, owner in enumerate(self.owners) if owner == node["node"]]}
                | {"ready": [one["group"] for one in groups if node["node"] in one["ready"]]}
                for node in self.nodes
            ]
            facts = {
                "name": "headwater",
                "log": "objects",
                "format": 1,
                "groups_count": len(groups),
                "node": by,
                "settled": self.settled,
                "nodes": nodes,
                "groups": groups,
            }
            return self.views.get(by, lambda facts: facts)(facts)

    # ---- its HTTP door ----------------------------------------------------------------------------------------------

    @property
    def urls(self) -> str:
        return ",".join(f"http://{node['public_address']}" for node in self.nodes)

    def answer(self, by: int, method: str, path: str, body: Any) -> tuple[int, Facts]:
        with self.lock:
            self.asked.append(by)
            if path in self.refuse:
                status, message = self.refuse[path]
                self.refuse_times[path] = self.refuse_times.get(path, 0) - 1
                if self.refuse_times[path] == 0:
                    del self.refuse[path]
                return status, {"error": {"code": "refused", "message": message}}
            if method == "POST":
                self.calls.append((method, path, body))
                self.on_call(path, body)
            parts = path.removeprefix("/__headwater/").split("/")
            match method, parts:
                case "GET", ["cluster"]:
                    return 200, self.seen(by)
                case "GET", ["groups", number, "ownership"]:
                    return 200, self._ownership(int(number))
                case "GET", ["groups", number, "lake", "files"]:
                    return 200, {"group": int(number), "files": [{"name": "a"}, {"name": "b"}]}
                case "POST", ["cluster", "drain"]:
                    self.nodes[body["node"]]["draining"] = body["draining"]
                    return 200, body
                case "POST", ["cluster", "forget"]:
                    self.nodes = [node for node in self.nodes if node["node"] != body["node"]]
                    return 200, {"node": body["node"], "forgotten": True}
                case "POST", ["cluster", "move"]:
                    return 200, body
                case "POST", ["cluster", "snapshot"]:
                    wanted = range(len(self.owners)) if body["group"] is None else [body["group"]]
                    written = [{"group": one, "position": 90, "log_floor": 70, "epoch": 1} for one in wanted]
                    return 200, {"groups": written}
            return 404, {"error": {"code": "no_such_route", "message": "no such route"}}

    def _ownership(self, group: int) -> Facts:
        return {
            "group": group,
            "node": self.owners[group],
            "state": self.states[group],
            "epoch": self.epochs[group],
            "position": 100,
            "log_head": self.heads[group],
            "snapshot": self.snapshots[group],
            "snapshot_failure": None,
        }

    def stop(self, node: int) -> None:
        server, self.servers[node] = self.servers[node], None
        if server is not None:
            server.shutdown()
            server.server_close()


@contextmanager
def pretended(nodes_count: int = 3, groups_count: int = 4) -> Iterator[Pretended]:
    cluster = Pretended(nodes_count, groups_count)
    for number in range(nodes_count):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cluster, number))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        cluster.servers.append(server)
        cluster.nodes[number]["public_address"] = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield cluster
    finally:
        for number in range(nodes_count):
            cluster.stop(number)


def _handler(cluster: Pretended, number: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: Any) -> None:
            status, facts = cluster.answer(number, self.command, self.path, body)
            data = json.dumps(facts).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    return Handler
