"""The marks of one stream's records that the catalog does not know: an index in memory.

Owns that index. Never looks into the catalog, and never asks whether a record was deleted.

It is made when somebody asks for it, and later only of what has come since: 0.4 µs and about 100 bytes a record whose
labels are like no other's. Who can wait makes it some records at a time (`advance`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from headwater.model.labels import Labels
from headwater.model.marks import DUE, KEY, TAG, LabelledRun, due_mark
from headwater.model.stream_state import Stream

STALE_MIN = 1_000
_ALL = 1 << 62
_KIND = len(TAG)


class _Kind:
    """Marks of one kind, without the letter that says which."""

    __slots__ = ("in_order", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[str, int | list[int]] = {}
        """One number, or several: most marks have one, and a list takes as much as the rest of an entry."""
        self.in_order: list[str] = []
        """The first of `numbers`, sorted. Those that came since follow them there."""


class HeldMarks:
    __slots__ = ("_first", "_kinds", "_until", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._forget(0)

    def _forget(self, first: int) -> None:
        self._kinds = {TAG: _Kind(), KEY: _Kind(), DUE: _Kind()}
        self._first = self._until = first
        """Numbers [first, until) are indexed."""

    def __len__(self) -> int:
        """How many marks are indexed."""
        return sum(len(kind.numbers) for kind in self._kinds.values())

    def is_stale(self, settled: Sequence[LabelledRun]) -> bool:
        """The catalog knows most of it: it is made anew when somebody asks."""
        first = settled[0].seq if settled else self.stream.timeline.seq
        return first > self._until or first - self._first > max(STALE_MIN, (self._until - self._first) // 2)

    def refresh(self, settled: Sequence[LabelledRun]) -> int:
        """Indexes what came since. Returns the first number that the catalog need not know."""
        self.advance(settled, _ALL)
        return settled[0].seq if settled else self.stream.timeline.seq

    def advance(self, settled: Sequence[LabelledRun], count_max: int) -> bool:
        """Indexes some of what came since, `count_max` records at most. False: there may be more."""
        timeline = self.stream.timeline
        if self.is_stale(settled):
            self._forget(settled[0].seq if settled else timeline.seq)
        left = count_max
        for run in settled[max(bisect_right(settled, self._until, key=_seq) - 1, 0) :]:
            left -= self._index(run.seq, run.labels, left)
            if left <= 0:
                return False
        if timeline.labels is not None:
            left -= self._index(timeline.seq, timeline.labels, left)
        return left > 0

    def _index(self, seq: int, labels: list[Labels | None], count_max: int) -> int:
        first = max(self._until - seq, 0)
        last = min(first + count_max, len(labels))
        if first >= last:
            return 0
        tags, keys, times = (self._kinds[kind].numbers for kind in (TAG, KEY, DUE))
        for number, one in enumerate(labels[first:last] if first or last < len(labels) else labels, seq + first):
            if one is None:
                continue
            if one.tag is not None and tags.setdefault(one.tag, number) != number:
                _add(tags, one.tag, number)
            if one.key is not None and keys.setdefault(one.key, number) != number:
                _add(keys, one.key, number)
            if one.deliver_at_ms is not None:
                time = due_mark(one.deliver_at_ms)[_KIND:]
                if times.setdefault(time, number) != number:
                    _add(times, time, number)
        self._until = seq + last
        return last - first

    def numbers(self, mark: str) -> Sequence[int]:
        found = self._kinds[mark[:_KIND]].numbers.get(mark[_KIND:], ())
        return (found,) if isinstance(found, int) else found

    def between(self, low: str, high: str) -> Iterator[str]:
        """Marks with low <= mark < high, in order. All of them have the kind of `low`."""
        letter = low[:_KIND]
        kind = self._kinds[letter]
        in_order = kind.in_order
        if len(in_order) < len(kind.numbers):
            # What is in order already costs a sort no more than a walk.
            in_order += islice(kind.numbers, len(in_order), None)
            in_order.sort()
        index = bisect_left(in_order, low[_KIND:])
        while index < len(in_order) and letter + in_order[index] < high:
            yield letter + in_order[index]
            index += 1


def _add(numbers: dict[str, int | list[int]], mark: str, number: int) -> None:
    """It has another number already, or several."""
    before = numbers[mark]
    if isinstance(before, int):
        numbers[mark] = [before, number]
    else:
        before.append(number)


def _seq(run: LabelledRun) -> int:
    return run.seq
