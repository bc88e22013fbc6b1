"""Trying out the lake's store: at start-up, and again until it works.

Owns what is fatal: only what can never work by itself. Never holds up a start for a store that does not answer: the
node serves what memory and log hold, says what is missing, and is whole again when the store is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headwater.lake.store import StoreError, StoreUnavailable
from headwater.ports import SYSTEM_CLOCK, Clock

ANSWER_S_MAX = 10.0
"""How long a start waits for a verdict. A store that is quiet for longer counts as away."""
AGAIN_S_MIN, AGAIN_S_MAX = 0.5, 30.0


class StoreProbe:
    """`failure` says why the store cannot be used now; None when it can."""

    def __init__(self, probe: Callable[[], None], report: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._probe = probe
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self.failure: str | None = None

    async def start(self) -> None:
        """Returns when the store works, or is away: then it is tried on and on. Raises StoreRefused."""
        first = self._try()
        done, _ = await asyncio.wait([first], timeout=ANSWER_S_MAX)
        try:
            if done:
                first.result()
                return
            self._failed(StoreUnavailable(f"no answer in {ANSWER_S_MAX:.0f} s"))
        except StoreUnavailable as error:
            self._failed(error)
        self._task = asyncio.get_running_loop().create_task(self._again(None if done else first))

    async def _again(self, under_way: asyncio.Future[None] | None) -> None:
        pause_s = AGAIN_S_MIN
        while True:
            if under_way is None:
                await self._clock.sleep(pause_s)
                pause_s = min(AGAIN_S_MAX, pause_s * 2)
            try:
                await (under_way or self._try())
                self.failure = None
                return
            except StoreError as error:
                # Refused after it came back: a node that serves does not end for that, but it has to be told.
                self._failed(error)
            under_way = None

    def _try(self) -> asyncio.Future[None]:
        """Runs the probe in a thread that no shutdown waits for: a store may take its time to say nothing."""
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[None] = loop.create_future()

        def tell(error: Exception | None) -> None:
            if verdict.cancelled():
                return
            if error is None:
                verdict.set_result(None)
            else:
                verdict.set_exception(error)

        def run() -> None:
            failure: Exception | None = None
            try:
                self._probe()
            except Exception as error:
                failure = error
            try:
                loop.call_soon_threadsafe(tell, failure)
            except RuntimeError:
                pass  # the event loop has ended, and with it whoever waited

        threading.Thread(target=run, name="lake-probe", daemon=True).start()
        return verdict

    def _failed(self, error: StoreError) -> None:
        why = f"the lake cannot be used: {error.reason}"
        if why != self.failure:
            self._report(why)
        self.failure = why

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
