"""Signed tokens: which count, whose they are, and every way of forging one that is known."""

from __future__ import annotations

import hmac
import json
import warnings
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from headwater.errors import CredentialRefused
from headwater.security.jwt import KEYS_MAX, BadKeySet, JwtTokens, key_set
from headwater.security.principals import ADMIN_SCOPE, Action, Principal

NOW_MS = 1_700_000_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
OTHER = RSAKey.generate_key(2048, {"kid": "rsa"})
ALL = ["RS256", "RS384", "PS256", "ES256", "EdDSA", "HS256", "none"]


def published(*keys: Any) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


def claims(**more: Any) -> dict[str, Any]:
    made = {"iss": "https://id.example", "aud": "headwater", "sub": "ada", "exp": NOW_MS // 1000 + 60}
    return {**made, "scope": "openid read:orders/* append:orders/7", **more}


def tokens(*keys: Any) -> JwtTokens:
    made = JwtTokens("https://id.example", "headwater", "scope")
    made.learn(key_set(published(*(keys or (RSA, EC, ED)))))
    return made


def signed(key: Any, algorithm: str, said: dict[str, Any] | None = None, **header: Any) -> bytes:
    head = {"alg": algorithm, **({"kid": key.kid} if key.kid else {}), **header}
    return jwt.encode(head, claims() if said is None else said, key, ALL).encode()


def seen(text: bytes, *keys: Any) -> Principal:
    return tokens(*keys).verified(text, NOW_MS)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")])
def test_a_token_of_a_published_key_is_its_subjects(key: Any, algorithm: str) -> None:
    principal = seen(signed(key, algorithm))
    assert (principal.kind, principal.name, principal.expires_ms) == ("jwt", "ada", NOW_MS + 60_000)
    assert principal.may(Action.READ, "orders/1") and principal.may(Action.APPEND, "orders/7")
    assert not principal.may(Action.APPEND, "orders/1") and not principal.everything


def part(value: object) -> bytes:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def test_no_algorithm_that_is_not_asymmetric_counts() -> None:
    body = part(claims())
    for algorithm in ("none", "None", "NONE", "nOnE", "", "HS256", "RS1", "dir"):
        for kid in ({}, {"kid": "rsa"}):
            head = part({"alg": algorithm, **kid})
            for end in (b"", b"AAAA"):
                with pytest.raises(CredentialRefused):
                    seen(head + b"." + body + b"." + end)
    with pytest.raises(CredentialRefused):
        seen(part({"typ": "JWT"}) + b"." + body + b".")


def test_a_public_key_is_no_shared_secret() -> None:
    public = RSA.public_key
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(RSA.as_dict(private=False)).encode(),
    ):
        said = part({"alg": "HS256", "kid": "rsa"}) + b"." + part(claims())
        mac = urlsafe_b64encode(hmac.digest(secret, said, "sha256")).rstrip(b"=")
        with pytest.raises(CredentialRefused):
            seen(said + b"." + mac)
    with pytest.raises(BadKeySet):
        key_set({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "x"}]})


def test_a_token_of_another_key_a_changed_and_a_cut_one_are_refused() -> None:
    good = signed(RSA, "RS256")
    head, body, end = good.split(b".")
    changed = part({**claims(), "scope": "admin"})
    for text in (
        signed(OTHER, "RS256"),
        signed(RSA, "RS256", kid="ed"),
        signed(RSA, "RS256", kid="unknown"),
        head + b"." + changed + b"." + end,
        good[:-1],
        good[:-40],
        head + b"." + body,
        head + b"." + body + b"." + end + b"." + end,
        b"..",
        b"." * 2 + b"\xff",
        b"\xff.\xff.\xff",
        part({"alg": "RS256", "jwk": OTHER.as_dict(private=False)})
        + b"."
        + body
        + b"."
        + signed(OTHER, "RS256").split(b".")[2],
        part({"alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1}) + b"." + body + b"." + end,
    ):
        with pytest.raises(CredentialRefused):
            seen(text)
    assert seen(good).name == "ada"


@pytest.mark.parametrize(
    "more",
    [
        {"iss": "https://id.example/"},
        {"iss": ["https://id.example"]},
        {"aud": "another"},
        {"aud": ["another"]},
        {"aud": None},
        {"exp": NOW_MS // 1000},
        {"exp": NOW_MS // 1000 - 1},
        {"exp": "soon"},
        {"exp": True},
        {"exp": None},
        {"exp": 1e300},
        {"nbf": NOW_MS // 1000 + 3_600},
        {"iat": NOW_MS // 1000 + 3_600},
        {"nbf": "later"},
    ],
)
def test_claims_that_are_not_right_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(CredentialRefused):
        seen(signed(RSA, "RS256", claims(**more)))
    assert seen(signed(RSA, "RS256", claims(aud=["another", "headwater"], nbf=NOW_MS // 1000)))


@pytest.mark.parametrize(
    ("scope", "reads"),
    [("read:orders", True), (["read:orders"], True), ("openid profile", False), (7, False), (None, False), ({}, False)],
)
def test_scopes_come_from_the_claim_and_what_is_none_is_passed_over(scope: object, reads: bool) -> None:
    assert seen(signed(RSA, "RS256", claims(scope=scope))).may(Action.READ, "orders/1") == reads


def test_an_issuer_may_make_somebody_an_admin_and_too_many_scopes_are_not_all_taken() -> None:
    assert seen(signed(RSA, "RS256", claims(scope="admin"))).scopes == (ADMIN_SCOPE,)
    assert len(seen(signed(RSA, "RS256", claims(scope=[f"read:b{n}" for n in range(500)]))).scopes) == 64


def test_what_a_subject_is_called_stays_one_line() -> None:
    assert seen(signed(RSA, "RS256", claims(sub="a\nb" + "c" * 500))).name.startswith("a?bc")
    assert len(seen(signed(RSA, "RS256", claims(sub="c" * 500))).name) == 200
    assert seen(signed(RSA, "RS256", claims(sub=7))).name == "token"


def test_a_set_of_keys_has_bounds_and_only_what_verifies() -> None:
    with warnings.catch_warnings(action="ignore"):
        weak = RSAKey.generate_key(1024, {"kid": "weak"}).as_dict(private=False)
    good = RSA.as_dict(private=False)
    assert [
        key.kid for key in key_set({"keys": [weak, good, {"kty": "RSA"}, 7, {**good, "use": "enc"}, {"kty": "PQ"}]})
    ] == ["rsa"]
    assert all(key.private_key is None for key in key_set({"keys": [RSA.as_dict(private=True)]}))
    for bad in ({}, [], None, {"keys": []}, {"keys": [good] * (KEYS_MAX + 1)}, {"keys": {}}):
        with pytest.raises(BadKeySet):
            key_set(bad)


def test_a_token_of_an_unknown_key_asks_for_a_newer_set() -> None:
    made = tokens(RSA)
    asked: list[int] = []
    made.on_unknown_key = lambda: asked.append(1)
    with pytest.raises(CredentialRefused):
        made.verified(signed(ED, "EdDSA"), NOW_MS)
    assert asked == [1]
    assert made.verified(signed(RSA, "RS256"), NOW_MS) and asked == [1]
    # Without a name only the one key that there is can be meant.
    nameless = RSAKey.import_key({**RSA.as_dict(private=True), "kid": ""})
    assert made.verified(jwt.encode({"alg": "RS256"}, claims(), nameless, ["RS256"]).encode(), NOW_MS)
    with pytest.raises(CredentialRefused):
        tokens(RSA, ED).verified(jwt.encode({"alg": "RS256"}, claims(), nameless, ["RS256"]).encode(), NOW_MS)
