"""The picture of B13: measured appends/s as circles, predicted ones as dashed lines.

Owns the drawing; knows nothing of how the numbers came about.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from bench.report import show

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 70, 50
COLOURS = {"fsync": ("#2458a8", "#b3541e"), "memory": ("#2e7d4f", "#7a3e9d")}

Rates = dict[str, dict[int, float | None]]


def draw(measured: dict[str, Rates], predicted: dict[str, dict], caption: Sequence[str], path: Path) -> None:
    """Both by durability mode, then by pattern, then by number of workers. Both axes in powers of two."""
    series = [
        (mode, pattern, {n: rate for n, rate in rates.items() if rate}, predicted[mode][pattern])
        for mode, by_pattern in measured.items()
        for pattern, rates in by_pattern.items()
    ]
    xs = sorted({n for _, _, points, line in series for n in (*points, *line)})
    ys = [rate for _, _, points, line in series for rate in (*points.values(), *line.values())]
    if len(xs) < 2:
        return
    low, high = math.floor(math.log2(min(ys) / 1000)), math.ceil(math.log2(max(ys) / 1000))
    last = math.log2(xs[-1] / xs[0])

    def x(workers: int) -> float:
        return LEFT + math.log2(workers / xs[0]) / last * (WIDTH - LEFT - RIGHT)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (math.log2(rate / 1000) - low) / max(high - low, 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for row, text in enumerate(caption):
        parts.append(f'<text x="{LEFT}" y="{18 + 16 * row}" font-size="{12 if row else 13}">{text}</text>')
    for power in range(low, high + 1):
        at = y(1000 * 2**power)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{2**power:g} k/s</text>'
        )
    for workers in xs:
        parts.append(f'<text x="{x(workers):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{workers}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">workers</text>')
    ends = sorted((y(line[max(line)]), mode, pattern) for mode, pattern, _, line in series if line)
    at = 0.0
    for place, mode, pattern in ends:
        points, line = next((p, ln) for m, name, p, ln in series if (m, name) == (mode, pattern))
        colour = COLOURS[mode][list(measured[mode]).index(pattern)]
        path_points = " ".join(f"{x(n):.1f},{y(line[n]):.1f}" for n in sorted(line))
        parts.append(
            f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="6 4"/>'
        )
        parts += [
            f'<circle cx="{x(n):.1f}" cy="{y(rate):.1f}" r="4" fill="{colour}" stroke="white"/>'
            for n, rate in sorted(points.items())
        ]
        at = max(place, at + 15)
        label = f"{mode}, {pattern}: {show(line[max(line)] / 1000)} k/s"
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{at + 4:.1f}" fill="{colour}">{label}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))
