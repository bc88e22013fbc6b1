"""Owns what an S3P client can ask for, as values, and the limits within which it may.
Never holds bytes of framing: a command that exists has been checked against the schema and the limits."""

import msgspec

TOKEN_BYTES_MAX = 16 * 1024
"""Of what AUTH brings."""


class Limits(msgspec.Struct, frozen=True):
    """Section 11 of the spec, apart from what concerns connections.

    Raises ValueError when they would leave no valid request.
    """

    name_bytes_max: int
    count_default: int
    count_max: int
    block_ms_max: int
    records_max: int
    record_bytes_max: int
    append_bytes_max: int
    auth: bool = False
    """Clients may say who they are (AUTH)."""

    def __post_init__(self) -> None:
        sizes = (self.name_bytes_max, self.records_max, self.record_bytes_max, self.append_bytes_max)
        if min(sizes) < 1 or self.block_ms_max < 0 or not 1 <= self.count_default <= self.count_max:
            raise ValueError(f"these limits leave no valid request: {self}")


# gc=False: a command holds only ints and bytes, so it can be in no cycle and the collector need not visit it.


class Create(msgspec.Struct, frozen=True, gc=False):
    name: bytes


class Append(msgspec.Struct, frozen=True, gc=False):
    """At least one record, none of them empty. `ms` is the client's timestamp when it gave one."""

    name: bytes
    records: list[bytes]
    ms: int | None


class Read(msgspec.Struct, frozen=True, gc=False):
    """Records from `(min_ms, min_n)` on, itself included. `count` and `block_ms` are within the limits."""

    name: bytes
    count: int
    block_ms: int
    min_ms: int
    min_n: int


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Everything strictly before `(min_ms, min_n)` goes."""

    name: bytes
    min_ms: int
    min_n: int


class Delete(msgspec.Struct, frozen=True, gc=False):
    name: bytes


class Auth(msgspec.Struct, frozen=True, gc=False):
    """Of this server, where authentication is on: no client of the plain specification sends it."""

    token: bytes
    name: bytes = b"AUTH"

    def __repr__(self) -> str:
        return "Auth(...)"


Command = Create | Append | Read | Trim | Delete


class Placed(msgspec.Struct, frozen=True):
    """A command of another member, whose stream lives in a group of this one although its name's home is there."""

    command: Command
    group: int
    version: int
    """Of the placement that it was sent by. See `engine.placements`."""

    @property
    def name(self) -> bytes:
        return self.command.name
