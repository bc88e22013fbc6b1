"""The keys that tokens are signed with: read from a file, or fetched from where their issuer publishes them.

Owns when they are looked at again, and what is done when they cannot be had. Never verifies a token, and never holds up
a request: it works beside them. A URL has to be https and public, as that of a webhook (`subscriptions.targets`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from headwater.ports import Clock
from headwater.security.guard import Guard
from headwater.security.jwt import BadKeySet, JwtTokens, key_set
from headwater.security.principals import JWT
from headwater.subscriptions.webhooks import DeliveryFailed, WebhookClient

log = structlog.get_logger("headwater")

BYTES_MAX = 64 * 1024
FILE_LOOK_S = 2.0
FETCH_S = 300.0
AGAIN_S = 10.0
"""After a failure, and at least between two fetches that unknown keys ask for."""
FETCH_TIMEOUT_S = 10.0
STALE_S_MAX = 86_400.0
"""How long keys are good that cannot be fetched again."""


class CannotRead(Exception):
    """There are no keys; the message says why."""


class KeySets:
    """Follows one set of keys."""

    def __init__(self, where: str, tokens: JwtTokens, guard: Guard, clock: Clock, client: WebhookClient) -> None:
        self._where = where
        self._is_url = where.startswith(("https://", "http://"))
        self._tokens = tokens
        self._guard = guard
        self._clock = clock
        self._client = client
        self._read: bytes | None = None
        self._heard_s = clock.monotonic_s()
        self._wanted = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.failure: str | None = None
        """Why the keys could not be had the last time."""
        tokens.on_unknown_key = self._wanted.set

    async def start(self) -> None:
        """Tries once to have the keys, and goes on by itself. Never raises: whoever has a token waits for them."""
        await self._look()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            if self._is_url:
                await self._clock.sleep(AGAIN_S)
                if self.failure is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FETCH_S):
                            await self._wanted.wait()
                self._wanted.clear()
            else:
                await self._clock.sleep(FILE_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        try:
            data = await self._fetched() if self._is_url else await asyncio.to_thread(_of_file, Path(self._where))
            self._heard_s = self._clock.monotonic_s()
            if data != self._read:
                keys = key_set(msgspec.json.decode(data))
                self._read = data
                self._tokens.learn(keys)
                self._guard.forget((JWT,))
            self._told(None)
        except (CannotRead, BadKeySet, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._told(str(error) or type(error).__name__)
            if self._clock.monotonic_s() - self._heard_s > STALE_S_MAX and self._tokens.knows:
                self._read = None
                self._tokens.learn([])
                self._guard.forget((JWT,))

    def _told(self, failure: str | None) -> None:
        if failure is not None and failure != self.failure:
            log.error("jwt keys", error=failure)
        self.failure = failure

    async def _fetched(self) -> bytes:
        try:
            reply = await self._client.get(self._where, [("Accept", "application/json")], FETCH_TIMEOUT_S)
        except DeliveryFailed as failed:
            raise CannotRead(f"the keys cannot be fetched: {failed}") from None
        if not reply.body:
            raise CannotRead(f"the answer is empty, or longer than {BYTES_MAX} bytes")
        return reply.body


def _of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise CannotRead(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > BYTES_MAX:
        raise CannotRead(f"{path} is longer than {BYTES_MAX} bytes")
    return data


Make = Callable[[], KeySets]
