"""Which process owns which group, and where it listens for the others.

Owns the map from groups to members. Never connects.

A member is a process that owns groups: a worker beside others on one machine. Members are numbered from 0; a group's
owner is fixed while they run. Each listens on two Unix sockets in a directory that only the user may enter:

    member-<n>.http     requests that were forwarded, and calls between members
    member-<n>.s3p      the same for S3P, if that door is open
    member-<n>.fds      sockets of clients whose first request is for one of its groups
"""

from __future__ import annotations

from pathlib import Path


class Members:
    def __init__(self, me: int, members_count: int, groups_count: int, directory: Path) -> None:
        self.me = me
        self.count = members_count
        self.groups_count = groups_count
        self._directory = directory

    def owner(self, group: int) -> int:
        return group % self.count

    def groups_of(self, member: int) -> list[int]:
        return list(range(member, self.groups_count, self.count))

    @property
    def others(self) -> list[int]:
        return [member for member in range(self.count) if member != self.me]

    def http_path(self, member: int) -> str:
        return str(self._directory / f"member-{member}.http")

    def s3p_path(self, member: int) -> str:
        return str(self._directory / f"member-{member}.s3p")

    def sockets_path(self, member: int) -> str:
        return str(self._directory / f"member-{member}.fds")
