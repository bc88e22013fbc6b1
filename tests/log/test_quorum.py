"""The log at a quorum by itself: what goes into an entry, how a failure is named, and which entries are void."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.log import entries, quorum_entries
from headwater.log.medium import Gone, Unavailable, Unsure
from headwater.log.quorum import LogFailed, QuorumLog
from headwater.log.quorum_entries import (
    KIND_BATCH,
    KIND_CLAIM,
    Claim,
    Cursor,
    FormatUnknown,
    LogDamaged,
    Reader,
    encode_claim,
    encode_entry,
)
from headwater.model.events import Event
from headwater.ports import BROKEN, FENCED, UNKNOWN
from tests.log import WAIT_S_MAX, appended, numbered
from tests.log.contract import Running
from tests.log.faulty_entries import FaultyEntries
from tests.log.memory_entries import MemoryEntries, Place


async def owner(place: Place, patience_ms: int = 30_000) -> tuple[Running, FaultyEntries]:
    medium = FaultyEntries(MemoryEntries(place))
    log = QuorumLog(medium, patience_ms=patience_ms)
    await log.load()
    await log.claim(Claim("a", "http://a"))
    return Running(log), medium


def run(body: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await body(Place())

    asyncio.run(bounded())


# ---- entries --------------------------------------------------------------------------------------------------------


def test_events_gather_into_one_entry_while_as_many_as_may_be_are_in_flight() -> None:
    async def body(place: Place) -> None:
        running, medium = await owner(place)
        first = running.log.cursor.number
        late = [medium.hold(first + n) for n in range(4)]
        for event in numbered(100):
            running.log.add(event, True)
            running.log.commit()
        await asyncio.sleep(0)
        assert sorted(medium.put_numbers) == [first, first + 1, first + 2, first + 3]
        for held in late:
            held.set()
        await running.until(lambda: running.log.synced == running.log.tail)
        assert place.end == first + 5

    run(body)


def test_an_entry_stays_below_the_mediums_bound_unless_one_event_is_longer() -> None:
    async def body(place: Place) -> None:
        running, medium = await owner(place)
        bound = medium.entry_bytes_max
        events = [appended(b"x" * size) for size in (bound // 2, bound // 2, bound * 2, 10, 10, bound)]
        await running.put(*events)
        sizes = [len(place.entries[number]) for number in sorted(place.entries)]
        assert sum(size > bound + 1_000 for size in sizes) == 1
        again = QuorumLog(MemoryEntries(place))
        await again.load()
        assert [event for _, event in again.replay()] == events

    run(body)


def test_callers_of_one_turn_share_a_barrier_and_it_rides_on_events_that_wait() -> None:
    async def body(place: Place) -> None:
        running, _ = await owner(place)
        log = running.log
        before = place.end
        await asyncio.gather(*(log.barrier() for _ in range(20)))
        assert place.end == before + 1
        waiting = [asyncio.ensure_future(log.barrier()) for _ in range(5)]
        await asyncio.sleep(0)
        log.add(appended(b"x"), True)
        log.commit()
        await asyncio.gather(*waiting)
        assert place.end == before + 2

    run(body)


def test_a_barrier_that_is_asked_for_after_an_entry_was_sent_waits_for_another_one() -> None:
    async def body(place: Place) -> None:
        running, medium = await owner(place)
        number = running.log.cursor.number
        late = medium.hold(number + 1)
        running.log.add(appended(b"sent before"), True)
        running.log.commit()
        barrier = asyncio.ensure_future(running.log.barrier())
        await running.until(lambda: running.log.synced == running.log.tail)
        assert not barrier.done()
        late.set()
        await barrier

    run(body)


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Unavailable("refused"), BROKEN), (Unsure("no answer"), UNKNOWN), (Gone("purged"), UNKNOWN), (OSError(), UNKNOWN)],
)
def test_a_failure_says_whether_the_entry_may_be_there(error: Exception, kind: str) -> None:
    async def body(place: Place) -> None:
        running, medium = await owner(place, patience_ms=0)
        await running.put(*numbered(3))
        before = running.log.synced
        medium.broken = error
        barrier = asyncio.ensure_future(running.log.barrier())
        await running.put(appended(b"lost"))
        assert running.log.failure.kind == kind
        with pytest.raises(LogFailed):
            await barrier
        medium.broken = None
        await running.put(appended(b"also lost"))
        assert running.log.synced == before
        await running.log.closed()

    run(body)


def test_what_stands_before_a_taken_number_is_resolved_before_the_log_is_fenced() -> None:
    async def body(place: Place) -> None:
        running, medium = await owner(place)
        log = running.log
        first = log.cursor.number
        held = [medium.hold(first + n) for n in range(2)]
        positions = []
        for n in range(2):
            positions.append(log.add(appended(b"%d" % n), True))
            log.commit()
        held[0].set()
        while place.end == first:
            await asyncio.sleep(0)
        other = QuorumLog(MemoryEntries(place))
        await other.load()
        await other.claim(Claim("b", ""))
        held[1].set()
        await running.until(lambda: log.failure is not None)
        assert log.failure.kind == FENCED
        assert log.synced == positions[0]

    run(body)


def test_only_an_owner_starts() -> None:
    async def body(place: Place) -> None:
        log = QuorumLog(MemoryEntries(place))
        await log.load()
        with pytest.raises(RuntimeError):
            log.start(lambda: None)

    run(body)


def test_a_standby_is_given_what_lies_before_damage_and_is_stopped_there() -> None:
    async def body(place: Place) -> None:
        running, _ = await owner(place)
        standby = QuorumLog(MemoryEntries(place))
        await standby.load()
        for event in numbered(5):
            await running.put(event)
        damaged = place.end - 2
        place.entries[damaged] = place.entries[damaged][:-1]
        assert [event for _, event in await standby.more()] == numbered(3)
        for _ in range(2):
            with pytest.raises(LogDamaged, match=f"entry {damaged}"):
                await standby.more()

    run(body)


def test_loading_again_after_the_medium_gave_no_answer_finds_everything_once() -> None:
    async def body(place: Place) -> None:
        running, _ = await owner(place)
        await running.put(*numbered(5))
        log = QuorumLog(MemoryEntries(place))
        await log.load()
        await log.load()
        assert [event for _, event in log.replay()] == numbered(5)

    run(body)


# ---- which entries count --------------------------------------------------------------------------------------------


class Writer:
    """Writes entries as an owner of some epoch would, at any place."""

    def __init__(self, incarnation: int = 7) -> None:
        self.incarnation = incarnation
        self.tokens = 0

    def _entry(self, kind: int, number: int, epoch: int, position: int, parts: list[bytes]) -> bytes:
        self.tokens += 1
        at = Cursor(number, position, epoch, False, self.incarnation)
        return encode_entry(kind, at, self.tokens.to_bytes(16, "little"), parts)

    def batch(self, number: int, epoch: int, position: int, *events: Event) -> bytes:
        parts: list[bytes] = []
        end = position
        for event in events:
            end += entries.encode(event, end, parts)
        return self._entry(KIND_BATCH, number, epoch, position, parts)

    def claim(self, number: int, epoch: int, position: int) -> bytes:
        return self._entry(KIND_CLAIM, number, epoch, position, [encode_claim(Claim(f"owner {epoch}", "", 1, epoch))])


def test_an_entry_of_a_former_owner_ends_the_epoch_for_every_reader() -> None:
    """What the new owner has in flight behind it is void too: it cannot be acknowledged any more."""
    writer, reader = Writer(), Reader()
    assert reader.take(1, writer.claim(1, 1, 0)) == []
    first = reader.take(2, writer.batch(2, 1, 0, appended(b"one")))
    end = reader.cursor.position
    assert [event for _, event in first] == [appended(b"one")]
    assert reader.take(3, writer.claim(3, 2, end)) == []
    assert reader.take(4, writer.batch(4, 1, end, appended(b"of the former owner"))) == []
    assert reader.take(5, writer.batch(5, 2, end, appended(b"in flight behind it"))) == []
    assert reader.take(6, writer.claim(6, 2, end)) == []
    assert reader.take(7, writer.claim(7, 3, end)) == []
    assert [event for _, event in reader.take(8, writer.batch(8, 3, end, appended(b"two")))] == [appended(b"two")]
    assert reader.claim == Claim("owner 3", "", 1, 3)


def test_a_cursor_in_a_void_part_leads_on_like_a_reader_that_never_stopped() -> None:
    writer, reader = Writer(), Reader()
    log = [
        writer.claim(1, 1, 0),
        writer.claim(2, 2, 0),
        writer.batch(3, 1, 0),
        writer.batch(4, 2, 0, appended(b"void")),
    ]
    log += [writer.claim(5, 3, 0), writer.batch(6, 3, 0, appended(b"counts"))]
    for number, data in enumerate(log, start=1):
        reader = Reader(reader.cursor, reader.claim)
        found = reader.take(number, data)
    assert [event for _, event in found] == [appended(b"counts")]


def test_damage_is_refused_and_the_reader_stays_where_it_is() -> None:
    writer, reader = Writer(), Reader()
    reader.take(1, writer.claim(1, 1, 0))
    stands = reader.cursor
    good = writer.batch(2, 1, 0, appended(b"one"), appended(b"two"))
    bad = {
        "a gap": (3, good),
        "written elsewhere": (2, writer.batch(9, 1, 0, appended(b"one"))),
        "another position": (2, writer.batch(2, 1, 5, appended(b"one"))),
        "an epoch that nobody claimed": (2, writer.batch(2, 2, 0, appended(b"one"))),
        "another log": (2, Writer(8).batch(2, 1, 0, appended(b"one"))),
        "cut at a frame": (2, good[: -len(good) // 3]),
        "not an entry": (2, b"x" * 100),
    }
    for what, (number, data) in bad.items():
        with pytest.raises(LogDamaged, match=r"entry 2, position 0"):
            reader.take(number, data)
        assert reader.cursor == stands, what
    assert len(reader.take(2, good)) == 2


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    writer, reader = Writer(), Reader()
    reader.take(1, writer.claim(1, 1, 0))
    kinds = [writer.batch(2, 1, 0, *numbered(3)), writer.claim(2, 2, 0), writer.batch(2, 1, 0)]
    entry = bytearray(data.draw(st.sampled_from(kinds)))
    entry[data.draw(st.integers(0, len(entry) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises((LogDamaged, FormatUnknown)):
        reader.take(2, bytes(entry))


def test_an_entry_of_a_later_version_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = Writer(), Reader()
    reader.take(1, writer.claim(1, 1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(quorum_entries, "FORMAT", 2)
        later = writer.batch(2, 1, 0, appended(b"one"))
    with pytest.raises(FormatUnknown, match="upgrade this node"):
        reader.take(2, later)
    assert reader.cursor.number == 2
