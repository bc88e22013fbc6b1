"""Producers: how a client numbers its writes, so that the server recognises one that is sent again.

Owns the numbers and who may use them: one write of a producer is under way at a time, because the server takes seq
n + 1 only after seq n. Never sends.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from typing import NamedTuple

from headwater.client.forks import tell_after_fork

PRODUCERS_MAX = 10_000
"""Streams and topics for which one client keeps a producer. Beyond, the one made first is forgotten."""


class Stamp(NamedTuple):
    """What makes one write recognisable."""

    id: str
    epoch: int
    seq: int


class Producer:
    """Numbers the writes to one stream or topic.

    A client makes its own with a random id, which is right unless several runs of a program write the same data. For
    these give an id that stays, and numbers that follow from the data:

        orders = hw.stream("orders", producer=Producer("import-2026", seq=0))

    The writes of a second run with the same id, epoch and seq are recognised and not stored again. So a program that
    writes *other* data after a restart must raise `epoch`; it thereby shuts out what is left of its former run.

    A process that is forked gets a random id of its own. One that was chosen stays: only one process may use it then.
    """

    def __init__(self, id: str | None = None, *, epoch: int = 0, seq: int = 0) -> None:
        self.given = id is not None
        """Whether the caller chose the id. The numbers of such a producer are never changed behind his back."""
        self.id = id if id is not None else _random_id()
        self.epoch, self.seq = epoch, seq
        self._new_locks()
        tell_after_fork(self)

    def _new_locks(self) -> None:
        self.lock = threading.Lock()
        self._async_lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def async_lock(self) -> asyncio.Lock:
        """That of the running loop. Only one loop at a time uses a producer."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._async_lock, self._loop = asyncio.Lock(), loop
        return self._async_lock

    def forked(self) -> None:
        self._new_locks()
        if not self.given:
            self.id, self.epoch, self.seq = _random_id(), 0, 0

    def stamp(self) -> Stamp:
        return Stamp(self.id, self.epoch, self.seq)

    def accepted(self) -> None:
        """The server has the write with the present numbers."""
        self.seq += 1

    def renew(self) -> None:
        """Nobody knows whether the server has the write with the present numbers, so they are not used again.

        In the next epoch the former write is refused too, should it be still on its way.
        """
        self.epoch, self.seq = self.epoch + 1, 0


def _random_id() -> str:
    return f"hw-{secrets.token_hex(8)}"


class Producers:
    """The producers of one client, one for each stream and each topic that it writes to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Producer] = {}
        tell_after_fork(self)

    def forked(self) -> None:
        self._lock = threading.Lock()

    def of(self, door: str, name: str) -> Producer:
        """Always the same for the same door and name, while it is known.

        Two doors never share one: `orders` as a stream and as a topic may be the same stream on the server.
        """
        with self._lock:
            found = self._known.get((door, name))
            if found is None:
                while len(self._known) >= PRODUCERS_MAX:
                    self._known.pop(next(iter(self._known)))
                found = self._known[door, name] = Producer()
            return found
