"""Commands and connections of clients where there are limits: the way of `http/limited` over S3P.

Owns what is counted of one connection. Never counts itself: `security.limits` does. A command counts as a request, and
so does each APPEND that is submitted together with the one before it.
"""

from __future__ import annotations

from headwater.doors.s3p.caller import Caller
from headwater.doors.s3p.commands import Append, Auth, Command, Read
from headwater.doors.s3p.replies import Code
from headwater.doors.s3p.replies import Failure as Refusal
from headwater.errors import Failure, TooManyConnections
from headwater.security.limits import Account, Limits

HOLD_S = 1.0
_STEPS = 64


class Limited:
    """Of one connection."""

    __slots__ = ("_accounts", "_address", "_caller", "_charged", "_followed", "_limits")

    def __init__(self, limits: Limits, caller: Caller | None) -> None:
        self._limits = limits
        self._caller = caller
        self._address: Account | None = None
        self._accounts: tuple[Account | None, Account | None] = (None, None)
        """Of the address, and of whom the last command was done for: they are charged for what is sent."""
        self._charged: Command | Auth | None = None
        """The command that was counted last, unless it was an APPEND: one that has to wait is asked for again."""
        self._followed: tuple[Account | None, Account | None] | None = None
        """Whose READ waits for records, or has: it holds the connection, so it has ended when another command comes."""

    def may_stay(self, peer: str) -> bool:
        """Counts the connection for its address. False: it is to be cut."""
        address = self._limits.of_address(peer)
        if self._limits.connected(address):
            self._address = address
            self._accounts = (address, None)
        return self._address is not None

    def greeting(self) -> Refusal | None:
        """What a client is told at once whose address has a connection too many."""
        limits = self._limits
        if self._address is None or not limits.has_too_many(self._address):
            return None
        return Refusal(Code.LIMITS, TooManyConnections(limits.address_caps.connections_max).message())

    def refusal(self, command: Command | Auth) -> Failure | None:
        """Why a command may not begin; None when it may, and is counted. Asked again for the same one, it is not."""
        if command is self._charged:
            return None
        limits, caller, address = self._limits, self._caller, self._address
        if address is None:
            return None  # it is being cut
        self.ended()
        self._accounts = accounts = (address, limits.of_principal(None if caller is None else caller.principal))
        refused: Failure | None = limits.begin(*accounts, _size(command))
        if refused is None and isinstance(command, Read) and command.block_ms and limits.counts_followers:
            refused = limits.follow(accounts)
            self._followed = accounts if refused is None else None
        self._charged = None if refused is not None or isinstance(command, Append) else command
        return refused

    def joined(self, counts: list[int], records: list[bytes]) -> None:
        """APPENDs were begun together with the last one, which is the first of them: how many records each has."""
        if len(counts) > 1:
            self._limits.take(self._accounts, len(counts) - 1, sum(map(len, records[counts[0] :])))

    def sent(self, size_bytes: int) -> None:
        if self._limits.meters_bytes:
            self._limits.take(self._accounts, 0, size_bytes)

    def held_s(self) -> float:
        """How long a connection is held whose command was refused."""
        self._limits.held_count += 1
        return HOLD_S * (1 + self._limits.held_count % _STEPS / _STEPS)

    def ended(self) -> None:
        """The command that held the connection is done."""
        followed, self._followed = self._followed, None
        if followed is not None:
            self._limits.followed(followed)

    def close(self) -> None:
        self.ended()
        if self._address is not None:
            self._address.connections -= 1
            self._address = None


def _size(command: Command | Auth) -> int:
    return sum(map(len, command.records)) if isinstance(command, Append) else 0
