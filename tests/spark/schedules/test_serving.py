"""A server of a schedule in a simulated world: it is killed at every step, frozen and cut off, and others take
over. Held against what ran, not against what it wrote down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from headwater.spark.job_runs import DONE, FAILED
from headwater.spark.node import NodeError, NodeRefused
from headwater.spark.schedules.file import Entry, Schedule
from headwater.spark.schedules.ledger import RECORDS_KEPT, STATE_EVERY, Fenced, Ledger
from headwater.spark.schedules.serving import LOOK_S, STOPPING, Ended, Gone, Interrupted, Keeper, Server
from headwater.spark.schedules.state import Job
from tests.spark.schedules.simulated import Killed, M, Streams, World
from tests.spark.schedules.test_state import entry

LEASE_MS = 2 * M


class Ran:
    """Work that takes a minute, and what of it was done: (job, moment it began)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: list[tuple[str, int]] = []
        self.done: list[tuple[str, int]] = []
        self.outcome = DONE
        self.cut: list[int] = []
        self.due: list[tuple[str, int]] = []
        self.minutes = 1
        self.fatal = ""
        self.during = lambda: None

    def __call__(self, one: Entry, interrupted: Interrupted) -> Ended:
        self.begun.append((one.name, self.world.ms // M))
        self.due.append((one.name, one.moments.before(self.world.ms)))
        for _ in range(60 * self.minutes):
            self.world.go_on(1_000)
            self.during()
            if interrupted() is not None:
                self.cut.append(self.world.ms)
                return Ended(FAILED, "cut", self.fatal)
        self.done.append((one.name, self.world.ms // M - 1))
        return Ended(self.outcome, "" if self.outcome == DONE else "bad")


@contextmanager
def in_waits(keeper: Keeper, every_s: float, world: World) -> Iterator[None]:
    """Renews as time passes: there is no thread."""
    world.beat = keeper.renew
    try:
        yield
    finally:
        world.beat = lambda: None


def serve(
    streams: Streams, world: World, work: Ran, entries: list[Entry], until_ms: int, said: list[str] | None = None
) -> Ledger:
    """Returns when it was stopped. Raises what its process would end with."""
    world.stop_ms = until_ms
    ledger = Ledger(streams, "s")  # type: ignore[arg-type]
    schedule = Schedule("s", "s.toml", None, None, LEASE_MS, {}, tuple(entries))
    server = Server(schedule, ledger, world, work, (said if said is not None else []).append)
    server.run(keeping=lambda keeper, every_s: in_waits(keeper, every_s, world))
    return ledger


def test_each_moment_runs_once_also_with_a_server_that_comes_after() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)
    entries = [entry("a", 15), entry("b", 30)]
    serve(streams, world, work, entries, 50 * M)
    assert work.done == [("a", 15), ("a", 30), ("b", 31), ("a", 45)]
    world.ms += 3 * M
    serve(streams, world, work, entries, 76 * M + 1)  # given back: it waits for nobody
    assert work.done[4:] == [("a", 60), ("b", 61), ("a", 75)]
    world.ms = 200 * M
    serve(streams, world, work, entries, 203 * M)
    assert work.done[7:] == [("b", 200), ("a", 201)]  # of each the newest that was missed, the older one first


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(14))
def test_a_server_that_is_killed_at_any_append_runs_nothing_again_that_was_done(step: int, when: str) -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)
    entries = [entry("a", 15), entry("b", 30)]
    left = step

    def around(now: str) -> None:
        nonlocal left
        if now == when:
            left -= 1
            if left < 0:
                raise Killed

    streams.around = around
    with pytest.raises(Killed):
        serve(streams, world, work, entries, 500 * M)
    streams.around = lambda now: None
    killed_at = world.ms
    ended = [job for record in streams.records or [] if record["state"] for job in record["state"]["jobs"].items()]
    known = {(name, run["due_ms"]) for name, job in ended for run in job.get("runs", []) if run["outcome"] == DONE}
    work.due.clear()
    serve(streams, world, work, entries, killed_at + 80 * M)
    assert not known & set(work.due), "what is known to be done is not begun again"
    assert len(set(work.due)) == len(work.due)
    for name, minutes in (("a", 15), ("b", 30)):
        later = [at for one, at in work.done if one == name and at >= killed_at // M + 4]
        assert all(at % minutes <= 3 for at in later) and later


def test_another_server_waits_for_the_lease_of_one_that_was_killed_and_no_longer() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)

    def kill() -> None:
        raise Killed

    work.during = kill
    with pytest.raises(Killed):
        serve(streams, world, work, [entry("a", 15)], 500 * M)
    work.during = lambda: None
    said: list[str] = []
    serve(streams, world, work, [entry("a", 15)], 25 * M, said)
    assert "serves it, or did until now" in said[0]
    ((_, minute),) = work.done
    assert minute == 15 + 2 + 1, "the lease, then the pause before a second attempt"


def test_a_server_that_was_frozen_in_a_job_stops_it_and_begins_nothing_more() -> None:
    streams, world = Streams(), World(7 * M)
    first, second = Ran(world), Ran(world)

    def frozen() -> None:
        first.during = lambda: None
        stop_ms, beat = world.stop_ms, world.beat
        world.beat = lambda: None
        serve(streams, world, second, [entry("a", 15)], world.ms + 20 * M)
        world.stop_ms, world.beat = stop_ms, beat

    first.during = frozen
    said: list[str] = []
    serve(streams, world, first, [entry("a", 15)], 50 * M, said)
    assert first.begun[0] == ("a", 15) and ("a", 15) not in first.done
    assert second.done == [("a", 18), ("a", 30)]
    assert first.done == [("a", 45)], "given back by then"
    assert any("it waits until it may serve the schedule again" in text for text in said)


def two_ledgers(streams: Streams) -> tuple[Ledger, Ledger]:
    """Both have seen that nobody serves the schedule."""
    first, second = Ledger(streams, "s"), Ledger(streams, "s")  # type: ignore[arg-type]
    first.read()
    second.read()
    return first, second


def test_of_two_servers_that_claim_at_once_one_has_it_and_the_other_one_writes_nothing() -> None:
    streams = Streams()
    first, second = two_ledgers(streams)
    assert (first.claim(LEASE_MS, 1), second.claim(LEASE_MS, 1)) == (True, False)
    # They sent the same epoch: what the second one sent now would stand in the place of what the first one sends.
    for late in (lambda: second.renew(2), lambda: second.write({}, 2)):
        with pytest.raises(Fenced):
            late()
    first.write({"a": Job("x", 1)}, 3)
    assert streams.records is not None and streams.records[-1]["at_ms"] == 3


def test_a_claim_whose_answer_was_lost_counts_and_whoever_claims_then_sees_whose_it_is() -> None:
    streams = Streams()
    first, second = two_ledgers(streams)

    def lost(when: str) -> None:
        if when == "after":
            streams.around = lambda now: None
            raise NodeError("lost")

    streams.around = lost
    with pytest.raises(NodeError):
        first.claim(LEASE_MS, 1)
    assert not second.claim(LEASE_MS, 2)
    assert second.state is not None and second.state.server == first.server
    with pytest.raises(Fenced):
        first.renew(3)  # it does not know yet that it was heard
    assert first.read() and first.claim(LEASE_MS, 4)
    first.renew(5)


def test_a_lost_node_is_waited_for_and_its_job_stopped_before_others_could_begin_it() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)
    said: list[str] = []

    def cut_off(ms: int) -> None:
        streams.away = 16 * M < ms < 40 * M

    world.at = cut_off
    work.minutes = 3
    serve(streams, world, work, [entry("a", 15, timeout_ms=600 * M)], 70 * M, said)
    assert work.begun[0] == ("a", 15) and work.cut == [16 * M + LEASE_MS * 2 // 3 + 1_000]
    assert any("the node does not answer" in text or "waiting for the node" in text for text in said)
    assert sum("waiting for the node: nobody answers" in text for text in said) < 10, "it does not say so all the time"
    assert work.done == [("a", 42), ("a", 47), ("a", 62)], "of what was missed the newest, once"


def test_a_job_that_was_done_when_the_node_was_lost_is_not_run_again_when_it_is_back() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)

    def away(ms: int) -> None:
        streams.away = 15 * M + 10_000 < ms < 25 * M

    world.at = away
    ledger = serve(streams, world, work, [entry("a", 15)], 29 * M)
    assert (work.begun, work.done) == ([("a", 15)], [("a", 15)])
    assert ledger.state is not None and ledger.state.epoch == 2
    assert [run.outcome for run in ledger.state.jobs["a"].runs] == [DONE]


def test_a_server_that_is_told_to_stop_ends_its_job_and_the_next_one_runs_it() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)
    ledger = serve(streams, world, work, [entry("a", 15)], 15 * M + 30_000)
    assert (work.begun, work.done) == ([("a", 15)], [])
    assert ledger.state is not None and ledger.state.released
    assert [(run.outcome, run.error) for run in ledger.state.jobs["a"].runs] == [("stopped", STOPPING)]
    serve(streams, world, work, [entry("a", 15)], 20 * M)
    assert work.done == [("a", 15)]


def test_a_job_that_takes_too_long_has_failed_and_is_tried_again() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)
    ledger = serve(streams, world, work, [entry("a", 15, timeout_ms=30_000, retries=1)], 29 * M)
    assert work.begun == [("a", 15), ("a", 16)] and ledger.state is not None
    assert [(run.outcome, run.error, run.attempt) for run in ledger.state.jobs["a"].runs] == [
        ("failed", "it took longer than 30 s", 1),
        ("failed", "it took longer than 30 s", 2),
    ]


def test_a_process_that_can_run_nothing_more_gives_the_schedule_back() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)
    work.fatal = "it does not end"
    with pytest.raises(Gone, match="it does not end"):
        serve(streams, world, work, [entry("a", 15, timeout_ms=30_000)], 500 * M)
    assert streams.records is not None and streams.records[-1]["state"]["released"]
    work.fatal = ""
    serve(streams, world, work, [entry("a", 15)], 20 * M)
    assert work.done == [("a", 16)]


def test_a_stream_that_was_deleted_or_put_back_is_claimed_anew() -> None:
    streams, world = Streams(), World(7 * M)
    work = Ran(world)

    def deleted() -> None:
        work.during = lambda: None
        streams.records, streams.producer = None, None

    work.during = deleted
    serve(streams, world, work, [entry("a", 15)], 50 * M)
    assert work.done[-2:] == [("a", 30), ("a", 45)]


def test_a_server_that_cannot_prepare_gives_the_schedule_back() -> None:
    streams, world = Streams(), World(7 * M)

    def no_spark() -> None:
        raise OSError("no Java")

    schedule = Schedule("s", "s.toml", None, None, LEASE_MS, {}, (entry("a", 15),))
    ledger = Ledger(streams, "s")  # type: ignore[arg-type]
    server = Server(schedule, ledger, world, Ran(world), lambda text: None)
    with pytest.raises(OSError, match="no Java"):
        server.run(no_spark, lambda keeper, every_s: in_waits(keeper, every_s, world))
    assert ledger.state is not None and ledger.state.released


def test_what_waiting_does_not_mend_ends_the_server() -> None:
    streams, world = Streams(), World(7 * M)

    def refuse(*_: object, **__: object) -> None:
        raise NodeRefused("GET", 403, "forbidden", "no scope", {})

    streams.call = refuse  # type: ignore[method-assign]
    with pytest.raises(NodeRefused, match="no scope"):
        serve(streams, world, Ran(world), [entry()], 50 * M)


def test_signs_of_life_never_push_the_newest_state_out_of_what_is_kept() -> None:
    streams = Streams()
    ledger = Ledger(streams, "s")  # type: ignore[arg-type]
    assert ledger.claim(LEASE_MS, 0)
    for at_ms in range(3 * STATE_EVERY):
        ledger.renew(at_ms)
    whole = [number for number, record in enumerate(streams.records or []) if record["state"] is not None]
    assert max(b - a for a, b in pairwise(whole)) <= STATE_EVERY < RECORDS_KEPT
    assert LOOK_S * 1_000 < LEASE_MS
