"""Read-ahead: what a reader of the lake will ask for next is made ready while it takes what it was given.

Owns the guess who reads on, its bounds and its threads. Never delays a read that somebody waits for: it has threads of
its own, and what it fetches lies in the lake's cache, shared and bounded, where it goes when nobody comes for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from headwater.model.extents import Extent
from headwater.ports import Lake

THREADS = 2
PENDING_MAX = 16
"""Row groups on their way; more are not fetched ahead."""
ANSWERS = 3
"""How many answers of the size that a reader takes are made ready. With one, the threads wait for the reader as often
as it for them."""
GROUPS_MAX = 8
"""Row groups made ready for one reader."""
BYTES_MIN = 2 << 20
"""What a reader of small pieces has ahead of it: about a row group."""
PLACES_MAX = 1_000
"""Readers remembered; the one that was longest away is forgotten."""
AWAY_S = 5.0
"""A reader that has not come back by then is gone or stalled: what was made ready for it takes no room from others."""

_Group = tuple[str, int, bool]


class Ahead:
    """Called on the event loop. `now_s` is a monotonic clock."""

    def __init__(self, lake: Lake, now_s: Callable[[], float]) -> None:
        self._lake = lake
        self._now_s = now_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="read-ahead")
        self._places: OrderedDict[tuple[int, int], tuple[int, float]] = OrderedDict()
        """Where readers will go on, by sid and offset: bytes made ready for them, and since when."""
        self._bytes = 0
        self._coming: set[_Group] = set()
        self._closed = False
        self.groups_count = 0

    def expects(self, sid: int, offset: int) -> bool:
        """True when a reader comes back to where it was left. What was made ready for it has then served."""
        found = self._places.get((sid, offset))
        if found is None:
            return False
        self._bytes -= found[0]
        self._places[sid, offset] = (0, found[1])
        return True

    def left(self, sid: int, offset: int, follows: bool, extents: Iterable[Extent], size: int, commas: bool) -> None:
        """A reader was given everything up to `offset`; `extents` lie after it. One that `follows` has the
        next answers of `size` made ready, as far as there is room; of another only its place is remembered."""
        now_s = self._now_s()
        while self._places and (
            len(self._places) >= PLACES_MAX or next(iter(self._places.values()))[1] < now_s - AWAY_S
        ):
            _, (unused, _) = self._places.popitem(last=False)
            self._bytes -= unused
        follows = follows and not self._closed
        ready = self._prepare(offset, extents, max(size * ANSWERS, BYTES_MIN), commas) if follows else 0
        before, _ = self._places.pop((sid, offset), (0, 0.0))
        self._places[sid, offset] = (ready, now_s)
        self._bytes += ready - before

    def _prepare(self, offset: int, extents: Iterable[Extent], size: int, commas: bool) -> int:
        """Returns how many bytes are made ready by this, or were."""
        lake = self._lake
        room = lake.ahead_bytes_max - self._bytes
        ready = 0
        for extent in islice(extents, GROUPS_MAX):
            new = extent.end - max(offset, extent.start)
            if ready >= size or ready + new > room or len(self._coming) >= PENDING_MAX:
                break
            ready += new
            group = (extent.file, extent.row_group, commas)
            if group not in self._coming and lake.stretch(extent, extent.start, extent.start, commas, False) is None:
                self._coming.add(group)
                self.groups_count += 1
                self._pool.submit(self._fetch, extent, group)
        return ready

    def _fetch(self, extent: Extent, group: _Group) -> None:
        try:
            self._lake.prepare(extent, group[2])
        except Exception:
            pass  # whoever really reads it will be told
        finally:
            self._coming.discard(group)

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
