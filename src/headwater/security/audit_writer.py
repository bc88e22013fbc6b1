"""What appends the audit log: a task beside the requests, a second behind them.

Owns when records are appended, and that one which could not be is tried again. Never decides what is told (`audit`
does), and never holds up a request.

A record is lost when the process is killed before it was appended, a second at most unless the log's group is away; and
when so many wait that there is no room. One whose append had no answer is appended again, with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from headwater.errors import Failure
from headwater.ports import Clock
from headwater.security.audit import Audit

PAUSE_S = 1.0
"""Between two appends: what happens meanwhile is gathered."""
AGAIN_S_MAX = 10.0
STOP_S = 2.0
BATCH_COUNT = 500

log = structlog.get_logger("headwater")

Append = Callable[[list[bytes]], Awaitable[object]]
"""On return they are as durable as the stream promises. Raises Failure."""


class AuditWriter:
    def __init__(self, audit: Audit, append: Append, clock: Clock) -> None:
        self._audit = audit
        self._append = append
        self._clock = clock
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._flushing = asyncio.Lock()
        audit.on_noted = self._noted.set

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """What was noted is appended, if that takes no longer than `STOP_S`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.flush_in_time()
            self._task = None

    async def flush_in_time(self) -> None:
        """The same, and appending goes on. Does nothing before the start."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.flush()

    async def flush(self) -> bool:
        """Appends what was noted before the call; False when that failed. What is noted meanwhile waits for the next
        one: a flood of requests is no reason to append more often."""
        async with self._flushing:
            self._audit.gather()
            while records := self._audit.take(BATCH_COUNT):
                try:
                    await self._append(records)
                except Failure as failure:
                    self._tell(failure.message())
                    return False
                except Exception as error:
                    self._tell(repr(error))
                    return False
                self._audit.given(records)
            self._trouble = ""
            return True

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            await self._noted.wait()
            await self._clock.sleep(pause_s)
            self._noted.clear()
            if await self.flush():
                pause_s = PAUSE_S
            else:
                self._noted.set()
                pause_s = min(pause_s * 2, AGAIN_S_MAX)

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.error("audit", error=f"the audit log cannot be appended to, and is tried again: {trouble}")
        self._trouble = trouble
