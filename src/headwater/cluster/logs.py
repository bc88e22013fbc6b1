"""The logs of a cluster's groups, where the settings say they are: in NATS servers, or as objects in a store.

Owns the connection that all logs of a process share. Never reads or writes an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headwater.cluster.description import Disagreement
from headwater.log.medium import MediumError, Unavailable, Unsure
from headwater.log.object_places import ObjectPlace
from headwater.log.objects import ObjectEntries
from headwater.log.quorum import QuorumLog
from headwater.ports import SYSTEM_CLOCK

MARK = "cluster"
"""The object that says whose logs are at a place: the id of the cluster."""
AGREE_TRIES = 20
"""Servers that have just started elect a leader first, and a try without an answer takes seconds of its own."""
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

    async def agree(self, cluster: str) -> None:
        """The logs are those of the cluster with that id, from now on if they are nobody's yet. A node that was told
        another lake would claim groups whose records it cannot read. Raises Disagreement, MediumError."""
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

    async def agree(self, cluster: str) -> None:
        found = await self._place.get(MARK)
        if found is None:
            try:
                await self._place.create(MARK, cluster.encode())
            except Unsure:
                pass  # what is there now says whose it is
            found = await self._place.get(MARK)
        if found is None:
            raise Unsure(f"{self.where} did not say whose logs it holds: start the node again")
        if found != cluster.encode():
            raise Disagreement(
                f"the logs in {self.where} are those of cluster {found.decode(errors='replace')}, and the lake is that "
                f"of cluster {cluster}: correct --lake or --cluster"
            )

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

    async def agree(self, cluster: str) -> None:
        self._servers.cluster = cluster
        for left in reversed(range(AGREE_TRIES)):
            try:
                entries = await self._servers.entries(0)  # which refuses a stream of another cluster
            except Unavailable:
                if not left:
                    raise
                await SYSTEM_CLOCK.sleep(BEGIN_AGAIN_S)
            else:
                return await entries.close()

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
