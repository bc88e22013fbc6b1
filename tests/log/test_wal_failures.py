"""A disk that fails under the log: it says why, promises nothing more for ever, and leaves the files alone.
Faults are put into the writer's system calls; everything else is real."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.log.wal import Wal
from tests.log import appended, log_files, numbered, opened, read_back


class Faults:
    """Fails named calls of `os` in one thread while armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.armed = False
        self.met_count = 0

    def put(self, name: str, error: Exception, thread: str = "wal-writer") -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.armed and threading.current_thread().name == thread:
                self.met_count += 1
                raise error
            return real(*arguments, **named)

        self._monkeypatch.setattr(os, name, call)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def watermarks(wal: Wal) -> tuple[int, int]:
    return wal.written, wal.synced


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes().rstrip(b"\0") for path in log_files(directory)]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fdatasync", OSError(errno.EIO, "Input/output error")),
        ("fdatasync", OSError(errno.ENOSPC, "No space left on device")),
        ("pwrite", OSError(errno.ENOSPC, "No space left on device")),
        ("pwrite", OSError(errno.EIO, "Input/output error")),
        ("pwrite", MemoryError()),
    ],
)
def test_a_failed_call_freezes_the_watermarks_for_ever(
    tmp_path: Path, faults: Faults, name: str, error: Exception
) -> None:
    faults.put(name, error)

    async def body() -> None:
        async with opened(tmp_path) as log:
            good = await log.put(appended(b"good"))
            faults.armed = True
            bad = await log.put(appended(b"bad"))
            assert log.wal.failure is not None
            assert (getattr(error, "strerror", None) or "MemoryError") in log.wal.failure.reason
            assert log.wal.synced == good < bad
            frozen, held = watermarks(log.wal), contents(tmp_path)
            # The disk recovers; the log does not.
            faults.armed = False
            for _ in range(3):
                log.wal.add(appended(b"after"), True)
                log.wal.commit()
            log.wal.seal()
            log.wal.close()
            assert watermarks(log.wal) == frozen
            assert contents(tmp_path) == held
            assert faults.met_count == 1, "a failed call was tried again"

    asyncio.run(body())
    found = read_back(tmp_path)
    assert found[0] == appended(b"good")
    assert appended(b"after") not in found


def test_waiters_hear_of_the_failure(tmp_path: Path, faults: Faults) -> None:
    faults.put("fdatasync", OSError(errno.EIO, "Input/output error"))

    async def body() -> None:
        async with opened(tmp_path) as log:
            faults.armed = True
            log.wal.add(appended(b"bad"), True)
            log.wal.commit()
            await log.until(lambda: log.wal.failure is not None)
            assert log.passes_count >= 1

    asyncio.run(body())


def test_a_failure_of_the_tick_is_a_failure_of_the_log(tmp_path: Path, faults: Faults) -> None:
    faults.put("fdatasync", OSError(errno.EIO, "Input/output error"))

    async def body() -> None:
        async with opened(tmp_path, sync_tick_ms=1) as log:
            faults.armed = True
            await log.put(appended(b"disk"), sync=False)
            await log.until(lambda: log.wal.failure is not None)
            assert log.wal.synced == 0

    asyncio.run(body())


def test_a_failure_on_the_way_into_the_next_file_keeps_the_files_before_it(tmp_path: Path, faults: Faults) -> None:
    faults.put("open", OSError(errno.EMFILE, "Too many open files"))
    events = numbered(30)

    async def body() -> None:
        async with opened(tmp_path, 512) as log:
            await log.put(*events[:3])
            faults.armed = True
            await log.put(*events[3:])
            assert log.wal.failure is not None and "Too many open files" in log.wal.failure.reason
            faults.armed = False
            # Whoever gets the descriptor that the log gave back must not lose it to the log's end.
            with (tmp_path / "other").open("wb") as other:
                log.wal.close()
                os.fstat(other.fileno())

    asyncio.run(body())
    found = read_back(tmp_path)
    assert 3 <= len(found) < len(events)
    assert found == events[: len(found)]


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def short(fd: int, data: Any, offset: int) -> int:
        if threading.current_thread().name == "wal-writer":
            return real(fd, memoryview(data)[: max(1, len(data) // 3)], offset)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", short)

    async def body() -> None:
        async with opened(tmp_path, 700) as log:
            for event in numbered(20):
                await log.put(event)

    asyncio.run(body())
    assert read_back(tmp_path) == numbered(20)


def test_a_sync_that_fails_in_the_helper_ends_the_log_too(tmp_path: Path, faults: Faults) -> None:
    faults.put("fdatasync", OSError(errno.EIO, "Input/output error"), thread="wal-helper")
    faults.armed = True

    async def body() -> None:
        async with opened(tmp_path, 64 << 10) as log:
            for _ in range(60):
                if log.wal.failure is None:
                    await log.put(appended(b"x" * 1_000))
            await log.until(lambda: log.wal.failure is not None)
            # The batch that was under way may still arrive; none after it does.
            position = log.wal.add(appended(b"after"), True)
            log.wal.close()
            assert log.wal.synced <= log.wal.written < position

    asyncio.run(body())
    assert appended(b"after") not in read_back(tmp_path)


@pytest.mark.parametrize("name", ["open", "pwrite", "write", "rename"])
def test_the_helpers_troubles_are_not_the_logs(tmp_path: Path, faults: Faults, name: str) -> None:
    faults.put(name, OSError(errno.ENOSPC, "No space left on device"), thread="wal-helper")
    faults.armed = True
    events = [appended(b"x" * 1_000) for _ in range(60)]

    async def body() -> None:
        async with opened(tmp_path, 32 << 10) as log:
            for event in events:
                await log.put(event)
            assert log.wal.failure is None
        assert faults.met_count

    asyncio.run(body())
    assert read_back(tmp_path) == events


def test_a_log_that_failed_can_be_opened_again_on_a_healthy_disk(tmp_path: Path, faults: Faults) -> None:
    faults.put("fdatasync", OSError(errno.EIO, "Input/output error"))

    async def body() -> None:
        async with opened(tmp_path) as log:
            await log.put(appended(b"good"))
            faults.armed = True
            await log.put(appended(b"unknown"))
            faults.armed = False
        async with opened(tmp_path) as log:
            assert log.wal.failure is None
            before = [event for _, event in log.replayed]
            assert before[0] == appended(b"good")
            await log.put(appended(b"next"))
        assert read_back(tmp_path) == [*before, appended(b"next")]

    asyncio.run(body())
