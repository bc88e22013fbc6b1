"""`headwater ctl restore` with real nodes and a real nats-server whose files are deleted: what comes back.

Nothing here is pretended: the nodes, the server and the lake are those of `headwater cluster dev`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headwater.cli.client import Client, Refused, stream_path
from headwater.cli.main import app
from headwater.cluster_dev.local_cluster import LocalCluster

TEXT = {"Content-Type": "text/plain"}
NAMES = [f"s{number}" for number in range(8)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=2, log="jetstream", nats=1, s3=False, groups=2) as cluster:
        yield cluster


def ctl(cluster: LocalCluster, *args: str, code: int = 0, stdin: str = "") -> Result:
    environment = {"HEADWATER_URL": ",".join(cluster.urls)}
    result = CliRunner().invoke(app, ["ctl", *args], env=environment, input=stdin)
    assert result.exit_code == code, result.output
    return result


def restore(cluster: LocalCluster, *args: str, code: int = 0, stdin: str = "") -> Result:
    flags = cluster.node_flags()
    told = dict(zip(flags[::2], flags[1::2], strict=True))
    wanted = ("--cluster", "--cluster-monitors", "--cluster-replicas", "--lake")
    given = [part for name in wanted for part in (name, told[name])]
    return ctl(cluster, "restore", *given, *args, code=code, stdin=stdin)


def append(client: Client, name: str, data: bytes, seq: int) -> None:
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
    client.request("POST", stream_path(name), headers=TEXT | producer, body=data)


def read(client: Client, name: str) -> bytes:
    return client.request("GET", stream_path(name), query={"offset": "-1"}).body


def lose_the_log(cluster: LocalCluster) -> None:
    """Every node stops, and nothing is left of what the NATS server had."""
    for part in cluster.parts:
        part.kill()
    (server,) = cluster.nats
    for path in server.directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    cluster.start_servers()


def test_a_cluster_whose_log_was_deleted_comes_back_up_to_what_a_snapshot_lists(cluster: LocalCluster) -> None:
    client = Client(cluster.urls[0])
    for name in NAMES:
        client.request("PUT", stream_path(name), headers=TEXT)
        append(client, name, b"settled ", 0)
    client.request("POST", "/__headwater/flush")
    for name in NAMES:
        append(client, name, b"in the log alone ", 1)
    positions = {group["group"]: group["position"] for group in json.loads(snapshot(cluster).stdout)["groups"]}
    append(client, NAMES[0], b"after the snapshot ", 2)
    client.request("PUT", stream_path("unknown to the snapshot"), headers=TEXT)

    refused = restore(cluster, "--yes", code=1)
    assert "answers at" in refused.stderr

    lose_the_log(cluster)
    shutil.rmtree(cluster.nodes[0].data)  # of the other one the catalog is still there, and beyond the snapshot

    # By itself a node does not begin with less than was acknowledged.
    node = cluster.nodes[1]
    node.start(wait=False)
    node.wait_until(lambda: "and this log is empty" in node.output(), "refusing its groups", 60.0)
    node.kill()

    facts = json.loads(restore(cluster, "--json", code=1, stdin="n\n").stdout.splitlines()[0])["groups"]
    assert [one["state"] for one in facts] == ["lost", "lost"]
    assert {one["group"]: one["position"] for one in facts} == positions
    assert sum(one["cut"]["cut_bytes"] for one in facts) == len(NAMES) * len(b"in the log alone ")
    assert all(one["missing_files"] == [] for one in facts)

    done = restore(cluster, "--yes")
    assert done.stdout.splitlines()[-1] == "restored 2 groups: start the nodes"

    for node in cluster.nodes:
        node.start(wait=False)
    cluster.wait_ready()
    for url in cluster.urls:
        client = Client(url)
        assert [read(client, name) for name in NAMES] == [b"settled "] * len(NAMES)
        with pytest.raises(Refused):
            read(client, "unknown to the snapshot")
    for name in NAMES:
        with pytest.raises(Refused) as beyond:
            client.request("GET", stream_path(name), query={"offset": f"{25:020}"})
        assert beyond.value.status == 400
        append(client, name, b"and on ", 2)  # the producer goes on after what was acknowledged
        assert read(client, name) == b"settled and on "
    client.request("POST", "/__headwater/flush")
    ctl(cluster, "snapshot")
    nodes = json.loads(ctl(cluster, "status", "--json", code=1).stdout)["nodes"]
    (gone,) = [str(node["node"]) for node in nodes if not node["alive"]]  # it has another id: its disk is gone
    ctl(cluster, "forget", gone)
    # Each node hears of it by itself, and the new one has to catch up.
    for url in cluster.urls:
        ctl(cluster, "wait-ready", "--nodes", "2", "--url", url)
    verified = CliRunner().invoke(app, ["ctl", "verify", "--json", "--url", ",".join(cluster.urls)])
    assert [group["problems"] for group in json.loads(verified.stdout)["groups"]] == [[], []]

    for part in cluster.nodes:
        part.kill()
    again = restore(cluster)
    assert "no log is lost" in again.stderr
    assert [line.split("\t")[1] for line in again.stdout.splitlines()] == ["whole", "whole"]

    cluster.start_node(1, wait=False)
    cluster.wait_ready()
    client = Client(cluster.urls[1])
    assert [read(client, name) for name in NAMES] == [b"settled and on "] * len(NAMES)


def snapshot(cluster: LocalCluster) -> Result:
    return ctl(cluster, "snapshot", "--json")
