"""Queries of a cluster whose owner of groups is killed in the middle: each record comes once.
The queries run in this process, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster_dev.local_cluster import LocalCluster
from headwater.spark.node import Node as Calls
from headwater.spark.rows import schema_of
from headwater.spark.source import Reader
from tests.spark.queries import Query
from tests.test_into_cluster import TEXT, ask

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
GROUPS = 3
KEYS = [f"town/s{n}" for n in range(9)]
OTHERS = [f"sea/s{n}" for n in range(3)]


def written(cluster: LocalCluster, text: str, live: int = 0) -> None:
    for key in (*KEYS, *OTHERS):
        assert ask(cluster.nodes[live], "POST", f"/v1/stream/{key}", TEXT, f"{key} {text}\n".encode()).status == 204


def by_stream(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for row in sorted(rows, key=lambda row: (row["stream"], row["seq"])):
        found[f"{row['bucket']}/{row['stream']}"] = found.get(f"{row['bucket']}/{row['stream']}", b"") + row["payload"]
    return found


def shown(cluster: LocalCluster, live: int) -> dict[str, bytes]:
    return {key: ask(cluster.nodes[live], "GET", f"/v1/stream/{key}").body for key in KEYS}


def test_a_query_reads_each_group_from_its_owner_and_goes_on_when_that_is_killed(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "one", nodes=2, log="objects", s3=False, groups=GROUPS) as cluster:
        for n, key in enumerate((*KEYS, *OTHERS)):
            assert ask(cluster.nodes[n % 2], "PUT", f"/v1/stream/{key}", TEXT, b"first\n").status == 201
        written(cluster, "second")
        first, second = (node.url for node in cluster.nodes)
        query = Query(cluster.nodes[0], bucket="town", maxOffsetsPerTrigger="6")  # type: ignore[arg-type]
        rows = query.run(batches_max=1)
        assert 0 < len(rows) < 2 * len(KEYS)
        # Executors are told where the owners are.
        reader = query.reader()
        query.plan(reader)
        owners = reader._planned.resumed.node.owners if reader._planned is not None else {}
        assert set(owners) == set(range(GROUPS))
        assert {f"http://{address}" for address in owners.values()} <= {first, second}
        cluster.kill_node(0)
        # The batch that was planned is read again with the node that is left, and the offsets mean what they meant.
        query.options["url"] = second
        rows += query.run()
        assert by_stream(rows) == shown(cluster, 1)
        written(cluster, "third", live=1)
        assert ask(cluster.nodes[1], "POST", "/__headwater/flush").status == 200
        written(cluster, "fourth", live=1)
        rows += query.run()
        assert by_stream(rows) == shown(cluster, 1)
        assert query.run() == []
        starts = json.dumps({KEYS[0]: "latest", KEYS[1]: 6})
        batch = Reader({"url": second, "bucket": "town", "startingOffsets": starts}, schema_of(False))
        some = [row for part in batch.partitions() for each in batch.read(part) for row in each.to_pylist()]
        whole = shown(cluster, 1)
        expected = {key: body for key, body in whole.items() if key != KEYS[0]} | {KEYS[1]: whole[KEYS[1]][6:]}
        assert by_stream(some) == expected
        assert len(Calls(second).plan({})) == GROUPS
        cluster.stop()
