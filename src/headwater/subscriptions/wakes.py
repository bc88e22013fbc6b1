"""Wakes and leases: subscription events go into the log, work calls for workers, time passes.

Owns when a wake is made and when a lease or a pause is over. Never carries a wake to anyone: `on_issued` and
`on_retry` do, once it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure, GroupMoved, LogUnavailable, NotServedHere, Overloaded
from headwater.model import subscriptions as model
from headwater.model.subscriptions import WEBHOOK, Subscription
from headwater.ports import Rng
from headwater.subscriptions.registry import Index, Registry, encode

SLICE_SUBSCRIPTIONS = 500
UNLOGGED = (LogUnavailable, GroupMoved, Overloaded)
"""How `note` fails."""
_TIMER_S_MAX = 60.0
"""The wall clock may be set: it is looked at again after this long, whatever it said."""


class _Then:
    """A waiter that goes on with something unless the log failed."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def resolve(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Failure):
            self._act()


class Wakes:
    def __init__(self, engine: Engine, rng: Rng) -> None:
        self.index = Index()
        """The subscriptions of all groups of this process."""
        self.registries = {number: Registry(self.index) for number in engine.owned}
        for number, registry in self.registries.items():
            engine.owned[number].group.domains[registry.name] = registry
        self.count = 0
        """Wakes made since the start."""
        self.on_issued: Callable[[Subscription, str], None] = lambda sub, wake_id: None
        self.on_retry: Callable[[Subscription], None] = lambda sub: None
        self._engine = engine
        self._rng = rng
        self._due: dict[str, Subscription] = {}
        self._timers: list[tuple[int, str]] = []
        self._timer_at: dict[str, int] = {}
        """By uid: the one entry of `_timers` that counts."""
        self._alarm: asyncio.TimerHandle | None = None
        self._seen_ms = 0
        """What the clock said at the last tick."""
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()

    # ---- events -------------------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """The group of this process that the subscription lives in. Raises NotServedHere."""
        number = self._engine.home(f"{model.RESERVED}/{name}")
        owned = self._engine.owned.get(number)
        if owned is None:
            raise NotServedHere(number)
        return owned.group

    def registry(self, name: str) -> Registry:
        return self.registries[self.group(name).number]

    def note(self, event: model.Event, waiter: OutcomeFuture | _Then | None = None) -> None:
        """Logs an event and makes it true. Raises what UNLOGGED says, and then nothing has happened."""
        by_uid = self.index.by_uid
        if isinstance(event, model.Created):
            name = event.id
        elif (known := by_uid.get(event.uid)) is not None:
            name = known.id
        else:
            raise Overloaded("the subscription moved to another node")  # it was here when this began
        self.group(name).note(Registry.name, encode(event), waiter)
        sub = by_uid.get(event.uid)
        if sub is not None:
            self.follow(sub)

    def try_note(self, event: model.Event | None) -> None:
        """Notes an event that nobody waits for. A log that failed has been reported already."""
        if event is not None:
            try:
                self.note(event)
            except UNLOGGED:
                pass

    # ---- wakes --------------------------------------------------------------------------------------------------

    def wake(self, sub: Subscription) -> bool:
        """Calls for work if there is some and nobody was called yet; returns whether it did."""
        event = model.wake(sub, self.fresh_id())
        if event is None or self._stopped:
            return False
        try:
            self.note(event, _Then(lambda: self.on_issued(sub, event.wake_id)))
        except UNLOGGED:
            return False
        self.count += 1
        return True

    def follow(self, sub: Subscription) -> None:
        """Sees to what the subscription's state asks for next."""
        at_ms = model.next_at_ms(sub, self.now_ms())
        if at_ms is not None:
            queued = self._timer_at.get(sub.uid)
            if queued is None or at_ms < queued:
                self._timer_at[sub.uid] = at_ms
                heappush(self._timers, (at_ms, sub.uid))
                if self._timers[0][0] == at_ms:
                    self._set_alarm()
        elif sub.wake is None and sub.pending:
            self.look_later(sub)

    def look_later(self, sub: Subscription) -> None:
        """Wakes it in a turn of its own: the group is in the middle of answering writers, and more may grow."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._turn)
        self._due[sub.uid] = sub

    def _turn(self) -> None:
        count = 0
        while self._due and count < SLICE_SUBSCRIPTIONS:
            _, sub = self._due.popitem()
            if self.index.holds(sub):
                self.wake(sub)
            count += 1
        if self._due:
            asyncio.get_running_loop().call_soon(self._turn)

    def fresh_id(self) -> str:
        return f"w_{self._rng.token(12).hex()}"

    # ---- time ---------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if self._timers and not self._stopped:
            delay_s = (self._timers[0][0] - self.now_ms()) / 1000
            delay_s = min(max(delay_s, 0.0), _TIMER_S_MAX)
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self.tick)

    def tick(self) -> None:
        """Leases that passed and retries that are due. Cost: logarithmic in those that are under way."""
        now_ms = self.now_ms()
        if now_ms < self._seen_ms - model.CLOCK_STEP_MS_MAX:
            self._begin_timers_again()
        self._seen_ms = now_ms
        count = 0
        while self._timers and self._timers[0][0] <= now_ms and count < SLICE_SUBSCRIPTIONS:
            at_ms, uid = heappop(self._timers)
            count += 1
            sub = self.index.by_uid.get(uid)
            if self._timer_at.get(uid) != at_ms:
                continue
            del self._timer_at[uid]
            if sub is None:
                continue
            ended = model.expire(sub, now_ms)
            if ended is not None:
                self.try_note(ended)
            elif sub.config.kind == WEBHOOK and model.retry_due(sub, now_ms):
                self.on_retry(sub)
            else:
                self.follow(sub)
        self._set_alarm()

    def _begin_timers_again(self) -> None:
        """The clock was set back: moments that it had named before are judged by what it says now. Linear in those."""
        uids, self._timers, self._timer_at = list(self._timer_at), [], {}
        for uid in uids:
            sub = self.index.by_uid.get(uid)
            if sub is not None:
                self.follow(sub)

    def now_ms(self) -> int:
        return self._engine.clock.now_ms()
