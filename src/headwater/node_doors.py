"""The addresses of a process of a node: what is listened on, with TLS or without, and whose a new connection is.

Owns the order in which doors open, and the node's certificate. Never serves anything: the doors' servers do.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from headwater.cluster_groups import ClusterGroups
from headwater.config import Settings
from headwater.doors.http.first_request import group_of_first
from headwater.doors.http.respond import Responder
from headwater.doors.http.server import HttpServer
from headwater.doors.s3p.names import first_owner
from headwater.doors.s3p.server import S3pServer
from headwater.doors.secure_door import SecureDoor
from headwater.doors.tls_doors import TlsDoors
from headwater.engine.engine import Engine
from headwater.local_groups import LocalGroups
from headwater.security.guard import Guard
from headwater.setting_values import shown_address
from headwater.start_refused import CannotStart

HTTP, S3P, ADMIN = "http", "s3p", "admin"

log = structlog.get_logger("headwater")


class NodeDoors:
    """Raises CannotStart."""

    def __init__(
        self,
        settings: Settings,
        groups: LocalGroups | ClusterGroups,
        engine: Engine,
        responder: Responder,
        guard: Guard,
    ) -> None:
        self._groups = groups
        self._engine = engine
        self._name_bytes_max = settings.stream_name_bytes_max
        self.tls = TlsDoors(settings, responder, guard) if settings.tls else None

    async def open_admin(self, server: HttpServer, address: tuple[str, int]) -> None:
        """Who asks for the node's own calls may come. Raises CannotStart."""
        shown = await self.open_http(server, address, ADMIN, "another --admin-listen, or --admin-listen off")
        if self._groups.workers_count == 1:
            log.info("admin ready", address=shown)

    async def open_http(
        self, server: HttpServer, address: tuple[str, int], kind: str = HTTP, instead: str = "another --listen"
    ) -> str:
        """Clients may come; returns HOST:PORT. Raises CannotStart."""
        engine, name_bytes_max = self._engine, self._name_bytes_max

        def owner(first: bytes) -> int | None:
            group = group_of_first(first, engine, name_bytes_max)
            return None if group is None else engine.questions.owner(group)

        secure = None if self.tls is None else self.tls.http(server)
        return await self._open(server, kind, address, owner, instead, secure)

    async def open_s3p(self, server: S3pServer, address: tuple[str, int]) -> None:
        """The same for S3P."""
        engine = self._engine

        def owner(first: bytes) -> int | None:
            key = first_owner(first)
            return None if key is None else engine.questions.owner(engine.place(key))

        secure = None if self.tls is None else self.tls.s3p(server)
        shown = await self._open(server, S3P, address, owner, "another --s3p, or --s3p off", secure)
        if self._groups.workers_count == 1:
            log.info("s3p ready", address=shown)

    def hang_up(self) -> None:
        if self.tls is not None:
            self.tls.look_again()
        else:
            log.info("nothing is read again on SIGHUP: there is no certificate")

    def stop(self) -> None:
        if self.tls is not None:
            self.tls.stop()

    async def _open(
        self,
        server: HttpServer | S3pServer,
        kind: str,
        address: tuple[str, int],
        owner: Callable[[bytes], int | None],
        instead: str,
        secure: SecureDoor | None,
    ) -> str:
        host, port = address
        try:
            port = await self._groups.listen(server, kind, host, port, owner, secure)
        except OSError as error:
            where = shown_address(host, port)
            raise CannotStart(f"cannot listen on {where}: {error.strerror}; choose {instead}") from None
        return shown_address(host, port)
