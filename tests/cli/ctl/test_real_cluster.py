"""`headwater ctl` against real nodes: what it asks of them is what they answer, and a rolling restart goes through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headwater.cli.client import Client, stream_path
from headwater.cli.ctl import restart
from headwater.cli.main import app
from headwater.cluster_dev.local_cluster import LocalCluster

GROUPS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(folder, nodes=3, log="objects", s3=False, groups=GROUPS) as cluster:
        yield cluster


def ctl(cluster: LocalCluster, *args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["ctl", *args], env={"HEADWATER_URL": ",".join(cluster.urls)})
    assert result.exit_code == code, result.output
    return result


def test_groups_are_seen_moved_and_snapshotted(cluster: LocalCluster) -> None:
    ctl(cluster, "wait-ready", "--nodes", "3", "--expected-groups", str(GROUPS))
    groups = json.loads(ctl(cluster, "groups", "--json").stdout)["groups"]
    assert [group["ownership"]["state"] for group in groups] == ["owner"] * GROUPS
    seen = json.loads(CliRunner().invoke(app, ["ctl", "status", "--json", "--url", cluster.urls[0]]).stdout)
    other = next(node["node"] for node in seen["nodes"] if node["node"] != seen["groups"][0]["owner"])
    assert ctl(cluster, "move", "0", str(other), "--wait").stdout == f"group 0 is with node {other}\n"
    assert len(ctl(cluster, "snapshot").stdout.splitlines()) == GROUPS
    assert "no node 9" in ctl(cluster, "drain", "9", code=2).stderr


def test_a_rolling_restart_goes_through_every_node_and_loses_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"kept-{number}" for number in range(6)]
    client = Client(cluster.urls[0])
    for name in names:
        client.request("PUT", stream_path(name), headers={"Content-Type": "text/plain"}, body=b"kept")
    runs = {node.url: own_run(node.status()) for node in cluster.nodes}

    def again(words: list[str], node: Any) -> None:
        (process,) = [one for one in cluster.nodes if one.public_address == words[-1]]
        process.stop()
        process.start(wait=False)

    monkeypatch.setattr(restart, "_run", again)
    done = ctl(cluster, "restart", "--restart-cmd", "again {public_address}")
    assert done.stdout == "restarted 3 nodes: the cluster is healthy\n"
    for node in cluster.nodes:
        assert own_run(node.status()) != runs[node.url]
        reader = Client(node.url)
        assert [reader.request("GET", stream_path(name)).body for name in names] == [b"kept"] * len(names)


def own_run(status: dict[str, Any] | None) -> str:
    assert status is not None
    return str(next(node["run"] for node in status["nodes"] if node["node"] == status["node"]))
