"""Principals of client certificates: which subject may do what, by the file of the setting `tls_client_scopes`.

Owns the file's form. Whether a certificate is good was found out in the handshake; this is only about its subject.

    "CN=reader,O=Example" = ["read:orders"]
    "CN=scraper" = ["read:_headwater/metrics"]

A subject that is not in the file is nobody in particular: its requests need another credential, as anybody's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from cryptography import x509

from headwater.security.principals import CERTIFICATE, BadScope, Principal, Scope, parse_scopes

SUBJECTS_MAX = 10_000
FILE_BYTES_MAX = 1 << 20


class TlsRefused(Exception):
    """The files cannot be used; the message says which, why, and what to do."""


def subject_text(certificate: x509.Certificate) -> str:
    """The subject as RFC 4514 writes it (RFC 2253 before), such as `CN=reader,O=Example`: the last part of the name
    comes first, as `openssl x509 -noout -subject -nameopt RFC2253` prints it."""
    return certificate.subject.rfc4514_string()


class Certificates:
    """Who a certificate is."""

    def __init__(self, scopes: Mapping[str, tuple[Scope, ...]]) -> None:
        self._scopes = dict(scopes)

    def principal(self, certificate: bytes | None) -> Principal | None:
        """Of a certificate in DER that a handshake found good; None when there is none, or its subject is in no row."""
        if certificate is None:
            return None
        try:
            found = x509.load_der_x509_certificate(certificate)
            subject = subject_text(found)
            expires_ms = int(found.not_valid_after_utc.timestamp() * 1000)
        except ValueError:
            return None  # OpenSSL took it, and this library cannot read it
        scopes = self._scopes.get(subject)
        return None if scopes is None else Principal(CERTIFICATE, subject, scopes, expires_ms, subject)

    def again(self, before: Principal) -> Principal:
        """The same, as the file says now. Whoever is not in it any more may do nothing."""
        return Principal(CERTIFICATE, before.name, self._scopes.get(before.name, ()), before.expires_ms, before.id)


def load(path: str) -> Certificates:
    """Raises TlsRefused."""
    try:
        with open(path, "rb") as file:
            rows = tomllib.loads(file.read(FILE_BYTES_MAX).decode())
    except OSError as why:
        raise TlsRefused(f"the scopes of certificates in {path} cannot be read: {why.strerror or why}") from None
    except ValueError as why:
        raise TlsRefused(f"{path} is not TOML: {why}") from None
    if len(rows) > SUBJECTS_MAX:
        raise TlsRefused(f"{path} has more than {SUBJECTS_MAX} subjects")
    found = {}
    for subject, scopes in rows.items():
        if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
            raise TlsRefused(f'{path}: write "{subject}" = ["ACTIONS:BUCKET", ...]')
        try:
            found[subject] = parse_scopes(scopes)
        except BadScope as why:
            raise TlsRefused(f"{path}: {subject}: {why}") from None
    return Certificates(found)
