"""What is told in the audit log, the stream `_headwater/audit`: who changed or ended what, and who was refused.

Owns the records, and how many of them there may be: whoever asks more often than that is counted. Never appends any
(`audit_writer` does), and never holds a credential, a query or a body.

    note -> of this second, by what they have in common -> gathered once a second: encoded -> taken, appended -> given

A record is one JSON object. What a client wrote into it is printable, and short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from headwater.model import moments
from headwater.observe.log_lines import escaped
from headwater.ports import Clock, Rng
from headwater.security.principals import Asked

DONE, DENIED, FAILED, ALLOWED = "done", "denied", "failed", "allowed"
"""Failed: the server answered with a fault of its own, and it may have been done or not. Allowed: that it was begun is
all that is known here."""
WHAT_CHARS_MAX, DENIED_CHARS_MAX, NAME_CHARS_MAX = 1_200, 200, 200
WAITING_MAX = 10_000
"""Records that are not appended yet. Overflow: the oldest of them are lost, and counted."""
MANAGEMENT_MAX, MANAGEMENT_PER_S = 1_000, 20.0
DELETIONS_MAX, DELETIONS_PER_S = 1_000, 5.0
DENIALS_MAX, DENIALS_PER_S = 100, 1.0
"""Records at once, and in the long run, in each process. Overflow: they are counted, and one record a second says how
many they were. Refusals alone make 2 records a second at most in the long run, about 70 MB a day."""
_DATA = ("stream.", "topic.")
"""Actions on data begin so: programs may do them all day."""


class _Record:
    """Something that happened once, or several times within a second."""

    __slots__ = ("at_ms", "count", "facts", "last_ms")

    def __init__(self, at_ms: int, facts: dict[str, Any]) -> None:
        self.at_ms = self.last_ms = at_ms
        self.count = 1
        self.facts = facts


class _Budget:
    """How many records there may be."""

    __slots__ = ("_at_s", "_left", "_most", "_per_s", "more_count")

    def __init__(self, most: int, per_s: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = float(most)
        self._at_s = 0.0
        self.more_count = 0
        """What there was no room for, since that was told last."""

    def takes(self, now_s: float) -> bool:
        self._left = min(self._most, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            self.more_count += 1
            return False
        self._left -= 1
        return True


class Audit:
    """Of one process. A `Trail`."""

    def __init__(self, clock: Clock, rng: Rng, node: str) -> None:
        """`node` says which process it is."""
        self._clock = clock
        self._run = rng.token(6).hex()
        """Ids of records begin with it."""
        self._node = node
        self._number = 0
        self._now: dict[tuple[str, ...], _Record] = {}
        """Of this second. Bounded by the budgets."""
        self._budgets = {
            "management": _Budget(MANAGEMENT_MAX, MANAGEMENT_PER_S),
            "deletions": _Budget(DELETIONS_MAX, DELETIONS_PER_S),
            "denied": _Budget(DENIALS_MAX, DENIALS_PER_S),
        }
        self._waiting: deque[bytes] = deque()
        self.on_noted: Callable[[], None] = lambda: None
        """Called when there is something to be taken."""
        self.noted_count = 0
        self.coalesced_count = 0
        """Of those, what has no record of its own."""
        self.lost_count = 0
        """Records that could not be appended for so long that there was no room for them."""
        self._lost_told = 0

    @property
    def waiting_count(self) -> int:
        return len(self._now) + len(self._waiting)

    # ---- noting -------------------------------------------------------------------------------------------------

    def done(self, asked: Asked, action: str, what: str, status: int) -> None:
        """Something was asked for that is not data, and answered: with 2xx, or a fault of this server."""
        self._done(asked, action, what, DONE if status < 500 else FAILED, str(status))

    def allowed(self, asked: Asked, action: str, what: str) -> None:
        """See `Trail`."""
        self._done(asked, action, what, ALLOWED, "")

    def _done(self, asked: Asked, action: str, what: str, outcome: str, code: str) -> None:
        facts = self._facts(asked, action, _short(what, WHAT_CHARS_MAX), outcome, code)
        budget = "deletions" if action.startswith(_DATA) else "management"
        self._note((*_who(asked), action, outcome, facts["what"]), facts, self._budgets[budget])

    def denied(self, asked: Asked, action: str, what: str, code: str, needs: str = "") -> None:
        """See `Trail`. Refusals that differ in `what` alone are one record."""
        facts = self._facts(asked, action, _short(what, DENIED_CHARS_MAX), DENIED, code)
        if needs:
            facts["needs"] = _short(needs, DENIED_CHARS_MAX)
        self._note((*_who(asked), action, code), facts, self._budgets["denied"])

    def _note(self, key: tuple[str, ...], facts: dict[str, Any], budget: _Budget) -> None:
        now_ms = self._clock.now_ms()
        self.noted_count += 1
        found = self._now.get(key)
        if found is not None:
            found.count += 1
            found.last_ms = now_ms
            self.coalesced_count += 1
        elif budget.takes(self._clock.monotonic_s()):
            self._now[key] = _Record(now_ms, facts)
        else:
            self.coalesced_count += 1
        self.on_noted()

    @staticmethod
    def _facts(asked: Asked, action: str, what: str, outcome: str, code: str) -> dict[str, Any]:
        principal = asked.principal
        return {
            "action": _short(action, NAME_CHARS_MAX),
            "what": what,
            "outcome": outcome,
            "code": code,
            "who_kind": "unknown" if principal is None else principal.kind,
            "who_id": "" if principal is None else _short(principal.id, NAME_CHARS_MAX),
            "who": "" if principal is None else _short(principal.name, NAME_CHARS_MAX),
            "address": _short(asked.address, NAME_CHARS_MAX),
            "door": asked.door,
            "request_id": asked.request_id,
        }

    # ---- taking -------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Ends the second: what was noted has its records, which may be taken."""
        now, self._now = self._now, {}
        for one in now.values():
            self._keep(one.at_ms, one.facts, one.count, one.last_ms)
        for kind, budget in self._budgets.items():
            if budget.more_count:
                count, budget.more_count = budget.more_count, 0
                self._keep_own("more", kind, count)
        if self.lost_count > self._lost_told and len(self._waiting) < WAITING_MAX:
            count, self._lost_told = self.lost_count - self._lost_told, self.lost_count
            self._keep_own("lost", "records of this log that could not be appended", count)

    def take(self, count_max: int) -> list[bytes]:
        """The oldest records that were gathered. They stay until they are `given`."""
        return list(islice(self._waiting, count_max))

    def given(self, records: list[bytes]) -> None:
        """They are durable, and not told again."""
        waiting = self._waiting
        for record in records:
            if waiting and waiting[0] is record:  # others were lost meanwhile
                waiting.popleft()

    def _keep_own(self, action: str, what: str, count: int) -> None:
        now_ms = self._clock.now_ms()
        outcome = DENIED if what == "denied" else DONE
        facts = self._facts(Asked("server", "", None), action, what, outcome, "")
        self._keep(now_ms, {**facts, "who_kind": "server"}, count, now_ms)

    def _keep(self, at_ms: int, facts: dict[str, Any], count: int, last_ms: int) -> None:
        self._number += 1
        told = {
            "id": f"{self._run}-{self._number}",
            "at": moments.show(at_ms),
            **facts,
            "count": count,
            "last_at": moments.show(last_ms),
            "node": self._node,
        }
        self._waiting.append(msgspec.json.encode(told))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self.lost_count += 1


def _who(asked: Asked) -> tuple[str, ...]:
    principal = asked.principal
    if principal is None:
        return ("", "", asked.address)
    return (principal.kind, principal.id or principal.name, asked.address)


def _short(text: str, chars_max: int) -> str:
    shown = escaped(text[:chars_max])
    return shown[:chars_max] + "…" if len(text) > chars_max or len(shown) > chars_max else shown
