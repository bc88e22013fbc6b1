"""TLS as a client speaks it: whose certificates it trusts, its own if it has one, and what went wrong in words.

Owns the variables that name the files. A context is made once for the same files, and again when they change. Never
connects.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

CA_VARIABLE = "HEADWATER_CA_FILE"
CERTIFICATE_VARIABLE = "HEADWATER_CLIENT_CERTIFICATE"
KEY_VARIABLE = "HEADWATER_CLIENT_KEY"
VARIABLES = (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's X509_V_ERR_… for a chain that ends in nobody who is trusted."""
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)


class TlsFiles(NamedTuple):
    """Paths of PEM files; "" is none. Without `ca_file` the system's authorities are trusted."""

    ca_file: str = ""
    certificate: str = ""
    key: str = ""
    """"" is in the certificate's file."""

    def context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError among them) that names the file."""
        return _context(self, tuple(_stamp(path) for path in self))


def from_environment(environ: Mapping[str, str]) -> TlsFiles:
    return TlsFiles(*(environ.get(name, "") for name in VARIABLES))


def explained(why: ssl.SSLError, host: str) -> str:
    """What a failed handshake means, and what to do."""
    if isinstance(why, ssl.SSLCertVerificationError):
        code = why.verify_code
        if code in _UNKNOWN_AUTHORITY:
            return f"nobody who is trusted signed the server's certificate: name the authority's file in {CA_VARIABLE}"
        if code in _OTHER_NAME:
            return f"the server's certificate is not for {host}: use a name that is in it"
        if code in (_EXPIRED, _NOT_YET):
            state = "over" if code == _EXPIRED else "not valid yet"
            return f"the time of the server's certificate is {state}: renew it, or look at the clock"
        return f"the server's certificate is not taken: {why.verify_message}"
    reason = str(why.reason or why)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"the server wants a client certificate ({reason}): name its file in {CERTIFICATE_VARIABLE}"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "CERTIFICATE_UNKNOWN" in reason:
        return f"the server does not take this client's certificate ({reason})"
    if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"the server does not speak TLS ({reason}): is it http://?"
    return reason


def wants_certificate(why: BaseException) -> bool:
    """A server of TLS 1.3 says so only after the client takes the connection for made: nothing was asked of it yet."""
    return isinstance(why, ssl.SSLError) and "CERTIFICATE_REQUIRED" in str(why.reason or why)


@lru_cache(maxsize=16)
def _context(files: TlsFiles, stamps: tuple[object, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file or None)
    except OSError as why:
        raise OSError(f"the authorities in {files.ca_file} cannot be read: {_said(why)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if files.certificate:
        try:
            context.load_cert_chain(files.certificate, files.key or None, password=_never)
        except OSError as why:
            where = " and ".join(path for path in (files.certificate, files.key) if path)
            raise OSError(f"the client certificate in {where} cannot be used: {_said(why)}") from None
    return context


def _never() -> str:
    raise OSError("its key is encrypted")


def _said(why: OSError) -> str:
    return str(getattr(why, "reason", None) or why.strerror or why)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
