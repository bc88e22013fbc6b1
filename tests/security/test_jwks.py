"""Keys of tokens from a file and from a URL: looked at again, bounded, and never from an address of this network."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import CredentialRefused
from headwater.security.guard import Copy, Guard
from headwater.security.jwks import BYTES_MAX, KeySets
from headwater.security.jwt import JwtTokens, key_set
from headwater.subscriptions.webhooks import DeliveryFailed, Reply, WebhookClient
from tests.security.test_guard import runs
from tests.security.test_jwt import ED, NOW_MS, RSA, published, signed
from tests.subscriptions.test_client import Receiver, Wiring
from tests.support.clock import SimClock

URL = "https://id.example/keys"


class Fetched:
    """A `WebhookClient` as far as keys are fetched."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.count = 0

    async def get(self, url: str, headers: Any, timeout_s: float) -> Reply:
        self.count += 1
        if self.body is None:
            raise DeliveryFailed("nobody answers")
        return Reply(200, self.body)


class Parts:
    def __init__(self, where: str, client: Any) -> None:
        self.clock = SimClock(NOW_MS)
        self.guard = Guard(self.clock, on=True)
        self.guard.learn(Copy())
        self.tokens = JwtTokens("https://id.example", "headwater", "scope")
        self.guard.tokens = self.tokens
        self.sets = KeySets(where, self.tokens, self.guard, self.clock, client)

    def name(self, text: bytes) -> str:
        return self.guard.principal(b"Bearer " + text).name


@runs
async def test_a_rotated_set_is_fetched_when_a_token_asks_for_it_and_old_tokens_go_on() -> None:
    client = Fetched()
    client.body = json.dumps(published(RSA)).encode()
    parts = Parts(URL, client)
    await parts.sets.start()
    assert parts.name(signed(RSA, "RS256")) == "ada"
    epoch = parts.guard.epoch
    client.body = json.dumps(published(RSA, ED)).encode()
    with pytest.raises(CredentialRefused, match="not known here"):
        parts.name(signed(ED, "EdDSA"))
    for _ in range(3):
        await parts.clock.advance(10_000)
        await asyncio.sleep(0.01)
    assert parts.name(signed(ED, "EdDSA")) == parts.name(signed(RSA, "RS256")) == "ada"
    assert parts.guard.epoch > epoch
    # What a set does not have any more is not taken any more, also if it was remembered.
    client.body = json.dumps(published(ED)).encode()
    await parts.sets._look()
    with pytest.raises(CredentialRefused):
        parts.name(signed(RSA, "RS256"))
    await parts.sets.stop()


@runs
async def test_tokens_of_unknown_keys_do_not_have_the_set_fetched_again_and_again() -> None:
    client = Fetched()
    client.body = json.dumps(published(RSA)).encode()
    parts = Parts(URL, client)
    await parts.sets.start()
    for _ in range(100):
        with pytest.raises(CredentialRefused):
            parts.name(signed(ED, "EdDSA"))
    await parts.clock.advance(5_000)
    assert client.count == 1
    await parts.clock.advance(6_000)
    await asyncio.sleep(0.01)
    assert client.count <= 2
    await parts.sets.stop()


@runs
async def test_keys_that_cannot_be_fetched_are_good_for_a_day() -> None:
    client = Fetched()
    client.body = json.dumps(published(RSA)).encode()
    parts = Parts(URL, client)
    await parts.sets.start()
    await parts.sets.stop()
    for body in (None, b"no json", b"{}", b""):
        client.body = body
        await parts.sets._look()
        assert parts.sets.failure and parts.name(signed(RSA, "RS256")) == "ada"
    parts.clock.ms += 86_401_000
    await parts.sets._look()
    assert not parts.tokens.knows


@runs
async def test_a_file_is_read_again_when_it_changes(tmp_path: Path | None = None) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        parts = Parts(str(path), None)
        await parts.sets._look()
        assert parts.sets.failure is not None
        path.write_text(json.dumps(published(RSA)))
        await parts.sets._look()
        assert parts.name(signed(RSA, "RS256")) == "ada" and parts.sets.failure is None
        path.write_bytes(b" " * (BYTES_MAX + 1))
        await parts.sets._look()
        assert "longer" in str(parts.sets.failure) and parts.tokens.knows
        path.write_text(json.dumps(published(ED)))
        await parts.sets._look()
        assert parts.name(signed(ED, "EdDSA")) == "ada"


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "https://127.0.0.1/keys",
        "https://localhost/keys",
        "https://10.1.2.3/keys",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/keys",
        "https://[fd00::1]/keys",
        "https://0x7f.1/keys",
        "https://2130706433/keys",
        "https://inside.example/keys",
    ],
)
def test_no_address_of_this_network_is_asked_for_keys(url: str) -> None:
    """As with webhooks: also not by a name that turns out to mean one."""
    connected: list[str] = []

    async def resolver(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "192.168.1.7"]

    async def connect(*where: Any) -> Any:
        connected.append(str(where))
        raise OSError("nobody")

    async def look() -> str | None:
        parts = Parts(url, WebhookClient(False, resolver, connect))
        await parts.sets._look()
        return parts.sets.failure

    assert "not allowed" in str(asyncio.run(look()))
    assert connected == []


ANSWERS = {
    "a redirect inside": [b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"],
    "a redirect that keeps the method": [
        b"HTTP/1.1 307 Temporary\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"
    ],
    "a page": [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"],
    "no set": [b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"keys": []}'],
    "too much": [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b" " * (4 * BYTES_MAX)],
    "a private key of another kind": [
        b'HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n{"keys": [{"kty": "oct", "k": "c2VjcmV0Cg=="}]}'
    ],
}


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_an_answer_that_is_no_set_of_keys_is_followed_nowhere_and_changes_nothing(kind: str) -> None:
    async def look() -> None:
        async with Receiver(*ANSWERS[kind]) as receiver, Receiver(b"") as inside:
            wiring = Wiring(receiver, ["93.184.216.34"])
            parts = Parts(URL, wiring.client())
            parts.tokens.learn(key_set(published(RSA)))
            await parts.sets._look()
            assert parts.sets.failure is not None
            assert parts.name(signed(RSA, "RS256")) == "ada"
            assert wiring.connected == ["93.184.216.34"] and inside.requests == []

    asyncio.run(asyncio.wait_for(look(), 60))


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["93.184.216.34", "10.0.0.7"], ["::ffff:169.254.169.254"], ["64:ff9b::a00:1"], ["fe80::1"]],
)
def test_a_name_that_turns_inside_after_it_was_good_is_not_asked_again(addresses: list[str]) -> None:
    async def look() -> None:
        body = json.dumps(published(RSA)).encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        async with Receiver(answer) as receiver:
            wiring = Wiring(receiver, ["93.184.216.34"], addresses)
            parts = Parts(URL, wiring.client())
            await parts.sets._look()
            assert parts.sets.failure is None
            await parts.sets._look()
            assert "not allowed" in str(parts.sets.failure)
            assert wiring.connected == ["93.184.216.34"] and len(receiver.requests) == 1
            assert parts.name(signed(RSA, "RS256")) == "ada"

    asyncio.run(asyncio.wait_for(look(), 60))
