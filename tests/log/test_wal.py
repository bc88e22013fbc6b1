"""A healthy log: watermarks, batches, rotation, trimming, and a second start that goes on where the first ended.
Waits for events, never for time."""

from __future__ import annotations

import asyncio
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from headwater.log import frames, wal
from headwater.log.wal import Wal
from headwater.model.events import Touched
from tests.log import appended, frames_in, log_files, numbered, opened, read_back

NEVER_MS = 600_000
"""A tick that no test lives to see."""


def run_in_writer(monkeypatch: pytest.MonkeyPatch, name: str, instead) -> None:
    """Replaces `os.<name>`, for the writer thread alone, by `instead(real, *arguments)`."""
    real = getattr(os, name)

    def call(*arguments):
        if threading.current_thread().name == "wal-writer":
            return instead(real, *arguments)
        return real(*arguments)

    monkeypatch.setattr(os, name, call)


def test_positions_grow_with_every_event_and_name_the_place_behind_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            positions = [log.wal.add(event, True) for event in numbered(10)]
            assert positions == sorted(set(positions))
            assert log.wal.tail == positions[-1]
            log.wal.commit()
            await log.until(lambda: log.wal.synced == positions[-1])
        ends = [frame.end for frame in frames_in(log_files(tmp_path)[0].read_bytes(), 0)]
        assert [end for end in ends if end in positions] == positions

    asyncio.run(body())


def test_nothing_leaves_before_the_commit(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            log.wal.add(appended(b"gathered"), True)
            assert (log.wal.written, log.wal.synced) == (0, 0)
            assert not log_files(tmp_path)[0].read_bytes().strip(b"\0")
            log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)

    asyncio.run(body())


def test_a_second_log_on_the_same_files_continues_at_the_tail(tmp_path: Path) -> None:
    events = numbered(12)

    async def body() -> None:
        tail = 0
        for turn in range(4):
            async with opened(tmp_path) as log:
                assert [event for _, event in log.replayed] == events[: turn * 3]
                assert log.wal.tail == log.wal.synced == tail
                await log.put(*events[turn * 3 : turn * 3 + 3])
                tail = log.wal.tail
        assert read_back(tmp_path) == events

    asyncio.run(body())


def test_replayed_positions_are_those_that_were_handed_out(tmp_path: Path) -> None:
    async def body() -> None:
        given = []
        async with opened(tmp_path, 600) as log:
            for event in numbered(20):
                given.append((await log.put(event), event))
        async with opened(tmp_path, 600) as log:
            assert log.replayed == given

    asyncio.run(body())


@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_many_tiny_files_hold_what_one_file_would(tmp_path: Path, batch_size: int) -> None:
    events = numbered(40)

    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            for at in range(0, len(events), batch_size):
                await log.put(*events[at : at + batch_size])
        files = log_files(tmp_path)
        assert len(files) > 5
        for path, following in pairwise(files):
            found = frames_in(path.read_bytes(), int(path.stem))
            assert found[-1].kind == frames.KIND_END
            assert found[-1].end == int(following.stem) <= int(path.stem) + 512
        assert read_back(tmp_path) == events

    asyncio.run(body())


def test_files_that_are_ended_under_a_full_queue_are_written_in_order(tmp_path: Path) -> None:
    events = numbered(60)

    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            for event in events:
                log.wal.add(event, True)
                log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
        assert read_back(tmp_path) == events

    asyncio.run(body())


def test_a_record_larger_than_a_log_file_gets_a_file_of_its_own(tmp_path: Path) -> None:
    large = appended(b"x" * 5_000)
    events = [appended(b"before"), large, appended(b"between"), large, large, appended(b"after")]

    async def body() -> None:
        async with opened(tmp_path, 1_024) as log:
            for event in events:
                await log.put(event)
        assert read_back(tmp_path) == events
        async with opened(tmp_path, 1_024) as log:
            await log.put(appended(b"later"))
        assert read_back(tmp_path) == [*events, appended(b"later")]

    asyncio.run(body())


def test_a_long_batch_is_written_in_pieces_that_make_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "_JOIN_BYTES_MAX", 10_000)
    lengths: list[int] = []
    pwrite = os.pwrite

    def watched(fd: int, data: bytes, offset: int) -> int:
        if threading.current_thread().name == "wal-writer":
            lengths.append(len(data))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(wal.os, "pwrite", watched)
    events = [appended(b"%d" % n * size) for n, size in enumerate([3_000, 20_000, 9_000, 5, 4_500, 10_000, 30_000, 1])]

    async def body() -> None:
        async with opened(tmp_path) as log:
            await log.put(*events)
        assert read_back(tmp_path) == events

    asyncio.run(body())
    assert len(lengths) > 5 and 0 not in lengths
    assert all(length <= 10_000 or length in (20_000, 30_000) for length in lengths), lengths


def test_a_log_that_ends_with_a_full_file_goes_on_in_a_new_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            await log.put(*numbered(12))
        first, *rest = log_files(tmp_path)
        for path in rest:
            path.unlink()
        kept = read_back(tmp_path)
        async with opened(tmp_path, 512) as log:
            assert log.wal.tail == int(rest[0].stem)
            await log.put(appended(b"next"))
        assert [path.name for path in log_files(tmp_path)][:2] == [first.name, rest[0].name]
        assert read_back(tmp_path) == [*kept, appended(b"next")]

    asyncio.run(body())


def test_batches_that_gather_while_the_disk_is_busy_leave_in_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, busy = threading.Event(), threading.Event()
    writes: list[int] = []

    def slow_sync(real, fd):
        busy.set()
        gate.wait(60)
        real(fd)

    def counted(real, fd, data, offset):
        writes.append(len(data))
        return real(fd, data, offset)

    async def body() -> None:
        async with opened(tmp_path) as log:
            run_in_writer(monkeypatch, "fdatasync", slow_sync)
            run_in_writer(monkeypatch, "pwrite", counted)
            log.wal.add(appended(b"first"), True)
            log.wal.commit()
            await asyncio.to_thread(busy.wait, 20)
            for number in range(5):
                log.wal.add(appended(b"%d" % number), True)
                log.wal.commit()
            gate.set()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            assert len(writes) == 2
        assert read_back(tmp_path) == [appended(b"first"), *(appended(b"%d" % number) for number in range(5))]

    asyncio.run(body())


def test_progress_is_told_once_for_all_that_moved_before_it_ran(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            for number in range(50):
                log.wal.add(appended(b"%d" % number), True)
                log.wal.commit()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            assert 1 <= log.passes_count <= 50

    asyncio.run(body())


# ---- laxer classes ----------------------------------------------------------------------------------------------


def test_an_unsynced_batch_is_written_at_once_and_synced_by_the_tick(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, sync_tick_ms=1) as log:
            position = await log.put(appended(b"disk"), sync=False)
            await log.until(lambda: log.wal.synced >= position)

    asyncio.run(body())


def test_an_unsynced_batch_waits_for_the_tick_and_no_sync_comes_before_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, sync_tick_ms=NEVER_MS) as log:
            position = await log.put(appended(b"disk"), sync=False)
            assert log.wal.written >= position > log.wal.synced == 0
            assert read_copy(tmp_path) == [appended(b"disk")]
            # A batch that has to be synced takes the earlier ones with it.
            await log.put(appended(b"fsync"))
            assert log.wal.synced == log.wal.tail > position

    def read_copy(directory: Path) -> list[object]:
        data = log_files(directory)[0].read_bytes()
        found = [frame for frame in frames_in(data, 0) if frame.kind == frames.KIND_APPENDED]
        return [wal.entries.decode(frame) for frame in found]

    asyncio.run(body())


def test_the_tick_comes_also_when_batches_never_stop(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, sync_tick_ms=150) as log:
            for _ in range(3_000):
                if log.wal.synced:
                    break
                log.wal.add(appended(b"x"), False)
                log.wal.commit()
                await asyncio.sleep(0.001)
            assert log.wal.synced

    asyncio.run(body())


def test_closing_writes_and_syncs_what_was_gathered(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, sync_tick_ms=NEVER_MS) as log:
            await log.put(appended(b"written"), sync=False)
            log.wal.add(appended(b"gathered"), False)
            log.wal.close()
            assert log.wal.synced == log.wal.written == log.wal.tail
            log.wal.close()
        assert read_back(tmp_path) == [appended(b"written"), appended(b"gathered")]

    asyncio.run(body())


def test_a_log_that_never_started_can_be_closed(tmp_path: Path) -> None:
    log = Wal(tmp_path, 1 << 20, 5)
    assert list(log.replay()) == []
    log.close()


# ---- seals and trims --------------------------------------------------------------------------------------------


def test_a_seal_is_a_lone_mark_behind_what_is_synced_and_stands_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            log.wal.seal()
            assert log.wal.tail == 0
            position = await log.put(appended(b"x"))
            log.wal.seal()
            log.wal.seal()
            assert log.wal.tail == position + frames.MARK_SIZE
            await log.until(lambda: log.wal.synced == log.wal.tail)
        last = frames_in(log_files(tmp_path)[0].read_bytes(), 0)[-1]
        assert last.kind == frames.KIND_MARK and frames.synced_by(last) == position
        async with opened(tmp_path) as log:
            assert [event for _, event in log.replayed] == [appended(b"x")]
            await log.put(appended(b"y"))
        assert read_back(tmp_path) == [appended(b"x"), appended(b"y")]

    asyncio.run(body())


def test_a_log_with_writes_under_way_is_not_sealed(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            position = log.wal.add(appended(b"x"), True)
            log.wal.seal()
            assert log.wal.tail == position
            await log.put(appended(b"y"))

    asyncio.run(body())


@pytest.mark.parametrize("away", [-1, 0, 1])
def test_trimming_deletes_only_files_that_lie_wholly_below(tmp_path: Path, away: int) -> None:
    events = numbered(40)

    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            for event in events:
                await log.put(event)
            bases = [int(path.stem) for path in log_files(tmp_path)]
            below = bases[3] + away
            log.wal.trim(below)
        assert [int(path.stem) for path in log_files(tmp_path)] == bases[2 if away < 0 else 3 :]
        async with opened(tmp_path, 512) as log:
            left = [event for _, event in log.replayed]
            assert left == events[-len(left) :]
            assert log.replayed[0][0] > bases[2 if away < 0 else 3]

    asyncio.run(body())


def test_trimming_never_takes_the_file_that_is_written_to(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            await log.put(*numbered(30))
            log.wal.trim(1 << 60)
            await log.put(Touched(1, 5))
        assert len(log_files(tmp_path)) == 1
        assert read_back(tmp_path)[-1] == Touched(1, 5)

    asyncio.run(body())


def test_a_new_file_begins_when_asked_and_the_old_ones_can_be_seen_off_the_disk(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            await log.put(appended(b"has to go"))
            log.wal.add(appended(b"gathered only"), True)
            base = log.wal.begin_part()
            await log.until(lambda: log.wal.synced == log.wal.tail)
            assert base < log.wal.tail
            (tmp_path / "torn-00000000000000000007.bin").write_bytes(b"has to go")
            left_behind = log_files(tmp_path)[0].read_bytes()
            log.wal.trim(base)
            (tmp_path / f"{0:020d}.wal").write_bytes(left_behind)  # as if its deletion had failed
            await log.wal.forget(base)
            assert [int(path.stem) for path in log_files(tmp_path)] == [base]
            assert not any(b"has to go" in path.read_bytes() for path in tmp_path.iterdir())
            await log.put(Touched(1, 5))
        assert read_back(tmp_path) == [Touched(1, 5)]

    asyncio.run(body())


def test_a_log_that_only_began_a_new_file_goes_on_from_there(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            await log.put(appended(b"old"))
            base = log.wal.begin_part()
            again = log.wal.begin_part()
            assert again > base
            await log.until(lambda: log.wal.synced == log.wal.tail)
            log.wal.trim(again)
            await log.wal.forget(base)
            tail = log.wal.tail
        async with opened(tmp_path) as log:
            assert log.replayed == [] and (log.wal.head, log.wal.tail) == (again, tail)
            await log.put(Touched(1, 6))
        assert read_back(tmp_path) == [Touched(1, 6)]
        with pytest.raises(OSError, match="closed"):
            await log.wal.forget(base)

    asyncio.run(body())


# ---- the helper -------------------------------------------------------------------------------------------------


def test_a_spare_that_is_still_being_filled_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filling, go_on = threading.Event(), threading.Event()
    real = os.write

    def slow_fill(fd, data):
        if threading.current_thread().name == "wal-helper":
            filling.set()
            go_on.wait(60)
        return real(fd, data)

    monkeypatch.setattr(os, "write", slow_fill)
    events = numbered(40)

    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            await asyncio.to_thread(filling.wait, 20)
            await log.put(*events)
            go_on.set()
        # Zeros that came late would have wiped out frames.
        assert read_back(tmp_path) == events

    asyncio.run(body())


def test_every_file_is_zero_filled_ahead_of_its_writer(tmp_path: Path) -> None:
    file_bytes = 64 << 10

    async def body() -> None:
        async with opened(tmp_path, file_bytes) as log:
            while len(log_files(tmp_path)) < 3 or log.wal.tail < 2 * file_bytes + (20 << 10):
                await log.put(appended(b"x" * 2_000))
            tail = log.wal.tail
        last = log_files(tmp_path)[-1]
        assert last.stat().st_size > tail - int(last.stem) + 2_000

    asyncio.run(body())


def test_the_helper_syncs_through_a_descriptor_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync
    synced: dict[str, set[int]] = {}

    def recorded(fd):
        synced.setdefault(threading.current_thread().name, set()).add(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", recorded)

    async def body() -> None:
        async with opened(tmp_path) as log:
            for _ in range(20):
                await log.put(appended(b"x" * 2_000))

    asyncio.run(body())
    # One that they share would let the helper take away an error that the writer has to see.
    assert synced["wal-writer"] and synced["wal-helper"]
    assert not synced["wal-writer"] & synced["wal-helper"]
