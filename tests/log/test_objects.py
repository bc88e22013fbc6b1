"""The log in objects, object by object: what a seal ends, what a purge leaves, and what is called damaged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.log import objects
from headwater.log.medium import Gone, Lost, MediumError, Taken, Unavailable, Unsure
from headwater.log.object_places import DirectoryPlace, probe
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim, Cursor, LogDamaged
from tests.log import WAIT_S_MAX, appended, numbered
from tests.log.contract import Running
from tests.log.simulation import Place

EPOCH_1 = "log/3/0000000001-00000000000000000002"


class AtOnce:
    """A place that answers at once. See `ObjectPlace`."""

    def __init__(self) -> None:
        self.place = Place()
        self.lost_keys: set[str] = set()
        """Creations of these keys never arrive."""

    async def create(self, key: str, data: bytes) -> bool:
        await asyncio.sleep(0)  # several may be on their way
        if key in self.lost_keys:
            raise Unsure("lost")
        return self.place.create(key, data)

    async def get(self, key: str) -> bytes | None:
        return self.place.get(key)

    async def keys(self, folder: str, after: str = "") -> list[str]:
        return self.place.keys(folder, after)

    async def folders(self, folder: str) -> list[str]:
        return self.place.folders(folder)

    async def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.place.delete(key)


def run(body: Callable[[AtOnce], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await body(AtOnce())

    asyncio.run(bounded())


async def claimed(place: AtOnce) -> ObjectEntries:
    """The entries of a new owner, which has read everything."""
    medium = ObjectEntries(place, "log/3")
    number = await end_of(medium)
    await medium.claim(number, b"claim %d" % number)
    return medium


async def end_of(medium: ObjectEntries) -> int:
    number = await medium.head()
    while found := await medium.read(number, 1 << 20):
        number = found[-1][0] + 1
    return number


async def owner(place: AtOnce) -> Running:
    log = QuorumLog(ObjectEntries(place, "log/3"))
    await log.load()
    await log.claim(Claim("a", ""))
    return Running(log)


def key(number: int, epoch: str = EPOCH_1) -> str:
    return f"{epoch}/{number:020}"


# ---- seals ----------------------------------------------------------------------------------------------------------


def test_a_claim_is_one_object_at_the_next_number_of_the_epoch_that_ends() -> None:
    async def body(place: AtOnce) -> None:
        first = await claimed(place)
        await first.put(2, b"two")
        await claimed(place)
        epoch_0 = "log/3/0000000000-00000000000000000001"
        assert sorted(place.place.objects) == [key(1, epoch_0), key(2), key(3)]
        assert place.place.objects[key(3)][4] == 2

    run(body)


def test_what_lies_behind_a_seal_is_void_for_every_reader() -> None:
    async def body(place: AtOnce) -> None:
        old = await claimed(place)
        await old.put(2, b"two")
        place.lost_keys = {key(3)}
        with pytest.raises(Unsure):
            await old.put(3, b"three")
        await old.put(4, b"four")
        await old.put(5, b"five")
        follower = ObjectEntries(place, "log/3")
        assert [number for number, _ in await follower.read(1, 1 << 20)] == [1, 2]
        place.lost_keys = set()
        await claimed(place)
        with pytest.raises(Taken):
            await old.put(3, b"three")
        for medium in (follower, ObjectEntries(place, "log/3")):
            assert [data for _, data in await medium.read(1, 1 << 20)] == [b"claim 1", b"two", b"claim 3"]
        # A reader that begins right behind the seal does not take the old owner's entry for the new one's.
        assert await ObjectEntries(place, "log/3").read(4, 1 << 20) == []

    run(body)


def test_a_new_owner_writes_where_void_entries_lie_in_the_old_epoch() -> None:
    async def body(place: AtOnce) -> None:
        old = await claimed(place)
        place.lost_keys = {key(2)}
        with pytest.raises(Unsure):
            await old.put(2, b"late")
        await old.put(3, b"void")
        place.lost_keys = set()
        new = await claimed(place)
        await new.put(3, b"three")
        found = await ObjectEntries(place, "log/3").read(1, 1 << 20)
        assert [data for _, data in found] == [b"claim 1", b"claim 2", b"three"]

    run(body)


def test_the_oldest_entry_is_not_taken_from_what_is_still_on_its_way() -> None:
    async def body(place: AtOnce) -> None:
        medium = await claimed(place)
        place.lost_keys = {key(2)}
        with pytest.raises(Unsure):
            await medium.put(2, b"late")
        await medium.put(3, b"three")
        reader = ObjectEntries(place, "log/3")
        assert await reader.head() == 1
        assert [number for number, _ in await reader.read(1, 1 << 20)] == [1]

    run(body)


# ---- purging --------------------------------------------------------------------------------------------------------


def test_a_purge_leaves_every_seal_and_what_tells_that_numbers_were_there() -> None:
    async def body(place: AtOnce) -> None:
        for _ in range(3):
            medium = await claimed(place)
            start = await end_of(medium)
            for number in range(start, start + 5):
                await medium.put(number, b"entry %d" % number)
        await medium.purge(start + 5)
        kept = sorted(objects._number_of(name) for name in place.place.objects)
        assert kept == [1, 7, 13, 18]
        assert await ObjectEntries(place, "log/3").head() == 18

    run(body)


def test_a_zombie_that_wakes_after_a_purge_finds_its_next_number_taken() -> None:
    async def body(place: AtOnce) -> None:
        zombie = await claimed(place)
        await zombie.put(2, b"two")
        for _ in range(4):
            medium = await claimed(place)
            start = await end_of(medium)
            for number in range(start, start + 5):
                await medium.put(number, b"entry %d" % number)
            await medium.purge(start + 5)
        with pytest.raises(Taken):
            await zombie.put(3, b"three")

    run(body)


def test_an_entry_that_was_purged_before_its_owner_heard_of_it_may_be_acknowledged() -> None:
    """It was in the log, in its place, before anybody claimed: to say so is the truth, however late."""

    async def body(place: AtOnce) -> None:
        zombie = await claimed(place)
        place.place.create(key(2), objects._HEAD.pack(b"HWO1", 1, 2) + b"two")  # its answer was lost
        medium = await claimed(place)
        for number in range(4, 9):
            await medium.put(number, b"entry %d" % number)
        await medium.purge(8)
        assert key(2) not in place.place.objects
        before = await ObjectEntries(place, "log/3").head()
        await zombie.put(2, b"two")
        with pytest.raises(Taken):
            await zombie.put(3, b"three")
        # What it created again disturbs nobody.
        reader = ObjectEntries(place, "log/3")
        assert await reader.head() <= before
        await claimed(place)

    run(body)


def test_a_purge_waits_until_something_that_stays_says_that_the_numbers_were_there() -> None:
    """Two entries were in flight at once: the second does not know of the first, and is all that the log would keep."""

    async def body(place: AtOnce) -> None:
        medium = await claimed(place)
        asleep = ObjectEntries(place, "log/3")
        assert await end_of(asleep) == 2
        await asyncio.gather(medium.put(2, b"two"), medium.put(3, b"three"))
        await medium.purge(3)
        with pytest.raises(Taken):
            await asleep.claim(2, b"claim of one who slept")
        await medium.put(4, b"four")
        await medium.purge(4)
        assert key(2) not in place.place.objects
        with pytest.raises(Gone):
            await asleep.claim(2, b"claim of one who slept")

    run(body)


def test_a_purge_that_did_not_wait_would_let_one_who_slept_take_itself_for_the_owner() -> None:
    """Shows that the test before this one finds the fault."""

    async def body(place: AtOnce) -> None:
        medium = await claimed(place)
        asleep = ObjectEntries(place, "log/3")
        assert await end_of(asleep) == 2
        await asyncio.gather(medium.put(2, b"two"), medium.put(3, b"three"))
        medium._vouched = medium._settled
        await medium.purge(3)
        await asleep.claim(2, b"claim of one who slept")
        await medium.put(4, b"the true owner goes on")

    run(body)


def test_a_seal_at_a_purged_number_counts_for_nobody() -> None:
    """A claimant looked, slept while the number was written and purged, and then created its seal there."""

    async def body(place: AtOnce) -> None:
        medium = await claimed(place)
        slow = ObjectEntries(place, "log/3")
        assert await end_of(slow) == 2
        for number in range(2, 8):
            await medium.put(number, b"entry %d" % number)
        await medium.purge(7)
        seal = objects._HEAD.pack(b"HWO1", 2, 2) + b"claim of one who slept"
        assert place.place.create(key(2), seal)
        with pytest.raises(Gone):
            await slow.read(2, 1 << 20)
        with pytest.raises(Gone):
            await ObjectEntries(place, "log/3").read(3, 1 << 20)
        await medium.put(8, b"on")
        start = await ObjectEntries(place, "log/3").head()
        found = await ObjectEntries(place, "log/3").read(start, 1 << 20)
        assert [data for _, data in found][-1] == b"on"
        later = await claimed(place)
        await later.purge(9)
        assert key(2) not in place.place.objects

    run(body)


# ---- damage ---------------------------------------------------------------------------------------------------------


def test_an_entry_that_is_missing_in_the_middle_ends_the_reading_and_nobody_can_claim_there() -> None:
    async def body(place: AtOnce) -> None:
        running = await owner(place)
        for event in numbered(9):
            await running.put(event)
        place.place.delete(key(5))
        log = QuorumLog(ObjectEntries(place, "log/3"), patience_ms=0)
        await log.load(Cursor())
        assert [event for _, event in log.replay()] == numbered(3)
        with pytest.raises(Gone):
            await log.claim(Claim("b", ""))
        with pytest.raises(Gone):
            await log.wait()

    run(body)


@pytest.mark.parametrize("at", [0, 5, 17, 25, 40, 60, 90, -1])
def test_a_changed_byte_is_found_and_nothing_from_there_on_is_applied(at: int) -> None:
    async def body(place: AtOnce) -> None:
        running = await owner(place)
        for event in numbered(6):
            await running.put(event)
        damaged = bytearray(place.place.objects[key(4)])
        damaged[at] ^= 0x10
        place.place.objects[key(4)] = bytes(damaged)
        log = QuorumLog(ObjectEntries(place, "log/3"), patience_ms=0)
        if at == 5:
            await log.load(Cursor())  # a byte that says nothing
            assert len(list(log.replay())) == 6
            return
        with pytest.raises((LogDamaged, Lost)) as found:
            await log.load(Cursor())
        assert "4" in str(found.value)
        assert log.cursor.number == 4
        assert [event for _, event in log.replay()] == numbered(2)

    run(body)


def test_an_entry_that_was_cut_off_or_moved_is_found() -> None:
    async def body(place: AtOnce) -> None:
        running = await owner(place)
        for event in numbered(6):
            await running.put(event)
        whole = place.place.objects[key(4)]
        for damaged in (whole[:10], whole[:60], whole[:-1], b"", place.place.objects[key(3)]):
            place.place.objects[key(4)] = damaged
            with pytest.raises((LogDamaged, Lost)):
                await QuorumLog(ObjectEntries(place, "log/3")).load(Cursor())

    run(body)


def test_a_log_that_ends_before_the_catalog_is_damaged() -> None:
    async def body(place: AtOnce) -> None:
        running = await owner(place)
        positions = await running.put(*numbered(4))
        log = QuorumLog(ObjectEntries(place, "log/3"))
        await log.load()
        with pytest.raises(LogDamaged):
            log.replay(positions[-1] + 1)
        assert len(list(log.replay(positions[-1]))) == 4

    run(body)


def test_a_log_that_lost_its_end_is_not_taken_for_one_that_ends_there() -> None:
    async def body(place: AtOnce) -> None:
        running = await owner(place)
        await running.put(*numbered(4))
        await running.put(appended(b"last"))
        cursor = running.log.cursor
        place.place.delete(key(3))
        with pytest.raises(Lost):
            await QuorumLog(ObjectEntries(place, "log/3")).load(cursor)

    run(body)


# ---- directories ----------------------------------------------------------------------------------------------------


def test_of_many_creations_of_one_file_exactly_one_succeeds_and_no_draft_is_left(tmp_path: Path) -> None:
    async def body() -> None:
        places = [DirectoryPlace(tmp_path) for _ in range(4)]
        created = await asyncio.gather(*(places[n % 4].create("log/3/x", b"%d" % n) for n in range(32)))
        assert sum(created) == 1
        assert await places[0].get("log/3/x") == b"%d" % created.index(True)
        assert not list((tmp_path / ".drafts").iterdir())

    asyncio.run(body())


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(fd: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).parent.name}")
        real_fsync(fd)

    def link(source: Path, to: Path) -> None:
        steps.append("link")
        real_link(source, to)

    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        await place.create("log/3/first", b"")
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "link", link)
        assert await place.create("log/3/x", b"data")
        assert steps == ["sync .drafts", "link", "sync log"]

    asyncio.run(body())


def test_after_a_folder_could_not_be_synced_nothing_is_promised_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        assert await place.create("log/3/x", b"x")
        with monkeypatch.context() as patch:
            patch.setattr("headwater.log.object_places._sync_folder", fail)
            with pytest.raises(Unsure):
                await place.create("log/3/y", b"y")
        # The system may call the next sync a success although the name is not on the disk.
        with pytest.raises(Unsure):
            await place.create("log/3/y", b"y")

    asyncio.run(body())


def test_a_file_that_cannot_be_written_is_known_not_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    async def body() -> None:
        place = DirectoryPlace(tmp_path)
        await place.create("log/3/first", b"")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(Unavailable, match="No space"):
                await place.create("log/3/x", b"x")
        assert await place.get("log/3/x") is None
        assert not list((tmp_path / ".drafts").iterdir())

    asyncio.run(body())


def test_a_place_that_overwrites_is_refused() -> None:
    class Overwriting(AtOnce):
        async def create(self, key: str, data: bytes) -> bool:
            self.place.objects[key] = data
            return True

    async def body() -> None:
        await probe(AtOnce(), "token")
        with pytest.raises(MediumError, match="conditional puts"):
            await probe(Overwriting(), "token")

    asyncio.run(body())
