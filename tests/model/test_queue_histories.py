"""Random histories of one queue: the same answers and the same state as in a slow model, and no promise broken.
Owns the histories, and judges the promises from what claimers were told alone. Never waits: time is a number."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.model.queue_events import Acked, DeadLettered, Lease, QueueEvent, decode_event, encode
from headwater.model.queue_state import Bounds, QueueState
from headwater.model.queues import Nack, Wish, ack, claim, extend, nack, release
from tests.model.queue_jobs import Config, JobTable
from tests.model.slow_queue import SlowClaimer, SlowQueue

LEASES_MAX = 6
LEASE_IDS_PER_LIFE = 1_000_000
FOREVER_MS = 10**9

EVERY_OUTCOME = {
    *("ack good", "ack lease_lost", "ack not_found"),
    *("nack released", "nack dead", "nack lease_lost", "nack not_found"),
    *("extend good", "extend lease_lost", "extend not_found"),
    *("again", "fresh", "scheduled", "cold", "full", "late ack", "moved", "came back with its connection"),
    *("crash with leases", "crash without leases"),
}


# ---- histories ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    delays: list[int | None]


@dataclass(frozen=True)
class Claim:
    wishes: list[Wish]


@dataclass(frozen=True)
class Answer:
    """Of a worker about leases it was given at some time: the how manieth from the last."""

    verb: str
    backs: list[int]
    number: int | None
    """Delay of a nack, new length of a lease."""


@dataclass(frozen=True)
class Delete:
    backs: list[int]
    told: bool


@dataclass(frozen=True)
class Event:
    """One of those that carry no choice: `cold`, `disconnect`, `move`, `checkpoint`, `crash`, `crash empty`."""

    kind: str


Step = Write | Claim | Answer | Delete | Event
delays = st.sampled_from([None, None, None, None, 5, 30])
wishes = st.builds(
    Wish,
    max=st.sampled_from([1, 1, 2, 3, 8]),
    lease_ms=st.sampled_from([5, 20, 20, 100]),
    node=st.just("n"),
    connection=st.sampled_from([None, None, 1, 2]),
)
claims = st.builds(Claim, st.lists(wishes, max_size=4))
backs = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 6, 9]), min_size=1, max_size=3)
answers = st.one_of(
    st.builds(Answer, st.just("ack"), backs, st.none()),
    st.builds(Answer, st.just("nack"), backs, st.sampled_from([None, None, 0, 10])),
    st.builds(Answer, st.just("extend"), backs, st.sampled_from([5, 50])),
)
plain = st.sampled_from(["cold", "disconnect", "disconnect", "move", "checkpoint", "crash", "crash empty"])
steps = st.one_of(
    st.builds(Write, st.lists(delays, min_size=1, max_size=4)),
    claims,
    claims,
    claims,
    answers,
    answers,
    answers,
    st.builds(Delete, backs, st.booleans()),
    st.builds(Event, plain),
)
ticks = st.sampled_from([0, 0, 0, 1, 5, 20])
configs = st.builds(
    Config,
    max_deliveries=st.sampled_from([0, 1, 2, 3]),
    backoff_ms=st.sampled_from([0, 7]),
    backoff_ms_max=st.sampled_from([5, 20]),
)
first = st.builds(Write, st.lists(delays, min_size=2, max_size=8))
histories = st.tuples(first, st.lists(st.tuples(ticks, steps), min_size=10, max_size=40))


# ---- the promises, as those see them who only hear answers --------------------------------------------------------


@dataclass
class Witness:
    """What workers were told, and what they were promised by it."""

    given: list[Lease] = field(default_factory=list)
    valid_until: dict[int, int] = field(default_factory=dict)
    """seq -> before this time nobody else may get it. Ended by what its holder says."""
    not_before: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)

    def handed_out(self, lease: Lease, now_ms: int) -> None:
        assert lease.lease_id not in {other.lease_id for other in self.given}, "a lease id was used again"
        assert lease.seq not in self.acked, "an acked job was handed out"
        assert self.valid_until.get(lease.seq, 0) <= now_ms, "a job has two leases"
        assert self.not_before.get(lease.seq, 0) <= now_ms, "a job was handed out before its time"
        self.given.append(lease)
        self.valid_until[lease.seq] = lease.deadline_ms

    def was_acked(self, seq: int) -> None:
        assert seq not in self.acked, "a job was acked twice"
        self.acked.add(seq)


class Player:
    """Plays a history to the model, as a caller drives it, and to the slow model."""

    def __init__(self, config: Config, logs_acks: bool) -> None:
        self.config = config
        self.logs_acks = logs_acks
        self.jobs = JobTable()
        self.lives = 0
        self.state = self.empty_state()
        self.slow = SlowQueue(LEASES_MAX, config.max_deliveries, config.backoff_ms, config.backoff_ms_max)
        self.witness = Witness()
        self.log: list[bytes] = []
        self.checkpoint = self.state.snapshot()
        self.now_ms = 1_000
        self.met: set[str] = set()

    def empty_state(self) -> QueueState:
        self.lives += 1
        return QueueState(self.config, self.lives * LEASE_IDS_PER_LIFE, Bounds(leases_max=LEASES_MAX))

    def happen(self, event: QueueEvent | None) -> None:
        if event is None:
            return
        if self.logs_acks or not isinstance(event, Acked | DeadLettered):
            self.log.append(encode(event))
        self.state.apply(event)

    def contents(self) -> dict[str, object]:
        """Everything a client could learn of the state, by the jobs that are live."""
        state, is_live = self.state, self.jobs.is_live
        return {
            "leased": {
                lease.seq: (lease.lease_id, lease.deadline_ms, lease.deliveries, lease.connection)
                for lease in state.leases.values()
                if is_live(lease.seq)
            },
            "delayed": {seq: at_ms for seq, at_ms in state.delayed.items() if is_live(seq)},
            "dying": {seq: reason for seq, reason in state.dying.items() if is_live(seq)},
            "reclaim": {seq: state.deliveries.get(seq, 0) for seq in sorted(state.reclaim) if is_live(seq)},
            "fresh": [seq for seq in sorted(self.jobs.live) if seq >= state.claim_cursor],
        }

    def slow_contents(self) -> dict[str, object]:
        slow = self.slow
        return {
            "leased": slow.leased(),
            "delayed": slow.delayed(),
            "dying": slow.dying(),
            "reclaim": slow.reclaimable(),
            "fresh": [job.seq for job in slow.live() if not job.passed],
        }

    def play(self, step: Step) -> None:
        cursor = self.state.claim_cursor
        if isinstance(step, Write):
            self.write(step)
        elif isinstance(step, Claim):
            self.claim(step.wishes)
        elif isinstance(step, Answer):
            self.answer(step)
        elif isinstance(step, Delete):
            self.delete(step)
        else:
            self.plain(step.kind)
        assert self.contents() == self.slow_contents()
        if step != Event("crash empty"):
            assert self.state.claim_cursor >= cursor, "the cursor moved back"

    def write(self, step: Write) -> None:
        for delay_ms in step.delays:
            at_ms = None if delay_ms is None else self.now_ms + delay_ms
            self.jobs.write(at_ms)
            self.slow.write(at_ms)
            self.witness.not_before[self.jobs.head] = at_ms or 0

    def claim(self, wishes: list[Wish]) -> None:
        now_ms, before = self.now_ms, self.contents()
        outcome = claim(self.state, wishes, self.jobs, now_ms)
        while outcome.missing is not None:
            # Decided again when it was looked up: the decision before must have changed nothing.
            self.met.add("cold")
            self.jobs.cold.discard(outcome.missing)
            outcome = claim(self.state, wishes, self.jobs, now_ms)
        assert self.contents() == before
        cursor, first_lease_id = self.state.claim_cursor, self.state.next_lease_id
        self.happen(outcome.event)
        assert not outcome.more
        claimers = [SlowClaimer(wish.max, wish.lease_ms, wish.connection) for wish in wishes]
        assert outcome.shares == self.slow.claim(claimers, now_ms, first_lease_id)
        for share in outcome.shares:
            for seq in share:
                lease = self.state.leases[seq]
                self.witness.handed_out(lease, now_ms)
                self.met.add("again" if lease.deliveries > 1 else "fresh" if seq >= cursor else "scheduled")
        handed_out = [seq for share in outcome.shares for seq in share]
        if any(seq >= cursor for seq in handed_out):
            assert self.contents()["reclaim"] == {}, "a fresh job was handed out before a reclaimed one"
        sizes = [len(share) for share in outcome.shares]
        assert all(size <= wish.max for size, wish in zip(sizes, wishes, strict=True))
        unfilled = [size for size, wish in zip(sizes, wishes, strict=True) if size < wish.max]
        assert not unfilled or max(sizes) - min(unfilled) <= 1, "the cohort was not served evenly"
        if len(self.state.leases) == LEASES_MAX and unfilled:
            self.met.add("full")

    def answer(self, step: Answer) -> None:
        given, now_ms = self.witness.given, self.now_ms
        leases = [given[-1 - back] for back in step.backs if back < len(given)]
        if step.verb == "extend":
            leases = list({lease.seq: lease for lease in leases}.values())
        before = self.contents()
        expected, told = [], []
        if step.verb == "ack":
            acks = ack(self.state, [(lease.seq, lease.lease_id) for lease in leases], self.jobs)
            told = acks.failed
            good = [] if acks.event is None else acks.event.seqs
            assert self.contents() == before
            for lease in leases:
                if lease.seq in good and self.state.leases[lease.seq].deadline_ms <= now_ms:
                    self.met.add("late ack")
                expected.append((lease.seq, self.slow.ack(lease.seq, lease.lease_id)))
            for seq in good:
                self.witness.was_acked(seq)
            self.jobs.delete(good)
            self.happen(acks.event)
            told = told + [(seq, "good") for seq in good]
        elif step.verb == "nack":
            wanted = [Nack(lease.seq, lease.lease_id, step.number, "no") for lease in leases]
            nacks = nack(self.state, wanted, self.jobs, now_ms)
            assert self.contents() == before
            self.happen(nacks.event)
            told = nacks.failed
            if nacks.event is not None:
                told = told + [(seq, "released") for seq, _ in nacks.event.jobs]
                told = told + [(seq, "dead") for seq, _ in nacks.event.dead]
                for seq, ready_ms in nacks.event.jobs:
                    self.witness.valid_until[seq] = 0
                    self.witness.not_before[seq] = ready_ms
            expected = [(one.seq, self.slow.nack(one.seq, one.lease_id, one.delay_ms, "no", now_ms)) for one in wanted]
        else:
            assert step.number is not None
            asked = [(lease.seq, lease.lease_id, step.number) for lease in leases]
            extends = extend(self.state, asked, self.jobs, now_ms)
            assert self.contents() == before
            self.happen(extends.event)
            told = extends.failed
            for seq, deadline_ms in [] if extends.event is None else extends.event.deadlines:
                told = [*told, (seq, "good")]
                self.witness.valid_until[seq] = deadline_ms
            expected = [(seq, self.slow.extend(seq, lease_id, step.number, now_ms)) for seq, lease_id, _ in asked]
        assert sorted(told) == sorted(expected)
        self.met.update(f"{step.verb} {verdict}" for _, verdict in told)

    def delete(self, step: Delete) -> None:
        live = sorted(self.jobs.live)
        seqs = [live[-1 - back] for back in step.backs if back < len(live)]
        self.jobs.delete(seqs)
        self.slow.delete(seqs)
        # Not told, the state finds out by itself; a lease would count for the bound until its deadline.
        self.state.gone([(seq, seq + 1) for seq in seqs if step.told or seq in self.state.leases])

    def plain(self, kind: str) -> None:
        if kind == "cold":
            self.jobs.cold = set(self.jobs.live)
        elif kind == "disconnect":
            self.disconnect(1)
            self.slow.disconnect(1)
        elif kind == "move":
            moved = self.slow.move_dead()
            assert set(self.state.dying) >= set(moved)
            self.jobs.delete(moved)
            if moved:
                self.met.add("moved")
                self.happen(DeadLettered(moved))
        elif kind == "checkpoint":
            self.checkpoint, self.log = self.state.snapshot(), []
        elif kind == "crash":
            self.met.add("crash with leases")
            self.recover()
            for connection in list(self.state.connections):
                self.disconnect(connection)
            self.slow.crash(durable=True)
        else:
            self.met.add("crash without leases")
            self.state = self.empty_state()
            self.checkpoint, self.log = self.state.snapshot(), []
            self.slow.crash(durable=False)
            self.witness.valid_until = {}
            self.witness.not_before = {seq: at_ms or 0 for seq, at_ms in self.jobs.live.items()}

    def recover(self) -> None:
        before, counted = self.contents(), self.state.acks_count
        self.state = self.empty_state()
        self.state.restore(self.checkpoint)
        for body in self.log:
            self.state.apply(decode_event(body))
        assert self.contents() == before, "a replay gave another state"
        assert self.state.acks_count == counted or not self.logs_acks
        self.state.prune(self.jobs.is_live)
        assert self.contents() == before, "pruning changed what clients see"
        assert {*self.state.leases, *self.state.reclaim, *self.state.deliveries} <= set(self.jobs.live)

    def disconnect(self, connection: int) -> None:
        event = release(self.state, connection)
        self.happen(event)
        if event is not None:
            self.met.add("came back with its connection")
            for seq, _ in (*event.jobs, *event.dead):
                self.witness.valid_until[seq] = 0

    def drain(self) -> None:
        """Every job that was written and not deleted is acked or dead in the end: none is lost."""
        while self.jobs.live:
            self.now_ms += FOREVER_MS
            live = len(self.jobs.live)
            self.play(Claim([Wish(LEASES_MAX, 100)]))
            self.play(Answer("ack", list(range(LEASES_MAX)), None))
            self.play(Event("move"))
            assert len(self.jobs.live) < live, "jobs are left that nobody is given"
        assert self.state.counts(live=0).leased == len(self.state.leases)


def test_every_history_gets_the_same_answers_as_in_the_slow_model_and_keeps_every_promise() -> None:
    met: set[str] = set()

    @settings(max_examples=300)
    @given(histories, configs, st.booleans())
    def run(history: tuple[Write, list[tuple[int, Step]]], config: Config, logs_acks: bool) -> None:
        player = Player(config, logs_acks)
        player.play(history[0])
        for tick_ms, step in history[1]:
            player.now_ms += tick_ms
            player.play(step)
        met.update(player.met)
        player.drain()

    run()
    assert met == EVERY_OUTCOME, "the histories miss an outcome, or met one nobody named"
