"""Owners as processes on one directory, stopped, woken and killed by signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.log.object_places import DirectoryPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import Claim
from headwater.model.events import Event
from tests.log import appended
from tests.log.contract import Running

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def owner_process(directory: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.log.owner_process", str(directory), name]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "owns\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def lines(process: subprocess.Popen[str], count: int = -1) -> list[str]:
    """The next lines that it prints, or all that are left once it has ended."""
    assert process.stdout is not None
    if count < 0:
        return process.stdout.read().splitlines()
    return [process.stdout.readline().rstrip() for _ in range(count)]


def names(events: list[Event]) -> list[str]:
    return [event.records[0].decode() for event in events]  # type: ignore[union-attr]


async def claimed(directory: Path) -> Running:
    log = QuorumLog(ObjectEntries(DirectoryPlace(directory), "log/3"))
    await log.load()
    await log.claim(Claim("test", ""))
    return Running(log)


def test_what_a_killed_owner_acknowledged_is_there_once_and_in_order(tmp_path: Path) -> None:
    acked: list[str] = []
    for life in range(3):
        with owner_process(tmp_path, f"life-{life}") as process:
            acked += lines(process, 30)
            process.kill()
            acked += lines(process)
    acked = [line.removeprefix("acked ") for line in acked if line.count(" ") == 2]  # the last line may be cut

    async def body() -> None:
        running = await claimed(tmp_path)
        found = names(running.events())
        assert len(set(found)) == len(found)
        assert [name for name in found if name in set(acked)] == acked
        for life in range(3):
            numbers = [int(name.split()[1]) for name in found if name.startswith(f"life-{life} ")]
            assert numbers == list(range(len(numbers)))
        await running.log.closed()

    asyncio.run(body())


def test_an_owner_that_was_stopped_wakes_as_a_zombie_and_acknowledges_nothing_that_is_not_there(tmp_path: Path) -> None:
    with owner_process(tmp_path, "zombie") as process:
        before = lines(process, 30)
        process.send_signal(signal.SIGSTOP)
        seen: list[str] = []

        async def take_over() -> None:
            running = await claimed(tmp_path)
            seen.extend(names(running.events()))
            for n in range(10):
                await running.put(appended(b"new %d" % n))
            running.log.trim(running.log.synced)
            while running.log._purging is not None:
                await asyncio.sleep(0.001)
            await running.put(appended(b"after the purge"))
            await running.log.closed()

        asyncio.run(take_over())
        process.send_signal(signal.SIGCONT)
        after = lines(process)
        assert after[-1] == "failed fenced"
        acked = [line.removeprefix("acked ") for line in [*before, *after[:-1]]]
        # What it stored before it was stopped it may acknowledge late: the new owner has it.
        assert acked == seen[: len(acked)]

    async def look() -> None:
        running = await claimed(tmp_path)
        assert names(running.events())[-1] == "after the purge"
        assert not any(name.startswith("zombie") for name in names(running.events()))
        await running.log.closed()

    asyncio.run(look())
