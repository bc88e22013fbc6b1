"""The leases that a group keeps: the same after a replay, after a checkpoint, and after both."""

from __future__ import annotations

import asyncio

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.engine.queue_leases import QueueLeases, encode, encode_row
from headwater.engine.recovery import recover
from headwater.model.queue_events import Acked, Grant, Passed, Released
from headwater.model.queue_state import QueueState
from headwater.model.topics import QueueConfig
from headwater.ports import Catalog
from tests.engine import Bench, HandLog

SID = 7


def passed(seqs: list[int], first_lease_id: int, cursor: int) -> Passed:
    return Passed([], [], [], [], [Grant(seqs, first_lease_id, 5_000)], cursor)


EVENTS = [passed([1, 2, 3], 100, 4), Acked([2]), Released([(3, 9_000)], []), passed([4], 103, 5)]


def bench_on(catalog: Catalog, log: HandLog | None = None) -> tuple[Bench, QueueLeases]:
    bench = Bench(log, catalog)
    leases = QueueLeases()
    bench.group.domains[QueueLeases.name] = leases
    recover(bench.group)
    return bench, leases


def noted(bench: Bench, *bodies: bytes) -> None:
    for body in bodies:
        bench.group.note(QueueLeases.name, body)
    bench.sync()


def test_a_replay_gives_the_state_that_was_decided() -> None:
    bench, leases = bench_on(SqliteCatalog(None))
    state = QueueState(QueueConfig(), 100)
    leases.adopt(SID, state)
    noted(bench, encode_row(SID, state), *(encode(SID, event) for event in EVENTS))
    assert leases.states[SID] is state and sorted(state.leases) == [1, 4] and state.delayed == {3: 9_000}
    _, again = bench_on(SqliteCatalog(None), HandLog(bench.log.events))
    assert again.states[SID].snapshot() == state.snapshot()


def test_a_row_in_the_log_replaces_what_was_kept_before() -> None:
    bench, leases = bench_on(SqliteCatalog(None))
    noted(bench, encode(SID, EVENTS[0]))
    noted(bench, encode_row(SID, QueueState(QueueConfig(), 500)))
    assert leases.states[SID].leases == {} and leases.states[SID].next_lease_id == 500


def test_a_checkpoint_keeps_what_the_log_lets_go_of() -> None:
    async def body() -> None:
        catalog = SqliteCatalog(None)
        bench, leases = bench_on(catalog)
        noted(bench, *(encode(SID, event) for event in EVENTS[:2]))
        noted(bench, encode(SID + 1, EVENTS[0]))
        writing = asyncio.ensure_future(checkpoint(bench.group))
        while not writing.done():
            bench.sync()
            await asyncio.sleep(0)
        assert leases.changes() == {}
        noted(bench, *(encode(SID, event) for event in EVENTS[2:]))
        leases.forget(SID + 1)
        _, again = bench_on(catalog, HandLog(bench.log.events))
        assert again.states[SID].snapshot() == leases.states[SID].snapshot()
        # A queue that was forgotten is so with the next checkpoint.
        assert SID + 1 in again.states and leases.changes()[str(SID + 1)] is None

    asyncio.run(body())


def test_a_checkpoint_that_failed_is_tried_again() -> None:
    leases = QueueLeases()
    leases.apply(encode(SID, EVENTS[0]), 0, 10)
    taken = leases.changes()
    leases.apply(encode(SID, EVENTS[1]), 0, 20)
    leases.retry(taken)
    assert leases.changes() == {str(SID): leases.states[SID].snapshot()}
