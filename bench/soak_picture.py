"""The picture of a long chaos run on a cluster: `python -m bench.soak_picture report.json bench/cluster_soak.svg`.

Owns the drawing. The report is what `python -m tests.cluster.chaos --report report.json` wrote: acknowledged appends a
second above, the pause that each fault brought in the middle, the nodes' memory below.
"""

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP = 70, 20, 60
PANEL, GAP = 130, 36
STRETCH_S = 10.0
BLUE, RED, GREEN = "#2458a8", "#b3541e", "#2e7d4f"

Points = list[tuple[float, float]]


def draw(report: dict[str, Any], path: Path) -> None:
    """Seconds count from the first acknowledged append. Linear in appends' stretches and faults."""
    start_s = report["start_s"]
    rates = [(i * STRETCH_S, count / STRETCH_S) for i, (count, _) in enumerate(report["rates"])]
    pauses = [(fault["start_s"] - start_s, fault["pause_s"]) for fault in report["faults"]]
    memory = [(at_s - start_s, kib / 1024) for at_s, kib in report["memory"]]
    until_s = rates[-1][0] + STRETCH_S
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="13">{_title(report, until_s)}</text>',
        f'<text x="{LEFT}" y="38">{_outcome(report)}</text>',
    ]
    panels = (
        ("acknowledged appends a second", "/s", rates, BLUE, False),
        ("longest pause of a stream around each fault", "s", pauses, RED, True),
        ("memory of all nodes together", "MiB", memory, GREEN, False),
    )
    for row, (title, unit, points, colour, bars) in enumerate(panels):
        top = TOP + row * (PANEL + GAP)
        parts += _panel(top, title, unit, points, until_s, colour, bars)
    for minute in range(0, int(until_s // 60) + 1, max(1, int(until_s // 600))):
        x = _x(minute * 60.0, until_s)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{minute}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">minutes</text></svg>')
    path.write_text("\n".join(parts) + "\n")


def _title(report: dict[str, Any], until_s: float) -> str:
    return (
        f"{until_s / 60:.0f} minutes, {len(report['faults'])} faults, seed {report['seed']}: "
        f"{report['acknowledged']:,} acknowledged appends, {report['reads']:,} reads"
    )


def _outcome(report: dict[str, Any]) -> str:
    broken = len(report["violations"])
    told = f"{broken} violations" if broken else "no violation"
    return f"{told}; {report['retried']:,} appends needed a retry, {report['unknown']:,} have an unknown outcome"


def _x(at_s: float, until_s: float) -> float:
    return LEFT + at_s / until_s * (WIDTH - LEFT - RIGHT)


def _panel(top: float, title: str, unit: str, points: Points, until_s: float, colour: str, bars: bool) -> list[str]:
    high = max((value for _, value in points), default=1.0) or 1.0
    bottom = top + PANEL

    def y(value: float) -> float:
        return bottom - value / high * (PANEL - 16)

    parts = [f'<text x="{LEFT}" y="{top + 10}" fill="{colour}">{title}</text>']
    for value in (0.0, high / 2, high):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g} {unit}</text>'
        )
    if bars:
        for at_s, value in points:
            x = _x(at_s, until_s)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{y(value):.1f}" stroke="{colour}"/>')
    else:
        line = " ".join(f"{_x(at_s, until_s):.1f},{y(value):.1f}" for at_s, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
    return parts


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
