"""The logs of a cluster's groups, where the settings say they are: in NATS servers, or as objects in a store.

Owns the connection that all logs of a process share. Never reads or writes an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headwater.log.object_places import ObjectPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog


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

    async def close(self) -> None:
        await self._servers.close()
