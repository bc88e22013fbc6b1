"""The logs of a cluster's groups, where the settings say they are: in NATS servers, or as objects in a store.

Owns the connection that all logs of a process share. Never reads or writes an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headwater.log.medium import MediumError, Unavailable, Unsure
from headwater.log.object_places import ObjectPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.ports import SYSTEM_CLOCK

BEGIN_TRIES = 10
BEGIN_AGAIN_S = 0.5
"""A stream that was just made has no leader yet."""


class Logs(Protocol):
    kind: str
    """`jetstream` or `objects`."""
    where: str
    """The same for every node of a cluster, whatever way it takes there."""

    async def open(self) -> None:
        """Raises MediumError, which says what to change."""
        ...

    async def log(self, group: int) -> QuorumLog:
        """A log that nothing was read from yet. Raises Unavailable."""
        ...

    async def is_empty(self, group: int) -> bool:
        """Nothing was ever written to the group's log, or all of it is lost. Raises Unavailable."""
        ...

    async def begin(self, group: int, number: int, data: bytes) -> None:
        """Writes the first entry of a log that is empty, with a number other than 1. Raises MediumError."""
        ...

    async def close(self) -> None: ...


class ObjectLogs:
    kind = "objects"

    def __init__(self, place: ObjectPlace, where: str) -> None:
        self._place = place
        self.where = where

    async def open(self) -> None:
        await self._place.keys("log")  # a store that cannot be reached, or refuses, says so now

    async def log(self, group: int) -> QuorumLog:
        return QuorumLog(ObjectEntries(self._place, f"log/{group}"))

    async def is_empty(self, group: int) -> bool:
        return not await self._place.folders(f"log/{group}")

    async def begin(self, group: int, number: int, data: bytes) -> None:
        # A former owner that still runs would find its own folder free: nothing would fence it.
        raise MediumError("a log of objects cannot be begun anew: bring its objects back")

    async def close(self) -> None: ...


class NatsLogs:
    kind = "jetstream"

    def __init__(
        self, urls: Sequence[str], name: str, replicas: int, monitors: Sequence[str], credentials: str | None
    ) -> None:
        """Raises ImportError when the extra is not installed."""
        # Imported here: a node without NATS needs no client for it.
        from headwater.log.jetstream import JetStream, JetStreamSettings

        self.where = f"nats {name}"
        self._servers = JetStream(JetStreamSettings(urls, name, replicas, monitors, credentials))

    async def open(self) -> None:
        await self._servers.open()

    async def log(self, group: int) -> QuorumLog:
        return QuorumLog(await self._servers.entries(group))

    async def is_empty(self, group: int) -> bool:
        return await self._servers.is_empty(group)

    async def begin(self, group: int, number: int, data: bytes) -> None:
        entries = await self._servers.entries(group)
        try:
            for left in reversed(range(BEGIN_TRIES)):
                try:
                    return await entries.begin(number, data)
                except (Unavailable, Unsure):
                    if not left:
                        raise
                await SYSTEM_CLOCK.sleep(BEGIN_AGAIN_S)
        finally:
            await entries.close()

    async def close(self) -> None:
        await self._servers.close()
