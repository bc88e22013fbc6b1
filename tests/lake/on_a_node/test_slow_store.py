"""A store that does not answer never delays an append or a live reader: it is held shut while they complete.
No clock decides: whatever waited for the store would wait for ever, and the test with it."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headwater.errors import Overloaded
from headwater.model.commands import Append, Create, Fork
from headwater.model.events import Appended
from headwater.model.extents import Extent, Records, Run, Stretch
from headwater.ports import BlobsUnavailable, Writer
from tests.engine import Ear
from tests.lake.on_a_node.world import ListLake, World

pytestmark = pytest.mark.usefixtures("quick_disk")

KEY, OTHER = "slow/a", "slow/b"


class Gate(ListLake):
    """A lake behind a gate that a test opens."""

    def __init__(self) -> None:
        super().__init__()
        self.settling = threading.Event()
        self.settling.set()
        self.reading = threading.Event()
        self.reading.set()
        self.waiting = threading.Semaphore(0)
        """One permit for every call that has come to the gate."""
        self.failure: Exception | None = None
        self.late_commit = False

    def _pass(self, gate: threading.Event) -> None:
        self.waiting.release()
        assert gate.wait(60), "nobody opened the gate"

    def settle(self, runs: list[Run], writer: Writer) -> tuple[str, list[Extent]]:
        self._pass(self.settling)
        if self.failure is not None and not self.late_commit:
            raise self.failure
        settled = super().settle(runs, writer)
        if self.failure is not None:
            raise self.failure
        return settled

    def read(self, extent: Extent, start: int, end: int, labels: bool = False) -> Records:
        self._pass(self.reading)
        if self.failure is not None:
            raise self.failure
        return super().read(extent, start, end)

    def stretch(self, extent: Extent, start: int, limit: int, commas: bool, wait: bool) -> Stretch | None:
        if wait:
            self._pass(self.reading)
            if self.failure is not None:
                raise self.failure
        return super().stretch(extent, start, limit, commas, wait)

    def prepare(self, extent: Extent, commas: bool) -> None:
        self._pass(self.reading)
        super().prepare(extent, commas)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.waiting.acquire, timeout=30)


def played(play: Callable[[World, Gate], Awaitable[None]]) -> None:
    async def body(directory: Path) -> None:
        gate = Gate()
        world = World(directory, gate, gate.rows)
        try:
            await world.create(KEY, [5], False, False)
            await world.create(OTHER, [5], False, False)
            await play(world, gate)
        finally:
            gate.settling.set()
            gate.reading.set()
            world.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))


def test_appends_and_followers_go_on_while_a_flush_waits_for_the_store() -> None:
    async def play(world: World, gate: Gate) -> None:
        gate.settling.clear()
        flush = asyncio.create_task(world.flush(1 << 20))
        await gate.reached()
        ear = Ear()
        live = world.group.find(KEY, touch=False)
        world.group.follow(live, ear)
        for _ in range(20):
            await world.append(KEY, [9], False)
            await world.append(OTHER, [9], False)
        await world.create("slow/c", [3], False, False)
        assert ear.wakes and ear.wakes[-1] == world.model[KEY].tail
        await world.checkpoint()
        await world.check(3, 12)
        assert not flush.done()
        gate.settling.set()
        await flush
        await world.check(3, 12)
        await world.check_table()

    played(play)


def test_appends_and_hot_reads_go_on_while_cold_reads_fill_every_thread() -> None:
    async def play(world: World, gate: Gate) -> None:
        await world.flush_all()
        gate.reading.clear()
        live = world.group.find(KEY, touch=False)
        reads = [asyncio.create_task(world.reads.read_now(live, 0, 100)) for _ in range(50)]
        await gate.reached()
        ear = Ear()
        world.group.follow(live, ear)
        for _ in range(20):
            await world.append(KEY, [9], False)
        assert ear.wakes[-1] == live.visible
        hot = await world.reads.read_now(live, 5, 1 << 20)
        assert len(hot.payloads) == 20 and hot.up_to_date
        assert not any(read.done() for read in reads)
        gate.reading.set()
        for part in await asyncio.gather(*reads):
            assert part.payloads[:1] == [world.model[KEY].records[0][2]]

    played(play)


def test_reads_beyond_the_bound_are_refused_and_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(world: World, gate: Gate) -> None:
        monkeypatch.setattr("headwater.engine.reads.PENDING_MAX", 8)
        await world.flush_all()
        gate.reading.clear()
        live = world.group.find(KEY, touch=False)
        reads = [asyncio.create_task(world.reads.read_now(live, 0, 100)) for _ in range(12)]
        done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_EXCEPTION)
        assert waiting and all(isinstance(read.exception(), Overloaded) for read in done)
        gate.reading.set()
        for part in await asyncio.gather(*waiting):
            assert part.payloads
        assert world.reads.pending == 0

    played(play)


@pytest.mark.parametrize("failure", [BlobsUnavailable("away"), KeyError("data/1"), ValueError("torn")], ids=repr)
def test_a_read_that_the_lake_fails_is_answered_and_frees_its_place(failure: Exception) -> None:
    async def play(world: World, gate: Gate) -> None:
        await world.flush_all()
        gate.failure = failure
        live = world.group.find(KEY, touch=False)
        with pytest.raises(Overloaded):
            await asyncio.wait_for(world.reads.read_now(live, 0, 100), 30)
        assert world.reads.pending == 0
        gate.failure = None
        assert (await world.reads.read_now(live, 0, 100)).payloads

    played(play)


@pytest.mark.parametrize("failure", [BlobsUnavailable("away"), RuntimeError("never seen before")], ids=repr)
def test_a_flusher_says_what_fails_goes_on_trying_and_clears_its_word(failure: Exception) -> None:
    async def play(world: World, gate: Gate) -> None:
        flusher = world.flusher()
        flusher.start()
        gate.failure = failure
        try:
            while flusher.failure is None:
                await asyncio.sleep(0.01)
            assert str(failure) in flusher.failure
            gate.failure = None
            while flusher.failure is not None:
                await asyncio.sleep(0.01)
            assert world.group.loaded.hot_bytes == 0
        finally:
            await flusher.stop()
        await world.check_table()

    played(play)


def test_a_failure_is_over_when_a_flush_that_was_asked_for_succeeds() -> None:
    async def play(world: World, gate: Gate) -> None:
        flusher = world.flusher()
        flusher.failure = "the lake takes nothing: it was away"
        await flusher.flush_all()
        assert flusher.failure is None

    played(play)


def test_a_commit_whose_answer_was_lost_is_not_made_twice() -> None:
    async def play(world: World, gate: Gate) -> None:
        flusher = world.flusher()
        await flusher.flush()
        await world.append(KEY, [9], False)
        gate.failure, gate.late_commit = BlobsUnavailable("the answer was lost"), True
        with pytest.raises(BlobsUnavailable):
            await flusher.flush()
        gate.failure = None
        await flusher.flush()
        await world.check_table()

    played(play)


def test_stopping_waits_for_the_flush_under_way_and_logs_it() -> None:
    async def play(world: World, gate: Gate) -> None:
        gate.settling.clear()
        flusher = world.flusher()
        flusher.start()
        await gate.reached()
        stopping = asyncio.create_task(flusher.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        gate.settling.set()
        await stopping
        assert world.group.loaded.hot_bytes == 0 and world.group.loaded.new_files
        world.restart()
        await world.check(3, 12)
        await world.check_table()

    played(play)


def test_a_fork_of_a_name_that_changed_hands_during_the_lookup_is_judged_anew() -> None:
    async def play(world: World, gate: Gate) -> None:
        for _ in range(4):
            await world.append(KEY, [9], False)
        await world.flush_all()
        world.restart()
        offset = world.model[KEY].edges()[3]
        gate.reading.clear()
        forking = asyncio.create_task(world.submit("slow/fork", Create("slow/fork", None, [], fork=Fork(KEY, offset))))
        await gate.reached()
        await world.delete(KEY)
        await world.create(KEY, [2], False, False)
        gate.reading.set()
        outcome = await forking
        assert isinstance(outcome, Exception), "a fork of a stream that has no such offset"
        assert isinstance(await world.submit(KEY, Append([b"on"])), Appended)

    played(play)


def test_more_streams_than_fit_a_file_settle_in_several_and_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(world: World, gate: Gate) -> None:
        monkeypatch.setattr("headwater.engine.flush.RUNS_MAX", 3)
        for number in range(8):
            await world.create(f"many/{number}", [4], False, False)
        for number in range(5):
            await world.append(f"many/{number}", [4], False)
        before = world.group.lake_position()
        await world.flush(1 << 20)
        assert [len(places) for places in gate.table.values()] == [3]
        assert world.group.lake_position() > before
        await world.check(3, 12)
        await world.flush_all()
        assert [len(places) for places in gate.table.values()] == [3, 3, 3, 1]
        await world.check(3, 12)
        await world.check_table()

    played(play)
