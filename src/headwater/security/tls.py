"""The node's certificate: what new connections are served with, and a newer one as soon as its files are there.

Owns the modern defaults, and that a pair which cannot be used never takes the place of one that can. Connections that
are open keep what they began with. Never accepts a connection: `doors/secure_door` does.

    TLS 1.2 with forward secrecy and AEAD ciphers, or 1.3. No renegotiation, no compression.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from headwater.security import certificates
from headwater.security.certificates import FILE_BYTES_MAX, Certificates, TlsRefused, subject_text
from headwater.setting_values import AUTO, OFF
from headwater.web_settings import REQUIRED, WebSettings

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all of this kind."""
HTTP_PROTOCOLS = ["http/1.1"]
HTTP, S3P, GATE, PEERS = "http", "s3p", "gate", "peers"

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file: its inode, its size and its time of change; None for one that cannot be looked at."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One pair in use."""

    contexts: dict[str, ssl.SSLContext]
    """By door: HTTP and S3P agree on different protocols."""
    subject: str
    expires: datetime
    certificates: Certificates | None
    """What subjects of clients may do; None where that is not said."""


class ServerTls:
    """Raises TlsRefused when the files cannot be used at the start. `tell(event, facts)` hears of later changes."""

    def __init__(self, settings: WebSettings, tell: Callable[[str, dict[str, str]], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._stamp = self._look()
        self.loaded = load(settings)
        self.on_change: list[Callable[[], None]] = []
        """Called after files were taken over."""
        self.reloads_count = 0
        self.refused_count = 0

    def context(self, door: str) -> ssl.SSLContext:
        """What a connection that begins now is served with."""
        return self.loaded.contexts[door]

    def check(self, again: bool = False) -> None:
        """Takes the files over when they have changed, or in any case (`again`). Costs three calls of `stat` when they
        have not. What cannot be used is told, and the pair in use stays."""
        stamp = self._look()
        if stamp == self._stamp and not again:
            return
        try:
            loaded = load(self._settings)
        except TlsRefused as why:
            # Files are mostly replaced one after the other: between the two they do not go together.
            self.refused_count += 1
            self._stamp = stamp
            self._tell("the new certificate is not taken: the one in use stays", {"reason": str(why)})
            return
        # Changed while they were read: the next look finds that, and reads them again.
        self._stamp = stamp
        self.loaded = loaded
        self.reloads_count += 1
        for changed in self.on_change:
            changed()
        self._tell(
            "the certificate was loaded again", {"subject": loaded.subject, "expires": loaded.expires.isoformat()}
        )

    def _look(self) -> Stamp:
        return tuple(_stamp(path) for path in (*paths(self._settings), self._settings.tls_client_scopes))


def paths(settings: WebSettings) -> list[str]:
    """Certificate, key, and authorities of clients if there are any."""
    key = settings.tls_certificate if settings.tls_key == AUTO else settings.tls_key
    authorities = [path for path in (settings.tls_client_ca, settings.cluster_tls_ca) if path != OFF]
    return [settings.tls_certificate, key, *authorities]


def load(settings: WebSettings) -> Loaded:
    """What the settings name, read now. Raises TlsRefused."""
    certificate, key, *_ = paths(settings)
    leaf = _leaf(certificate)
    contexts = {door: _context(certificate, key, settings) for door in (HTTP, S3P)}
    contexts[HTTP].set_alpn_protocols(HTTP_PROTOCOLS)
    if settings.cluster_tls_ca != OFF:
        for door, side in ((GATE, ssl.PROTOCOL_TLS_SERVER), (PEERS, ssl.PROTOCOL_TLS_CLIENT)):
            contexts[door] = _of_nodes(certificate, key, settings.cluster_tls_ca, side)
    scopes = None if settings.tls_client_scopes == OFF else certificates.load(settings.tls_client_scopes)
    return Loaded(contexts, subject_text(leaf), leaf.not_valid_after_utc, scopes)


def _context(certificate: str, key: str, settings: WebSettings) -> ssl.SSLContext:
    context = _modern(ssl.PROTOCOL_TLS_SERVER)
    _take_pair(context, certificate, key)
    if settings.tls_client_ca != OFF:
        _take_authorities(context, settings.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if settings.tls_client_certificates == REQUIRED else ssl.CERT_OPTIONAL
    return context


def _of_nodes(certificate: str, key: str, authorities: str, side: int) -> ssl.SSLContext:
    """Between nodes, for the one that is connected or the one that connects: each wants to see the other's."""
    context = _modern(side)
    _take_pair(context, certificate, key)
    _take_authorities(context, authorities)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _modern(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def _take_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Raises TlsRefused."""

    def never() -> str:
        # Without this the library would ask the terminal.
        raise TlsRefused(f"the key in {key} is encrypted: write it without a passphrase, readable by the node alone")

    try:
        _readable(key)
        context.load_cert_chain(certificate, key, password=never)
    except ssl.SSLError as why:
        if why.reason == "KEY_VALUES_MISMATCH":
            raise TlsRefused(f"the key in {key} is not that of the certificate in {certificate}") from None
        raise TlsRefused(
            f"{certificate} and {key} are no certificate and private key in PEM ({why.reason or why})"
        ) from None
    except OSError as why:
        raise TlsRefused(f"{certificate} and {key} cannot be read: {why.strerror or why}") from None


def _take_authorities(context: ssl.SSLContext, path: str) -> None:
    """Raises TlsRefused."""
    try:
        _readable(path)
        context.load_verify_locations(path)
    except ssl.SSLError as why:
        raise TlsRefused(f"{path} has no certificates in PEM ({why.reason or why})") from None
    except OSError as why:
        raise TlsRefused(f"{path} cannot be read: {why.strerror or why}") from None


def _leaf(path: str) -> x509.Certificate:
    """The first certificate of a chain. Raises TlsRefused."""
    try:
        return x509.load_pem_x509_certificate(_readable(path))
    except OSError as why:
        raise TlsRefused(f"the certificate {path} cannot be read: {why.strerror or why}") from None
    except ValueError:
        raise TlsRefused(f"{path} has no certificate in PEM") from None


def _readable(path: str) -> bytes:
    """Raises OSError."""
    with open(path, "rb") as file:
        return file.read(FILE_BYTES_MAX)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
