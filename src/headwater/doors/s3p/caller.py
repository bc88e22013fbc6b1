"""Who an S3P connection is for, and which of its commands may be done.

Owns the AUTH command's effect and the rules of the commands. Never writes a reply. A connection without one is asked
nothing: authentication and the audit log are off, or another member forwards on it what was judged there.

    AUTH <key or token>     +OK, and what comes after it is done in that name; as often as the client likes
"""

from __future__ import annotations

from typing import Final

from headwater.doors.s3p.commands import Append, Auth, Command, Create, Delete, Read, Trim
from headwater.doors.s3p.names import key_of
from headwater.errors import AccessUnknown, Failure, Forbidden, NotAuthenticated, row
from headwater.security.guard import Guard
from headwater.security.principals import EVERYONE, NOBODY, PUBLIC, Action, Asked, Need, Principal, Trail

RULES: Final[dict[type, Action]] = {
    Create: Action.CREATE,
    Append: Action.APPEND,
    Read: Action.READ,
    Trim: Action.MANAGE,
    Delete: Action.MANAGE,
}
"""What each command needs on its stream. A command that is not here is refused."""
_ALLOWED_MAX = 1_024


class Caller:
    __slots__ = (
        "_allowed",
        "_audit",
        "_authorization",
        "_epoch",
        "_guard",
        "_refused",
        "admitted",
        "principal",
    )

    def __init__(self, guard: Guard, audit: Trail | None = None) -> None:
        self._guard = guard
        self._audit = audit
        self._authorization: bytes | None = None
        self._epoch = 0
        """The guard's, when the credential was judged last."""
        self._refused: Failure | None = None
        """Why the credential does not hold."""
        self._allowed: dict[bytes, int] = {}
        """Actions that were allowed in this epoch, by the stream's name. Overflow: all are judged again."""
        self.admitted: Principal | None = None
        """Whom the connection itself is for, such as a client's certificate, when it brings no other credential."""
        self.principal: Principal = NOBODY if guard.on else EVERYONE

    @classmethod
    def of(cls, guard: Guard, audit: Trail | None) -> Caller | None:
        """Of a new connection; None where nobody is asked, and nothing is told."""
        return cls(guard, audit) if guard.on or audit is not None else None

    def judged(self, command: Auth | Command, address: str) -> Failure | None:
        """The refusal, if it is one; the audit log is told of it, by the client's address, and of a deletion."""
        refused = self.authenticate(command) if isinstance(command, Auth) else self.refusal(command)
        if self._audit is not None and (refused is not None or type(command) is Delete):
            self._tell(self._audit, command, address, refused)
        return refused

    def _tell(self, audit: Trail, command: Auth | Command, address: str, refused: Failure | None) -> None:
        if refused is None:
            # It is done now, here or by another process.
            audit.allowed(Asked("s3p", address, self.principal), "stream.delete", key_of(command.name))
        elif not isinstance(refused, AccessUnknown):
            needs = refused.needed if isinstance(refused, NotAuthenticated | Forbidden) else ""
            asked = Asked("s3p", address, self.principal if needs else None)
            what = "" if isinstance(command, Auth) else command.name.decode("utf-8", "replace")
            audit.denied(asked, type(command).__name__.lower(), what, row(refused).code, needs)

    def authenticate(self, command: Auth) -> Failure | None:
        """The refusal, if it is one: then the connection has no credential any more."""
        self._authorization = b"Bearer " + command.token
        self._judge()
        refused = self._refused
        if refused is not None:
            self._authorization, self._epoch = None, 0
        return refused

    def refusal(self, command: Command) -> Failure | None:
        """Why a command may not be done; None when it may."""
        if self._epoch != self._guard.epoch:
            self._judge()
        name, action = command.name, RULES.get(type(command))
        if action is None:
            return Forbidden("another command")
        known = self._allowed.get(name, 0)
        if known & action:
            return None
        if self._refused is not None:
            return self._refused
        need = Need(action, key_of(name))
        if not self.principal.meets(need):
            return NotAuthenticated(need.shown()) if self.principal.kind == PUBLIC else Forbidden(need.shown())
        if len(self._allowed) >= _ALLOWED_MAX:
            self._allowed.clear()
        self._allowed[name] = known | action
        return None

    def _judge(self) -> None:
        self._epoch = self._guard.epoch
        self._allowed.clear()
        self._refused, self.principal = None, NOBODY
        if self._authorization is None and self.admitted is not None:
            if self._guard.holds(self.admitted):
                self.principal = self.admitted
            return
        try:
            self.principal = self._guard.principal(self._authorization)
        except Failure as failure:
            self._refused = failure
