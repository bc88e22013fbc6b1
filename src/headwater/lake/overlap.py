"""How deep spans lie over one another: the most files that hold the same place of an order.

Pure. Spans that share only an end lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def deepest(spans: Iterable[tuple[Any, Any] | None]) -> list[int]:
    """Which of the spans, by number, hold the place that most do; of several such places the first.

    The beginning of a span is less than its end. None holds nothing.
    """
    events = []
    for number, span in enumerate(spans):
        if span is not None:
            events += [(span[0], 1, number), (span[1], 0, number)]
    held: set[int] = set()
    most: set[int] = set()
    for _, begins, number in sorted(events):
        if begins:
            held.add(number)
            if len(held) > len(most):
                most = set(held)
        else:
            held.discard(number)
    return sorted(most)
