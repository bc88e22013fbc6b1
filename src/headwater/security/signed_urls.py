"""Signed URLs: what a browser may read without a header, until when. Pure.

Owns the text of a signature and its check. Never says who may sign: whoever serves the call does. What it allows is to
read one stream, or what begins with a prefix, for as long as its signer may.

    signed=1.<expires, seconds>.<id of the signer>.<base64url of where>.<base64url of HMAC-SHA256>

where: `=` and a stream's key, or `^` and what keys begin with.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from headwater.security.principals import Action, Scope

PARAMETER = b"signed"
EXPIRES_S_MAX = 30 * 86_400
"""From when it is made. A longer one would be a key that everybody keeps in a history of pages."""
_EXACT, _BEGINS = "=", "^"
_TEXT = re.compile(rb"1\.([1-9][0-9]{0,11})\.([a-z0-9-]{1,64})\.([A-Za-z0-9_-]{1,2000})\.([A-Za-z0-9_-]{43})")
_IN_TARGET = re.compile(rb"([?&]signed=)[^&#]*")


class Signed(NamedTuple):
    scope: Scope
    expires_ms: int
    by: str


def sign(secret: bytes, scope: Scope, expires_s: int, by: str) -> str:
    text = (_EXACT if scope.exact else _BEGINS) + scope.start
    where = urlsafe_b64encode(text.encode()).rstrip(b"=")
    said = b"1.%d.%b.%b" % (expires_s, by.encode(), where)
    return (said + b"." + _mac(secret, said)).decode()


def checked(secret: bytes, text: bytes) -> Signed | None:
    """What it allows; None for what this server did not sign. Whether it is over is for the caller to see."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    said = text[: found.start(4) - 1]
    if not hmac.compare_digest(_mac(secret, said), found[4]):
        return None
    where = found[3]
    try:
        scope = urlsafe_b64decode(where + b"=" * (-len(where) % 4)).decode()
    except ValueError:
        return None
    kind, start = scope[:1], scope[1:]
    if kind not in (_EXACT, _BEGINS) or "/" not in start:
        return None
    return Signed(Scope(int(Action.READ), start, kind == _EXACT), int(found[1]) * 1000, found[2].decode())


def of_query(query: bytes) -> bytes | None:
    """The signature in a query; the last one counts, as with headers."""
    found = None
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == PARAMETER:
            found = unquote_to_bytes(value)
    return found


def redacted(target: bytes) -> bytes:
    """A request's target without the signature in it: fit for a log line."""
    return _IN_TARGET.sub(rb"\1[redacted]", target) if PARAMETER in target else target


def _mac(secret: bytes, said: bytes) -> bytes:
    return urlsafe_b64encode(hmac.digest(secret, b"headwater signed url\n" + said, "sha256")).rstrip(b"=")
