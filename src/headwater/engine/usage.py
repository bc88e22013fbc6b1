"""How much is read, by bucket and day, until a checkpoint writes it down.

Owns the counts since the last checkpoint: their number grows with the buckets that were read from, not with those that
exist, and each is a row of the next checkpoint. Never is exact across a kill, which forgets what was counted since:
these are figures for a report, and nothing else depends on them.
"""

from __future__ import annotations

from headwater.ports import Clock, ReadCount

DAY_MS = 86_400_000


class ReadUsage:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[tuple[int, str], list[int]] = {}

    def add(self, key: str, size: int) -> None:
        """One answer with records of a stream: `size` bytes of payload. Called by doors, once an answer."""
        place = (self._clock.now_ms() // DAY_MS, key.partition("/")[0])
        counts = self._counts.get(place)
        if counts is None:
            self._counts[place] = [1, size]
        else:
            counts[0] += 1
            counts[1] += size

    def take(self) -> list[ReadCount]:
        """What was counted since the last call; a failed checkpoint hands it back."""
        counts, self._counts = self._counts, {}
        return [ReadCount(day, bucket, reads, size) for (day, bucket), (reads, size) in counts.items()]

    def give_back(self, taken: list[ReadCount]) -> None:
        for count in taken:
            counts = self._counts.setdefault((count.day, count.bucket), [0, 0])
            counts[0] += count.reads
            counts[1] += count.bytes
