"""What every log at a quorum promises beyond `contract`: one owner at a time, nothing acknowledged that is not there,
nothing there twice, and standbys that see only what stays. Knows nothing of how entries are kept.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any

import pytest

from headwater.log.medium import Entries, Gone, Lost, Unavailable
from headwater.log.quorum import Behind, Cursor, LogFailed, QuorumLog
from headwater.log.quorum_entries import Claim, LogDamaged
from headwater.model.events import Event
from headwater.ports import FENCED, LogFailure
from tests.log import WAIT_S_MAX, appended, numbered
from tests.log.contract import LogContract, Running
from tests.log.faulty_entries import FaultyEntries

AGAIN_S = 0.05


async def followed(log: QuorumLog) -> list[tuple[int, Event]]:
    """Everything up to the log's end for now."""
    events: list[tuple[int, Event]] = []
    while more := await more_of(log):
        events += more
    return events


async def more_of(log: QuorumLog) -> list[tuple[int, Event]]:
    """Tries again while nobody answers, as a node does: servers elect leaders when they are slow."""
    while True:
        try:
            return await log.more()
        except Unavailable:
            await asyncio.sleep(AGAIN_S)


class QuorumContract(LogContract):
    """Subclass it like `LogContract`, and say how a process reaches the medium and how all of it is lost."""

    @abstractmethod
    async def medium(self, place: Any) -> Entries:
        """Another process's way to the entries at `place`."""

    @abstractmethod
    async def destroy(self, place: Any) -> None:
        """Removes the whole log, so that another one can be made in its place."""

    async def follower(self, place: Any, cursor: Cursor | None = None) -> QuorumLog:
        """A log that has followed to the end and claimed nothing. Tries again while nobody answers, as a node does."""
        while True:
            try:
                log = QuorumLog(FaultyEntries(await self.medium(place)))
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await log.load(cursor)
                return log
            except Unavailable:
                await log.closed()
                await asyncio.sleep(AGAIN_S)

    async def open(self, place: Any, owner: str = "a") -> QuorumLog:
        log = await self.follower(place)
        await log.claim(Claim(owner, f"http://{owner}"))
        return log

    async def close(self, log: Any) -> None:
        await log.closed()

    def crash(self, log: Any) -> None:
        log.failure = LogFailure("broken", "killed")
        for sent in log._sent:
            sent.task.cancel()

    def break_writes(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log, "_patience_s", 0)
        monkeypatch.setattr(log._medium, "broken", Unavailable("it is not there"))

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(WAIT_S_MAX):
                await body

        asyncio.run(bounded())

    async def events_at(self, place: Any) -> list[Event]:
        """What a later process finds."""
        log = await self.follower(place)
        found = [event for _, event in log.replay()]
        await log.closed()
        return found

    # ---- owners -------------------------------------------------------------------------------------------------

    def test_a_new_owner_sees_everything_acknowledged_and_the_old_one_gets_nothing_in_any_more(
        self, place: Any
    ) -> None:
        async def body() -> None:
            old = Running(await self.open(place, "old"))
            await old.put(*numbered(10))
            new = Running(await self.open(place, "new"))
            assert new.events() == numbered(10)
            before = old.log.synced
            await old.put(appended(b"too late"))
            assert old.log.failure.kind == FENCED
            assert old.log.synced == before
            await new.put(appended(b"new"))
            assert await self.events_at(place) == [*numbered(10), appended(b"new")]
            await self.close(old.log)
            await self.close(new.log)

        self.run(body())

    def test_epochs_rise_with_every_claim_and_say_who_owns_the_group(self, place: Any) -> None:
        async def body() -> None:
            for turn, owner in enumerate(("a", "b", "a"), start=1):
                log = await self.open(place, owner)
                assert log.owner == Claim(owner, f"http://{owner}", 1, turn)
                await log.closed()
            log = await self.follower(place)
            assert log.owner == Claim("a", "http://a", 1, 3)
            await log.closed()

        self.run(body())

    def test_of_many_that_claim_at_once_one_wins_and_the_others_are_behind(self, place: Any) -> None:
        async def body() -> None:
            logs = [await self.follower(place) for _ in range(6)]
            claims = [log.claim(Claim(str(n), "")) for n, log in enumerate(logs)]
            outcomes = await asyncio.gather(*claims, return_exceptions=True)
            won = [outcome for outcome in outcomes if isinstance(outcome, Claim)]
            assert len(won) == 1
            assert sum(isinstance(outcome, Behind) for outcome in outcomes) == 5
            loser = next(log for log, outcome in zip(logs, outcomes, strict=True) if isinstance(outcome, Behind))
            assert await followed(loser) == []
            assert loser.owner == won[0]
            assert (await loser.claim(Claim("again", ""))).epoch == won[0].epoch + 1
            for log in logs:
                await log.closed()

        self.run(body())

    def test_who_has_not_followed_to_the_end_cannot_claim(self, place: Any) -> None:
        async def body() -> None:
            owner = Running(await self.open(place))
            standby = await self.follower(place)
            await owner.put(*numbered(3))
            with pytest.raises(Behind):
                await standby.claim(Claim("standby", ""))
            assert [event for _, event in await followed(standby)] == numbered(3)
            await standby.claim(Claim("standby", ""))
            await self.close(owner.log)
            await standby.closed()

        self.run(body())

    def test_a_claim_whose_answer_was_lost_is_found_to_stand(self, place: Any) -> None:
        async def body() -> None:
            log = await self.follower(place)
            log._medium.answers_lost = 1
            assert (await log.claim(Claim("a", ""))).epoch == 1
            running = Running(log)
            await running.put(*numbered(3))
            await self.close(log)
            assert await self.events_at(place) == numbered(3)

        self.run(body())

    # ---- outcomes -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("fault", ["answers_lost", "unsent"])
    def test_an_entry_of_unknown_outcome_is_resolved_before_anything_is_acknowledged(
        self, place: Any, fault: str
    ) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            await running.put(*numbered(3))
            setattr(running.log._medium, fault, 2)
            positions = await running.put(appended(b"unsure"))
            assert running.log.failure is None
            assert running.log.synced == positions[-1]
            await self.close(running.log)
            assert await self.events_at(place) == [*numbered(3), appended(b"unsure")]

        self.run(body())

    def test_entries_end_in_order_when_the_first_of_them_is_late(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            log = running.log
            late = log._medium.hold(log.cursor.number)
            before = log.synced
            events = numbered(8)
            for event in events:
                log.add(event, True)
                log.commit()
            first_numbers = set(range(log.cursor.number, log.cursor.number + 4))
            while not first_numbers <= set(log._medium.put_numbers):
                await asyncio.sleep(0)
            standby = await self.follower(place)
            assert list(standby.replay()) == []
            assert log.synced == before
            late.set()
            await running.until(lambda: log.synced == log.tail)
            assert [event for _, event in await followed(standby)] == events
            await self.close(log)
            await standby.closed()

        self.run(body())

    def test_an_entry_on_its_way_while_another_claims_is_not_acknowledged_and_never_appears(self, place: Any) -> None:
        async def body() -> None:
            old = Running(await self.open(place, "old"))
            await old.put(*numbered(3))
            log = old.log
            first = log.cursor.number
            late = [log._medium.hold(first + n) for n in range(3)]
            before = log.synced
            for n in range(3):
                log.add(appended(b"late %d" % n), True)
                log.commit()
            await asyncio.sleep(0)
            new = Running(await self.open(place, "new"))
            # Backwards: the later entries arrive while the number in front of them is the claim's.
            for event in reversed(late):
                event.set()
                await asyncio.sleep(0.01)
            await old.until(lambda: log.failure is not None)
            assert log.failure.kind == FENCED
            assert log.synced == before
            await new.put(*(appended(b"new %d" % n) for n in range(3)))
            for n in range(4):
                await new.put(appended(b"more %d" % n))
            assert new.log.failure is None
            expected = [*numbered(3), *(appended(b"new %d" % n) for n in range(3))]
            assert await self.events_at(place) == [*expected, *(appended(b"more %d" % n) for n in range(4))]
            await self.close(log)
            await self.close(new.log)

        self.run(body())

    def test_an_entry_that_arrived_before_the_claim_stays_whether_its_owner_heard_of_it_or_not(
        self, place: Any
    ) -> None:
        async def body() -> None:
            old = Running(await self.open(place, "old"))
            await old.put(*numbered(3))
            old.log._medium.answers_lost = 1
            old.log.add(appended(b"there"), True)
            old.log.commit()
            while old.log._medium.answers_lost:
                await asyncio.sleep(0.001)
            new = Running(await self.open(place, "new"))
            assert new.events() == [*numbered(3), appended(b"there")]
            # It was in the log before anybody claimed: to acknowledge it is the truth.
            await old.until(lambda: old.log.failure is not None or old.log.synced == old.log.tail)
            await old.put(appended(b"too late"))
            assert old.log.failure.kind == FENCED
            assert await self.events_at(place) == [*numbered(3), appended(b"there")]
            await self.close(old.log)
            await self.close(new.log)

        self.run(body())

    # ---- barriers -----------------------------------------------------------------------------------------------

    def test_a_barrier_ends_after_what_was_committed_before_it_and_is_shared(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            log = running.log
            for event in numbered(5):
                log.add(event, True)
            log.commit()
            tail, number = log.tail, log.cursor.number
            await asyncio.gather(*(log.barrier() for _ in range(50)))
            assert log.synced >= tail
            assert log.cursor.number <= number + 2
            await self.close(log)
            assert await self.events_at(place) == numbered(5)

        self.run(body())

    def test_a_barrier_fails_once_another_has_claimed(self, place: Any) -> None:
        async def body() -> None:
            old = Running(await self.open(place, "old"))
            await old.log.barrier()
            new = Running(await self.open(place, "new"))
            with pytest.raises(LogFailed) as failed:
                await old.log.barrier()
            assert failed.value.failure.kind == FENCED
            with pytest.raises(LogFailed):
                await old.log.barrier()
            await new.log.barrier()
            await self.close(old.log)
            await self.close(new.log)

        self.run(body())

    # ---- following ----------------------------------------------------------------------------------------------

    def test_a_standby_follows_with_the_owners_positions_and_is_woken(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            standby = await self.follower(place)
            seen: list[tuple[int, Event]] = []

            async def follow() -> None:
                while len(seen) < 20:
                    await standby.wait()
                    seen.extend(await more_of(standby))

            following = asyncio.create_task(follow())
            given: list[tuple[int, Event]] = []
            for event in numbered(20):
                given += zip(await running.put(event), [event], strict=True)
            await following
            assert seen == given
            assert standby.tail == running.log.synced
            await self.close(running.log)
            await standby.closed()

        self.run(body())

    def test_a_cursor_leads_on_exactly_where_it_was_taken(self, place: Any) -> None:
        async def body() -> None:
            running = Running(await self.open(place))
            await running.put(*numbered(5))
            cursor = running.log.cursor
            positions = await running.put(appended(b"x"), appended(b"y"))
            log = await self.follower(place, cursor)
            assert list(log.replay()) == [(positions[0], appended(b"x")), (positions[1], appended(b"y"))]
            assert log.head == cursor.position
            await self.close(running.log)
            await log.closed()

        self.run(body())

    # ---- forgetting ---------------------------------------------------------------------------------------------

    async def purged(self, running: Running) -> None:
        """The owner writes enough that everything it held before may go, and lets it go."""
        for n in range(6):
            await running.put(appended(b"filler %d" % n))
        running.log.trim(running.log.synced)
        while running.log._purging is not None:
            await asyncio.sleep(0.001)

    def test_an_owner_that_wakes_after_the_log_was_purged_is_still_fenced(self, place: Any) -> None:
        async def body() -> None:
            zombie = Running(await self.open(place, "zombie"))
            await zombie.put(*numbered(5))
            before = zombie.log.synced
            for owner in ("b", "c"):
                new = Running(await self.open(place, owner))
                await self.purged(new)
                await self.close(new.log)
            held = await self.events_at(place)
            await zombie.put(appended(b"too late"))
            assert zombie.log.failure.kind == FENCED
            assert zombie.log.synced == before
            assert await self.events_at(place) == held
            await self.close(zombie.log)

        self.run(body())

    def test_a_standby_that_wakes_behind_the_purge_can_neither_follow_nor_claim(self, place: Any) -> None:
        async def body() -> None:
            owner = Running(await self.open(place))
            await owner.put(*numbered(5))
            asleep = await self.follower(place)
            sleeping_claimant = await self.follower(place)
            await self.purged(owner)
            with pytest.raises((Gone, Behind)):
                await sleeping_claimant.claim(Claim("asleep", ""))
            with pytest.raises(Gone):
                while True:
                    assert await more_of(asleep) == []
                    await asleep.wait()
            # Nothing of that disturbed the owner, or anybody after it.
            await owner.put(appended(b"on"))
            assert owner.log.failure is None
            held = await self.events_at(place)
            assert held[-1] == appended(b"on")
            next_owner = Running(await self.open(place, "next"))
            assert next_owner.events() == held
            for log in (owner.log, asleep, sleeping_claimant, next_owner.log):
                await self.close(log)

        self.run(body())

    # ---- damage -------------------------------------------------------------------------------------------------

    def test_a_log_that_was_deleted_and_made_again_is_never_applied(self, place: Any) -> None:
        async def body() -> None:
            first = Running(await self.open(place))
            await first.put(*numbered(3))
            cursor = first.log.cursor
            await self.close(first.log)
            await self.destroy(place)
            with pytest.raises((LogDamaged, Lost, Gone)):
                log = await self.follower(place, cursor)
                await log.claim(Claim("b", ""))
            second = Running(await self.open(place))
            for n in range(5):
                await second.put(appended(b"other %d" % n))
            with pytest.raises((LogDamaged, Lost)):
                await self.follower(place, cursor)
            await self.close(second.log)

        self.run(body())
