"""What a node with TLS adds to its doors: one certificate for all of them, looked after while the node runs.

Owns how often its files are looked at. Never wires a door to its protocol: `node` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from headwater.config import Settings
from headwater.doors.http.connection import Connection as HttpConnection
from headwater.doors.http.respond import Responder
from headwater.doors.http.server import HttpServer
from headwater.doors.s3p import replies
from headwater.doors.s3p.server import S3pServer
from headwater.doors.secure_door import SecureDoor
from headwater.errors import BadRequest
from headwater.security.certificates import TlsRefused
from headwater.security.guard import Guard
from headwater.security.principals import CERTIFICATE, Principal
from headwater.security.tls import HTTP, S3P, ServerTls
from headwater.start_refused import CannotStart

LOOK_S = 1.0
"""How often the files are looked at: three calls of `stat`."""
PLAIN_HTTP = "this address is served with TLS: write https:// instead of http://"
PLAIN_S3P = "this address is served with TLS"

log = structlog.get_logger("headwater.tls")


class TlsDoors:
    """Raises CannotStart."""

    def __init__(self, settings: Settings, responder: Responder, guard: Guard) -> None:
        try:
            self.tls = ServerTls(settings, lambda event, facts: log.warning(event, **facts))
        except TlsRefused as why:
            raise CannotStart(str(why)) from None
        self._guard = guard
        self._servers: list[HttpServer | S3pServer] = []
        self.tls.on_change.append(self._judge_again)
        self._timeout_s = settings.tls_handshake_timeout_ms / 1000
        self._responder = responder
        self.doors: list[SecureDoor] = []
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def http(self, server: HttpServer) -> SecureDoor:
        return self._door(server, HTTP, lambda: self._responder.failure(BadRequest(PLAIN_HTTP), keep_alive=False))

    def s3p(self, server: S3pServer) -> SecureDoor:
        return self._door(server, S3P, lambda: replies.error(replies.Code.BAD_FORMAT, PLAIN_S3P))

    def look_again(self) -> None:
        """Has the files read now, whether or not they have changed."""
        self.tls.check(again=True)

    def stop(self) -> None:
        self._watching.cancel()

    def _door(self, server: HttpServer | S3pServer, kind: str, plain_answer: Callable[[], bytes]) -> SecureDoor:
        self._servers.append(server)
        if self.tls.loaded.certificates is not None:
            server.admitted = self._admitted
        door = SecureDoor(server.accept, partial(self.tls.context, kind), plain_answer, self._timeout_s)
        self.doors.append(door)
        return door

    def _admitted(self, certificate: bytes | None) -> Principal | None:
        scopes = self.tls.loaded.certificates
        return None if scopes is None else scopes.principal(certificate)

    def _judge_again(self) -> None:
        """What subjects may do may be something else now, also for those who are connected."""
        scopes = self.tls.loaded.certificates
        if scopes is None:
            return
        for server in self._servers:
            for connection in server.connections:
                holder = connection.identity if isinstance(connection, HttpConnection) else connection.caller
                if holder is not None and holder.admitted is not None:
                    holder.admitted = scopes.again(holder.admitted)
        self._guard.forget((CERTIFICATE,))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.tls.check()
