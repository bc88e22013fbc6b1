"""The answers of a request about many streams: one for each entry, in the order of the entries.

Owns what an entry's outcome looks like, and the wait for the last of them. Never judges an entry.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.doors.http import failures
from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure
from headwater.model import offsets
from headwater.model.events import Appended
from headwater.model.stream import CreatedAndAppended, Unchanged

Answer = dict[str, object]
"""What JSON and msgpack know: another process may have made it."""


class Gather:
    """Collects the answers of one request; calls `done` with all of them when the last is there."""

    __slots__ = ("_answers", "_broke", "_done", "_left")

    def __init__(self, count: int, done: Callable[[list[Answer]], None], broke: Callable[[], None]) -> None:
        """`broke` is called while an exception is handled that is a fault of this server."""
        self._done = done
        self._broke = broke
        self._left = count
        self._answers: list[Answer] = [{} for _ in range(count)]

    def waiter(self, index: int) -> Entry:
        return Entry(self, index)

    def resolve(self, index: int, outcome: Outcome) -> None:
        try:
            self.set(index, _told(outcome))
        except Exception:
            self._broke()

    def set(self, index: int, answer: Answer) -> None:
        self._answers[index] = answer
        self._left -= 1
        if not self._left:
            self._done(self._answers)


class Entry:
    """A Waiter for one entry of a request."""

    __slots__ = ("_gather", "_index")

    def __init__(self, gather: Gather, index: int) -> None:
        self._gather = gather
        self._index = index

    def resolve(self, outcome: Outcome) -> None:
        self._gather.resolve(self._index, outcome)


def _told(outcome: Outcome) -> Answer:
    if isinstance(outcome, Failure):
        return failures.entry(outcome)
    if isinstance(outcome, Appended):
        status = 200 if outcome.producer is not None and outcome.records else 204
        closed = {"stream_closed": "true"} if outcome.closed else {}
        return {"status": status, "stream_next_offset": offsets.show(outcome.end), **closed}
    if isinstance(outcome, CreatedAndAppended):
        return {**_told(outcome.appended), "created": True}
    if isinstance(outcome, Unchanged):
        closed = {"stream_closed": "true"} if outcome.closed else {}
        return {"status": 204, "stream_next_offset": offsets.show(outcome.end), **closed, "duplicate": True}
    raise RuntimeError(f"an append ended as {outcome!r}")
