"""A cluster's backup, made by the job while groups are written to: it starts one machine, and another cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.spark.jobs.backup import backup
from headwater.spark.jobs.restore import restore
from headwater.spark.node import Node as NodeCalls
from tests.support.node import Node
from tests.test_into_cluster import TEXT, ask, cluster_flags, command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
GROUPS = 3
STREAMS = [f"town/s{n}" for n in range(12)]


def test_a_cluster_is_backed_up_and_restored_onto_one_machine_and_into_another_cluster(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "backups")
    with LocalCluster(tmp_path / "one", nodes=2, log="objects", s3=False, groups=GROUPS) as cluster:
        for n, key in enumerate(STREAMS):
            assert ask(cluster.nodes[n % 2], "PUT", f"/v1/stream/{key}", TEXT, b"first ").status == 201
            assert ask(cluster.nodes[0], "POST", f"/v1/stream/{key}", TEXT, b"second").status == 204
        summary = backup(spark, NodeCalls(cluster.nodes[1].url, None, 5.0), to=target)
        cluster.stop()
    assert (summary["streams"], summary["records"]) == (len(STREAMS), 2 * len(STREAMS))
    # Onto one machine.
    alone = tmp_path / "alone"
    done = restore(spark, source=target, data=alone / "data")
    assert (done["groups"], done["forks_placed"], done["streams_deleted"]) == (GROUPS, 0, 0)
    with Node.started(alone) as node:
        for key in STREAMS:
            assert node.request("GET", f"/v1/stream/{key}").body == b"first second"
    # Into another cluster.
    made = LocalCluster(tmp_path / "two", nodes=2, log="objects", s3=False, groups=GROUPS)
    try:
        made.start_servers()
        begun = tmp_path / "begun"
        restore(spark, source=target, data=begun, lake=str(made.directory / "shared" / "lake"))
        became = command("into-cluster", "--data", str(begun), *cluster_flags(made))
        assert became.returncode == 0, became.stderr
        made.start()
        for n, key in enumerate(STREAMS):
            assert ask(made.nodes[n % 2], "GET", f"/v1/stream/{key}").body == b"first second"
            assert ask(made.nodes[n % 2], "POST", f"/v1/stream/{key}", TEXT, b"!").status == 204
        groups = json.loads(ask(made.nodes[0], "GET", "/__headwater/cluster").body)["groups_count"]
        assert groups == GROUPS
        made.stop()
    finally:
        made.close()
