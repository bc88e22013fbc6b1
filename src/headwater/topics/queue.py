"""One queue at work: who waits for its jobs, and what becomes of those that were handed out.

Owns the line of claimers, when a pass over it is made, and the order of what an ack, a nack or an extension does. Never
decides who gets which job (`model.queues` does) and never writes to a socket: claimers do, when they are told.

    claim -> line -> pass -> commit -> records -> claimer.got
               ^      ^
               |      +-- the next turn of the event loop, or the end of the jitter window; new jobs; a time that is due
               +-- workers stand in it while they have room

- Whoever waits longest is first in line. Claims of one turn of the event loop, or of one jitter window, are one pass.
- One timer counts at a time while somebody waits: for the next lease that ends, job that is due or wait that is over.
- An ack deletes the job's record first. What that deletion waits for, the answer waits for.
- The first ack in a turn of the event loop is done at once, those that follow in it are done together: one deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf

import msgspec
import structlog

from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.engine.queue_leases import QueueLeases, encode, encode_row, leases_of
from headwater.errors import Failure, GroupMoved, InternalError, NotAQueue, StreamNotFound
from headwater.model import queues as model
from headwater.model.commands import DeleteRecords
from headwater.model.holes import Run
from headwater.model.queue_events import Lease, Passed, QueueEvent, Released
from headwater.model.queue_state import Counts, QueueState
from headwater.model.queues import Nack
from headwater.model.stream import Unchanged
from headwater.model.topics import QueueConfig
from headwater.topics.acks import Acks, Done, Pairs, Told
from headwater.topics.cohorts import Claimer, Line
from headwater.topics.handing import Answer, hand_out
from headwater.topics.jobs_ahead import Room
from headwater.topics.queue_figures import QueueFigures
from headwater.topics.queue_jobs import QueueJobs
from headwater.topics.queue_time import QueueTime

TIMER_S_MAX = 60.0
"""The wall clock may be set, and jobs are scheduled by it: it is looked at again after this long."""
PLACES_MIN = 64

log = structlog.get_logger("headwater.queues")


class Queue:
    """A Follower of its stream, from when it is made until it is closed."""

    def __init__(
        self,
        engine: Engine,
        stream: LoadedStream,
        state: QueueState,
        bytes_max: int,
        room: Room,
        on_closed: Callable[[Queue], None],
    ) -> None:
        """`bytes_max`: of the jobs that one claim gets, beyond the first."""
        self._on_closed = on_closed
        self.engine = engine
        self.stream = stream
        self.state = state
        self.jobs = QueueJobs(engine, stream, room)
        self.closed = False
        self.figures = QueueFigures()
        self.trouble: str | None = None
        """Why jobs that were handed out often enough are not moved to the dead letters."""
        self.on_dying: Callable[[Queue], None] = lambda queue: None
        """Called when there are such jobs."""
        self._clock = engine.clock
        self._time = QueueTime(engine.clock, self._shift)
        self._bytes_max = bytes_max
        self._line = Line()
        self._planned = self._gathering = False
        self._timer_s: float | None = None
        self._workers: dict[int, Claimer] = {}
        """By connection."""
        self._acks = Acks(self)
        self._gone_count = self._gone_now()

    # ---- what it is -----------------------------------------------------------------------------------------------

    @property
    def config(self) -> QueueConfig:
        """Raises NotAQueue."""
        topic = self.stream.topic
        if topic is None or topic.queue is None:
            raise NotAQueue
        return topic.queue

    def check(self) -> None:
        """Raises NotAQueue when the topic is none any more. What was configured since holds from now on."""
        self.state.rules = self.config

    @property
    def idle(self) -> bool:
        """Nothing is lost when it is forgotten, beside its counts."""
        state = self.state
        held = state.leases or state.delayed or state.dying or state.deliveries
        return not (held or len(self._line) or self._workers or self._acks)

    def counts(self) -> Counts:
        """A job that is scheduled for later is delayed, whether a claim has come to it or not."""
        self.sweep()
        counts = self.state.counts(self.jobs.live_count)
        ahead = min(counts.ready, sum(1 for _ in self.jobs.scheduled(self.state.claim_cursor, self.now_ms())))
        return msgspec.structs.replace(counts, ready=counts.ready - ahead, delayed=counts.delayed + ahead)

    def sweep(self) -> None:
        """Takes back what is due, and forgets jobs that were deleted otherwise than by an ack. Raises why it cannot."""
        gone = self._gone_now()
        if gone != self._gone_count:
            self.state.prune(self.jobs.is_live)
            self._gone_count = gone
        while True:
            found = model.claim(self.state, [], self.jobs, self.now_ms())
            if found.event is not None:
                self.commit(found.event)
            if not found.more:
                return

    def _gone_now(self) -> int:
        return self.stream.count - self.stream.live_count

    @property
    def _group(self) -> Group:
        return self.engine.group_of(self.stream).group

    def now_ms(self) -> int:
        """By the wall clock. One that was set neither ends a lease or a delay nor makes it longer."""
        return self._time.now_ms()

    def meet_clock(self) -> None:
        """The state was decided by another process, or by an earlier life of this one."""
        self._time.meet(self.state.at_ms)

    def _shift(self, by_ms: int) -> None:
        group, sid = self._group, self.stream.sid
        self.state.shift(by_ms)
        if sid in leases_of(group).states and not group.closed:
            group.note(QueueLeases.name, encode_row(sid, self.state))

    @property
    def _leases_durable(self) -> bool:
        """A topic that is no queue any more still has leases: jobs of a connection that ends are given back."""
        topic = self.stream.topic
        if topic is None or topic.queue is None:
            return self.stream.sid in leases_of(self._group).states
        return topic.queue.leases_durable

    # ---- committing -------------------------------------------------------------------------------------------------

    def commit(self, event: QueueEvent, waiter: Answer | None = None) -> None:
        """Makes a decision true. `waiter` is told when that is as durable as the queue promises. Raises why it is not;
        then nothing has happened."""
        group = self._group
        if group.closed:
            raise group.unavailable()
        domain, sid = leases_of(group), self.stream.sid
        if self._leases_durable:
            if sid not in domain.states:
                domain.adopt(sid, self.state)
                group.note(QueueLeases.name, encode_row(sid, self.state))
            group.note(QueueLeases.name, encode(sid, event), waiter)
        else:
            if sid in domain.states:
                domain.forget(sid)
            self.state.apply(event)
            if waiter is not None:
                waiter.resolve(Unchanged(0, False))
        self.figures.committed(event)
        if self.state.dying:
            self.on_dying(self)

    # ---- the line ---------------------------------------------------------------------------------------------------

    def enter(self, claimer: Claimer) -> None:
        """It waits from now on. Raises NotAQueue, NotServedHere."""
        jitter_ms, soon = self.config.claim_jitter_ms, self._group.soon
        self._line.stand(claimer)
        if not jitter_ms:
            self._plan(soon)
        elif not self._gathering:
            self._gathering = True
            self._clock.call_later(jitter_ms / 1000, self._gathered)

    def withdraw(self, claimer: Claimer) -> bool:
        """It waits no longer, and is not told. False: it did not wait, but may have jobs that are on their way."""
        return self._line.leave(claimer)

    def woken(self) -> None:
        """There may be jobs. Whoever came within a jitter window that is open waits for its end."""
        if len(self._line) and not self._gathering and not self._planned and not self.closed:
            try:
                self._plan(self._group.soon)
            except Failure as failure:
                self._refuse(failure)

    def _plan(self, soon: Callable[[Callable[[], None]], object]) -> None:
        if not self._planned:
            self._planned = True
            soon(self._pass)

    def _pass(self) -> None:
        self._planned = False
        if not self._gathering:
            self._serve()

    def _gathered(self) -> None:
        self._gathering = False
        self._serve()

    def _serve(self) -> None:
        if self.closed:
            return
        if self._acks:
            self._acks.do_waiting()  # they came before the pass, which may take back what they are about
        try:
            if self._serve_line():
                self._plan(self._group.soon)
                return
        except Failure as failure:
            self._refuse(failure)
            return
        except Exception:
            log.exception("a pass over a queue failed", topic=ascii(self.stream.key)[:200])
            self._refuse(InternalError("queue"))
            return
        for claimer in self._line.take_ended(self._clock.monotonic_s()):
            claimer.got([])
        self._set_timer()

    def _serve_line(self) -> bool:
        """One pass. True: another one has to follow before anybody is told that there is nothing."""
        state, jobs = self.state, self.jobs
        self.check()
        self.engine.apply_retention(self.stream)
        now_ms = self.now_ms()
        due_ms = state.due_ms()
        if due_ms is not None and due_ms <= now_ms:
            claimers_max = len(self._line)
        else:
            claimers_max = len(state.reclaim) + max(jobs.head_seq - state.claim_cursor + 1, 0)
        if not claimers_max or not len(self._line):
            return False
        claimers, wishes = self._line.first(claimers_max)
        fitting = self._fitting_count()
        wishes = [one if one.max <= fitting else msgspec.structs.replace(one, max=fitting) for one in wishes]
        jobs.ahead.cursor = state.claim_cursor
        found = model.claim(state, wishes, jobs, now_ms)
        standing = False
        if found.event is not None:
            shares = zip(claimers, found.shares, strict=True)
            standing = self._hand_out([(claimer, share) for claimer, share in shares if share], found.event)
        if found.missing is not None:
            jobs.look_up_times(state.claim_cursor, now_ms)
            return True
        return found.more or standing

    def _fitting_count(self) -> int:
        """About so many jobs are no more than one answer holds."""
        stream = self.stream
        return max(1, self._bytes_max * max(stream.live_count, 1) // max(stream.live_bytes, 1))

    def _hand_out(self, shares: list[tuple[Claimer, list[int]]], event: Passed) -> bool:
        """Commits a pass and has its jobs told of. True: workers stand in line again, who may get more."""
        begun_s = self._clock.monotonic_s()

        def logged(outcome: Outcome) -> None:
            self.figures.hand_times.add(self._clock.monotonic_s() - begun_s, len(shares))
            tell(outcome)

        answer = Answer(logged)
        self.commit(event, answer)
        for claimer, _ in shares:
            self._line.leave(claimer)
        tell = hand_out(self.jobs, shares, self.state.leases, self._bytes_max, self.give_back)
        answer.release()
        again = [claimer for claimer, _ in shares if claimer.stays]
        if event.expired or event.dead:
            again += self._workers.values()
        for claimer in again:
            self._stand_if_wanted(claimer)
        if len(self.jobs.places) > 2 * len(self.state.leases) + PLACES_MIN:
            leases = self.state.leases
            self.jobs.places = {seq: place for seq, place in self.jobs.places.items() if seq in leases}
        return bool(again)

    def _set_timer(self) -> None:
        if not len(self._line):
            return
        now_s = self._clock.monotonic_s()
        now_ms = self.now_ms()
        due_ms = self.state.due_ms()
        due_s = inf if due_ms is None else now_s + (due_ms - now_ms) / 1000
        at_s = min(due_s, self._line.next_end_s())
        if at_s == inf or (self._timer_s is not None and self._timer_s <= at_s):
            return
        at_s = min(max(at_s, now_s), now_s + TIMER_S_MAX)
        self._timer_s = at_s
        self._clock.call_later(at_s - now_s, partial(self._timer, at_s))

    def _timer(self, at_s: float) -> None:
        if self._timer_s == at_s:
            self._timer_s = None
            if not self._gathering:
                self._serve()

    def _refuse(self, failure: Failure) -> None:
        """Everybody in line is told, and leaves it."""
        for claimer in self._line.take_all():
            claimer.got(failure)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def join(self, connection: int, worker: Claimer) -> None:
        """A worker takes jobs from now on. Raises NotAQueue."""
        self._workers[connection] = worker
        self.enter(worker)

    def leave(self, connection: int) -> None:
        """A worker is gone: what it holds goes back."""
        worker = self._workers.pop(connection, None)
        if worker is not None:
            self._line.leave(worker)
        event = model.release(self.state, connection)
        if event is not None and not self.closed:
            try:
                self.commit(event)
            except Failure:
                return  # the group has left, or its log has failed: whoever serves it next knows of no such connection
            self.woken()

    def resume(self, connection: int) -> None:
        """A worker may have room again."""
        self._line_up([connection])
        self.woken()

    def _line_up(self, connections: Iterable[int]) -> None:
        for connection in connections:
            worker = self._workers.get(connection)
            if worker is not None:
                self._stand_if_wanted(worker)

    def _stand_if_wanted(self, claimer: Claimer) -> None:
        if claimer.wish() is not None:
            self._line.stand(claimer)

    # ---- what claimers do with their jobs ---------------------------------------------------------------------------

    def ack(self, pairs: Pairs, tell: Told, together: bool = False) -> None:
        """`pairs` of (seq, lease id). Raises why nothing has happened.

        `together`: the client has asked for nothing else in this turn of the event loop, so nothing of it can come
        before an ack that is done at the end of the turn, with others.
        """
        self.check()
        if together:
            self._acks.add(pairs, tell, self._group.soon)
        else:
            self._acks.do_now(pairs, tell)

    def freed(self, connections: set[int]) -> None:
        """Jobs of these connections are done: they have room again."""
        self._line_up(connections)
        self.woken()

    def delete(self, seqs: list[int], runs: list[Run], event: QueueEvent, answer: Answer) -> bool:
        """Deletes the records of jobs that are done, and commits that they are. False: the deletion was refused, which
        `answer` is told, and nothing has happened."""
        group = self._group
        group.submit(self.stream.key, DeleteRecords(runs), answer)
        if self.jobs.is_live(seqs[0]):
            return False
        self._gone_count += len(seqs)
        for seq in seqs:
            self.jobs.places.pop(seq, None)
        try:
            self.commit(event)
        except Failure:
            pass  # the log has just failed: `answer` is told
        return True

    def nack(self, nacks: list[Nack], tell: Told) -> None:
        """Raises why nothing has happened."""
        self.check()
        verdict = model.nack(self.state, nacks, self.jobs, self.now_ms())
        event = verdict.event
        if event is None:
            self.tell_when_durable(tell, Done([], verdict.failed))
            return
        done = Done([seq for seq, _ in event.jobs], verdict.failed, [seq for seq, _ in event.dead])
        self.figures.nacks_count += len(done.done) + len(done.dead)
        connections = self.connections_of([*done.done, *done.dead])
        self._commit_and_tell(event, tell, done)
        self._line_up(connections)
        self.woken()

    def extend(self, wishes: list[tuple[int, int, int]], tell: Told) -> None:
        """`wishes` of (seq, lease id, lease ms). Raises why nothing has happened."""
        self.check()
        verdict = model.extend(self.state, wishes, self.jobs, self.now_ms())
        event = verdict.event
        if event is None:
            self.tell_when_durable(tell, Done([], verdict.failed))
            return
        done = Done([seq for seq, _ in event.deadlines], verdict.failed, deadlines=event.deadlines)
        self._commit_and_tell(event, tell, done)
        self._set_timer()  # a lease may end sooner now

    def give_back(self, leases: list[Lease]) -> None:
        """Jobs that never reached their claimer. The delivery counts."""
        held = self.state.leases
        back = [(lease.seq, 0) for lease in leases if held.get(lease.seq) is lease]
        if back and not self.closed:
            try:
                self.commit(Released(back, []))
            except Failure:
                return  # their deadline brings them back
            self.woken()

    def connections_of(self, seqs: Iterable[int]) -> set[int]:
        if not self._workers:
            return set()
        leases = self.state.leases
        found = {lease.connection for seq in seqs if (lease := leases.get(seq)) is not None}
        return {connection for connection in found if connection is not None}

    def _commit_and_tell(self, event: QueueEvent, tell: Told, done: Done) -> None:
        answer = Answer(lambda outcome: tell(outcome if isinstance(outcome, Failure) else done))
        self.commit(event, answer)
        answer.release()

    def tell_when_durable(self, tell: Told, done: Done) -> None:
        """A refusal may rest on something that is not durable yet."""
        answer = Answer(lambda outcome: tell(outcome if isinstance(outcome, Failure) else done))
        self._group.after_pending(answer)
        answer.release()

    def find_place(self, seq: int, then: Callable[[], None], tell: Told) -> None:
        def found(failure: Failure | None) -> None:
            try:
                if failure is not None:
                    raise failure
                if self.closed:
                    raise GroupMoved(self.stream.sid % self.engine.groups_count)
                then()
            except Failure as refused:
                tell(refused)

        self.jobs.find_place(seq, found)

    # ---- as a Follower ----------------------------------------------------------------------------------------------

    def wake(self, stream: LoadedStream) -> None:
        self.woken()

    def gone(self, stream: LoadedStream) -> None:
        self.close(StreamNotFound())

    def left(self, stream: LoadedStream) -> None:
        self.close(GroupMoved(stream.sid % self.engine.groups_count))

    def close(self, failure: Failure) -> None:
        """Nobody is served here any more."""
        if self.closed:
            return
        self.closed = True
        self.jobs.ahead.close()
        self._on_closed(self)
        self.refuse_all(failure)

    def refuse_all(self, failure: Failure) -> None:
        """Whoever waits is told why, workers too."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            self._line.leave(worker)
            worker.got(failure)
        self._acks.refuse(failure)
        self._refuse(failure)

    def dismiss(self) -> None:
        """The node stops: whoever waits is told that there is nothing. Workers are told by their connections."""
        for claimer in self._line.take_all():
            if not claimer.stays:
                claimer.got([])
