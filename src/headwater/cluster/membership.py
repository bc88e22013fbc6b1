"""What the rest of the cluster's code needs to know of the processes that serve groups, and how it reaches them.

Owns this contract. Never says who they are: workers of one machine are `members.Members`, nodes of a cluster are
`peers.Peers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

HTTP, S3P = "http", "s3p"
"""The doors of a process that others connect to."""


class Membership(Protocol):
    """Processes that serve groups, by number. A process that is one of several is never `alone`."""

    @property
    def me(self) -> int: ...

    @property
    def alone(self) -> bool:
        """There is no other process, and there never will be."""
        ...

    @property
    def everyone(self) -> Sequence[int]:
        """The processes that are there now, this one among them, in ascending order."""
        ...

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Called after `everyone` or the owner of a group may have changed."""
        ...

    @property
    def groups_count(self) -> int: ...

    @property
    def version(self) -> int:
        """Another number whenever the owner of any group has changed."""
        ...

    def owner(self, group: int) -> int:
        """The process that serves a group. Raises MemberUnavailable when there is none now."""
        ...

    async def wait_for_owner(self, group: int) -> int:
        """The same, and waits a while when there is none. Raises MemberUnavailable."""
        ...

    def groups_of(self, member: int) -> list[int]:
        """The groups that a process serves now, in ascending order."""
        ...

    def public_address(self, member: int) -> str | None:
        """HOST:PORT where clients reach a process's HTTP door; None when that is the same for all."""
        ...

    async def connect(self, member: int, door: str, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Connects `protocol` to another process's door: on return its `connection_made` was called, and the bytes that
        it writes are the first which that door sees. Raises OSError: then `protocol` was given no connection, and
        nothing of it was sent."""
        ...
