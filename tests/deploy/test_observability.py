"""The dashboard, the alert rules and the scrape configuration below `deploy/observability`: they are what Prometheus
and Grafana read, and name only what a node tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater.observe import readings
from headwater.observe.tls_readings import tls_gauges
from tests.support.node import Node

FOLDER = Path(__file__).parents[2] / "deploy" / "observability"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=Path(sys.executable).parent)


class _Anything:
    def __getattr__(self, name: str) -> Any:
        return lambda: 0


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every series' name that a node with workers, one of a cluster or one with TLS tells."""
    with Node.started(tmp_path_factory.mktemp("node"), flags=["--workers", "2", "--s3p", "127.0.0.1:0"]) as node:
        text = node.request("GET", "/metrics").body.decode()
    names = set(re.findall(r"^(headwater_\w+)", text, re.MULTILINE))
    # What no error and no group has happened to is told without a line of its own.
    names |= set(re.findall(r"^# TYPE (headwater_\w+) (?:counter|gauge)$", text, re.MULTILINE))
    anything: Any = _Anything()
    for one in (*readings.cluster_gauges(anything, anything), *tls_gauges(anything)):
        names.add(f"headwater_{one.name}{'_total' if getattr(one, 'counts', False) else ''}")
    return names


def named(text: str) -> set[str]:
    """Of metrics; not of what the rules themselves record (`headwater:…`)."""
    return set(re.findall(r"(?<![:\w])headwater_\w+", text))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads((FOLDER / "dashboard.json").read_text())["panels"]


def test_every_metric_that_a_panel_shows_is_told_by_a_node(told: set[str]) -> None:
    for panel in panels():
        for target in panel.get("targets", []):
            names = named(target["expr"])
            assert names and names <= told, (panel["title"], names - told)
    variables = json.loads((FOLDER / "dashboard.json").read_text())["templating"]["list"]
    for variable in variables:
        assert named(json.dumps(variable)) <= told


def test_every_metric_that_a_rule_looks_at_is_told_by_a_node(told: set[str]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert named(rule["expr"]) <= told, rule
        assert set(re.findall(r"headwater:\w[\w:]*", rule["expr"])) <= recorded, rule


def test_the_rules_test_uses_metrics_that_exist(told: set[str]) -> None:
    series = re.findall(r"series: '(\w+)", (FOLDER / "alerts_test.yml").read_text())
    assert {name for name in series if name != "up"} <= told


def test_panels_have_numbers_of_their_own_and_lie_side_by_side() -> None:
    found = list(panels())
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in lines}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_every_alert_says_what_it_means_and_how_urgent_it_is() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 10
    for rule in alerts:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith("."), rule


def test_every_alert_is_in_the_guide() -> None:
    guide = (FOLDER.parents[1] / "docs" / "guides" / "observability.md").read_text()
    assert [rule["alert"] for rule in rules() if "alert" in rule and f"`{rule['alert']}`" not in guide] == []


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: the Debian package prometheus has it")
@pytest.mark.parametrize(
    "command",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(command: tuple[str, ...]) -> None:
    done = subprocess.run([str(PROMTOOL), *command], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
