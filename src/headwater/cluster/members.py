"""Which process owns which group, and where it listens for the others.

Owns the map from groups to members, and connections over their sockets. See `membership`.

A member is a process that owns groups: a worker beside others on one machine. Members are numbered from 0; a group's
owner is fixed while they run. Each listens on Unix sockets in a directory that only the user may enter:

    member-<n>.http     requests that were forwarded, and calls between members
    member-<n>.s3p      the same for S3P, if that door is open
    member-<n>.fds      sockets of clients whose first request is for one of its groups
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from headwater.cluster.membership import HTTP


class Members:
    version = 0

    def __init__(self, me: int, members_count: int, groups_count: int, directory: Path) -> None:
        self.me = me
        self.count = members_count
        self.groups_count = groups_count
        self.alone = members_count == 1
        self.everyone = range(members_count)
        self.on_change: list[Callable[[], None]] = []
        """Never called: nothing changes."""
        self.directory = directory

    def owner(self, group: int) -> int:
        return group % self.count

    async def wait_for_owner(self, group: int) -> int:
        return self.owner(group)

    def groups_of(self, member: int) -> list[int]:
        return list(range(member, self.groups_count, self.count))

    def public_address(self, member: int) -> str | None:
        """None: workers share their address."""
        return None

    async def connect(self, member: int, door: str, protocol: asyncio.Protocol) -> asyncio.Transport:
        """See `Membership`."""
        path = self.http_path(member) if door == HTTP else self.s3p_path(member)
        transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: protocol, path)
        return transport

    def http_path(self, member: int) -> str:
        return str(self.directory / f"member-{member}.http")

    def s3p_path(self, member: int) -> str:
        return str(self.directory / f"member-{member}.s3p")

    def sockets_path(self, member: int) -> str:
        return str(self.directory / f"member-{member}.fds")
