"""Encoded blocks of the feed, kept for whoever posts the same wish: N readers cost little more than one.

Owns what is kept, and for how long it is true. Never encodes anything.

    the log   |   0   |   1   |   2   |   3   |        a block: BLOCK positions, from a multiple of BLOCK on
    a reader       (from ..................... to]     kept blocks in the middle, both ends walked and encoded anew

A wish is shared once a range of it was asked for that had been asked for before. Until then nothing is kept and ranges
are encoded as they come: most programs choose streams that no other one chooses. What is kept of a group is true until
records of it settle, are deleted or trimmed. The oldest go when there is too much.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from headwater.engine.group import Group

BLOCK = 512 * 1024
"""Positions, which are bytes of the log."""
KEPT_BYTES_MAX = 32 * 1024 * 1024
KEPT_COUNT_MAX = 4_096
"""Blocks; also those that hold nothing of what is chosen."""
WISHES_MAX = 256
RANGES_MAX = 64
"""Remembered of each wish that is not shared."""


class Wish(NamedTuple):
    """What two readers have to have in common."""

    group: int
    choice: bytes
    columns: tuple[str, ...]


class Block(NamedTuple):
    body: bytes
    size_bytes: int
    """As the limit of an answer counts it."""
    shown: tuple[int, int]


class FeedBlocks:
    def __init__(self) -> None:
        self._asked: OrderedDict[Wish, deque[tuple[int, int]] | None] = OrderedDict()
        """Ranges that were asked for; None: the wish is shared."""
        self._kept: OrderedDict[tuple[Wish, int], Block] = OrderedDict()
        self._kept_bytes = 0

    @staticmethod
    def shown(group: Group) -> tuple[int, int]:
        """Changes when memory shows less of the group than before, or another owner serves it."""
        return group.epoch, group.loaded.lessened_count

    def share(self, wish: Wish, after: int, until: int) -> bool:
        """Notes that a range is asked for; whether the wish is shared."""
        if wish in self._asked:
            self._asked.move_to_end(wish)
        else:
            self._asked[wish] = deque(maxlen=RANGES_MAX)
            if len(self._asked) > WISHES_MAX:
                self._asked.popitem(last=False)
        ranges = self._asked[wish]
        if ranges is None:
            return True
        if any(after < other_until and other_after < until for other_after, other_until in ranges):
            self._asked[wish] = None
            return True
        ranges.append((after, until))
        return False

    def get(self, wish: Wish, group: Group, begin: int) -> Block | None:
        found = self._kept.get((wish, begin))
        if found is None:
            return None
        if found.shown != self.shown(group):
            self._drop((wish, begin))
            return None
        self._kept.move_to_end((wish, begin))
        return found

    def next_known(self, wish: Wish, group: Group, after: int, limit: int) -> int:
        """Where the next block begins that is kept and ends within the limit; the limit when there is none."""
        begin = (after // BLOCK + 1) * BLOCK
        while begin + BLOCK <= limit:
            if self.get(wish, group, begin) is not None:
                return begin
            begin += BLOCK
        return limit

    def keep(self, wish: Wish, group: Group, begin: int, body: bytes, size_bytes: int, shown: tuple[int, int]) -> None:
        """`shown` is what the group showed before the block was read."""
        if shown != self.shown(group) or len(body) > KEPT_BYTES_MAX // 4:
            return
        self._drop((wish, begin))
        self._kept[wish, begin] = Block(body, size_bytes, shown)
        self._kept_bytes += len(body)
        while self._kept_bytes > KEPT_BYTES_MAX or len(self._kept) > KEPT_COUNT_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[Wish, int]) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self._kept_bytes -= len(gone.body)
