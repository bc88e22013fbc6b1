"""What a process that was forked must not share with the one it came from: connections, locks, producers' numbers.

Owns who is told. Two processes on one connection read each other's answers, and of two writes with one number the
server stores one.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    def forked(self) -> None:
        """Called in the new process before anything else of it runs."""


_told: WeakSet[Forked] = WeakSet()


def tell_after_fork(one: Forked) -> None:
    _told.add(one)


def _in_child() -> None:
    for one in list(_told):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
