"""Topics on a cluster of real nodes whose log is NATS: queues whose owner is killed while jobs are claimed and acked,
and a router over groups. Nodes are met over HTTP only, each request at another one; nothing is timed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.node_process import NodeProcess
from tests.support import waiting
from tests.support.http import Connection, ConnectionEnded

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

GROUPS = 4
WITHIN_S = 120.0
JOBS = 60
RECORDS = 40


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), log="jetstream", groups=GROUPS, s3=False) as cluster:
        cluster.wait_ready(balanced=True)
        yield cluster


def named(group: int, prefix: str) -> str:
    return next(key for n in range(1000) if xxh3_64_intdigest((key := f"{prefix}{n}").encode()) % GROUPS == group)


class Client:
    """Each request goes to the next node; one that is away is passed over."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._turn = itertools.count()

    def once(self, method: str, path: str, body: Any = None) -> dict[str, Any] | None:
        """None when nobody knows what became of it, or it was refused for now."""
        nodes = self._cluster.nodes
        node = nodes[next(self._turn) % len(nodes)]
        text = b"" if body is None else json.dumps(body).encode()
        try:
            with Connection("127.0.0.1", node.port) as connection:
                answer = connection.request(method, f"/v0{path}", {}, text)
        except (OSError, ConnectionEnded):
            return None
        if answer.status in (502, 503, 504):
            return None
        assert answer.status < 300, answer
        found: dict[str, Any] = answer.json()
        return found

    def done(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Tries until it is done: for what may be repeated."""
        found: dict[str, Any] = until(lambda: self.once(method, path, body), f"{method} {path}")
        return found

    def seqs(self, topic: str) -> list[Any]:
        found: list[Any] = []
        while True:
            page = self.done("GET", f"/topics/{topic}/diff?limit=1000&from_seq={len(found)}")
            assert "tombstone" not in page
            found += [one["data"] for one in page["records"]]
            if page["up_to_date"]:
                return found


def until(holds: Callable[[], Any], what: str) -> Any:
    return waiting.until(holds, what, WITHIN_S, 0.1)


def owner(cluster: LocalCluster, group: int) -> NodeProcess:
    def found() -> NodeProcess | None:
        status = cluster.status()
        number = None if status is None else status["groups"][group]["owner"]
        return None if number is None else cluster.node_numbered(number)

    node: NodeProcess = until(found, f"an owner of group {group}")
    return node


@pytest.mark.parametrize("kept", [False, True], ids=["leases-forgotten", "leases-kept"])
def test_no_job_is_lost_and_none_acked_twice_while_owners_are_killed(three: LocalCluster, kept: bool) -> None:
    client, group = Client(three), int(kept)
    queue = named(group, f"jobs-{kept}-")
    client.done("PUT", f"/topics/{queue}", {"queue": {"lease_ms": 5_000, "leases_durable": kept}})
    put = [f"job-{n}" for n in range(JOBS)]
    for n, name in enumerate(put):
        write = {"records": [{"data": name, "key": name}], "producer": {"id": "p", "epoch": 0, "seq": n}}
        client.done("POST", f"/topics/{queue}/records", write)
    acked: list[str] = []
    unsure: set[str] = set()
    held: list[dict[str, Any]] = []
    dead: NodeProcess | None = None
    rounds = 0
    while True:
        rounds += 1
        if rounds in (3, 9):
            dead = owner(three, group)
            dead.kill()
        if dead is not None and rounds in (6, 12):
            dead.start()
            three.wait_ready()
            dead = None
        claimed = client.once("POST", f"/topics/{queue}/claim", {"max": 4, "node": "w"})
        if claimed is None:
            continue
        held += claimed["jobs"]
        if rounds in (2, 8):
            continue  # their claimer keeps them while the owner is killed, and acks them under its old leases
        if held:
            acks = [{"seq": job["seq"], "lease_id": job["lease_id"]} for job in held]
            names = {job["seq"]: job["data"] for job in held}
            told = client.once("POST", f"/topics/{queue}/ack", {"acks": acks})
            if told is None:
                unsure.update(names.values())
            else:
                acked += [names[seq] for seq in told["acked"]]
                held = []
        left = client.done("GET", f"/topics/{queue}/queue")
        if rounds > 12 and left["ready"] == left["leased"] == left["delayed"] == 0:
            break
    assert not [name for name, times in Counter(acked).items() if times > 1]
    assert set(put) == set(acked) | unsure
    assert acked
    assert client.seqs(queue) == []


def test_a_router_over_groups_copies_each_record_once_while_owners_are_killed(three: LocalCluster) -> None:
    client = Client(three)
    source, dest = named(2, "source-"), named(3, "dest-")
    client.done("PUT", f"/topics/{source}", {})
    router = {"source": source, "dest": dest, "filter": ["tag", "Eq", "even"]}
    client.done("PUT", f"/routers/{source}", router)
    for n in range(RECORDS):
        write = {"records": [{"data": n, "tag": ("even", "odd")[n % 2]}], "producer": {"id": "p", "epoch": 0, "seq": n}}
        client.done("POST", f"/topics/{source}/records", write)
        if n in (10, 25):
            dead = owner(three, 3 if n == 10 else 2)
            dead.kill()
        if n in (20, 35):
            dead.start()
            three.wait_ready()
    wanted = list(range(0, RECORDS, 2))

    def copied() -> bool:
        state = client.done("GET", f"/routers/{source}")["state"]
        return bool(state["cursor"] == state["source_head"] == RECORDS)

    until(copied, "everything is copied")
    assert client.seqs(dest) == wanted
