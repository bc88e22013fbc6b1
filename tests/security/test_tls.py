"""The node's certificate: what is refused and why, and that a new pair takes the place of the old one only if it can be
used."""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from headwater.config import Settings
from headwater.security import tls
from headwater.security.tls import ServerTls, TlsRefused, load, subject_text
from tests.support.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.server("node")


def settings(pair: Pair, **more: str) -> Settings:
    return Settings(tls_certificate=str(pair.certificate), tls_key=str(pair.key), **more)  # type: ignore[arg-type]


def refusal(found: Settings) -> str:
    with pytest.raises(TlsRefused) as why:
        load(found)
    return str(why.value)


def test_old_versions_and_weak_ciphers_are_not_spoken(pair: Pair) -> None:
    contexts = load(settings(pair)).contexts
    for context in contexts.values():
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        for cipher in context.get_ciphers():
            assert cipher["aead"] and (cipher["protocol"] == "TLSv1.3" or "ECDHE" in cipher["name"]), cipher
        assert context.verify_mode == ssl.CERT_NONE


def test_key_and_certificate_may_be_in_one_file(pair: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    assert load(Settings(tls_certificate=str(both))).subject == "CN=node"


def test_each_thing_that_is_wrong_is_said_with_its_file(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    other, junk, missing = authority.server("other"), tmp_path / "junk", tmp_path / "missing"
    junk.write_text("junk")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    form, phrase = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, phrase))
    plain = settings(pair)
    for changed, words in (
        ({"tls_certificate": str(missing)}, "cannot be read"),
        ({"tls_certificate": str(junk)}, "no certificate in PEM"),
        ({"tls_key": str(missing)}, "cannot be read"),
        ({"tls_key": str(junk)}, "no certificate and private key"),
        ({"tls_key": str(other.key)}, "is not that of the certificate"),
        ({"tls_key": str(locked)}, "encrypted"),
        ({"tls_client_ca": str(junk), "tls_client_certificates": "required"}, "no certificates in PEM"),
        ({"tls_client_ca": str(missing), "tls_client_certificates": "required"}, "cannot be read"),
    ):
        said = refusal(replace(plain, **changed))  # type: ignore[arg-type]
        assert words in said and str(next(iter(changed.values()))) in said, said


@pytest.mark.parametrize(("asked", "mode"), [("optional", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_clients_are_asked_for_certificates_as_the_setting_says(
    authority: Authority, pair: Pair, asked: str, mode: ssl.VerifyMode
) -> None:
    found = load(settings(pair, tls_client_ca=str(authority.file), tls_client_certificates=asked))
    assert {context.verify_mode for context in found.contexts.values()} == {mode}


def test_a_subject_is_written_as_openssl_does_in_rfc_2253(authority: Authority) -> None:
    made = x509.load_pem_x509_certificate(authority.client("rea,der").certificate.read_bytes())
    assert subject_text(made) == "CN=rea\\,der,O=Example"


class Told:
    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, event: str, facts: dict[str, str]) -> None:
        self.events.append(event)
        assert "PRIVATE" not in str(facts)


def test_a_new_pair_is_taken_when_its_files_change_and_only_then(authority: Authority) -> None:
    pair, told = authority.server("renewed"), Told()
    held = ServerTls(settings(pair), told)
    before = held.context(tls.HTTP)
    held.check()
    assert held.context(tls.HTTP) is before and told.events == []
    pair.become(authority.server("newer"))
    held.check()
    assert held.loaded.subject == "CN=newer" and held.context(tls.HTTP) is not before
    assert (held.reloads_count, held.refused_count) == (1, 0)
    held.check(again=True)
    assert held.reloads_count == 2


def test_what_cannot_be_used_is_refused_once_and_the_pair_in_use_stays(authority: Authority) -> None:
    pair, told = authority.server("steady"), Told()
    held = ServerTls(settings(pair), told)
    before = held.context(tls.HTTP)
    whole = pair.certificate.read_bytes()
    newer = authority.server("half-way")
    os.replace(newer.certificate, pair.certificate)  # the key comes later
    for _ in range(3):
        held.check()
    assert held.context(tls.HTTP) is before and held.refused_count == 1 and len(told.events) == 1
    pair.certificate.unlink()
    held.check()
    assert held.context(tls.HTTP) is before and held.refused_count == 2
    pair.certificate.write_bytes(whole)
    held.check()
    assert held.loaded.subject == "CN=steady" and held.reloads_count == 1


def test_a_certificate_that_has_expired_is_served_and_its_end_is_known(authority: Authority) -> None:
    found = load(settings(authority.server("old", valid=timedelta(hours=-1))))
    assert found.expires.timestamp() > 0
