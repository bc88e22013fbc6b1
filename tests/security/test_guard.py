"""The guard: who a credential belongs to, until when, and when whoever remembers an answer has to ask again."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.engine.access_records import AccessKey
from headwater.errors import AccessUnknown, CredentialRefused
from headwater.security import guard as module
from headwater.security import keys as bearer
from headwater.security import signed_urls
from headwater.security.guard import FILE_KEY_ID, Copy, Guard
from headwater.security.keys import Made
from headwater.security.principals import ADMIN_SCOPE, PUBLIC, Action, Scope, parse_scopes
from tests.support.clock import SimClock

SECRET = b"s" * 32


class Rng:
    def __init__(self) -> None:
        self._random = random.Random(7)

    def token(self, size_bytes: int) -> bytes:
        return self._random.randbytes(size_bytes)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)


RNG = Rng()


def new(*scopes: str, expires_ms: int | None = None) -> tuple[Made, AccessKey]:
    made = bearer.make(RNG)
    return made, AccessKey("k", made.hash, parse_scopes(scopes or ["read:a"]), 0, "t", expires_ms)


def header(made: Made) -> bytes:
    return b"Bearer " + made.text.encode()


def runs(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def on(clock: SimClock, *keys: tuple[Made, AccessKey], public: tuple[str, ...] = ()) -> Guard:
    guard = Guard(clock, on=True)
    guard.url_secret = SECRET
    guard.learn(Copy({made.id: key for made, key in keys}, list(public)))
    return guard


@runs
async def test_a_key_is_known_until_it_is_revoked() -> None:
    made, key = new()
    guard = on(SimClock(), (made, key))
    epoch = guard.epoch
    principal = guard.principal(header(made))
    assert principal.may(Action.READ, "a/x") and not principal.may(Action.READ, "b/x") and guard.epoch == epoch
    assert guard.principal(header(made)) is principal
    guard.learn(Copy({made.id: AccessKey(key.name, key.hash, key.scopes, 0, "t", None, 5)}))
    assert guard.epoch > epoch
    with pytest.raises(CredentialRefused, match="revoked"):
        guard.principal(header(made))


@runs
async def test_expiry_raises_the_epoch_and_ends_the_key_at_that_moment() -> None:
    clock = SimClock(1_000)
    made, key = new(expires_ms=61_000)
    guard = on(clock, (made, key))
    guard.principal(header(made))
    epoch, generation = guard.epoch, guard.generation
    await clock.advance(59_900)
    assert guard.epoch == epoch and guard.principal(header(made))
    await clock.advance(200)
    assert guard.epoch > epoch and guard.generation == generation
    with pytest.raises(CredentialRefused, match="expired"):
        guard.principal(header(made))


@runs
async def test_what_is_no_key_is_refused_in_the_same_words_whether_or_not_its_id_is_known() -> None:
    made, key = new()
    guard = on(SimClock(), (made, key))
    other = made.text[:-4] + ("AAAA" if made.text[-4:] != "AAAA" else "BBBB")
    unknown = new()[0].text
    said = set()
    for text in (other, unknown):
        with pytest.raises(CredentialRefused) as refused:
            guard.principal(b"Bearer " + text.encode())
        said.add(str(refused.value))
    assert len(said) == 1
    for bad in (made.text[:-1], made.text + "A", made.text.upper(), "hw_", "hw__", "", " "):
        with pytest.raises(CredentialRefused):
            guard.principal(b"Bearer " + bad.encode())
    for bad_header in (made.text.encode(), b"Basic " + made.text.encode(), b"Bearer", b"Bearer " + b"x" * 20_000):
        with pytest.raises(CredentialRefused):
            guard.principal(bad_header)
    assert made.text not in str(said)


def test_secrets_are_compared_in_constant_time() -> None:
    for function in (bearer.is_it, signed_urls.checked):
        assert "hmac.compare_digest" in inspect.getsource(function)
    made, _ = new()
    assert bearer.is_it(made.hash, made.hash) and not bearer.is_it(None, bytes(bearer.HASH_BYTES))
    assert hmac.compare_digest(made.hash, bearer.hash_of(made.text.encode()[20:]))
    # No text of a credential is a key of a table that a guess could be compared with.
    assert "sha256" in inspect.getsource(module.Guard.principal)


@runs
async def test_nobody_is_believed_before_the_keys_are_known_or_when_they_are_too_old() -> None:
    made, key = new()
    guard = Guard(SimClock(), on=True)
    with pytest.raises(AccessUnknown):
        guard.principal(header(made))
    guard.learn(Copy({made.id: key}))
    guard.principal(header(made))
    guard.learn(None)
    with pytest.raises(AccessUnknown):
        guard.principal(header(made))


@runs
async def test_the_key_of_the_operators_file_needs_no_directory() -> None:
    made, _ = new()
    guard = Guard(SimClock(), on=True, file_key=(made.id, made.hash))
    assert guard.principal(header(made)).scopes == (ADMIN_SCOPE,)
    with pytest.raises(CredentialRefused):
        guard.principal(header(made)[:-3] + b"AAA")


@runs
async def test_a_public_bucket_may_be_read_by_anybody_and_nothing_else() -> None:
    guard = on(SimClock(), public=("open",))
    anybody = guard.principal(None)
    assert anybody.kind == PUBLIC and anybody.may(Action.READ, "open/x") and not anybody.may(Action.APPEND, "open/x")
    assert not anybody.may(Action.READ, "other/x") and not anybody.may(Action.READ, "open2/x")


@runs
async def test_a_signed_url_ends_with_its_time_its_signer_and_the_signers_rights() -> None:
    clock = SimClock(1_000)
    made, key = new("read:a/*")
    guard = on(clock, (made, key))
    text = signed_urls.sign(SECRET, Scope(int(Action.READ), "a/x", True), 61, made.id).encode()
    principal = guard.principal(None, text)
    assert principal.may(Action.READ, "a/x") and not principal.may(Action.READ, "a/xy")
    assert not principal.may(Action.APPEND, "a/x")
    epoch = guard.epoch
    guard.learn(Copy({made.id: AccessKey("k", key.hash, parse_scopes(["read:b"]), 0, "t")}))
    assert guard.epoch > epoch
    with pytest.raises(CredentialRefused, match="may not read that"):
        guard.principal(None, text)
    guard.learn(Copy({}))
    with pytest.raises(CredentialRefused, match="not valid any more"):
        guard.principal(None, text)
    guard.learn(Copy({made.id: key}))
    guard.principal(None, text)
    await clock.advance(61_000)
    with pytest.raises(CredentialRefused, match="expired"):
        guard.principal(None, text)


def test_a_signature_is_good_for_what_it_was_made_for_alone() -> None:
    for scope in (Scope(1, "a/x", True), Scope(1, "a/x*", True), Scope(1, "a/x"), Scope(1, "a/")):
        text = signed_urls.sign(SECRET, scope, 100, FILE_KEY_ID)
        assert signed_urls.checked(SECRET, text.encode()) == (scope, 100_000, FILE_KEY_ID)
    parts = text.split(".")
    for changed in (
        ".".join([parts[0], "999", *parts[2:]]),
        ".".join([*parts[:2], "other", *parts[3:]]),
        ".".join([*parts[:3], "PWEveA", parts[4]]),
        ".".join([*parts[:4], parts[4][::-1]]),
        text + "A",
        text[:-1],
        "",
    ):
        assert signed_urls.checked(SECRET, changed.encode()) is None
    assert signed_urls.checked(b"t" * 32, text.encode()) is None


def test_a_signature_is_in_no_log_line() -> None:
    assert signed_urls.redacted(b"/v1/stream/a?offset=-1&signed=1.2.3.4&live=sse") == (
        b"/v1/stream/a?offset=-1&signed=[redacted]&live=sse"
    )
    assert signed_urls.redacted(b"/v1/stream/a?signed=x") == b"/v1/stream/a?signed=[redacted]"


@runs
async def test_credentials_that_are_remembered_are_bounded(monkeypatch: Any = None) -> None:
    clock = SimClock()
    made = [new() for _ in range(6)]
    guard = on(clock, *made)
    before, module.REMEMBERED_MAX = module.REMEMBERED_MAX, 3
    try:
        for one, _ in made:
            guard.principal(header(one))
        assert len(guard._remembered) <= 3
        assert all(key not in str(guard._remembered) for key, _ in ((one.text, 0) for one, _ in made))
    finally:
        module.REMEMBERED_MAX = before
    assert hashlib.sha256(b"\0" + header(made[-1][0])).digest() in guard._remembered


def test_with_authentication_off_nobody_is_asked() -> None:
    guard = Guard(SimClock())
    assert guard.epoch == 0 and guard.anonymous.everything
    guard.learn(Copy({}))
    assert guard.epoch == 0
