"""From one machine to a cluster and back, over real processes: nothing is lost on either way, and what is erased in the
cluster is nowhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.cluster_dev.node_process import NodeProcess
from headwater.data_directory import DataDirectory
from tests.support.groups import town
from tests.support.http import Connection, Response

GROUPS = 2
TEXT = (("Content-Type", "text/plain"),)


def ask(node: NodeProcess, method: str, path: str, headers: Any = (), body: bytes = b"") -> Response:
    with Connection("127.0.0.1", node.port) as connection:
        return connection.request(method, path, headers, body)


def call(node: NodeProcess, method: str, path: str, said: Any = None) -> Any:
    answer = ask(node, method, path, (), b"" if said is None else json.dumps(said).encode())
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "headwater", "lake", *arguments]
    return subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@contextmanager
def servers(directory: Path, log: Any) -> Iterator[LocalCluster]:
    """A cluster without nodes yet."""
    made = LocalCluster(directory, nodes=2, log=log, nats=1, s3=False, groups=GROUPS)
    try:
        made.start_servers()
        yield made
        made.stop()
    finally:
        made.close()


def cluster_flags(cluster: LocalCluster) -> list[str]:
    flags = cluster.node_flags()
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return [part for pair in pairs if pair[0] not in ("--cluster-secret-file", "--groups") for part in pair]


def alone(data: Path) -> dict[str, bytes]:
    """What a node by itself holds, some of it in its log alone."""
    expected: dict[str, bytes] = {}

    async def body(node: Any) -> None:
        for group in range(GROUPS):
            for number in range(3):
                key = node.key(group, number=number)
                await node.write(key, *(b"%d " % n for n in range(20)))
                expected[key] = b"".join(b"%d " % n for n in range(20))
            if group == 0:
                await node.processes[0].request("POST", "/__headwater/flush")
        for key in expected:
            await node.write(key, b"more")
            expected[key] += b"more"

    town(data, body, groups_count=GROUPS)
    return expected


@pytest.mark.parametrize("log", ["objects", "jetstream"])
def test_a_node_by_itself_becomes_a_cluster_whose_backup_starts_a_node_by_itself(log: str, tmp_path: Path) -> None:
    data = tmp_path / "alone"
    expected = alone(data)
    with servers(tmp_path / "cluster", log) as cluster:
        shutil.copytree(data / "lake", cluster.directory / "shared" / "lake")
        flags = cluster_flags(cluster)
        done = command("into-cluster", "--data", str(data), "--json", *flags)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["groups"] == GROUPS
        again = command("into-cluster", "--data", str(data), "--json", *flags)
        assert again.returncode == 1 and "node of a cluster" in again.stderr
        cluster.nodes[0].start(wait=False)
        cluster.nodes[1].start(wait=False)
        cluster.wait_ready()
        for i, (key, payload) in enumerate(expected.items()):
            node = cluster.nodes[i % 2]
            assert ask(node, "GET", f"/v1/stream/{key}").body == payload
            assert ask(node, "POST", f"/v1/stream/{key}", TEXT, b"!").status == 204
            expected[key] += b"!"
        private = "town/private-4711"
        assert ask(cluster.nodes[0], "PUT", f"/v1/stream/{private}", TEXT, b"secret of 4711").status == 201
        erased(cluster, private)
        restored = taken(cluster, tmp_path / "restored")
    served(restored, tmp_path / "cluster" / "shared" / "lake", expected)


def erased(cluster: LocalCluster, key: str) -> None:
    node = cluster.nodes[0]
    assert ask(node, "DELETE", f"/v1/stream/{key}").status == 204
    facts = call(cluster.nodes[1], "POST", "/__headwater/erase", {"stream": key})
    assert sorted(facts["log_positions"]) == ["0", "1"]
    shared = [
        path for path in (cluster.directory / "shared").rglob("*") if "_cluster" in path.parts or "log" in path.parts
    ]
    nodes = [path for part in ("node-0", "node-1") for path in (cluster.directory / part).rglob("*")]
    for path in [*shared, *nodes]:
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path
            assert b"secret of 4711" not in path.read_bytes(), path


def taken(cluster: LocalCluster, data: Path) -> Path:
    """A backup's cuts of all groups, as a directory of a node by itself."""
    data.mkdir()
    directory = DataDirectory(data)
    directory.prepare(GROUPS, GROUPS)
    for group in range(GROUPS):
        node = cluster.nodes[group]
        facts = call(node, "POST", f"/__headwater/groups/{group}/backup", {"hold_ms": 60_000})
        path = f"/__headwater/groups/{group}/backup/{facts['id']}"
        other = cluster.nodes[1 - group]
        directory.catalog(group).write_bytes(ask(other, "GET", f"{path}/catalog").body)
        directory.wal(group).mkdir(parents=True)
        (file,) = facts["log_files"]
        copied = ask(other, "GET", f"{path}/log").body
        assert len(copied) == file["bytes"]
        (directory.wal(group) / f"{file['position']:020d}.wal").write_bytes(copied)
        assert ask(node, "DELETE", path).status == 204
    return data


def served(data: Path, lake: Path, expected: dict[str, bytes]) -> None:
    found = command("contents", "--data", str(data), "--json")
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)
    assert (facts["streams"], facts["bytes"]) == (len(expected), sum(map(len, expected.values())))
    shutil.copytree(lake, data / "lake", ignore=shutil.ignore_patterns("_cluster"))

    async def body(node: Any) -> None:
        for key, payload in expected.items():
            stream = node.engine.find(key, False)
            part = await node.engine.read_now(stream, 0, 1 << 20)
            assert b"".join(bytes(one) for one in part.payloads) == payload

    town(data, body, groups_count=GROUPS)


def test_a_cluster_does_not_begin_on_a_log_that_is_there_nor_without_the_lake(tmp_path: Path) -> None:
    data = tmp_path / "alone"
    alone(data)
    with servers(tmp_path / "cluster", "objects") as cluster:
        flags = cluster_flags(cluster)
        refused = command("into-cluster", "--data", str(data), *flags)
        assert refused.returncode == 1 and "does not hold data/0/" in refused.stderr
        shutil.copytree(data / "lake", cluster.directory / "shared" / "lake", dirs_exist_ok=True)
        cluster.nodes[0].start(wait=False)
        cluster.wait_ready()
        refused = command("into-cluster", "--data", str(data), *flags)
        assert refused.returncode == 1 and "there is a log already" in refused.stderr
    # It is still a node by itself.
    assert command("contents", "--data", str(data)).returncode == 0


def test_run_again_it_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.cli import begin_cluster
    from headwater.cli.stopped_node import NotBegun

    data = tmp_path / "alone"
    alone(data)
    flags = {"cluster": (tmp_path / "log").as_uri(), "lake": str(data / "lake")}
    real = begin_cluster.into_cluster.__globals__["agreed"]

    async def failing(*arguments: Any) -> Any:
        raise OSError("stopped")

    monkeypatch.setitem(begin_cluster.into_cluster.__globals__, "agreed", failing)
    with pytest.raises(NotBegun, match="stopped"):
        begin_cluster.begin(str(data), None, flags, lambda *told: None)
    monkeypatch.setitem(begin_cluster.into_cluster.__globals__, "agreed", real)
    begun = begin_cluster.begin(str(data), None, flags, lambda *told: None)
    assert (begun.groups, sorted(begun.positions)) == (GROUPS, ["0", "1"])
    snapshots = list((data / "lake" / "_cluster" / "catalogs").rglob("catalog"))
    assert len(snapshots) == GROUPS
