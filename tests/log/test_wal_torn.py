"""The torn end of a log: cut, zeroed or overwritten at every byte, it costs exactly what was not whole.
Owns the oracle: a frame counts when it and all before it stand in the file as they were written."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headwater.log import entries, frames
from headwater.log.frames import Frame
from headwater.log.wal import Wal
from headwater.model.commands import Producer
from headwater.model.events import Event
from tests.log import FILE_BYTES, appended, frames_in, log_files, numbered, opened, read_back


def make_log(directory: Path, batches: list[list[Event]], file_bytes: int = FILE_BYTES) -> None:
    async def body() -> None:
        async with opened(directory, file_bytes) as log:
            for batch in batches:
                await log.put(*batch)

    asyncio.run(body())


class Original:
    """The last file of a log as it was written, and what it is worth when bytes of it are lost."""

    def __init__(self, directory: Path) -> None:
        path = log_files(directory)[-1]
        self.name = path.name
        self.base = int(path.stem)
        self.frames = frames_in(path.read_bytes(), self.base)
        self.end = self.frames[-1].end - self.base
        self.data = path.read_bytes()[: self.end]
        earlier = [frames_in(file.read_bytes(), int(file.stem)) for file in log_files(directory)[:-1]]
        self.before = events_in([frame for file in earlier for frame in file])

    def whole(self, damaged: bytes) -> list[Frame]:
        """The frames of the prefix that is as it was."""
        found = []
        for frame in self.frames:
            at, end = frame.position - self.base, frame.end - self.base
            if damaged[at:end] != self.data[at:end]:
                break
            found.append(frame)
        return found


def empty(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()


def events_in(found: list[Frame]) -> list[Event]:
    return [entries.decode(frame) for frame in found if frame.kind in (frames.KIND_APPENDED, frames.KIND_COLD)]


TAILS = {
    "cut": lambda rest: b"",
    "zeros": lambda rest: bytes(len(rest)),
    "zeros and a page more": lambda rest: bytes(len(rest) + 4096),
    "garbage": lambda rest: bytes((byte * 7 + 13) % 255 + 1 for byte in range(len(rest))),
    "garbage and a page of zeros": lambda rest: b"\xa5" * len(rest) + bytes(4096),
    "older bytes of the same file": lambda rest: (rest * 2)[17 : 17 + len(rest)],
}


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("file_bytes", [FILE_BYTES, 512])
def test_a_tail_torn_at_any_byte_leaves_exactly_the_whole_frames_before_it(
    tmp_path: Path, tail: str, file_bytes: int
) -> None:
    source = tmp_path / "source"
    last = [appended(b"one"), appended(b"two", producer=Producer("p", 1, 2)), appended(b"three")]
    make_log(source, [numbered(12), last], file_bytes)
    original = Original(source)
    assert len(original.frames) >= 4
    directory = tmp_path / "torn"
    for at in range(original.frames[-4].position - original.base, original.end + 1):
        damaged = original.data[:at] + TAILS[tail](original.data[at:])
        empty(directory)
        for path in log_files(source)[:-1]:
            os.link(path, directory / path.name)
        (directory / original.name).write_bytes(damaged)

        whole = original.whole(damaged)
        end = whole[-1].end if whole else original.base
        wal = Wal(directory, file_bytes, 5)
        assert [event for _, event in wal.replay()] == original.before + events_in(whole)
        assert wal.tail == end
        rest = damaged[end - original.base :].rstrip(b"\0")
        kept = sorted(directory.glob("torn-*"))
        if rest:
            assert [path.name for path in kept] == [f"torn-{end:020d}.bin"]
            assert kept[0].read_bytes() == rest
        else:
            assert kept == []


@pytest.mark.usefixtures("quick_disk")
def test_a_log_torn_at_any_byte_takes_new_events_and_gives_them_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_log(source, [numbered(3), [appended(b"one"), appended(b"two")]])
    original = Original(source)

    async def body() -> None:
        for at in range(original.frames[-3].position, original.end + 1):
            directory = tmp_path / "torn"
            empty(directory)
            (directory / original.name).write_bytes(original.data[:at])
            async with opened(directory) as log:
                await log.put(appended(b"new"))
                await log.put(appended(b"newer"))
                before = [event for _, event in log.replayed]
            assert read_back(directory) == [*before, appended(b"new"), appended(b"newer")]

    asyncio.run(body())


def test_frames_behind_a_cut_are_not_found_again_when_the_log_comes_to_end_in_front_of_them(tmp_path: Path) -> None:
    stale = [appended(b"stale %d" % number) for number in range(3)]
    # As long as the new batch's mark and its one event together, so that the next frame would follow seamlessly.
    new = appended(b"new")
    broken = appended(b"x" * (frames.MARK_SIZE + len(b"new")))
    make_log(tmp_path, [[appended(b"kept")], [broken, *stale]])
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    found = frames_in(bytes(data), 0)
    victim = next(frame for frame in found if frame.end - frame.position == encoded_size(broken))
    data[victim.position + 30] ^= 1
    path.write_bytes(data)

    async def body() -> None:
        async with opened(tmp_path) as log:
            assert [event for _, event in log.replayed] == [appended(b"kept")]
            assert log.wal.tail == victim.position
            await log.put(new)
            assert log.wal.tail == victim.end

    asyncio.run(body())
    assert read_back(tmp_path) == [appended(b"kept"), new]
    assert b"stale 2" in next(tmp_path.glob("torn-*")).read_bytes()


def encoded_size(event: Event) -> int:
    return entries.encode(event, 0, [])


def test_a_file_that_was_opened_and_never_written_is_an_empty_end(tmp_path: Path) -> None:
    make_log(tmp_path, [numbered(12)], 512)
    original = Original(tmp_path)
    (tmp_path / original.name).write_bytes(bytes(4096))
    assert read_back(tmp_path) == original.before != []
    assert not list(tmp_path.glob("torn-*"))


def test_a_first_file_that_holds_only_zeros_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.wal").write_bytes(bytes(10_000))
    assert read_back(tmp_path) == []


def test_tearing_the_same_log_twice_keeps_both_torn_ends(tmp_path: Path) -> None:
    make_log(tmp_path, [[appended(b"one"), appended(b"two"), appended(b"three")]])
    path = log_files(tmp_path)[0]
    found = frames_in(path.read_bytes(), 0)
    for frame in (found[-1], found[-2]):
        path.write_bytes(path.read_bytes()[: frame.end - 3])
        read_back(tmp_path)
    kept = {file.name for file in tmp_path.glob("torn-*")}
    assert kept == {f"torn-{frame.position:020d}.bin" for frame in found[-2:]}


def test_what_no_mark_vouches_for_is_written_and_synced_again_before_it_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(tmp_path, [[appended(b"one")], [appended(b"two")]])
    path = log_files(tmp_path)[0]
    before = path.read_bytes()
    os.utime(path, ns=(1, 1))
    synced: list[int] = []
    real = os.fsync

    def recorded(fd: int) -> None:
        real(fd)
        # The rewrite has happened by now: it was this sync that took it to disk.
        synced.append(os.fstat(fd).st_mtime_ns)

    monkeypatch.setattr(os, "fsync", recorded)
    assert read_back(tmp_path) == [appended(b"one"), appended(b"two")]
    assert synced and synced[-1] > 1
    assert path.read_bytes() == before


def test_a_disk_without_room_for_the_torn_end_does_not_keep_a_log_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with opened(tmp_path) as log:
            await log.put(appended(b"kept"))
        (path,) = log_files(tmp_path)
        with path.open("r+b") as file:
            file.seek(log.wal.tail)
            file.write(b"torn")

    asyncio.run(body())
    real = Path.open

    def full(self: Path, mode: str = "r", *rest):
        if self.name.startswith("torn-"):
            raise OSError(28, "No space left on device")
        return real(self, mode, *rest)

    monkeypatch.setattr(Path, "open", full)
    assert read_back(tmp_path) == [appended(b"kept")]
    assert not list(tmp_path.glob("torn-*"))
