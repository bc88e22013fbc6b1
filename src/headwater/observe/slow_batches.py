"""Has slow batches of every group of a process told, of those that come later too.

Owns who is told. Never decides what is slow, or what is said of it: the settings and `doors.http.watch` do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from headwater.engine.batch_times import SlowBatch

if TYPE_CHECKING:
    from headwater.engine.engine import Engine
    from headwater.engine.owned_group import OwnedGroup


class Told(Protocol):
    @property
    def slow_s(self) -> float: ...

    def slow_batch(self, group: int, batch: SlowBatch) -> None: ...


def tell_slow_batches(engine: Engine, told: Told) -> None:
    listener = _Listener(told)
    engine.listeners.append(listener)
    for owned in engine.owned.values():
        listener.entered(owned)


class _Listener:
    """Of the engine."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def entered(self, owned: OwnedGroup) -> None:
        batches = owned.group.batches
        batches.slow_s = self._told.slow_s
        batches.on_slow = partial(self._told.slow_batch, owned.number)

    def left(self, owned: OwnedGroup) -> None:
        """Its last batches may be slow, too."""
