"""Carrying a wake to whoever shall work: a signed webhook, or an event on the application's wake stream.

Owns attempts and their repetition. Never makes a wake and never starts before one is durable; what an attempt came to
is decided by the model and logged by the manager.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
import structlog

from headwater.engine.group import Group
from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure, LogUnavailable, StaleEpoch, TooManyProducers
from headwater.model import subscriptions as model
from headwater.model.commands import Append, Producer
from headwater.model.subscriptions import WEBHOOK, LinkRow, Subscription, Wake
from headwater.ports import Rng
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.registry import Registry
from headwater.subscriptions.streams import Streams
from headwater.subscriptions.webhooks import DeliveryFailed, DeliveryQueue, Reply

log = structlog.get_logger("headwater.subscriptions")


class Client(Protocol):
    """What sends webhooks: `WebhookClient`, or a test's own."""

    async def check(self, url: str) -> None: ...

    def host(self, url: str) -> str: ...

    async def post(self, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply: ...


class Desk(Protocol):
    """The subscriptions whose wakes are carried from here. See `manager`."""

    registry: Registry
    group: Group
    keys: Keys
    rng: Rng
    streams: Streams

    def infos(self, sub: Subscription) -> tuple[list[Any], list[LinkRow], int]: ...

    def try_note(self, event: model.Event | None) -> None: ...


class Deliveries:
    def __init__(self, manager: Desk, client: Client) -> None:
        self._manager = manager
        self._client = client
        self._queue = DeliveryQueue()
        self._under_way: set[str] = set()
        """Subscriptions with an attempt that waits or runs: never more than one each."""
        self._durable: dict[str, str] = {}
        """By uid: the newest wake that the log holds for certain."""
        self._again: dict[str, asyncio.TimerHandle] = {}
        self.delivered_count = 0
        self.failed_count = 0

    def issued(self, sub: Subscription, wake_id: str) -> None:
        """The wake is durable: someone may hear of it now."""
        if sub.uid not in self._manager.registry.by_uid:
            return
        self._durable[sub.uid] = wake_id
        if sub.config.kind == WEBHOOK:
            self._go_on(sub)
        else:
            self._announce(sub, wake_id, 0)

    def retry(self, sub: Subscription) -> None:
        self._go_on(sub)

    def forget(self, sub: Subscription) -> None:
        self._durable.pop(sub.uid, None)

    async def stop(self) -> None:
        for handle in self._again.values():
            handle.cancel()
        await self._queue.stop()

    # ---- webhooks -----------------------------------------------------------------------------------------------

    def _go_on(self, sub: Subscription) -> None:
        """Queues an attempt if one is due and none is under way."""
        if self._due(sub) is None or sub.uid in self._under_way:
            return
        if sub.retry_at_ms > self._manager.group.clock.now_ms():
            return  # the manager's clock calls
        self._under_way.add(sub.uid)
        self._queue.submit(self._client.host(sub.config.url or ""), partial(self._attempt, sub))

    def _due(self, sub: Subscription) -> Wake | None:
        current = sub.wake
        if current is None or sub.leased or sub.uid not in self._manager.registry.by_uid:
            return None
        return current if self._durable.get(sub.uid) == current.wake_id else None

    async def _attempt(self, sub: Subscription) -> None:
        manager = self._manager
        try:
            current = self._due(sub)
            if current is None:
                return
            infos, told, omitted = manager.infos(sub)
            notification = {
                "subscription_id": sub.id,
                "wake_id": current.wake_id,
                "generation": sub.generation,
                "streams": infos,
                "callback_url": f"{sub.base_url}/subscriptions/{quote(sub.id, safe=_UNQUOTED)}/callback",
                "callback_token": manager.keys.token(sub.uid, sub.generation, current.wake_id),
            }
            if omitted:
                notification["streams_omitted"] = omitted
            body = msgspec.json.encode(notification)
            headers = [
                ("Content-Type", "application/json"),
                ("Accept", "application/json"),
                ("Webhook-Signature", manager.keys.sign(body, manager.group.clock.now_ms() // 1000)),
            ]
            event: model.Event | None
            try:
                reply = await self._client.post(sub.config.url or "", headers, body, sub.config.lease_ms / 1000)
            except DeliveryFailed as failure:
                event = self._failed(sub, current, str(failure))
            else:
                self.delivered_count += 1
                event = model.delivered(sub, current.wake_id, reply.done, told, manager.streams.tail)
            if sub.uid in manager.registry.by_uid:
                manager.try_note(event)
        finally:
            self._under_way.discard(sub.uid)
        # A wake that was made while this attempt ran has waited for it.
        self._go_on(sub)

    def _failed(self, sub: Subscription, current: Wake, reason: str) -> model.Event | None:
        self.failed_count += 1
        manager = self._manager
        jitter = manager.rng.below(model.JITTER_STEPS + 1)
        event = model.failed(sub, current.wake_id, manager.group.clock.now_ms(), jitter)
        if event is not None and not sub.failures:
            log.warning("webhook delivery failed; it is tried again", subscription=sub.id, reason=reason)
        return event

    # ---- wake streams -------------------------------------------------------------------------------------------

    def _announce(self, sub: Subscription, wake_id: str, failures: int, deduplicated: bool = True) -> None:
        """Appends the wake event. Its producer tuple makes one that a crash left in doubt appear once, not twice."""
        self._again.pop(sub.uid, None)
        current = self._due(sub)
        if current is None or current.wake_id != wake_id:
            return
        event = {
            "type": "wake",
            "subscription_id": sub.id,
            "stream": current.stream,
            "generation": sub.generation,
            "ts": current.issued_ms,
        }
        producer = Producer(f"subscription-{sub.uid}", sub.generation, 0) if deduplicated else None
        command = Append([msgspec.json.encode(event)], None, producer)
        waiter = _Announced(self, sub, wake_id, failures)
        self._manager.group.submit(model.key_of(sub.config.wake_stream or ""), command, waiter)

    def announced(self, sub: Subscription, wake_id: str, failures: int, outcome: Outcome) -> None:
        if not isinstance(outcome, Failure) or isinstance(outcome, LogUnavailable):
            return
        if isinstance(outcome, TooManyProducers | StaleEpoch):
            # A wake stream of very many subscriptions: an event that is there twice does no harm.
            self._announce(sub, wake_id, failures, deduplicated=False)
            return
        if not failures:
            log.warning(
                "the wake stream takes no wake event; it is tried again",
                subscription=sub.id,
                wake_stream=sub.config.wake_stream,
                reason=str(outcome),
            )
        delay_ms = model.retry_delay_ms(failures + 1, self._manager.rng.below(model.JITTER_STEPS + 1))
        loop = asyncio.get_running_loop()
        again = partial(self._announce, sub, wake_id, failures + 1)
        self._again[sub.uid] = loop.call_later(delay_ms / 1000, again)


class _Announced:
    def __init__(self, deliveries: Deliveries, sub: Subscription, wake_id: str, failures: int) -> None:
        self._go_on = partial(deliveries.announced, sub, wake_id, failures)

    def resolve(self, outcome: Outcome) -> None:
        self._go_on(outcome)


_UNQUOTED = "!~*'()"
"""As encodeURIComponent leaves them, so that a client which builds the same URL gets the same text."""
