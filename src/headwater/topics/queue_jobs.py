"""The jobs of a queue as its stream has them: which are there, when each may be handed out, and where each lies.

Owns the way from a job's number to its record, to its time and to its place in the stream, through memory where that
holds it and through marks and the lake where it does not. Never knows who has a job (`model.queues` does), and never
changes a stream.

- Only records that readers may see are jobs: they are as durable as their stream promises.
- Times of jobs that memory does not hold are looked up together: `times_missing` says so, `look_up_times` does it, a
  bounded step at a time.
- Jobs that the lake holds are read ahead of claims (`jobs_ahead`).
- The places of jobs that were read from the lake are remembered while they are leased: a job that is done is deleted
  without another look into the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count
from headwater.engine.record_reads import TopicRecord
from headwater.engine.topic_deletes import merged
from headwater.errors import Failure, Overloaded
from headwater.model import forks
from headwater.model.holes import Run
from headwater.model.marks import DUE, due_mark
from headwater.model.queues import NotInMemory
from headwater.topics.jobs_ahead import JobsAhead, Room

TIMES_COUNT = 500
"""Times looked up without a pause: about a millisecond of the event loop."""
SCHEDULED_MAX = 2_000
"""Scheduled jobs that are counted one by one: about 5 ms of the event loop."""
_DUE_END = DUE[:-1] + chr(ord(DUE[-1]) + 1)

Read = Callable[[list[TopicRecord] | Failure], None]


class QueueJobs:
    """The `Jobs` of one queue."""

    def __init__(self, engine: Engine, stream: LoadedStream, room: Room) -> None:
        self._engine = engine
        self.stream = stream
        self.ahead = JobsAhead(engine, stream, room)
        self._times: dict[int, int] = {}
        """seq -> ms, of jobs that are not in memory and whose time had not come when they were looked up."""
        self._times_until = 0
        """The times of all jobs with a smaller number are known."""
        self._looking_until = 0
        self._looking_from = 0
        self._looked_at: tuple[str, int] | None = None
        """The last mark that a look-up under way has come past; None: there is none under way."""
        self.places: dict[int, tuple[int, int]] = {}
        """seq -> where it begins and ends, of leased jobs that were read from the lake."""

    # ---- which are there ------------------------------------------------------------------------------------------

    @property
    def head_seq(self) -> int:
        return shown_count(self.stream)

    @property
    def live_count(self) -> int:
        stream = self.stream
        return max(0, stream.live_count - (stream.count - shown_count(stream)))

    def is_live(self, seq: int) -> bool:
        stream = self.stream
        number = seq - 1
        return stream.first_seq <= number < shown_count(stream) and not stream.holes.holds(number)

    def next_live(self, seq: int) -> int | None:
        stream = self.stream
        number = stream.holes.next_live(max(seq - 1, stream.first_seq))
        return number + 1 if number < shown_count(stream) else None

    # ---- when each may be handed out --------------------------------------------------------------------------------

    def deliver_at(self, seq: int) -> int | None:
        stream, number = self.stream, seq - 1
        held_by = stream if stream.parent is None else forks.holder_of(stream, number)[0]
        timeline = held_by.timeline
        if number >= timeline.seq:
            labels = None if timeline.labels is None else timeline.labels[number - timeline.seq]
            return None if labels is None else labels.deliver_at_ms
        if number < self._times_until:
            return self._times.get(seq)
        raise NotInMemory(seq)

    def look_up_times(self, cursor: int, now_ms: int) -> bool:
        """One step of finding the times of all jobs there are now, from `cursor` on. True: they are known."""
        if self._looked_at is None:
            self._times = {seq: ms for seq, ms in self._times.items() if seq >= cursor}
            self._looking_until = self.stream.count
            # What is due by now is like a job without a time.
            self._looked_at, self._looking_from = (due_mark(now_ms), 1 << 62), cursor
        marks = self._engine.marks_of(self.stream)
        found = marks.find_between(self.stream, DUE, _DUE_END, TIMES_COUNT, self._looked_at)
        for mark, run in found:
            if run.first + 1 >= self._looking_from:
                self._times[run.first + 1] = int(mark[len(DUE) :])
        if len(found) == TIMES_COUNT:
            self._looked_at = found[-1].mark, found[-1].run.first
            return False
        self._looked_at = None
        self._times_until = self._looking_until
        return True

    def scheduled(self, cursor: int, now_ms: int) -> Iterator[tuple[int, int]]:
        """Jobs from `cursor` on whose time has not come, the next one first: (ms, seq). No more than `SCHEDULED_MAX`
        times are looked at."""
        marks = self._engine.marks_of(self.stream)
        after, head = (due_mark(now_ms), 1 << 62), self.head_seq
        for _ in range(SCHEDULED_MAX // TIMES_COUNT):
            found = marks.find_between(self.stream, DUE, _DUE_END, TIMES_COUNT, after)
            for mark, run in found:
                if cursor <= run.last <= head:
                    yield int(mark[len(DUE) :]), run.last
            if len(found) < TIMES_COUNT:
                break
            after = found[-1].mark, found[-1].run.first

    # ---- what each is -----------------------------------------------------------------------------------------------

    def held(self, seqs: Iterable[int]) -> list[TopicRecord] | None:
        """The records of live jobs; None when memory does not hold all of them."""
        found = []
        for seq in seqs:
            one = self.from_memory(seq)
            if one is None:
                return None
            found.append(one)
        return found

    def from_memory(self, seq: int) -> TopicRecord | None:
        """The record of a live job, if it is at hand."""
        stream, number = self.stream, seq - 1
        held_by = stream if stream.parent is None else forks.holder_of(stream, number)[0]
        timeline = held_by.timeline
        index = number - timeline.seq
        if index < 0:
            one = self.ahead.get(seq)
            if one is not None:
                self.note_place(one)
            return one
        if index >= len(timeline.payloads):
            return None
        labels = None if timeline.labels is None else timeline.labels[index]
        return TopicRecord(seq, timeline.ms[index], timeline.payloads[index], labels)

    def read(self, seqs: Sequence[int], bytes_max: int, done: Read) -> None:
        """Calls `done` with the records of `seqs`, which ascend, without those that were deleted meanwhile. Beyond the
        first it stops when they are more than `bytes_max`."""
        _Reading(self, seqs, bytes_max, done).go_on()

    # ---- where each lies --------------------------------------------------------------------------------------------

    def note_place(self, one: TopicRecord) -> None:
        """It was read from the lake."""
        if one.end:
            self.places[one.seq] = one.end - len(one.payload), one.end

    def runs(self, seqs: Iterable[int]) -> list[Run] | int:
        """What a deletion of these live jobs is about; or one of them whose place has to be found first."""
        stream, found = self.stream, []
        for seq in seqs:
            number = seq - 1
            held_by = stream if stream.parent is None else forks.holder_of(stream, number)[0]
            timeline = held_by.timeline
            index = number - timeline.seq
            if index >= 0:
                found.append(Run(number, seq, timeline.begin_of(index), timeline.ends[index]))
            elif seq in self.places:
                found.append(Run(number, seq, *self.places[seq]))
            else:
                return seq
        return found if len(found) == 1 else merged(found)

    def find_place(self, seq: int, done: Callable[[Failure | None], None]) -> None:
        """Calls `done` when the place of a job is known, or the job is gone. Never at once."""

        def got(records: list[TopicRecord] | Failure) -> None:
            if isinstance(records, Failure):
                done(records)
                return
            # The record itself says where it ends: where the next one begins is no help when that was deleted.
            if records and records[0].seq == seq:
                self.note_place(records[0])
            missing = self.is_live(seq) and isinstance(self.runs([seq]), int)
            done(Overloaded("the lake does not hold what the catalog says") if missing else None)

        soon = self._engine.group_of(self.stream).group.soon
        soon(lambda: self._read_one(seq, got))

    def _read_one(self, seq: int, got: Read) -> None:
        try:
            self._engine.read_records(self.stream, seq - 1, 1, 1, got)
        except Failure as failure:
            got(failure)


class _Reading:
    """Records of jobs, from one stretch of neighbours that the lake holds to the next."""

    def __init__(self, jobs: QueueJobs, seqs: Sequence[int], bytes_max: int, done: Read) -> None:
        self._jobs = jobs
        self._seqs = seqs
        self._room_bytes = bytes_max
        self._done = done
        self._index = 0
        self._found: list[TopicRecord] = []

    def go_on(self) -> None:
        seqs, jobs = self._seqs, self._jobs
        while self._wants_more():
            seq = seqs[self._index]
            if not jobs.is_live(seq):
                self._index += 1
                continue
            one = jobs.from_memory(seq)
            if one is None:
                until = self._index + 1
                while until < len(seqs) and seqs[until] == seqs[until - 1] + 1:
                    until += 1
                try:
                    jobs.ahead.read(seq, until - self._index, self._room_bytes, self._got)
                except Failure as failure:
                    self._done(failure)
                return
            self._add(one)
        self._done(self._found)

    def _wants_more(self) -> bool:
        return self._index < len(self._seqs) and (self._room_bytes > 0 or not self._found)

    def _got(self, records: list[TopicRecord] | Failure) -> None:
        if isinstance(records, Failure):
            self._done(records)
            return
        by_seq = {one.seq: one for one in records}
        while self._wants_more() and (one := by_seq.get(self._seqs[self._index])) is not None:
            if self._jobs.is_live(one.seq):
                self._jobs.note_place(one)
                self._add(one)
            else:
                self._index += 1
        self.go_on()

    def _add(self, one: TopicRecord) -> None:
        self._index += 1
        self._room_bytes -= len(one.payload)
        self._found.append(one)
