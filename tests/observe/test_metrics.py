"""What `/metrics` of a real node tells, in both forms, and that the guide says what each of it means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.histogram import BOUNDS_S, Histogram
from headwater.observe import readings
from headwater.observe.metrics import ByLabel, Gauge, Timing
from tests.support.node import Node

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "observability.md"
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ["--workers", "2", "--groups", "3", "--s3p", "127.0.0.1:0"]
    with Node.started(tmp_path_factory.mktemp("node"), flags=flags) as started:
        yield started


def shown(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.request("GET", "/__headwater/metrics").json()
    return found


def names_in(text: str) -> set[str]:
    """Of every metric, as Prometheus would ask for it."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        found.add(name)
        assert not name.endswith(("_created", "_info"))
        assert (kind == "counter") == name.endswith("_total")
    return found


def test_every_metric_of_a_node_with_workers_and_of_a_cluster_is_in_the_guide(node: Node) -> None:
    names = names_in(node.request("GET", "/metrics").body.decode())
    cluster: Any = _Anything()
    for one in readings.cluster_gauges(cluster, cluster):
        names.add(f"headwater_{one.name}{'_total' if getattr(one, 'counts', False) else ''}")
    guide = set(re.findall(r"`(headwater_\w+)", GUIDE.read_text()))
    assert names <= guide, names - guide
    assert guide <= names, guide - names


class _Anything:
    def __getattr__(self, name: str) -> Any:
        return lambda: 0


def test_every_metric_has_a_help_text_and_names_its_unit_last(node: Node) -> None:
    text = node.request("GET", "/metrics").body.decode()
    helped = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    for name in names_in(text):
        assert helped[name].endswith((".", "scrape."))
        for unit in ("seconds", "bytes"):
            assert unit not in name or re.search(rf"{unit}(_max|_total)?$", name), name


def test_answers_are_counted_by_class_and_by_code_once_wherever_they_were_made(node: Node) -> None:
    before = shown(node)
    for number in range(6):
        node.request("PUT", f"/v1/stream/counted/{number}", TEXT, b"")
        for _ in range(3):
            node.request("POST", f"/v1/stream/counted/{number}", TEXT, b"x")
        node.request("GET", f"/v1/stream/counted/{number}/none")
    after = shown(node)
    told = after["responses"]["2xx"] - before["responses"]["2xx"]
    assert told == 6 * 4 + 1  # the first look at the metrics is an answer, too
    assert after["errors"]["stream_not_found"] - before["errors"].get("stream_not_found", 0) == 6
    assert after["responses"]["4xx"] - before["responses"]["4xx"] == 6
    assert after["appends"] - before["appends"] == 18
    assert sum(after["group_appends"].values()) == after["appends"] == sum(after["worker_appends"].values())
    assert set(after["group_appends"]) == {"0", "1", "2"} and set(after["worker_appends"]) == {"0", "1"}


def test_every_answer_that_waited_for_the_log_is_in_the_histogram_of_all_workers(node: Node) -> None:
    before = shown(node)
    for number in range(8):
        node.request("PUT", f"/v1/stream/timed/{number}", TEXT, b"")
        node.request("POST", f"/v1/stream/timed/{number}", TEXT, b"x")
        node.request("GET", f"/v1/stream/timed/{number}")
    after = shown(node)
    assert after["append_seconds"]["count"] - before["append_seconds"]["count"] == 16
    assert after["read_seconds"]["count"] - before["read_seconds"]["count"] == 8
    assert after["log_sync_seconds"]["count"] > before["log_sync_seconds"]["count"]
    assert after["append_seconds"]["sum"] > before["append_seconds"]["sum"]
    text = node.request("GET", "/metrics").body.decode()
    (last,) = re.findall(r'^headwater_append_seconds_bucket\{le="\+Inf"\} (\S+)$', text, re.MULTILINE)
    (count,) = re.findall(r"^headwater_append_seconds_count (\S+)$", text, re.MULTILINE)
    assert float(last) == float(count) >= 16


def test_memory_is_shown_beside_its_ceiling(node: Node) -> None:
    found = shown(node)
    assert 0 < found["hot_bytes"] < found["hot_bytes_max"]
    assert sum(found["group_hot_bytes"].values()) == found["hot_bytes"]
    assert found["log_queue_bytes"] == found["answers_pending"] == 0


def test_buckets_of_processes_add_up_and_so_do_labels() -> None:
    fast, slow = Histogram(), Histogram()
    fast.add(BOUNDS_S[0], 3)
    slow.add(BOUNDS_S[0] * 1.01)
    slow.add(1e9)
    timing = Timing("x_seconds", "x", lambda: [fast])
    both = timing.merged([timing.value(), Timing("x_seconds", "x", lambda: [slow]).value()])
    assert both["counts"][:2] == [3, 1] and both["counts"][-1] == 1
    assert timing.shown(both)["count"] == 5  # type: ignore[index]
    labels = ByLabel("y", "y", "of", dict)
    assert labels.merged([{"a": 1, "b": 2}, {"b": 3}]) == {"a": 1, "b": 5}
    assert Gauge("z", "z", lambda: 1, merge=max).merged([1, 7, 3]) == 7
    assert json.loads(json.dumps(both)) == both


def test_health_is_told_as_json_and_as_text_to_those_who_ask_for_it(node: Node) -> None:
    told = node.request("GET", "/readyz").json()
    assert told["status"] == "ready" and set(told["checks"].values()) == {"ok"} and "workers" in told["checks"]
    text = node.request("GET", "/readyz", {"Accept": "text/plain"})
    assert text.header("content-type") == "text/plain; charset=utf-8"
    assert text.body.decode().splitlines() == ["ready", *(f"{name}: ok" for name in told["checks"])]
    both = node.request("GET", "/healthz", {"Accept": "text/plain, application/json"}).json()
    assert both["status"] == "up" and "process" in both["checks"] and both["version"]
