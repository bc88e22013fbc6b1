"""Deliveries without an order, for tests of those who are told."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from headwater.doors.http.topics.watchers import Watchers
from headwater.engine.engine import Engine
from headwater.topics.priorities import Priorities


class AtOnce:
    def mark(self, id: Hashable, priority: int, deliver: Callable[[], object]) -> None:
        deliver()

    def discard(self, id: Hashable) -> None: ...


def told_at_once(engine: Engine) -> Watchers:
    return Watchers(engine, AtOnce(), Priorities(engine.clock))
