"""The recent records of one stream, held in memory as columns.

Owns payloads and their offsets, ids and log positions. Never decides anything and never forgets on its own.

Columns instead of objects: 40 bytes beside each payload, and a range is two bisections and a list slice.
`held_bytes` is what the records cost, and every ceiling on memory counts that: a million records of two bytes take a
hundred megabytes, not two.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate

from headwater.model.labels import Labels
from headwater.model.labels import held_bytes as labels_bytes

RECORD_BYTES = 96
"""What a held record takes beside its payload: 32 bytes of columns, 8 of list, 33 of a bytes object, and what arrays
and allocator round up. Measured as growth of the resident size with a million records in 20 timelines, a thousand at a
time (CPython 3.11, glibc): 92 to 104 bytes each for payloads of 2 to 4,000 bytes; 49 for one, which CPython shares."""


class Timeline:
    __slots__ = ("_labels_bytes", "ends", "labels", "ms", "n", "payloads", "positions", "seq", "start")

    def __init__(self, start: int, seq: int = 0) -> None:
        self.start = start
        """Offset at which the first held record begins."""
        self.seq = seq
        """Its number in the stream."""
        self.payloads: list[bytes] = []
        self.ends = array("Q")
        """Offset after each record."""
        self.ms = array("Q")
        self.n = array("Q")
        self.positions = array("Q")
        """Log position after the event that brought each record."""
        self.labels: list[Labels | None] | None = None
        """As many as records, or None while no record came that has any."""
        self._labels_bytes = 0

    def extend(
        self,
        records: list[bytes],
        start: int,
        ms: int,
        n: int,
        position: int,
        labels: list[Labels | None] | None = None,
    ) -> int:
        """Adds records that begin at `start`; returns the offset after them."""
        if labels is not None or self.labels is not None:
            self._label(len(records), labels)
        if len(records) == 1:
            payload = records[0]
            end = start + len(payload)
            self.payloads.append(payload)
            self.ends.append(end)
            self.ms.append(ms)
            self.n.append(n)
            self.positions.append(position)
            return end
        count = len(records)
        self.payloads.extend(records)
        ends = list(accumulate(map(len, records), initial=start))
        del ends[0]
        # Arrays grow by whole arrays, not item by item: 5.8 µs instead of 9.0 for a hundred records.
        self.ends.fromlist(ends)
        self.ms += array("Q", (ms,)) * count
        self.n.fromlist(list(range(n, n + count)))
        self.positions += array("Q", (position,)) * count
        return ends[-1] if ends else start

    def _label(self, count: int, labels: list[Labels | None] | None) -> None:
        if self.labels is None:
            self.labels = [None] * len(self.payloads)
        if labels is None:
            self.labels += [None] * count
        else:
            self.labels += labels
            self._labels_bytes += labels_bytes(labels)

    def index_at(self, offset: int) -> int | None:
        """Index of the record that begins at `offset` (the length when it is the end); None between boundaries."""
        if offset == self.start:
            return 0
        index = bisect_left(self.ends, offset)
        if index < len(self.ends) and self.ends[index] == offset:
            return index + 1
        return None

    def index_until(self, offset: int) -> int:
        """How many held records end at or before `offset`."""
        return bisect_right(self.ends, offset)

    def index_id(self, ms: int, n: int) -> int:
        """Index of the first record whose id is at least `ms-n`."""
        low, high = bisect_left(self.ms, ms), bisect_right(self.ms, ms)
        return bisect_left(self.n, n, low, high)

    def begin_of(self, index: int) -> int:
        return self.ends[index - 1] if index else self.start

    @property
    def held_bytes(self) -> int:
        """Memory that the records take."""
        payloads = self.payloads
        return self.ends[-1] - self.start + RECORD_BYTES * len(payloads) + self._labels_bytes if payloads else 0

    def drop_before(self, index: int) -> int:
        """Forgets the first `index` records; returns how much of `held_bytes` that freed. Linear in what is held."""
        if index <= 0:
            return 0
        start = self.ends[index - 1]
        freed = start - self.start + RECORD_BYTES * index
        if self.labels is not None:
            gone = labels_bytes(self.labels[:index])
            freed += gone
            self._labels_bytes -= gone
            del self.labels[:index]
        self.start = start
        self.seq += index
        del self.payloads[:index], self.ends[:index], self.ms[:index], self.n[:index], self.positions[:index]
        return freed
