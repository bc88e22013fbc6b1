"""Deletion of a topic's records by what they are: a tag, the beginning of a tag, all before a number.

Owns the way from such a wish to runs of records. Never decides whether they may go: `decide` does.

    before_seq alone -> the offset of that record (lake, if it is cold) -> Trim
    match            -> marks, some at a time, -> DeleteRecords of at most STEP_COUNT records, -> the next ones

Only records that readers can see are deleted. Repeating a wish deletes what matches it since. A wish that is refused
half-way (too many holes) has deleted what came before: what is left still matches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.marks import Marks
from headwater.engine.pending_answers import Outcome
from headwater.engine.read_plan import shown_count
from headwater.engine.record_reads import RecordReads
from headwater.errors import Failure, StreamNotFound, TooManyHoles
from headwater.model.commands import DeleteRecords, Trim
from headwater.model.events import RecordsDeleted
from headwater.model.holes import Run
from headwater.model.marks import TAG

LOOK_COUNT = 500
"""Marks looked up without a pause: about two milliseconds of the event loop."""
STEP_COUNT = 20_000
"""Records that one event deletes at most: 400 kB of the log when no two of them are neighbours."""

Match = tuple[str, str]
"""("Eq", tag) or ("Glob", what a tag begins with)."""


class RecordsGone(msgspec.Struct, frozen=True):
    """What a wish has done, and what the topic is like after it."""

    deleted: int
    earliest_seq: int
    head_seq: int


Done = Callable[[RecordsGone | Failure], None]


class TopicDeletes:
    def __init__(self, group: Group, marks: Marks, records: RecordReads) -> None:
        self._group = group
        self._marks = marks
        self._records = records

    def delete(self, key: str, match: Match | None, before_seq: int | None, done: Done) -> None:
        """Calls `done` when the records are as durably gone as an append to the stream is there; a failure otherwise.

        Without `match` and `before_seq` everything that is visible goes.
        """
        try:
            stream = self._group.find(key, touch=False)
        except Failure as failure:
            done(failure)
            return
        until = shown_count(stream)
        if before_seq is not None:
            until = min(until, max(before_seq - 1, 0))
        if match is None:
            self._trim(key, stream, until, done)
        else:
            _Matching(self._group, self._marks, key, stream, match, until, done).go_on()

    def _trim(self, key: str, stream: LoadedStream, until: int, done: Done) -> None:
        def found(offset: int | Failure) -> None:
            if isinstance(offset, Failure):
                done(offset)
                return
            now = self._group.loaded.find(key)
            if now is None or now.sid != stream.sid:
                done(StreamNotFound())
                return
            deleted = max(0, until - now.first_seq - now.holes.before(until))
            self._group.submit(key, Trim(offset), _Told(partial(trimmed, deleted)))

        def trimmed(deleted: int, outcome: Outcome) -> None:
            done(outcome if isinstance(outcome, Failure) else _gone(self._group, stream, deleted))

        self._records.offset_of(stream, until, found)


class _Matching:
    """One wish with a match, step by step."""

    def __init__(
        self, group: Group, marks: Marks, key: str, stream: LoadedStream, match: Match, until: int, done: Done
    ) -> None:
        self._group = group
        self._marks = marks
        self._key = key
        self._stream = stream
        self._mark, self._exact = TAG + match[1], match[0] == "Eq"
        self._until = until
        self._done = done
        self._after = ("", -1)
        self._found: list[Run] = []
        self._over = False
        self._deleted = 0

    def go_on(self) -> None:
        """Looks some up. The rest waits for the next turn of the event loop, or for what was found to be deleted."""
        if not self._group.loaded.has(self._stream):
            now = self._group.loaded.find(self._key)
            if now is None or now.sid != self._stream.sid:
                self._done(StreamNotFound())
                return
            self._stream = now  # it was unloaded and loaded again meanwhile
        if not self._marks.make_ready(self._stream):
            self._group.soon(self.go_on)
            return
        rows = self._look()
        self._found += [run for run in rows if run.last <= self._until]
        self._over = len(rows) < LOOK_COUNT or (self._exact and rows[-1].last > self._until)
        if self._over or len(self._found) >= STEP_COUNT:
            self._submit()
        else:
            self._group.soon(self.go_on)

    def _look(self) -> list[Run]:
        if self._exact:
            rows = self._marks.find(self._stream, self._mark, LOOK_COUNT, self._after[1] + 1)
            mark = self._mark
        else:
            marked = self._marks.find_prefix(self._stream, self._mark, LOOK_COUNT, self._after)
            rows = [one.run for one in marked]
            mark = marked[-1].mark if marked else ""
        if rows:
            self._after = mark, rows[-1].first
        return rows

    def _submit(self) -> None:
        runs, self._found = merged(self._found), []
        self._group.submit(self._key, DeleteRecords(runs), _Told(self._stepped))

    def _stepped(self, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            if isinstance(outcome, TooManyHoles):
                outcome.deleted = self._deleted
            self._done(outcome)
            return
        if isinstance(outcome, RecordsDeleted):
            self._deleted += sum(run.last - run.first for run in outcome.runs)
        if self._over:
            self._done(_gone(self._group, self._stream, self._deleted))
        else:
            self.go_on()


class _Told:
    """A waiter."""

    def __init__(self, resolve: Callable[[Outcome], None]) -> None:
        self.resolve = resolve


def _gone(group: Group, stream: LoadedStream, deleted: int) -> RecordsGone:
    now = group.loaded.find(stream.key)
    if now is not None and now.sid == stream.sid:
        stream = now
    return RecordsGone(deleted, stream.earliest_seq, stream.count)


def merged(runs: list[Run]) -> list[Run]:
    """In order, neighbours as one."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and found[-1].last == run.first:
            found[-1] = Run(found[-1].first, run.last, found[-1].begin, run.end)
        elif not found or run.first > found[-1].first:
            found.append(run)
    return found
