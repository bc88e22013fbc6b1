"""What every log promises, whatever keeps it: the suite that a log passes before anything else is built on it.

A log is brought in by subclassing `LogContract` and saying how one is opened, broken and taken over. Nothing here knows
files, servers or objects. Waits for events, never for time.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest

from headwater.model.events import Appended, Event
from tests.log import WAIT_S_MAX, appended, numbered


class Running:
    """A log that runs, and what it held before."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.replayed: list[tuple[int, Event]] = list(log.replay())
        self._progress = asyncio.Event()
        log.start(self._progress.set)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while not holds():
                self._progress.clear()
                await self._progress.wait()

    async def put(self, *events: Event, sync: bool = True) -> list[int]:
        """Logs the events as one batch and waits until it is synced, or the log has failed; their positions."""
        log = self.log
        positions = [log.add(event, sync) for event in events]
        log.commit()
        await self.until(lambda: log.synced >= positions[-1] or log.failure is not None)
        return positions

    def events(self) -> list[Event]:
        return [event for _, event in self.replayed]


class LogContract(ABC):
    """Subclass it in a test module of the log's own, with a name that begins with `Test`."""

    @abstractmethod
    async def open(self, place: Any) -> Any:
        """A log on what is kept at `place`, which may be new. Not started."""

    async def close(self, log: Any) -> None:
        """Closes the log and returns when that is done."""
        log.close()

    @abstractmethod
    def crash(self, log: Any) -> None:
        """Ends the log as a kill of its process would: nothing is written any more."""

    @abstractmethod
    def break_writes(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on nothing that the log writes becomes durable, and the log is told so."""

    @pytest.fixture
    def place(self, tmp_path: Any) -> Any:
        """Where logs of one test are kept."""
        return tmp_path

    # ---- order and watermarks -------------------------------------------------------------------------------------

    def test_positions_grow_strictly_and_the_tail_is_the_last_one(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            positions = await running.put(*numbered(20))
            assert positions == sorted(set(positions))
            assert running.log.tail >= positions[-1] == running.log.synced
            await self.close(running.log)

        asyncio.run(body())

    def test_nothing_counts_as_written_before_the_commit(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            before = running.log.written, running.log.synced
            position = running.log.add(appended(b"gathered"), True)
            await asyncio.sleep(0)
            assert (running.log.written, running.log.synced) == before
            running.log.commit()
            await running.until(lambda: running.log.synced >= position)
            await self.close(running.log)

        asyncio.run(body())

    def test_watermarks_only_grow_and_synced_never_passes_written(self, place: Any) -> None:
        async def body() -> None:
            log = await self.open(place)
            assert list(log.replay()) == []
            seen: list[tuple[int, int]] = []
            progress = asyncio.Event()

            def look() -> None:
                seen.append((log.synced, log.written))
                progress.set()

            log.start(look)
            last = 0
            for event in numbered(200):
                last = log.add(event, True)
                log.commit()
                if last % 7 == 0:
                    await asyncio.sleep(0)
            async with asyncio.timeout(WAIT_S_MAX):
                while log.synced < last:
                    progress.clear()
                    await progress.wait()
            assert seen == sorted(seen)
            assert all(synced <= written for synced, written in seen)
            await self.close(log)

        asyncio.run(body())

    def test_several_batches_may_be_on_their_way_and_end_in_order(self, place: Any) -> None:
        events = numbered(60)

        async def body() -> None:
            running = Running(await self.open(place))
            for event in events:
                running.log.add(event, True)
                running.log.commit()
            tail = running.log.tail
            await running.until(lambda: running.log.synced >= tail)
            await self.close(running.log)
            again = Running(await self.open(place))
            assert again.events() == events
            await self.close(again.log)

        asyncio.run(body())

    # ---- coming back ----------------------------------------------------------------------------------------------

    def test_a_log_that_was_closed_comes_back_whole_and_goes_on(self, place: Any) -> None:
        events = numbered(30)

        async def body() -> None:
            given: list[tuple[int, Event]] = []
            for turn in range(3):
                running = Running(await self.open(place))
                assert running.replayed == given
                some = events[turn * 10 : turn * 10 + 10]
                given += zip(await running.put(*some), some, strict=True)
                await self.close(running.log)

        asyncio.run(body())

    def test_what_was_synced_is_there_after_a_crash_and_nothing_that_was_never_added(self, place: Any) -> None:
        events = numbered(50)

        async def body() -> None:
            running = Running(await self.open(place))
            await running.put(*events[:30])
            for event in events[30:]:
                running.log.add(event, True)
            running.log.commit()
            self.crash(running.log)
            again = Running(await self.open(place))
            found = again.events()
            assert found[:30] == events[:30]
            assert found == events[: len(found)]
            await again.put(appended(b"after"))
            await self.close(again.log)
            last = Running(await self.open(place))
            assert last.events() == [*found, appended(b"after")]
            await self.close(last.log)

        asyncio.run(body())

    def test_closing_makes_durable_what_was_gathered(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            running.log.add(appended(b"last"), True)
            await self.close(running.log)
            await self.close(running.log)
            again = Running(await self.open(place))
            assert again.events() == [appended(b"last")]
            await self.close(again.log)

        asyncio.run(body())

    def test_every_event_comes_back_as_it_was(self, place: Any) -> None:
        many = Appended(7, 0, 6, 5, 9, 3, [b"a", b"", b"bcd\0\xff"], True, None, "x")
        large = appended(b"\0\xff" * 300_000)

        async def body() -> None:
            running = Running(await self.open(place))
            await running.put(*numbered(2), many, large)
            await self.close(running.log)
            again = Running(await self.open(place))
            assert again.events() == [*numbered(2), many, large]
            await self.close(again.log)

        asyncio.run(body())

    # ---- forgetting -----------------------------------------------------------------------------------------------

    def test_trimming_forgets_nothing_above_its_position(self, place: Any) -> None:
        events = numbered(300, 200)

        async def body() -> None:
            running = Running(await self.open(place))
            positions = await running.put(*events)
            running.log.trim(positions[150])
            await running.put(appended(b"later"))
            await self.close(running.log)
            again = Running(await self.open(place))
            found = dict((position, event) for position, event in again.replayed)
            for position, event in zip(positions[151:], events[151:], strict=True):
                assert found[position] == event
            assert again.log.head <= positions[150]
            assert all(position > again.log.head for position in found)
            await self.close(again.log)

        asyncio.run(body())

    # ---- failing --------------------------------------------------------------------------------------------------

    def test_a_failure_is_final_and_says_of_what_kind_it_is(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            await running.put(*numbered(3))
            before = running.log.synced
            with monkeypatch.context() as patch:
                self.break_writes(running.log, patch)
                running.log.add(appended(b"lost"), True)
                running.log.commit()
                await running.until(lambda: running.log.failure is not None)
            assert running.log.failure.kind in ("broken", "fenced", "unknown")
            assert running.log.failure.reason
            # Healthy again or not: what stands at its end is not known, so nothing more is promised.
            running.log.add(appended(b"also lost"), True)
            running.log.commit()
            await asyncio.sleep(0.05)
            assert running.log.synced == before
            await self.close(running.log)

        asyncio.run(body())
