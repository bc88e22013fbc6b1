"""A copy of a part of the log, taken while it is written: a log that starts from it has exactly what was asked for.
The copies are put under the names that their pieces have, as a restore does."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headwater.log import wal_copy as copying
from headwater.log.wal import Wal
from headwater.log.wal_copy import WalCopy
from headwater.model.events import SnapshotPublished, Touched
from tests.log import appended, log_files, numbered, opened, read_back

FILE_BYTES = 700
pytestmark = pytest.mark.usefixtures("quick_disk")


def unpacked(copy: WalCopy, path: Path, into: Path) -> Path:
    """The pieces as log files."""
    data = path.read_bytes()
    assert sum(size for _, size in copy.pieces) == len(data)
    into.mkdir()
    at = 0
    for position, size in copy.pieces:
        (into / f"{position:020d}.wal").write_bytes(data[at : at + size])
        at += size
    return into


def test_a_log_that_starts_from_a_copy_has_every_event_behind_the_place_and_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "log", file_bytes=FILE_BYTES) as log:
            events = numbered(40)
            positions = []
            for event in events:
                positions.append(log.wal.add(event, True))
                log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            assert len(log_files(tmp_path / "log")) > 3
            for number, after in enumerate({0, *positions, *(position - 1 for position in positions)}):
                to = tmp_path / f"copy-{number}"
                copy = log.wal.copy(after, 0, to)
                copy.advance(log.wal.synced)
                wal = Wal(unpacked(copy, to, tmp_path / f"log-{number}"), FILE_BYTES, 1)
                expected = [pair for pair in zip(positions, events, strict=True) if pair[0] > after]
                assert list(wal.replay(log.wal.synced)) == expected
                assert wal.head <= after and wal.tail == log.wal.tail
                wal.start(lambda: None)
                position = wal.add(appended(b"more"), True)
                wal.commit()
                wal.close()
                again = Wal(tmp_path / f"log-{number}", FILE_BYTES, 1)
                assert list(again.replay(position)) == [*expected, (position, appended(b"more"))]

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_that_follows_the_log_is_the_same_as_one_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(copying, "READ_BYTES", 16)

    async def body() -> None:
        async with opened(tmp_path / "log", file_bytes=FILE_BYTES) as log:
            positions = [log.wal.add(event, True) for event in numbered(3)]
            log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            after = chance.choice([0, *positions])
            copy = log.wal.copy(after, 0, tmp_path / "slow")
            for _ in range(chance.randint(1, 12)):
                copy.advance(log.wal.synced)
                for _ in range(chance.randint(0, 5)):
                    log.wal.add(appended(bytes(chance.randint(1, 200))), True)
                log.wal.commit()
                await log.until(lambda: log.wal.synced == log.wal.tail)
            copy.advance(log.wal.synced)
            whole = log.wal.copy(after, 0, tmp_path / "whole")
            whole.advance(log.wal.synced)
            assert copy.pieces == whole.pieces
            assert (tmp_path / "slow").read_bytes() == (tmp_path / "whole").read_bytes()

    asyncio.run(body())


def test_a_copy_of_nothing_is_an_empty_log_that_starts_at_that_place(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "log") as log:
            log.wal.add(appended(b"1"), True)
            log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            end = log.wal.synced
            copy = log.wal.copy(end, end, tmp_path / "copy")
            assert copy.advance(end) == []
            assert copy.pieces == [(end, 0)]
            wal = Wal(unpacked(copy, tmp_path / "copy", tmp_path / "empty"), 1 << 20, 1)
            assert list(wal.replay(end)) == [] and (wal.head, wal.tail) == (end, end)

    asyncio.run(body())


def test_it_tells_of_events_behind_the_known_place_that_are_no_appends(tmp_path: Path) -> None:
    snapshot = SnapshotPublished(1, 0, 0, "text/plain", "snapshots/1/a", 3, 5)

    async def body() -> None:
        async with opened(tmp_path / "log", file_bytes=FILE_BYTES) as log:
            known = log.wal.add(Touched(1, 1), True)
            for event in (appended(b"1"), snapshot, appended(b"2"), Touched(2, 2)):
                log.wal.add(event, True)
            log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            copy = log.wal.copy(0, known, tmp_path / "copy")
            assert copy.advance(log.wal.synced) == [snapshot, Touched(2, 2)]

    asyncio.run(body())


def test_a_held_log_is_not_trimmed_below_the_place_until_it_is_let_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "log", file_bytes=FILE_BYTES) as log:
            positions = []
            for event in numbered(40):
                positions.append(log.wal.add(event, True))
                log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            before = log_files(tmp_path / "log")
            log.wal.hold(positions[0])
            log.wal.trim(log.wal.tail)
            copy = log.wal.copy(positions[0], 0, tmp_path / "copy")
            copy.advance(log.wal.synced)
            assert log_files(tmp_path / "log") == before
            log.wal.hold(None)
            log.wal.trim(log.wal.tail)
        assert len(log_files(tmp_path / "log")) == 1  # closing waits for the deletions

    asyncio.run(body())


def test_damage_in_what_is_copied_is_an_error_and_damage_before_it_is_not(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "log") as log:
            positions = [log.wal.add(event, True) for event in numbered(10)]
            log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            with log_files(tmp_path / "log")[0].open("r+b") as file:
                file.seek(positions[4] - 1)  # the last byte of a checksum
                byte = file.read(1)
                file.seek(positions[4] - 1)
                file.write(bytes([byte[0] ^ 1]))
            log.wal.copy(positions[4], 0, tmp_path / "fine").advance(log.wal.synced)
            with pytest.raises(OSError, match=f"damaged at position {positions[3]}"):
                log.wal.copy(positions[0], 0, tmp_path / "bad").advance(log.wal.synced)

    asyncio.run(body())


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "log", file_bytes=FILE_BYTES) as log:
            for event in numbered(40):
                log.wal.add(event, True)
                log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            log_files(tmp_path / "log")[1].unlink()
            with pytest.raises(OSError):
                log.wal.copy(0, 0, tmp_path / "copy").advance(log.wal.synced)

    asyncio.run(body())


def test_the_log_itself_is_not_changed_by_a_copy(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "log", file_bytes=FILE_BYTES) as log:
            for event in numbered(20):
                log.wal.add(event, True)
                log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            log.wal.copy(0, 0, tmp_path / "copy").advance(log.wal.synced)
        assert read_back(tmp_path / "log") == numbered(20)

    asyncio.run(body())
