"""What is asked of a group's log beside its events: whether it goes on, and whether nobody else has claimed it.

Owns the wait for more of a log, and what an owner may conclude from its acknowledgements.
"""

from __future__ import annotations

import asyncio

from headwater.errors import GroupMoved
from headwater.log.quorum import LogFailed, QuorumLog


class LogLease:
    """See `engine.Lease`: the log says whether somebody else has claimed the group."""

    def __init__(self, number: int, log: QuorumLog, lease_s: float) -> None:
        self._number = number
        self._log = log
        self._lease_s = lease_s

    def holds(self) -> bool:
        return self._log.is_confirmed(self._lease_s)

    async def confirm(self) -> None:
        try:
            await self._log.barrier()
        except LogFailed:
            raise GroupMoved(self._number) from None


class LogGrowth:
    """The wait for more of a log, which goes on while its group is looked at: begun anew each time, it would ask the
    log far more often. A log is never read and waited for at once."""

    def __init__(self, log: QuorumLog) -> None:
        self._log = log
        self.noticed: asyncio.Future[None] | None = None

    @property
    def is_due(self) -> bool:
        """There may be more, or nobody waits for it."""
        return self.noticed is None or self.noticed.done()

    def watch(self) -> None:
        self.noticed = asyncio.ensure_future(self._log.wait())

    async def stop(self) -> None:
        noticed, self.noticed = self.noticed, None
        if noticed is not None:
            noticed.cancel()
            # What it found out is found again by reading.
            await asyncio.gather(noticed, return_exceptions=True)
