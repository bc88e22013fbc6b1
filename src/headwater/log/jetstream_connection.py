"""A connection to NATS servers, for requests whose fate has to be known.

Owns the connection, the replies that are awaited, and the difference between "nobody got it" and "no answer". Never
sends anything again by itself, and knows nothing of logs.

What `nats-py` does that has to be known here:
- a request whose connection is lost is left waiting until its timeout: here it ends at once;
- what is published while it reconnects is kept and sent later: here it is refused;
- `connect` goes on for ever when reconnecting is unlimited: here it has a deadline;
- it closes a lost connection by writing out what is buffered, which never ends when the server is stopped and its
  socket is full: here such a connection is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headwater.log.medium import Unavailable
from headwater.ports import Clock, Rng

PING_S = 0.5
PINGS_MAX = 3
"""A server that has not answered so many of these is given up, and another one is taken."""
CONNECT_S_MAX = 10.0
_SWEEP_S = 0.25


class NotDelivered(Exception):
    """Nobody received it, and nobody will."""


class NoAnswer(Exception):
    """It may have been received, or may yet be."""


class _Awaited:
    """A reply, or several of which the last one is a status."""

    __slots__ = ("deadline_s", "done", "many", "messages", "within_s")

    def __init__(self, done: asyncio.Future[list[Msg]], now_s: float, within_s: float, many: bool) -> None:
        self.done = done
        self.deadline_s = now_s + within_s
        self.within_s = within_s
        self.many = many
        self.messages: list[Msg] = []


class NatsConnection:
    """One per process, for all groups. Replies and losses arrive on the event loop that opened it."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._inbox = f"_INBOX.headwater.{rng.token(12).hex()}"
        self._client = Client()
        self._awaited: dict[str, _Awaited] = {}
        self._asked = 0
        self._cut = False
        self._closed = False
        self.on_reconnected: set[Callable[[], None]] = set()
        self.last_error = ""

    async def open(self, urls: Sequence[str], credentials: str | None = None) -> None:
        """Raises Unavailable when no server could be reached."""
        options: dict[str, Any] = {"user_credentials": credentials} if credentials else {}
        connecting = asyncio.ensure_future(
            nats.connect(
                list(urls),
                name="headwater",
                connect_timeout=2,
                reconnect_time_wait=0.2,
                max_reconnect_attempts=-1,
                ping_interval=PING_S,
                max_outstanding_pings=PINGS_MAX,
                disconnected_cb=self._on_cut,
                reconnected_cb=self._on_back,
                error_cb=self._on_error,
                **options,
            )
        )
        expired = asyncio.ensure_future(self._clock.sleep(CONNECT_S_MAX))
        try:
            await asyncio.wait((connecting, expired), return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise TimeoutError("no answer in time")
            self._client = connecting.result()
        except Exception as error:
            reason = self.last_error or str(error) or type(error).__name__
            raise Unavailable(f"no NATS server answers at {', '.join(urls)}: {reason}") from error
        finally:
            connecting.cancel()
            expired.cancel()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        self._clock.call_later(_SWEEP_S, self._sweep)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def message_bytes_max(self) -> int:
        """Of headers and data together."""
        return int(self._client.max_payload)

    async def subscribe(self, subject: str, take: Callable[[Msg], None]) -> Callable[[], Any]:
        """Calls `take` for what is published from now on, across reconnects but not during them. Returns the end of
        it, a coroutine function."""

        async def deliver(message: Msg) -> None:
            take(message)

        subscription = await self._client.subscribe(subject, cb=deliver)
        return subscription.unsubscribe

    async def ask(
        self, subject: str, data: bytes, within_s: float, headers: dict[str, str] | None = None
    ) -> asyncio.Future[list[Msg]]:
        """Sends, and returns what will be a list of the one reply. Raises NotDelivered; the result raises
        NotDelivered and NoAnswer."""
        return await self._send(subject, data, within_s, headers, False)

    async def ask_for_many(self, subject: str, data: bytes, within_s: float) -> list[Msg]:
        """The replies, each within the time after the one before; the last one has a status. Raises NotDelivered,
        NoAnswer."""
        return await (await self._send(subject, data, within_s, None, True))

    async def tell(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Sends without a reply. Raises NotDelivered."""
        await self._publish(subject, data, "", headers)

    async def _send(
        self, subject: str, data: bytes, within_s: float, headers: dict[str, str] | None, many: bool
    ) -> asyncio.Future[list[Msg]]:
        self._asked += 1
        key = str(self._asked)
        done: asyncio.Future[list[Msg]] = asyncio.get_running_loop().create_future()
        self._awaited[key] = _Awaited(done, self._clock.monotonic_s(), within_s, many)
        done.add_done_callback(lambda _: self._awaited.pop(key, None))
        try:
            await self._publish(subject, data, f"{self._inbox}.{key}", headers)
        except BaseException:
            done.cancel()
            raise
        return done

    async def _publish(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        if not self.connected:
            raise NotDelivered("there is no connection to a NATS server")
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except NatsError as error:
            raise NotDelivered(f"NATS did not take it: {type(error).__name__} {error}".rstrip()) from error

    async def _on_reply(self, message: Msg) -> None:
        awaited = self._awaited.get(message.subject.rpartition(".")[2])
        if awaited is None or awaited.done.done():
            return
        status = (message.headers or {}).get("Status")
        if status == "503" and not message.data:
            awaited.done.set_exception(NotDelivered("no NATS server answers for it"))
            return
        awaited.messages.append(message)
        awaited.deadline_s = self._clock.monotonic_s() + awaited.within_s
        if not awaited.many or status is not None:
            awaited.done.set_result(awaited.messages)

    def _sweep(self) -> None:
        if self._closed:
            return
        now_s = self._clock.monotonic_s()
        for awaited in [awaited for awaited in self._awaited.values() if awaited.deadline_s <= now_s]:
            _end(awaited, "NATS gave no answer in time")
        if self._client.is_reconnecting and not self._cut:
            writer = getattr(self._client._transport, "_io_writer", None)
            if writer is not None:
                writer.transport.abort()
        self._clock.call_later(_SWEEP_S, self._sweep)

    async def _on_cut(self) -> None:
        self._cut = True
        for awaited in list(self._awaited.values()):
            _end(awaited, "the connection to the NATS server was lost")

    async def _on_back(self) -> None:
        self._cut = False
        for call in list(self.on_reconnected):
            call()

    async def _on_error(self, error: Exception) -> None:
        self.last_error = str(error) or type(error).__name__

    async def close(self) -> None:
        """Idempotent. What is awaited ends without an answer."""
        if not self._closed:
            self._closed = True
            await self._on_cut()
            if self._client.is_connected or self._client.is_reconnecting:
                await self._client.close()


def _end(awaited: _Awaited, reason: str) -> None:
    if not awaited.done.done():
        awaited.done.set_exception(NoAnswer(reason))
