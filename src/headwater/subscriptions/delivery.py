"""Carrying a wake to whoever shall work: a signed webhook, or an event on the application's wake stream.

Owns attempts and their repetition. Never makes a wake and never starts before one is durable; what an attempt came to
is decided by the model and logged by `wakes`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol
from urllib.parse import quote

import msgspec
import structlog

from headwater import spans
from headwater.errors import Failure, LogUnavailable, StaleEpoch, TooManyProducers
from headwater.histogram import Histogram
from headwater.model import subscriptions as model
from headwater.model.subscriptions import WEBHOOK, Subscription, Wake
from headwater.ports import Rng
from headwater.subscriptions.all_streams import AllStreams
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.telling import tell
from headwater.subscriptions.wakes import Wakes
from headwater.subscriptions.webhooks import DeliveryFailed, DeliveryQueue, Reply

log = structlog.get_logger("headwater.subscriptions")


class Client(Protocol):
    """What sends webhooks: `WebhookClient`, or a test's own."""

    async def check(self, url: str) -> None: ...

    def host(self, url: str) -> str: ...

    async def post(self, url: str, headers: list[tuple[str, str]], body: bytes, timeout_s: float) -> Reply: ...


class Deliveries:
    def __init__(self, wakes: Wakes, streams: AllStreams, keys: Keys, client: Client, rng: Rng) -> None:
        self._wakes = wakes
        self._index = wakes.index
        self._streams = streams
        self._keys = keys
        self._rng = rng
        self._client = client
        self._queue = DeliveryQueue()
        self._under_way: set[str] = set()
        """Subscriptions with an attempt that waits or runs: never more than one each."""
        self._durable: dict[str, str] = {}
        """By uid: the newest wake that the log holds for certain."""
        self._again: dict[str, asyncio.TimerHandle] = {}
        self._announcing: set[asyncio.Task[None]] = set()
        self.delivered_count = 0
        self.failed_count = 0
        self.times = Histogram()
        """Of attempts, whatever became of them, from the look-up of the receiver's address to the end of its answer."""

    def issued(self, sub: Subscription, wake_id: str) -> None:
        """The wake is durable: someone may hear of it now."""
        if not self._index.holds(sub):
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
        again = self._again.pop(sub.uid, None)
        if again is not None:
            again.cancel()

    async def stop(self) -> None:
        for handle in self._again.values():
            handle.cancel()
        for task in self._announcing:
            task.cancel()
        await asyncio.gather(*self._announcing, return_exceptions=True)
        await self._queue.stop()

    # ---- webhooks -----------------------------------------------------------------------------------------------

    def _go_on(self, sub: Subscription) -> None:
        """Queues an attempt if one is due and none is under way."""
        if self._due(sub) is None or sub.uid in self._under_way:
            return
        if sub.retry_at_ms and not model.retry_due(sub, self._wakes.now_ms()):
            return  # the clock of `wakes` calls
        self._under_way.add(sub.uid)
        self._queue.submit(self._client.host(sub.config.url or ""), partial(self._attempt, sub))

    def _due(self, sub: Subscription) -> Wake | None:
        current = sub.wake
        if current is None or sub.leased or not self._index.holds(sub):
            return None
        return current if self._durable.get(sub.uid) == current.wake_id else None

    async def _attempt(self, sub: Subscription) -> None:
        try:
            current = self._due(sub)
            if current is None:
                return
            event: model.Event | None
            try:
                event = await self._deliver(sub, current)
            except DeliveryFailed as failure:
                event = self._failed(sub, current, str(failure))
            if self._index.holds(sub):
                self._wakes.try_note(event)
        finally:
            self._under_way.discard(sub.uid)
        # A wake that was made while this attempt ran has waited for it; perhaps of a subscription whose group left and
        # came back meanwhile.
        self._go_on(self._index.by_uid.get(sub.uid, sub))

    async def _deliver(self, sub: Subscription, current: Wake) -> model.Event | None:
        """Sends the webhook; returns what its answer means. Raises DeliveryFailed."""
        generation = sub.generation
        told = await tell(sub, self._streams)
        if told.away and not told.tails:
            raise DeliveryFailed("the worker that serves the streams is away")
        if self._due(sub) is not current:
            return None
        notification = {
            "subscription_id": sub.id,
            "wake_id": current.wake_id,
            "generation": generation,
            "streams": told.infos,
            "callback_url": f"{sub.base_url}/subscriptions/{quote(sub.id, safe=_UNQUOTED)}/callback",
            "callback_token": self._keys.token(sub.uid, generation, current.wake_id),
        }
        if told.omitted_count:
            notification["streams_omitted"] = told.omitted_count
        body = msgspec.json.encode(notification)
        headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json"),
            ("Webhook-Signature", self._keys.sign(body, self._wakes.now_ms() // 1000)),
        ]
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        try:
            with spans.around("webhook", **{"headwater.subscription": sub.id}) as span:
                if span is not None:
                    headers.append(("traceparent", span.traceparent.decode("ascii")))
                reply = await self._client.post(sub.config.url or "", headers, body, sub.config.lease_ms / 1000)
        finally:
            self.times.add(now_s() - begun_s)
        self.delivered_count += 1
        looked = await self._streams.look({path: self._streams.group_of(sid) for path, sid, _ in told.tails})
        # A stream whose process is away may have grown: it stays pending.
        return model.delivered(sub, current.wake_id, reply.done, told.tails, looked.tail_or(model.UNKNOWN_TAIL))

    def _failed(self, sub: Subscription, current: Wake, reason: str) -> model.Event | None:
        self.failed_count += 1
        jitter = self._rng.below(model.JITTER_STEPS + 1)
        event = model.failed(sub, current.wake_id, self._wakes.now_ms(), jitter)
        if event is not None and not sub.failures:
            log.warning("webhook delivery failed; it is tried again", subscription=sub.id, reason=reason)
        return event

    # ---- wake streams -------------------------------------------------------------------------------------------

    def _announce(self, sub: Subscription, wake_id: str, failures: int) -> None:
        """Appends the wake event, wherever its stream lives."""
        self._again.pop(sub.uid, None)
        current = self._due(sub)
        if current is None or current.wake_id != wake_id:
            return
        task = asyncio.get_running_loop().create_task(self._append(sub, current, failures))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _append(self, sub: Subscription, current: Wake, failures: int) -> None:
        event = {
            "type": "wake",
            "subscription_id": sub.id,
            "stream": current.stream,
            "generation": sub.generation,
            "ts": current.issued_ms,
        }
        payload, path = msgspec.json.encode(event), sub.config.wake_stream or ""
        try:
            try:
                # Its producer makes an event that a crash left in doubt appear once, not twice.
                await self._streams.announce(path, payload, (f"subscription-{sub.uid}", sub.generation))
            except (TooManyProducers, StaleEpoch):
                # A wake stream of very many subscriptions: an event that is there twice does no harm.
                await self._streams.announce(path, payload, None)
        except Failure as failure:
            if not self._index.holds(sub):
                return  # it was deleted, or its group is served by another process
            if isinstance(failure, LogUnavailable) and self._wakes.group(sub.id).log.failure is not None:
                return  # nothing goes on here before a restart
            self._announce_again(sub, current.wake_id, failures, str(failure))

    def _announce_again(self, sub: Subscription, wake_id: str, failures: int, reason: str) -> None:
        if not failures:
            log.warning(
                "the wake stream takes no wake event; it is tried again",
                subscription=sub.id,
                wake_stream=sub.config.wake_stream,
                reason=reason,
            )
        delay_ms = model.retry_delay_ms(failures + 1, self._rng.below(model.JITTER_STEPS + 1))
        again = partial(self._announce, sub, wake_id, failures + 1)
        self._again[sub.uid] = asyncio.get_running_loop().call_later(delay_ms / 1000, again)


_UNQUOTED = "!~*'()"
"""As encodeURIComponent leaves them, so that a client which builds the same URL gets the same text."""
