"""The guard that a node's settings ask for, and what follows the keys of tokens.

Owns the reading of what they name. Never judges anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headwater.config import Settings
from headwater.ports import Clock
from headwater.security.guard import Guard, file_key_of
from headwater.security.secret_file import read_secret
from headwater.setting_values import AUTO, OFF
from headwater.start_refused import CannotStart
from headwater.subscriptions.webhooks import WebhookClient


class KeySets(Protocol):
    """What follows the keys of tokens (see `security.jwks`)."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def key_sets(settings: Settings, guard: Guard, clock: Clock, client: WebhookClient) -> KeySets | None:
    """None where tokens are not taken. Imports late: most nodes need none of it."""
    if settings.jwt_keys == OFF:
        return None
    from headwater.security import jwks, jwt

    tokens = jwt.JwtTokens(settings.jwt_issuer, settings.jwt_audience, settings.jwt_claim)
    guard.tokens = tokens
    return jwks.KeySets(settings.jwt_keys, tokens, guard, clock, client)


def new_guard(settings: Settings, clock: Clock) -> Guard:
    """Raises CannotStart."""
    if not settings.auth_on:
        return Guard(clock)
    if settings.admin_key_file == AUTO:
        return Guard(clock, on=True)
    path = Path(settings.admin_key_file)
    try:
        found = file_key_of(read_secret(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"cannot read the admin_key_file {path}: {error}") from None
    if found is None:
        raise CannotStart(f"{path} holds no key: make one with `headwater token new > FILE; chmod 600 FILE`")
    return Guard(clock, on=True, file_key=found)
