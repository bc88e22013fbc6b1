"""How long answers wait for the log: measured for each batch, not for each of them.

Owns two clock readings a batch and what is counted from them. Never touches an append: a batch begins with the first
command that has the log asked to write, and ends when the answers that wait for it leave.

    begun (first command) -> handed over (the turn's end) -> the log's watermark passes its end: one time, many answers

Every answer of a batch is counted with the time of its first one, which is the longest. What does not wait for the log
(the classes memory and ephemeral, a node that keeps nothing) is not counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import NamedTuple

from headwater.engine.pending_answers import PendingAnswers, Waiter
from headwater.histogram import Histogram
from headwater.ports import Clock, Log

SLOW_WAITERS_MAX = 3
"""Of a slow batch so many of those that wait are named."""


class SlowBatch(NamedTuple):
    took_s: float
    queued_s: float
    """Of that, before it was handed to the log: other batches of this turn of the event loop, and their commands."""
    sync_s: float
    """How long the log's last sync took."""
    answers_count: int
    waiters: list[Waiter]
    """Some of them."""


_Sent = tuple[int, float, float, bool, int]
"""A batch under way: the position of its end, when it was begun and when handed over, whether anything in it waits for
the sync and not only for the write, and how many answers had ever begun to wait by then."""


class BatchTimes:
    __slots__ = ("_answers", "_begun_s", "_counted", "_end", "_log", "_now_s", "_sent", "on_slow", "slow_s", "times")

    def __init__(self, log: Log, answers: PendingAnswers, clock: Clock) -> None:
        self._log = log
        self._answers = answers
        self._now_s = clock.monotonic_s
        self._begun_s = 0.0
        self._sent: deque[_Sent] = deque()
        """Batches under way. As many as the log has not written: their records are bounded, and so are they."""
        self._counted = 0
        self._end = 0
        self.times = Histogram()
        self.slow_s = inf
        self.on_slow: Callable[[SlowBatch], None] = lambda batch: None
        """Called before the answers of a batch leave that took `slow_s` or longer."""

    @property
    def answers_pending(self) -> int:
        return self._answers.count

    def begin(self) -> None:
        self._begun_s = self._now_s()

    def hand_over(self) -> None:
        """Called before the log is told to write what was gathered."""
        answers, end = self._answers, self._log.tail
        queued = answers.released_count + answers.count
        sent_s = self._now_s() if self.slow_s < inf else 0.0
        self._sent.append((end, self._begun_s, sent_s, answers.sync_target > self._end, queued))
        self._end = end

    def moved(self) -> None:
        """Called when the log's watermarks moved, before answers leave."""
        sent, log = self._sent, self._log
        now_s = 0.0
        while sent:
            end, begun_s, sent_s, syncs, queued = sent[0]
            if end > (log.synced if syncs else log.written):
                break
            sent.popleft()
            count = queued - self._counted
            if count > 0:
                self._counted = queued
                now_s = now_s or self._now_s()
                took_s = now_s - begun_s
                self.times.add(took_s, count)
                if took_s >= self.slow_s:
                    self.on_slow(self._told(end, took_s, sent_s - begun_s, count))
        if log.failure is not None:
            sent.clear()

    def _told(self, end: int, took_s: float, queued_s: float, count: int) -> SlowBatch:
        answers = self._answers
        waiting = (entry[1] for queue in (answers.sync, answers.disk) for entry in queue if entry[0] <= end)
        some = [waiter for waiter in islice(waiting, SLOW_WAITERS_MAX) if waiter is not None]
        return SlowBatch(took_s, queued_s, self._log.sync_times.last_s, count, some)
