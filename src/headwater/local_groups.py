"""The groups of a node by itself: on its own disk, or in memory, each with one of the node's processes for good.

Owns their recovery, and the sockets between the processes. Never knows a protocol: doors are given to it.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sqlite3
from collections.abc import Callable

import structlog

from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.calls import Calls
from headwater.cluster.handover import Acceptor, Door, Factory, Handover
from headwater.cluster.members import Members
from headwater.cluster.supervisor import listen
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.doors.http.server import HttpServer
from headwater.doors.s3p.server import S3pServer
from headwater.doors.secure_door import SecureDoor
from headwater.engine.engine import Engine
from headwater.engine.owned_group import OwnedGroup
from headwater.group_maker import GroupMaker
from headwater.log.null import NullLog
from headwater.log.wal import Wal
from headwater.ports import Catalog, Rng
from headwater.security import url_key
from headwater.security.name_hash import NameHash
from headwater.security.sealing import Sealing, sealing_of
from headwater.start_refused import CannotStart
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Manager

log = structlog.get_logger("headwater")


class LocalGroups:
    in_cluster = False

    def __init__(
        self, settings: Settings, data: DataDirectory, members: Members, sockets: dict[str, list[int]] | None = None
    ) -> None:
        """With one member the node is this process alone; otherwise `sockets` are those that its doors accept from.

        The data directory is prepared, and locked for it.
        """
        self._settings = settings
        self._data = data
        self.membership = members
        self.worker, self.workers_count = members.me, members.count
        self.groups_count = members.groups_count
        self._sockets = sockets or {}
        self.calls = None if members.alone else Calls(members)
        self._owned: dict[int, OwnedGroup] = {}
        self._internal: HttpServer | None = None
        self._sealing: Sealing | None = None
        self.handover: Handover | None = None

    async def join(self, rng: Rng) -> None:
        """Nobody else has to be found."""

    @property
    def sealing(self) -> Sealing:
        """What its secrets are kept with. Raises CannotStart."""
        if self._sealing is None:
            self._sealing = sealing_of(self._settings)
        return self._sealing

    def keys(self, rng: Rng) -> Keys:
        """What the node signs webhooks with. Raises BadKeys, CannotStart."""
        if not self._settings.memory:
            return Keys.kept(self._data.path, rng, self.sealing)
        if self.membership.alone:
            return Keys.fresh(rng)
        return Keys.kept(self.membership.directory, rng)  # all workers sign with one key, and show it

    def url_secret(self, rng: Rng) -> bytes:
        """What the node signs URLs with. Raises CannotStart."""
        if not self._settings.memory:
            return url_key.kept(self._data.path, rng, self.sealing)
        if self.membership.alone:
            return rng.token(32)
        return url_key.kept(self.membership.directory, rng)

    def name_hash(self, rng: Rng) -> NameHash:
        """What names in receipts of erasures are hashed with. Raises BadReceiptKey, CannotStart."""
        return NameHash.kept(self._data.path, rng, self.sealing)

    def engine(self, maker: GroupMaker) -> Engine:
        """The groups of this process, not recovered yet."""
        for number in self.membership.groups_of(self.membership.me):
            wal, catalog = self._stores(number)
            self._owned[number] = maker.make(number, NullLog() if wal is None else wal, wal, catalog, _report)
        return Engine(self._owned, self.groups_count, maker.clock, self.calls)

    def _stores(self, group: int) -> tuple[Wal | None, Catalog]:
        settings = self._settings
        if settings.memory:
            return None, SqliteCatalog(None)
        wal = Wal(self._data.wal(group), settings.log_file_bytes, settings.disk_sync_ms)
        path = self._data.catalog(group)
        try:
            return wal, SqliteCatalog(path)
        except sqlite3.Error as error:
            raise CannotStart(f"the catalog {path} cannot be opened: {error}") from None

    def recover(self, subscriptions: Manager) -> None:
        """On return all groups are served. Raises CannotStart, LogCorrupt, LogContradiction."""
        for owned in self._owned.values():
            self._recover(owned)
        subscriptions.start()
        for owned in self._owned.values():
            owned.start()
        gc.collect()
        gc.freeze()  # what recovery built is long-lived: the collector need not walk it again

    def _recover(self, owned: OwnedGroup) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            count = owned.recover()
        except OSError as error:
            where = self._data.wal(owned.number)
            why = f"the log in {where} cannot be opened: {error.strerror or error}; make room, or look at the disk"
            raise CannotStart(why) from None
        if count:
            took_s = round(loop.time() - began_s, 3)
            streams_count = len(owned.group.loaded.by_key)
            log.info("recovered", group=owned.number, events=count, streams=streams_count, seconds=took_s)

    async def open(
        self,
        http: HttpServer,
        internal: Callable[[], HttpServer],
        s3p: S3pServer | None,
        admin: HttpServer | None = None,
    ) -> None:
        """Other processes of the node may ask, send on and hand over from now on."""
        members = self.membership
        if members.alone:
            return
        self._internal = internal()
        await self._internal.listen_unix(members.http_path(members.me))
        self.handover = Handover(members)
        accepting: dict[str, Factory] = {"http": http.accept}
        if s3p is not None:
            await s3p.listen_unix(members.s3p_path(members.me))
            accepting["s3p"] = s3p.accept
        if admin is not None:
            accepting["admin"] = admin.accept
        self.handover.open(accepting)

    async def listen(
        self,
        server: HttpServer | S3pServer,
        kind: str,
        host: str,
        port: int,
        owner: Callable[[bytes], int | None],
        secure: SecureDoor | None = None,
    ) -> int:
        """Clients may come from now on; returns the port. `owner` tells whose a connection is by its first bytes: with
        TLS they tell nothing, and a connection is served where it was accepted.

        Raises OSError.
        """
        if secure is not None:
            if self.handover is None:
                listening, port = listen(host, port)
            else:
                listening = [socket.socket(fileno=descriptor) for descriptor in self._sockets[kind]]
            for sock in listening:
                secure.listen(sock)
            server.begin(secure)
            return port
        if self.handover is None:
            return await server.listen(host, port)
        door = Door(owner, server.accept)
        sockets = [socket.socket(fileno=descriptor) for descriptor in self._sockets[kind]]
        server.begin(*(Acceptor(listening, kind, door, self.handover) for listening in sockets))
        return port

    async def serve(self) -> None:
        """All groups are served already."""

    async def leave(self) -> None:
        """Nobody else could serve them."""

    async def close_doors(self, grace_s: float) -> None:
        """Called when clients' doors are closed: what their clients still waited for may have been served here."""
        if self.handover is not None:
            self.handover.close()
        if self._internal is not None:
            await self._internal.close(grace_s)

    async def stop(self) -> None:
        for owned in self._owned.values():
            await owned.stop()
        if self.calls is not None:
            self.calls.close()


def _report(what: str, why: str) -> None:
    if what == "log":
        log.critical("the log failed: this node acknowledges nothing any more", error=why)
    else:
        log.error(what, error=why)
