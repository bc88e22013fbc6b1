"""Health and metrics of a node in a cluster: about this node, and never waiting for another."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cluster.nodes import Node
from headwater.cluster.ownership import AWAY, OWNER, STANDBY
from headwater.cluster.view import State, View
from headwater.engine.engine import Engine
from headwater.engine.questions import LocalQuestions
from headwater.histogram import Histogram
from headwater.observe import readings
from headwater.observe.cluster_readings import NodeReadings
from headwater.observe.health import Health
from headwater.observe.metrics import Metrics, Timing
from headwater.ports import SystemClock

GROUPS = 3


def node(number: int) -> Node:
    return Node(number, f"id{number}", f"run{number}", f"h:{number}", "", "1", "", 0, 1)


class Neighbourhood(LocalQuestions):
    """Questions to others are never answered."""

    alone = False
    everyone = (0, 1, 2)

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        raise AssertionError(f"{name} was asked of {member}")


class Group(SimpleNamespace):
    def told(self) -> dict[str, Any]:
        return {"snapshot_failure": self.failure}


def group(state: str, failure: str | None = None) -> Any:
    counts = {"claims_count": 2, "hand_overs_count": 1, "suspensions_count": 3}
    lags = {"standby_lag_s": 0.5 * (state == STANDBY), "snapshot_age_s": 2.0, "snapshot_lag_bytes": 7}
    return Group(state=state, failure=failure, **counts, **lags)


@pytest.fixture
def view() -> View:
    made = View(node(0), GROUPS)
    made.registered([node(0), node(1)])
    return made


@pytest.fixture
def cluster(view: View) -> NodeReadings:
    groups = [group(OWNER), group(STANDBY, "the store is away"), group(AWAY)]
    return NodeReadings(view, SimpleNamespace(groups=groups))  # type: ignore[arg-type]


def ready(health: Health) -> tuple[int, dict[str, str]]:
    status, _, body = asyncio.run(health.readyz())
    return status, json.loads(body)["checks"]


def test_a_node_is_ready_when_it_is_settled_every_group_has_an_owner_and_it_does_not_drain(
    view: View, cluster: NodeReadings
) -> None:
    health = Health(Neighbourhood(), cluster)
    view.claimed(0, 1)
    status, checks = ready(health)
    assert status == 503 and "not heard" in checks["cluster"]
    assert "1, 2 (2 of 3)" in checks["groups"] and checks["draining"] == "ok"
    view.heard(State(node(1), 1, {1: 1, 2: 1}, [0], False, False), answered=True)
    assert ready(health) == (200, {"cluster": "ok", "groups": "ok", "draining": "ok"})
    view.drain(True)
    status, checks = ready(health)
    assert status == 503 and checks["draining"] != "ok"


def test_groups_that_change_hands_make_a_node_unready_only_when_nobody_owns_any(
    view: View, cluster: NodeReadings
) -> None:
    health = Health(Neighbourhood(), cluster)
    view.claimed(0, 1)
    view.heard(State(node(1), 1, {1: 1, 2: 1}, [0], False, False), answered=True)
    assert ready(health)[0] == 200
    for _ in range(10):
        view.round()
    assert cluster.nodes_alive() == 1 and cluster.groups_without_owner() == [1, 2]
    assert ready(health)[0] == 200
    view.gave_up(0)
    assert ready(health)[0] == 503
    view.claimed(0, 2)
    assert ready(health)[0] == 200
    assert asyncio.run(health.healthz())[0] == 200


def test_what_is_wrong_with_this_node_is_told_without_the_name_of_a_worker(view: View, cluster: NodeReadings) -> None:
    health = Health(Neighbourhood(), cluster)
    health.add("lake", lambda: "it takes nothing")
    assert ready(health)[1]["lake"] == "it takes nothing"


def test_metrics_are_those_of_this_node_and_of_the_cluster_as_it_sees_it(view: View, cluster: NodeReadings) -> None:
    metrics = Metrics(Neighbourhood(), in_cluster=True)
    metrics.add(*readings.cluster_gauges(cluster, SimpleNamespace(forwarded_count=7)))  # type: ignore[arg-type]
    view.claimed(0, 1)
    view.set_ready(1, True)
    assert json.loads(asyncio.run(metrics.json())[2]) == {
        "cluster_nodes_alive": 1,
        "cluster_groups_owned": 1,
        "cluster_groups_without_owner": 2,
        "cluster_standbys_ready": 1,
        "cluster_snapshots_failing": 1,
        "cluster_groups": {"owner": 1.0, "suspended": 0.0, "standby": 1.0, "away": 1.0},
        "cluster_standby_lag_seconds": 0.5,
        "cluster_snapshot_age_seconds": 2.0,
        "cluster_snapshot_lag_bytes": 21,
        "cluster_claims": 6,
        "cluster_hand_overs": 3,
        "cluster_suspensions": 9,
        "requests_forwarded": 7,
    }
    text = asyncio.run(metrics.prometheus())[2].decode()
    assert "headwater_cluster_claims_total 6.0" in text and "headwater_workers" not in text


def owned(number: int, appends: int, flushes: int, lake_position: int) -> Any:
    log = SimpleNamespace(tail=lake_position + 10, synced=lake_position + 10, sync_times=Histogram())
    made: Any = SimpleNamespace(
        usage=SimpleNamespace(take=lambda: {}, give_back=lambda counts: None),
        observers=[],
        left=False,
        failed=False,
        appends_count=appends,
        lake_position=lambda: lake_position,
        hot_bytes_max=100,
        batches=SimpleNamespace(answers_pending=0, times=Histogram()),
        log=log,
        loaded=SimpleNamespace(by_key={}, hot_bytes=5),
    )
    flusher = SimpleNamespace(flushes_count=flushes, flushed_bytes=0, lag_s=lambda: 1.5 * number)
    gc = SimpleNamespace(runs_count=0, files_deleted_count=0, bytes_deleted=0)
    upkeep, reads = SimpleNamespace(checkpoints_count=0), SimpleNamespace(reads_count=0, pending=0)
    return SimpleNamespace(number=number, group=made, flusher=flusher, lake_gc=gc, upkeep=upkeep, reads=reads)


def test_counters_go_on_when_groups_enter_and_leave_and_gauges_are_of_the_groups_that_are_here() -> None:
    engine = Engine({}, GROUPS, SystemClock())
    metrics = Metrics(LocalQuestions())
    metrics.add(*readings.engine_gauges(engine, since := readings.SinceStart(engine)))
    metrics.add(Timing("append_seconds", "", since.timing(lambda one: one.group.batches.times)))

    def values() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(asyncio.run(metrics.json())[2])
        return found

    before = values()
    assert (before["appends"], before["flushes"], before["hot_bytes"], before["flush_lag_seconds"]) == (0, 0, 0, 0)
    first, second = owned(1, 0, 0, 100), owned(2, 4, 0, 500)  # the second was here before, and counted then
    engine.enter(first)
    engine.enter(second)
    first.group.batches.times.add(1.0, 3)
    first.group.appends_count, first.flusher.flushes_count, second.group.appends_count = 3, 2, 5
    both = values()
    assert (both["appends"], both["flushes"], both["hot_bytes"], both["flush_lag_seconds"]) == (4, 2, 10, 3.0)
    assert both["log_tail_position"] - both["lake_position"] == 20
    engine.leave(1)
    alone = values()
    assert (alone["appends"], alone["flushes"], alone["hot_bytes"], alone["lake_position"]) == (4, 2, 5, 500)
    engine.enter(first)
    first.group.appends_count += 1
    assert values()["appends"] == 5 and values()["append_seconds"]["count"] == 3
