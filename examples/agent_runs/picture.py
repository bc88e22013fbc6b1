"""A stacked bar chart over time as an SVG, drawn by hand: no plotting library is needed for one picture.

Owns the drawing. Never knows what is drawn: series of numbers by minute come in, text goes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from html import escape

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 72, 48
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759")
INK, FAINT = "#333333", "#dddddd"
MINUTE = timedelta(minutes=1)


def nice_step(top: float, ticks: int = 5) -> float:
    """A round number of which about so many fit below the top."""
    size = 10.0 ** len(str(int(top / ticks))) / 10
    return next(step for step in (size, 2 * size, 5 * size, 10 * size) if step * ticks >= top)


def stacked_bars(title: str, series: Mapping[str, Mapping[datetime, int]]) -> str:
    minutes = sorted({minute for values in series.values() for minute in values})
    if not minutes:
        raise ValueError("there is nothing to draw")
    count = (minutes[-1] - minutes[0]) // MINUTE + 1
    totals = {minute: sum(values.get(minute, 0) for values in series.values()) for minute in minutes}
    step = nice_step(max(totals.values()))
    top = step * -(-max(totals.values()) // step)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    slot = wide / count

    def x_of(minute: datetime) -> float:
        return LEFT + (minute - minutes[0]) / MINUTE * slot

    def y_of(value: float) -> float:
        return TOP + high * (1 - value / top)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="28" font-size="18" font-weight="600">{escape(title)}</text>',
    ]
    at = LEFT
    for colour, name in zip(COLOURS, series, strict=False):
        lines.append(f'<rect x="{at}" y="42" width="12" height="12" rx="2" fill="{colour}"/>')
        lines.append(f'<text x="{at + 18}" y="52">{escape(name)}</text>')
        at += 34 + 8 * len(name)
    value = 0.0
    while value <= top:
        y = y_of(value)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
        value += step
    for minute in minutes:
        base = 0
        for colour, (name, values) in zip(COLOURS, series.items(), strict=False):
            tokens = values.get(minute, 0)
            if tokens:
                y, size = y_of(base + tokens), high * tokens / top
                shape = f'x="{x_of(minute) + 0.5:.1f}" y="{y:.1f}" width="{max(slot - 1, 1):.1f}" height="{size:.1f}"'
                told = f"{minute:%H:%M} {name}: {tokens:,}"
                lines.append(f'<rect {shape} fill="{colour}"><title>{escape(told)}</title></rect>')
                base += tokens
    every = max(1, round(count / 12 / 5) * 5)
    for offset in range(-minutes[0].minute % every, count, every):
        minute = minutes[0] + offset * MINUTE
        x = x_of(minute) + slot / 2
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{minute:%H:%M}</text>')
    lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(0)}" y2="{y_of(0)}" stroke="{INK}"/>')
    return "\n".join([*lines, "</svg>", ""])
