"""Starts a node with a fault planted in it, or with a clock that can be set: `python -m tests.cluster.chaos.planted`.

Owns the faults that the checker has to find. They are put into this process by patching, before the node begins; the
product has no switch for them. Arguments: [--clock FILE] [--fault NAME] and then those of `headwater`.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.cli.main import app
from headwater.engine.follower import Follower
from headwater.log.medium import MediumError, Taken, Unsure
from headwater.log.quorum import QuorumLog
from headwater.ports import SystemClock, clock

ACK_AHEAD_S = 0.5
_OFFSET = struct.Struct("<q")


class _Medium:
    """What a log is kept in, but for one method."""

    def __init__(self, medium: Any) -> None:
        self._medium = medium

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)

    async def put(self, number: int, data: bytes) -> None:
        raise NotImplementedError


class _AckBeforeQuorum(_Medium):
    """An entry counts as stored half a second before it is sent."""

    def __init__(self, medium: Any) -> None:
        super().__init__(medium)
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, number: int, data: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._later(number, data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, number: int, data: bytes) -> None:
        await asyncio.sleep(ACK_AHEAD_S)
        while True:
            try:
                return await self._medium.put(number, data)
            except Taken:
                return
            except MediumError:
                await asyncio.sleep(0.05)


class _FencingSkipped(_Medium):
    """An owner that finds its next number taken goes on as if it were its own."""

    async def put(self, number: int, data: bytes) -> None:
        try:
            await self._medium.put(number, data)
        except Taken:
            return


class _UnknownAsSuccess(_Medium):
    """An entry that may be stored counts as stored."""

    async def put(self, number: int, data: bytes) -> None:
        try:
            await self._medium.put(number, data)
        except Unsure:
            return


def _in_every_log(medium: Callable[[Any], _Medium]) -> None:
    made = QuorumLog.__init__

    def make(self: QuorumLog, entries: Any, **more: Any) -> None:
        made(self, medium(entries), **more)

    QuorumLog.__init__ = make  # type: ignore[method-assign]


def _standby_serves_early() -> None:
    """A standby notes that entries have come and does not apply them: it takes over with what it had at its start."""

    async def advance(self: Follower) -> bool:
        events = await self._log.more()
        self._whole = True
        return bool(events)

    Follower.advance = advance  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "ack_before_quorum": lambda: _in_every_log(_AckBeforeQuorum),
    "fencing_skipped": lambda: _in_every_log(_FencingSkipped),
    "unknown_as_success": lambda: _in_every_log(_UnknownAsSuccess),
    "standby_serves_early": _standby_serves_early,
}


class SetClock:
    """A file that says by how many milliseconds a node's clock is off; the node looks whenever it asks for the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            self.set_ms(0)

    def set_ms(self, offset_ms: int) -> None:
        mode = "r+b" if self.path.exists() else "wb"
        with self.path.open(mode) as file:
            file.write(_OFFSET.pack(offset_ms))

    def follow(self) -> None:
        """The clock of this process goes by the file from now on."""
        with self.path.open("rb") as file:
            held = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)

        def offset_ms() -> int:
            return int(_OFFSET.unpack_from(held)[0])

        believed = getattr(clock, "_believed", None)
        if believed is None:
            # An older source: it believes whatever the clock says.
            now_ms: Any = SystemClock.now_ms
            SystemClock.now_ms = lambda self: now_ms(self) + offset_ms()  # type: ignore[method-assign, assignment, misc]
        else:
            wall_ns = believed._wall_ns
            believed._wall_ns = lambda: wall_ns() + offset_ms() * 1_000_000


def main(arguments: list[str]) -> None:
    while arguments and arguments[0] in ("--clock", "--fault"):
        option, value, *arguments = arguments
        if option == "--clock":
            SetClock(Path(value)).follow()
        else:
            FAULTS[value]()
    app(arguments, prog_name="headwater")


if __name__ == "__main__":
    main(sys.argv[1:])
