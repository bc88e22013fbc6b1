"""Nodes over a log in objects that also make backups and erase: real time, real threads, a real lake."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headwater.catalog.catalog_files import SqliteCatalogFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.erased_log import SharedErasedLog
from headwater.cluster.ownership import OWNER, STANDBY
from headwater.engine.group import Group
from headwater.engine.owned_group import OwnedGroup, SharedCopies
from headwater.lake.lake import StoreBlobs
from headwater.log.quorum import QuorumLog
from headwater.model.commands import Append, Create
from headwater.model.stream import Limits
from headwater.ports import SYSTEM_CLOCK, SystemRng
from tests.cluster.test_ownership_on_objects import GROUPS, OPTIONS, Member, key_in, until


class FullMember(Member):
    def _build(self, number: int, log: QuorumLog, catalog: SqliteCatalog) -> OwnedGroup:
        schedule = asyncio.get_running_loop().call_soon
        group = Group(log, catalog, SYSTEM_CLOCK, schedule, Limits(), 1 << 30, number, GROUPS)
        files = SqliteCatalogFiles(self._catalog(number), self._own / "held" / str(number))
        shared = SharedCopies(log, SharedErasedLog(log, self.ownership.groups[number].forget))
        blobs = StoreBlobs(self._store)
        report = lambda what, why: self.reports.append(f"{what}: {why}")  # noqa: E731
        return OwnedGroup(group, None, blobs, self._lake, files, OPTIONS, SystemRng(), report, shared)

    def catalog_of(self, group: int) -> Path:
        return self._catalog(group)

    async def write(self, key: str, payloads: list[bytes]) -> None:
        await self.submit(key, Create(key, "text/plain", []))
        for payload in payloads:
            await self.submit(key, Append([payload], None, None))


async def two_members(directory: Path) -> tuple[FullMember, FullMember]:
    """`a` owns group 0, `b` group 1, and each follows the other's."""
    members: dict[str, Member] = {}
    a, b = FullMember("a", directory, members), FullMember("b", directory, members)
    a.ownership.start()
    b.ownership.start()
    await until(lambda: a.ownership.groups[0].state == OWNER and b.ownership.groups[1].state == OWNER)
    await until(lambda: a.ownership.groups[1].state == STANDBY and b.ownership.groups[0].state == STANDBY)
    return a, b


__all__ = ["GROUPS", "FullMember", "key_in", "two_members", "until"]
