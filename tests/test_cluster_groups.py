"""A node that joins a cluster, over real processes: what it serves, what operators ask of it, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from headwater.cluster_dev.child import CannotRun
from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.node_process import NodeProcess
from tests.support import waiting
from tests.support.http import Connection, Response

WITHIN_S = 60.0
GROUPS = 4
TEXT = (("Content-Type", "text/plain"),)


@contextmanager
def a_cluster(directory: Path, nodes: int) -> Iterator[LocalCluster]:
    with LocalCluster(directory, nodes=nodes, log="objects", s3=False, groups=GROUPS) as made:
        yield made
        made.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster"), nodes=3) as made:
        yield made


def ask(node: NodeProcess, method: str, path: str, headers: Any = (), body: bytes = b"") -> Response:
    with Connection("127.0.0.1", node.port) as connection:
        return connection.request(method, path, headers, body)


def call(node: NodeProcess, name: str, said: Any) -> Response:
    return ask(node, "POST", f"/__headwater/cluster/{name}", (), json.dumps(said).encode())


def until(holds: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    waiting.until(holds, within_s=within_s, pause_s=0.05)


def seen(cluster: LocalCluster) -> dict[str, Any]:
    found = cluster.status()
    assert found is not None
    return found


def owners(cluster: LocalCluster) -> dict[int, int | None]:
    return {group["group"]: group["owner"] for group in seen(cluster)["groups"]}


def test_every_node_serves_every_stream(cluster: LocalCluster) -> None:
    for i, node in enumerate(cluster.nodes):
        for n in range(GROUPS):
            assert ask(node, "PUT", f"/v1/stream/any/{i}-{n}", TEXT, b"a").status == 201
    for i in range(len(cluster.nodes)):
        for n in range(GROUPS):
            for at, node in enumerate(cluster.nodes):
                assert ask(node, "POST", f"/v1/stream/any/{i}-{n}", TEXT, f"{at}".encode()).status == 204
    for i in range(len(cluster.nodes)):
        for n in range(GROUPS):
            answers = {ask(node, "GET", f"/v1/stream/any/{i}-{n}").body for node in cluster.nodes}
            assert answers == {b"a012"}


def test_a_read_that_asks_for_it_sees_everything_that_was_acknowledged_before_it(cluster: LocalCluster) -> None:
    """Through any node; a barrier goes through the log first, so what it costs shows in the log's entries alone."""
    for n in range(GROUPS):
        path = f"/v1/stream/linearizable/{n}"
        assert ask(cluster.nodes[0], "PUT", path, TEXT, b"a").status == 201
        for at, node in enumerate(cluster.nodes):
            assert ask(node, "POST", path, TEXT, b"b").status == 204
            for other in cluster.nodes:
                answer = ask(other, "GET", f"{path}?offset=-1&consistency=linearizable")
                assert (answer.status, answer.body) == (200, b"a" + b"b" * (at + 1))
                assert ask(other, "HEAD", f"{path}?consistency=linearizable").status == 200
    refused = ask(cluster.nodes[0], "GET", "/v1/stream/linearizable/0?consistency=strong")
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (400, "bad_query")


def test_all_nodes_see_the_same_cluster(cluster: LocalCluster) -> None:
    cluster.wait_ready()
    views = [json.loads(ask(node, "GET", "/__headwater/cluster").body) for node in cluster.nodes]
    assert {view.pop("node") for view in views} == {0, 1, 2}
    for view in views:
        assert view["log"] == "objects" and view["groups_count"] == GROUPS and view["settled"]
        assert [node["alive"] for node in view["nodes"]] == [True] * 3
        assert all(group["owner"] in group["in_line"] and group["epoch"] > 0 for group in view["groups"])


def test_the_owner_of_a_group_tells_of_it_whoever_is_asked(cluster: LocalCluster) -> None:
    for group in range(GROUPS):
        told = [json.loads(ask(node, "GET", f"/__headwater/groups/{group}/ownership").body) for node in cluster.nodes]
        assert {one["node"] for one in told} == {owners(cluster)[group]}
        assert {one["state"] for one in told} == {"owner"}
        found = [json.loads(ask(node, "GET", f"/__headwater/groups/{group}/owner").body) for node in cluster.nodes]
        assert len({one["owner"] for one in found}) == 1 and len(found[0]["nodes"]) == 3


def test_a_group_moves_where_it_is_told_and_back(cluster: LocalCluster) -> None:
    group = 1
    before = owners(cluster)[group]
    target = next(one["node"] for one in seen(cluster)["nodes"] if one["node"] != before)
    assert call(cluster.nodes[0], "move", {"group": group, "node": target}).status == 200
    until(lambda: owners(cluster)[group] == target)
    assert call(cluster.nodes[1], "move", {"group": group, "node": None}).status == 200
    address = seen(cluster)["nodes"][before]["public_address"]
    assert ask(cluster.nodes[2], "POST", f"/__headwater/groups/{group}/owner/{address}").status == 200
    until(lambda: owners(cluster)[group] == before)
    assert call(cluster.nodes[1], "move", {"group": group, "node": None}).status == 200


def test_a_node_that_drains_owns_nothing_until_it_does_not_any_more(cluster: LocalCluster) -> None:
    assert ask(cluster.nodes[0], "PUT", "/v1/stream/drained", TEXT, b"a").status == 201
    node = owners(cluster)[0]
    assert call(cluster.nodes[0], "drain", {"node": node}).status == 200
    until(lambda: node not in owners(cluster).values() and None not in owners(cluster).values())
    assert [one["draining"] for one in seen(cluster)["nodes"] if one["node"] == node] == [True]
    for one in cluster.nodes:
        assert ask(one, "POST", "/v1/stream/drained", TEXT, b"b").status == 204
    assert call(cluster.nodes[1], "drain", {"node": node, "draining": False}).status == 200
    until(lambda: node in owners(cluster).values())


def test_catalog_snapshots_are_written_when_asked_for(cluster: LocalCluster) -> None:
    assert ask(cluster.nodes[0], "PUT", "/v1/stream/snapshots", TEXT, b"a").status == 201
    answer = call(cluster.nodes[0], "snapshot", {})
    assert answer.status == 200
    written = json.loads(answer.body)["groups"]
    assert [one["group"] for one in written] == list(range(GROUPS))
    (alone,) = json.loads(call(cluster.nodes[1], "snapshot", {"group": 2}).body)["groups"]
    told = json.loads(ask(cluster.nodes[0], "GET", "/__headwater/groups/2/ownership").body)
    assert told["snapshot"]["position"] == alone["position"] and told["snapshot_failure"] is None


@pytest.mark.parametrize(
    ("name", "said", "status", "code"),
    [
        ("move", {"group": GROUPS, "node": 0}, 404, "no_such_group"),
        ("move", {"group": -1, "node": 0}, 404, "no_such_group"),
        ("move", {"group": 0, "node": 99}, 404, "no_such_node"),
        ("move", {"node": 0}, 400, "bad_body"),
        ("move", {"group": 0, "node": "0"}, 400, "bad_body"),
        ("drain", {"node": 99}, 404, "no_such_node"),
        ("drain", {"nodes": 0}, 400, "bad_body"),
        ("drain", [], 400, "bad_body"),
        ("snapshot", {"group": 1 << 70}, 404, "no_such_group"),
        ("forget", {"node": 0}, 409, "node_is_alive"),
        ("forget", {"node": 99}, 404, "no_such_node"),
        ("forget", {}, 400, "bad_body"),
        ("other", {}, 404, "no_such_route"),
    ],
)
def test_what_cannot_be_done_is_said(cluster: LocalCluster, name: str, said: Any, status: int, code: str) -> None:
    answer = call(cluster.nodes[0], name, said)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)


def test_calls_have_their_methods(cluster: LocalCluster) -> None:
    assert ask(cluster.nodes[0], "POST", "/__headwater/cluster").status == 405
    assert ask(cluster.nodes[0], "GET", "/__headwater/cluster/move").status == 405


def refused(node: NodeProcess, *flags: str) -> str:
    """What a node says that does not start with these flags."""
    serve = [*node.command, "serve", "--listen", "127.0.0.1:0", "--s3p", "off", *flags]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    return done.stderr


def test_a_node_that_does_not_fit_the_cluster_does_not_start(cluster: LocalCluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    flags = [*cluster.node_flags(), "--cluster-listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    assert "made with 4 groups, not 8" in refused(node, *flags, "--groups", "8")
    assert "correct --cluster" in refused(node, *flags, "--cluster", (tmp_path / "other").as_uri())
    short = tmp_path / "short"
    short.write_text("secret")
    short.chmod(0o600)
    assert "shorter than 16 bytes" in refused(node, *flags, "--cluster-secret-file", str(short))
    short.write_text("s" * 64)
    short.chmod(0o644)
    assert "chmod 600" in refused(node, *flags, "--cluster-secret-file", str(short))
    assert "cannot be read" in refused(node, *flags, "--cluster-secret-file", str(tmp_path / "absent"))
    assert "another node already serves" in refused(node, *flags, "--data", str(node.data))
    assert "give --cluster-advertise" in refused(node, *flags, "--cluster-listen", "0.0.0.0:0")
    assert "cluster_advertise" in refused(node, *flags, "--cluster-advertise", "nowhere")
    assert "choose another --cluster-listen" in refused(node, *flags, "--cluster-listen", node.address)


def test_a_directory_is_either_a_clusters_or_a_nodes_own(cluster: LocalCluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    flags = [*cluster.node_flags(), "--cluster-listen", "127.0.0.1:0"]
    (tmp_path / "directory.json").write_text('{"format": 2, "groups": 1}')
    assert "data of a node by itself" in refused(node, *flags, "--data", str(tmp_path))
    (tmp_path / "directory.json").write_text('{"format": 3, "groups": 4, "cluster": "another"}')
    assert "node of another cluster" in refused(node, *flags, "--data", str(tmp_path))
    assert "start it with --cluster" in refused(node, "--data", str(tmp_path))


def test_a_node_with_another_secret_does_not_start(cluster: LocalCluster, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    secret.chmod(0o600)
    flags = [*cluster.node_flags(), "--cluster-listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    said = refused(cluster.nodes[0], *flags, "--cluster-secret-file", str(secret))
    assert "start the node with the --cluster-secret-file that the other nodes have" in said


def test_a_node_with_another_lake_is_refused_by_the_logs(cluster: LocalCluster, tmp_path: Path) -> None:
    """It would claim groups whose records it cannot read."""
    flags = [*cluster.node_flags(), "--cluster-listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    said = refused(cluster.nodes[0], *flags, "--lake", str(tmp_path / "lake"))
    assert "correct --lake or --cluster" in said


def test_a_copy_of_a_nodes_directory_is_no_second_node(cluster: LocalCluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    shutil.copytree(node.data, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    flags = [*cluster.node_flags(), "--cluster-listen", "127.0.0.1:0", "--data", str(tmp_path / "copy")]
    said = refused(node, *flags)
    assert f"answers at {node.address}" in said and "node-id" in said


def test_a_log_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path, nodes=1, log="objects", s3=False)
    with made:
        flags = [*made.node_flags(), "--cluster-listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
        other = ["--lake", str(tmp_path / "lake"), "--cluster", "file:///proc/nowhere"]
        assert "cluster cannot be joined" in refused(made.nodes[0], *flags, *other)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_nodes_join_leave_and_are_forgotten(tmp_path: Path) -> None:
    with a_cluster(tmp_path, nodes=2) as cluster:
        assert ask(cluster.nodes[0], "PUT", "/v1/stream/s", TEXT, b"a").status == 201
        third = cluster.add_node()
        third.start(wait=True)
        cluster.wait_ready()
        # A hand-over that a busy machine delays is tried again later.
        until(lambda: len(set(owners(cluster).values())) == 3, 200)
        cluster.stop_node(0)
        until(lambda: all(len(seen(cluster)[what]) == count for what, count in (("nodes", 2), ("groups", GROUPS))))
        assert ask(third, "GET", "/v1/stream/s").body == b"a"
        cluster.kill_node(1)
        dead = next(one["node"] for one in seen(cluster)["nodes"] if one["public_address"] != third.public_address)
        until(lambda: not next(one for one in seen(cluster)["nodes"] if one["node"] == dead)["alive"])
        assert json.loads(call(third, "forget", {"node": dead}).body) == {"node": dead, "forgotten": True}
        until(lambda: len(seen(cluster)["nodes"]) == 1)
        until(lambda: None not in owners(cluster).values())
        assert ask(third, "POST", "/v1/stream/s", TEXT, b"b").status == 204
        assert ask(third, "GET", "/v1/stream/s").body == b"ab"


@pytest.mark.full
@pytest.mark.parametrize("log", ["objects", "jetstream"])
def test_nodes_that_all_lost_their_disks_come_back_with_everything_that_was_acknowledged(
    log: Literal["objects", "jetstream"], tmp_path: Path
) -> None:
    with LocalCluster(tmp_path, nodes=2, log=log, nats=1, s3=False, groups=GROUPS) as cluster:
        names = [f"/v1/stream/lost/{n}" for n in range(3 * GROUPS)]

        def append(seq: int) -> set[int]:
            producer = (("Producer-Id", "p"), ("Producer-Epoch", "0"), ("Producer-Seq", f"{seq}"))
            node = cluster.nodes[seq % 2]
            return {ask(node, "POST", name, (*TEXT, *producer), f"{seq}.".encode()).status for name in names}

        for name in names:
            assert ask(cluster.nodes[0], "PUT", name, TEXT).status == 201
        assert append(0) == {200}
        assert ask(cluster.nodes[0], "POST", "/__headwater/flush").status == 200
        assert append(1) == {200}
        assert call(cluster.nodes[0], "snapshot", {}).status == 200
        assert append(2) == {200}
        for node in cluster.nodes:
            node.kill()
            shutil.rmtree(node.data)
        for node in cluster.nodes:
            node.start(wait=False)
        cluster.wait_ready()
        # What was acknowledged is known as such: sent again, it is not taken twice.
        assert append(2) == {204}
        assert append(3) == {200}
        for node in cluster.nodes:
            assert {ask(node, "GET", f"{name}?offset=-1").body for name in names} == {b"0.1.2.3."}


def test_a_cluster_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="shorter than 16 bytes"):
        made = LocalCluster(tmp_path, nodes=1, log="objects", s3=False)
        (tmp_path / "secret").write_text("short")
        (tmp_path / "secret").chmod(0o600)
        with made:
            pass
