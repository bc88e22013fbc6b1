"""Whole clusters on this machine: started, parts killed and started again, stopped and started on the same directory.
What a cluster promises its clients under faults is judged elsewhere; here streams only show that it serves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.client.connection import Answer
from headwater.cluster_dev.child import CannotRun
from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.loopback import ask
from headwater.cluster_dev.node_process import COMMAND
from headwater.cluster_dev.reserved_ports import ReservedPorts
from tests.support.process_table import running_with

REQUEST_S = 60.0


def answered(url: str, name: str, method: str = "GET", body: bytes | None = None) -> Answer:
    """Asked again while the group of the stream changes hands."""
    while True:
        answer = ask(url, f"/v1/stream/{name}", method, body, REQUEST_S)
        if answer.status != 503:
            return answer


def create(url: str, name: str, body: bytes) -> None:
    assert answered(url, name, "PUT", body).status in (200, 201)


def contents(url: str, name: str) -> bytes:
    answer = answered(url, name)
    assert answer.status == 200, answer.body
    return answer.body


# ---- without S3 and NATS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes on a shared directory."""
    with LocalCluster(tmp_path_factory.mktemp("small"), nodes=2, log="objects", groups=2, s3=False) as cluster:
        create(cluster.urls[0], "kept", b"kept")
        yield cluster


@pytest.fixture
def ready(small: LocalCluster) -> LocalCluster:
    """The same, whatever the test before did to it."""
    for node in small.nodes:
        node.resume()
        if not node.running:
            node.start(wait=False)
    small.wait_ready()
    return small


def test_any_node_takes_any_request(ready: LocalCluster) -> None:
    for i in range(8):
        create(ready.urls[0], f"any-{i}", b"%d" % i)
    assert [contents(ready.urls[1], f"any-{i}") for i in range(8)] == [b"%d" % i for i in range(8)]


def test_the_status_is_what_a_node_that_answers_sees(ready: LocalCluster) -> None:
    status = ready.status()
    assert status is not None
    assert (status["log"], status["groups_count"], len(status["nodes"])) == ("objects", 2, 2)
    ready.pause_node(0)
    status = ready.status()
    assert status is not None
    assert ready.node_numbered(status["node"]) is ready.nodes[1]


def test_a_node_is_found_by_its_number(ready: LocalCluster) -> None:
    assert {ready.node_numbered(0).name, ready.node_numbered(1).name} == {"node-0", "node-1"}
    with pytest.raises(LookupError, match="no process here is node 7"):
        ready.node_numbered(7)


@pytest.mark.parametrize("i", [0, 1])
def test_a_node_that_was_killed_is_started_again_at_its_address(ready: LocalCluster, i: int) -> None:
    create(ready.urls[0], f"killed-{i}", b"kept")
    before = ready.nodes[i].pid
    ready.kill_node(i)
    assert not ready.nodes[i].running
    ready.start_node(i)
    assert ready.nodes[i].pid not in (None, before)
    ready.wait_ready()
    assert contents(ready.urls[i], f"killed-{i}") == b"kept"


def test_a_node_that_was_stopped_ended_well(ready: LocalCluster) -> None:
    ready.stop_node(0)
    assert ready.nodes[0].exit_code == 0
    assert contents(ready.urls[1], "kept") == b"kept"


def test_groups_of_a_killed_node_are_with_another_when_the_rest_is_ready(ready: LocalCluster) -> None:
    ready.kill_node(0)
    ready.wait_ready()
    status = ready.status()
    assert status is not None
    assert {ready.node_numbered(group["owner"]) for group in status["groups"]} == {ready.nodes[1]}


@pytest.mark.full
def test_without_a_node_that_answers_there_is_no_status(ready: LocalCluster) -> None:
    ready.pause_node(0)
    ready.kill_node(1)
    assert ready.status() is None


@pytest.mark.full
def test_a_node_can_be_added_while_the_cluster_runs(ready: LocalCluster) -> None:
    node = ready.add_node()
    try:
        node.start()
        ready.wait_ready()
        status = ready.status()
        assert status is not None
        assert len(status["nodes"]) == 3
        assert contents(node.url, "kept") == b"kept"
    finally:
        node.stop()
        ready.nodes.remove(node)


@pytest.mark.full
def test_a_node_may_have_flags_variables_and_a_command_of_its_own(ready: LocalCluster) -> None:
    node = ready.nodes[0]
    node.stop()
    node.flags, node.environment, node.command = ["--log-level", "debug"], {"HEADWATER_ZONE": "west"}, ["env", *COMMAND]
    try:
        node.start()
        ready.wait_ready()
        status = ready.status()
        assert status is not None
        zones = {known["public_address"]: known["zone"] for known in status["nodes"]}
        assert zones == {node.public_address: "west", ready.nodes[1].public_address: ""}
    finally:
        node.flags, node.environment, node.command = [], {}, COMMAND


def test_a_node_that_cannot_start_is_told_with_its_reason_and_nothing_is_left(tmp_path: Path) -> None:
    with (
        pytest.raises(CannotRun, match=r"(?s)node-0 ended with 2 before it was listening.*--no-such-flag"),
        LocalCluster(tmp_path, nodes=1, log="objects", s3=False, flags=["--no-such-flag"]),
    ):
        pass
    assert running_with(str(tmp_path)) == {}


def test_a_cluster_is_started_again_on_its_directory(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, log="objects", groups=2, s3=False) as cluster:
        create(cluster.urls[0], "again", b"kept")
        cluster.stop()
        assert [node.exit_code for node in cluster.nodes] == [0]
    with LocalCluster(tmp_path, nodes=1, log="objects", groups=2, s3=False) as cluster:
        assert contents(cluster.urls[0], "again") == b"kept"
    assert running_with(str(tmp_path)) == {}


# ---- the directory and the ports, nothing started ------------------------------------------------------------------


def unstarted(directory: Path, groups: int = 16, port: int = 0) -> LocalCluster:
    return LocalCluster(directory, nodes=2, log="objects", s3=False, groups=groups, port=port)


def test_a_directory_is_run_by_one_at_a_time(tmp_path: Path) -> None:
    first = unstarted(tmp_path)
    with pytest.raises(CannotRun, match=f"another process runs a cluster in {tmp_path}"):
        unstarted(tmp_path)
    first.close()
    unstarted(tmp_path).close()


def test_a_cluster_cannot_be_started_as_another(tmp_path: Path) -> None:
    unstarted(tmp_path).close()
    with pytest.raises(CannotRun, match="holds a cluster with log objects, groups 16, nats 0, s3 False: ask for that"):
        unstarted(tmp_path, groups=4)
    unstarted(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotRun, match=r"cannot use the directory .*file/below: Not a directory"):
        unstarted(tmp_path / "file" / "below")


def test_the_nodes_ports_follow_the_one_that_was_asked_for(tmp_path: Path) -> None:
    ports = ReservedPorts()
    first = ports.take()
    ports.release()
    try:
        cluster = unstarted(tmp_path, port=first)
    except CannotRun:
        pytest.skip("somebody took one of these ports meanwhile")
    assert [node.port for node in cluster.nodes] == [first, first + 1]
    cluster.close()


def test_the_secret_is_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    cluster = unstarted(tmp_path)
    cluster.start_servers()
    secret = tmp_path / "secret"
    before = secret.read_bytes()
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    cluster.start_servers()
    assert secret.read_bytes() == before
    assert len(before) >= 16
    cluster.close()


# ---- with everything -----------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_part_of_a_cluster_with_nats_and_s3_can_be_killed_and_started_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, groups=4) as cluster:
        names = [part.name for part in cluster.parts]
        assert names == ["node-0", "node-1", "node-2", "nats-0", "nats-1", "nats-2", "s3"]
        create(cluster.urls[0], "s", b"kept")
        leader = cluster.nats.leader_of("headwater-0")
        assert leader in cluster.nats
        for part in cluster.parts:
            part.kill()
            assert part.exit_code == -9
            part.start()
            cluster.wait_ready()
            assert contents(cluster.urls[0], "s") == b"kept"
        for server in (cluster.nats[0], cluster.s3):
            assert server is not None
            server.pause()
            server.resume()
            server.stop()
            server.start()
        cluster.wait_ready(balanced=True)
        create(cluster.urls[1], "t", b"kept too")
        cluster.stop()
        assert not any(part.running for part in cluster.parts)
    with LocalCluster(tmp_path, groups=4) as cluster:
        assert (contents(cluster.urls[2], "s"), contents(cluster.urls[0], "t")) == (b"kept", b"kept too")
    assert running_with(str(tmp_path)) == {}


@pytest.mark.full
@pytest.mark.timeout(300)
def test_two_clusters_with_an_s3_each_run_at_once(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "a", nodes=1, log="objects", groups=1) as a,
        LocalCluster(tmp_path / "b", nodes=1, groups=1, nats=1) as b,
    ):
        create(a.urls[0], "s", b"of a")
        create(b.urls[0], "s", b"of b")
        assert contents(a.urls[0], "s") + contents(b.urls[0], "s") == b"of aof b"
    assert running_with(str(tmp_path)) == {}
