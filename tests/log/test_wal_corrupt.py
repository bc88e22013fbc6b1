"""Damage to what was promised: a flipped bit below a later mark stops the start and says where; nothing is changed.
Damage that could be a torn end is not tested here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.log import frames
from headwater.log.wal import Wal
from headwater.log.wal_recovery import LogCorrupt
from headwater.model.events import Event
from tests.log import FILE_BYTES, appended, frames_in, log_files, numbered, opened, read_back


def make_log(directory: Path, batches: list[list[Event]], file_bytes: int = FILE_BYTES, seal: bool = True) -> None:
    """A log with a seal at its end: everything but the last mark is vouched for."""

    async def body() -> None:
        async with opened(directory, file_bytes) as log:
            for batch in batches:
                await log.put(*batch)
            if seal:
                log.wal.seal()
                await log.until(lambda: log.wal.synced == log.wal.tail)

    asyncio.run(body())


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def refusal(directory: Path) -> LogCorrupt:
    """The refusal of a start on a damaged log, which must leave every file as it is."""
    before = contents(directory)
    with pytest.raises(LogCorrupt) as caught:
        read_back(directory)
    assert contents(directory) == before
    return caught.value


def test_every_flipped_bit_below_a_later_mark_is_reported_with_its_position(tmp_path: Path) -> None:
    make_log(tmp_path, [[appended(b"one")], [appended(b"two"), appended(b"three")]])
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes()[:2_000])
    found = frames_in(bytes(data), 0)
    vouched = frames.synced_by(found[-1])
    assert vouched == found[-1].position
    for frame in found[:-1]:
        for bit in range(frame.position * 8, frame.end * 8):
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(LogCorrupt) as caught:
                list(Wal(tmp_path, FILE_BYTES, 5).replay())
            assert caught.value.position == frame.position
            assert str(frame.position) in str(caught.value) and path.name in str(caught.value)
            assert path.read_bytes() == data
            data[bit // 8] ^= 1 << bit % 8
    assert not list(tmp_path.glob("torn-*"))
    path.write_bytes(data)
    assert read_back(tmp_path) == [appended(b"one"), appended(b"two"), appended(b"three")]


@pytest.mark.usefixtures("quick_disk")
def test_a_flipped_bit_in_the_last_mark_costs_nothing(tmp_path: Path) -> None:
    make_log(tmp_path, [[appended(b"one"), appended(b"two")]])
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes()[:2_000])
    seal = frames_in(bytes(data), 0)[-1]
    for bit in range(seal.position * 8, seal.end * 8):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert read_back(tmp_path) == [appended(b"one"), appended(b"two")]
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("size", [1, 8, 512])
def test_a_hole_of_zeros_in_the_middle_is_reported(tmp_path: Path, size: int) -> None:
    make_log(tmp_path, [[event] for event in numbered(20)])
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    frame = frames_in(bytes(data), 0)[6]
    data[frame.position : frame.position + size] = bytes(size)
    path.write_bytes(data)
    assert refusal(tmp_path).position == frame.position


@pytest.mark.parametrize("index", [0, 1, 2])
def test_damage_to_any_file_but_the_last_is_reported(tmp_path: Path, index: int) -> None:
    make_log(tmp_path, [[event] for event in numbered(30)], 512, seal=False)
    path = log_files(tmp_path)[index]
    intact = path.read_bytes()
    for frame in frames_in(intact, int(path.stem)):
        data = bytearray(intact)
        data[frame.end - int(path.stem) - 1] ^= 0x10
        path.write_bytes(data)
        assert refusal(tmp_path).position == frame.position


def test_damage_in_front_of_a_file_that_was_only_opened_is_reported_too(tmp_path: Path) -> None:
    make_log(tmp_path, [[event] for event in numbered(30)], 512, seal=False)
    *_, path, last = log_files(tmp_path)
    last.write_bytes(bytes(4096))
    data = bytearray(path.read_bytes())
    end = frames_in(bytes(data), int(path.stem))[-1]
    assert end.kind == frames.KIND_END
    data[end.position - int(path.stem) + 2] ^= 1
    path.write_bytes(data)
    # The next file exists, so this one had been ended and synced: its end cannot be torn.
    assert refusal(tmp_path).position == end.position


def test_a_file_that_was_cut_short_in_the_middle_of_the_log_is_reported(tmp_path: Path) -> None:
    make_log(tmp_path, [[event] for event in numbered(30)], 512)
    path = log_files(tmp_path)[1]
    frame = frames_in(path.read_bytes(), int(path.stem))[2]
    path.write_bytes(path.read_bytes()[: frame.position - int(path.stem)])
    assert refusal(tmp_path).position == frame.position


def test_a_missing_file_in_the_middle_is_reported_with_the_place_where_the_log_ends(tmp_path: Path) -> None:
    make_log(tmp_path, [[event] for event in numbered(30)], 512)
    files = log_files(tmp_path)
    files[2].unlink()
    error = refusal(tmp_path)
    assert error.position == int(files[3].stem)
    assert str(int(files[2].stem)) in str(error)


def test_two_files_in_each_others_place_are_reported(tmp_path: Path) -> None:
    make_log(tmp_path, [[event] for event in numbered(30)], 512)
    first, second = log_files(tmp_path)[1:3]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    assert refusal(tmp_path).position == int(first.stem)


def test_an_idle_log_that_was_sealed_recognises_damage_to_its_last_batch(tmp_path: Path) -> None:
    sealed, unsealed = tmp_path / "sealed", tmp_path / "unsealed"
    for directory in (sealed, unsealed):
        make_log(directory, [[appended(b"one")], [appended(b"last")]], seal=directory is sealed)
        path = log_files(directory)[0]
        data = bytearray(path.read_bytes())
        last = [frame for frame in frames_in(bytes(data), 0) if frame.kind == frames.KIND_APPENDED][-1]
        data[last.end - 9] ^= 1
        path.write_bytes(data)
    assert refusal(sealed).position
    # Without the seal nothing tells this from a write that power loss cut short: it is cut, and kept aside.
    assert read_back(unsealed) == [appended(b"one")]
    assert b"las" in next(unsealed.glob("torn-*")).read_bytes()


def test_a_refused_start_is_refused_again_the_next_time(tmp_path: Path) -> None:
    make_log(tmp_path, [[event] for event in numbered(5)])
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[frames_in(bytes(data), 0)[1].position + 20] ^= 1
    path.write_bytes(data)
    assert refusal(tmp_path).position == refusal(tmp_path).position


def test_damage_below_what_the_catalog_counts_on_is_reported_without_any_later_mark(tmp_path: Path) -> None:
    make_log(tmp_path, [[appended(b"one")], [appended(b"last")]], seal=False)
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    last = [frame for frame in frames_in(bytes(data), 0) if frame.kind == frames.KIND_APPENDED][-1]
    data[last.end - 9] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupt) as caught:
        list(Wal(tmp_path, FILE_BYTES, 5).replay(last.end))
    assert caught.value.position == last.position and path.read_bytes() == data
    # Promised only up to the damage: then it may be a torn end.
    assert [event for _, event in Wal(tmp_path, FILE_BYTES, 5).replay(last.position)] == [appended(b"one")]
