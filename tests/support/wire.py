"""The way between processes that run in one event loop: questions are encoded as between real ones, without sockets.
A test may cut it, hold answers back or lose them; what is asked is decided elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

from headwater.cluster.calls import Calls
from headwater.cluster.members import Members
from headwater.errors import Failure, MemberUnavailable, OutcomeUnknown

FAULT = 500
"""The status of a question whose answer failed for a reason that is no refusal."""


class Wire:
    def __init__(self) -> None:
        self.running: dict[int, WiredQuestions] = {}
        """The processes that can be asked."""
        self.cut: set[int] = set()
        """Processes that cannot be reached."""
        self.gates: dict[str, asyncio.Event] = {}
        """By question: its answers wait on their way back until this is set."""
        self.losing: set[str] = set()
        """Questions whose answers are lost on their way back, until their names are taken out."""
        self.asked: list[tuple[int, int, str]] = []
        """(from, to, question), in order."""
        self.under_way: dict[int, set[asyncio.Task[Any]]] = {}
        """What each process is asked and has not answered."""


class WiredQuestions(Calls):
    """`Calls` whose requests go over a wire."""

    def __init__(self, wire: Wire, members: Members) -> None:
        super().__init__(members)
        self._wire = wire
        self.away: dict[int, type[Failure]] = {}
        """Processes that cannot be reached from here alone, and how that shows."""

    @property
    def asked(self) -> list[str]:
        """What this process asked others, in order."""
        return [name for asker, _, name in self._wire.asked if asker == self.me]

    def listen(self) -> None:
        self._wire.running[self.me] = self

    async def _post(self, member: int, name: str, body: bytes) -> tuple[int, bytes]:
        wire, away = self._wire, self.away.get(member)
        if member not in wire.running or {member, self.me} & wire.cut or away is MemberUnavailable:
            raise MemberUnavailable(member)
        wire.asked.append((self.me, member, name))
        task = asyncio.ensure_future(wire.running[member].answer(name, body))
        wire.under_way.setdefault(member, set()).add(task)
        try:
            answered = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise OutcomeUnknown(member) from None
            task.cancel()
            raise
        except Exception:
            answered = FAULT, b""
        finally:
            wire.under_way[member].discard(task)
        if name in wire.gates:
            await wire.gates[name].wait()
        if name in wire.losing or {member, self.me} & wire.cut or away is OutcomeUnknown:
            raise OutcomeUnknown(member)
        return answered
