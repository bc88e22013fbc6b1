"""The arithmetic and the layout of `headwater top`: no node, no clock, no terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from headwater.cli.top import view
from headwater.cli.top.figures import Figures, Look, figures, percentile_ms
from headwater.histogram import BOUNDS_S, Histogram

URL = "http://127.0.0.1:1"


def metrics(appends: int = 0, groups: int = 2, cpu: float = 1.0, **more: Any) -> dict[str, Any]:
    times = Histogram()
    times.add(0.003, appends)
    timing = {"le": list(BOUNDS_S), "counts": times.counts, "count": appends, "sum": times.sum_s}
    by_group = {str(number): appends // groups for number in range(groups)}
    return {
        "appends": appends,
        "append_seconds": timing,
        "cpu_seconds": cpu,
        "uptime_seconds": 60.0,
        "hot_bytes": 90,
        "hot_bytes_max": 100,
        "responses": {"2xx": appends, "5xx": 0},
        "errors": {"overloaded": appends // 10},
        "worker_cpu_seconds": {"0": cpu},
        "worker_appends": {"0": appends},
        "group_appends": by_group,
        "group_hot_bytes": dict.fromkeys(by_group, 45),
        "build": {"0.1.0": 1},
        **more,
    }


def look(at_s: float, found: dict[str, Any] | None, name: str = "n", **more: Any) -> Look:
    return Look(name, f"{URL}{name}", at_s, found, **more)


def drawn(found: Figures, width: int, height: int) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=False, color_system=None)
    console.print(view.screen(found, URL, "q quit", width, height), end="")
    return out.getvalue().rstrip("\n").split("\n")


def test_rates_are_what_was_added_between_two_looks() -> None:
    found = figures([look(10.0, metrics(100, cpu=1))], [look(14.0, metrics(500, cpu=3))])
    assert found.interval_s == 4 and found.rates["appends"] == 100
    assert found.paces["append"].per_s == 100 and found.paces["read"].p50_ms is None
    assert found.errors == {"overloaded": 10} and found.responses["2xx"] == 100
    assert found.processes[0].cpu_percent == 50
    assert [group.appends_per_s for group in found.groups] == [50, 50]


def test_a_node_that_was_started_again_has_no_rates_until_the_next_look() -> None:
    found = figures([look(10.0, metrics(500, cpu=9))], [look(14.0, metrics(7, cpu=1))])
    assert found.rates["appends"] == 0 and found.now["hot_bytes"] == 90


def test_figures_of_nodes_are_added_and_one_that_is_silent_is_told() -> None:
    before = [look(0.0, metrics(0), "a"), look(0.0, metrics(0), "b"), look(0.0, None, "c", failure="gone")]
    after = [look(1.0, metrics(100), "a"), look(1.0, metrics(50), "b"), look(1.0, None, "c", failure="gone")]
    found = figures(before, after)
    assert found.rates["appends"] == 150 and found.paces["append"].per_s == 150
    assert [(node.name, node.failure) for node in found.nodes] == [("a", ""), ("b", ""), ("c", "gone")]
    text = "\n".join(drawn(found, 100, 40))
    assert "1 SILENT" in text and "does not answer" in text


@pytest.mark.parametrize(
    ("counts", "share", "ms"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 0, 0], 0.5, 500.0),
        ([10, 10, 0], 0.99, 1980.0),
        ([0, 10, 0], 0.5, 1500.0),
        ([0, 0, 10], 0.5, 2000.0),
    ],
)
def test_a_percentile_lies_in_its_bucket(counts: list[int], share: float, ms: float | None) -> None:
    assert percentile_ms([1.0, 2.0], counts, share) == (None if ms is None else pytest.approx(ms))


@pytest.mark.parametrize(("width", "height"), [(60, 14), (80, 24), (120, 30), (200, 50), (300, 20)])
@pytest.mark.parametrize("groups", [1, 5, 64])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_screen_has_as_many_lines_as_the_terminal_whatever_there_is_to_show(
    width: int, height: int, groups: int, nodes: int
) -> None:
    streams = [{"stream": f"b/{'s' * n}\x1b[2J\n", "records_per_s": 5.0, "bytes_per_s": 9.0} for n in range(0, 300, 9)]
    names = [str(number) for number in range(nodes)]
    before = [look(0.0, metrics(0, groups), name) for name in names]
    after = [look(2.0, metrics(90_000_000, groups), name, streams=streams) for name in names]
    lines = drawn(figures(before, after), width, height)
    assert len(lines) == height, "\n".join(lines)
    assert max(map(len, lines)) <= width and lines[-1].startswith("q quit")
    assert "\x1b" not in "".join(lines)
    assert any(line.startswith("group") for line in lines) or height < 20
    assert "hottest streams" in "".join(lines) or height < 20


def test_numbers_are_short() -> None:
    assert [view.size(n) for n in (0, 999, 1000, 1 << 20, 3 << 40)] == ["0 B", "999 B", "1.0 KiB", "1.0 MiB", "3.0 TiB"]
    assert [view.count(n) for n in (0, 0.25, 7, 12_345, 2e8)] == ["0", "0.2", "7", "12,345", "200M"]
    assert [view.milliseconds(n) for n in (0.051, 1.5, 12, 12_000)] == ["0.05 ms", "1.5 ms", "12 ms", "12 s"]
