"""Keys and tokens: one file, its owner's alone, the same after every start; signatures that anyone can check.
It verifies with the public set only, as a receiver does."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from base64 import urlsafe_b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from headwater.log.object_places import DirectoryPlace
from headwater.ports import SystemRng
from headwater.security.secret_file import write_secret
from headwater.subscriptions.keys import FILE_NAME, BadKeys, Keys


def verify(jwks: bytes, header: str, body: bytes) -> None:
    """As a receiver would. Raises InvalidSignature."""
    stamp, kid, signature = (part.partition("=")[2] for part in header.split(",", 2))
    key = next(key for key in json.loads(jwks)["keys"] if key["kid"] == kid)
    public = Ed25519PublicKey.from_public_bytes(unpadded(key["x"]))
    public.verify(unpadded(signature), stamp.encode() + b"." + body)


def unpadded(text: str) -> bytes:
    assert "=" not in text
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_a_signature_verifies_against_the_published_keys_and_covers_time_and_body() -> None:
    keys = Keys.fresh(SystemRng())
    header = keys.sign(b'{"a":1}', 1_700_000_000)
    assert header.startswith(f"t=1700000000,kid={keys.kid},ed25519=")
    verify(keys.jwks(), header, b'{"a":1}')
    for changed, body in ((header, b'{"a":2}'), (header.replace("t=17", "t=18"), b'{"a":1}')):
        with pytest.raises(InvalidSignature):
            verify(keys.jwks(), changed, body)


def test_the_published_key_holds_no_private_part() -> None:
    (key,) = json.loads(Keys.fresh(SystemRng()).jwks())["keys"]
    assert set(key) == {"kty", "crv", "x", "kid", "use", "alg"}
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    assert key["kid"].startswith("ds_")


def test_kept_keys_are_the_same_at_every_start_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        first = Keys.kept(tmp_path, SystemRng())
    finally:
        os.umask(previous)
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = Keys.kept(tmp_path, SystemRng())
    assert second.jwks() == first.jwks()
    assert second.token("uid", 3, "w_1") == first.token("uid", 3, "w_1")
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


def test_processes_that_start_at_once_agree_on_one_key_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        kids = list(pool.map(lambda _: Keys.kept(tmp_path, SystemRng()).kid, range(64)))
    assert len(set(kids)) == 1
    assert Keys.kept(tmp_path, SystemRng()).kid == kids[0]
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


def test_a_key_file_that_another_process_wrote_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    write_secret(path, "first")
    write_secret(path, "second")
    assert path.read_text() == "first"


def test_a_key_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    Keys.kept(tmp_path, SystemRng())
    path = tmp_path / FILE_NAME
    path.chmod(0o644)
    Keys.kept(tmp_path, SystemRng())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_half_written_file_of_a_killed_start_is_not_taken_for_keys(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.part").write_text("headwater-keys 1\nsigni")
    keys = Keys.kept(tmp_path, SystemRng())
    assert Keys.kept(tmp_path, SystemRng()).kid == keys.kid


@pytest.mark.parametrize(
    "content",
    [b"", b"headwater-keys 1\n", b"headwater-keys 2\nsigning AAAA\ntokens AAAA\n", b"\xff\xfe", b"a\nb\nc\n"],
)
def test_a_damaged_key_file_is_refused_with_what_to_do_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(BadKeys, match=FILE_NAME):
        Keys.kept(tmp_path, SystemRng())
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_token_belongs_to_one_life_one_generation_and_one_wake() -> None:
    keys, other = Keys.fresh(SystemRng()), Keys.fresh(SystemRng())
    token = keys.token("uid", 7, "w_1")
    assert keys.holds(token, "uid", 7, "w_1")
    for wake in (("uid2", 7, "w_1"), ("uid", 8, "w_1"), ("uid", 7, "w_2")):
        assert not keys.holds(token, *wake)
    assert not other.holds(token, "uid", 7, "w_1")
    assert not keys.holds("", "uid", 7, "w_1")
    assert not keys.holds("é\udcff", "uid", 7, "w_1")


def test_all_nodes_of_a_cluster_sign_with_one_key_and_take_each_others_tokens(tmp_path: Path) -> None:
    async def shared(secret: bytes = b"a secret of this cluster") -> Keys:
        return await Keys.shared(DirectoryPlace(tmp_path), secret, SystemRng())

    first, second = asyncio.run(shared()), asyncio.run(shared())
    assert first.jwks() == second.jwks()
    verify(first.jwks(), second.sign(b"{}", 1_700_000_000), b"{}")
    assert first.holds(second.token("uid", 3, "w_1"), "uid", 3, "w_1")
    with pytest.raises(BadKeys, match=FILE_NAME):
        asyncio.run(shared(b"a secret of another cluster"))
