"""Content types: which ones a stream or a snapshot may have, and what two of them are compared by.

Owns the rule for every door, because a stored content type becomes a response header. Never looks at a stream.

    type/subtype *( ; [ name=value ] )      RFC 9110, 8.3.1: tokens, and values that are tokens or quoted strings

Printable ASCII only: a text that is not ASCII is written as `name*=UTF-8''%C3%A9` (RFC 8187).
"""

from __future__ import annotations

import re

from headwater.errors import BadContentType

DEFAULT = "application/octet-stream"
BYTES_MAX = 8_192
"""Whatever the setting is: no stored content type is longer."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA = re.compile(rf"{_TOKEN}/{_TOKEN}")
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_WHOLE = re.compile(rf"{_TOKEN}/{_TOKEN}(?: *;(?: *{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))?)*")


def check(content_type: str, bytes_max: int = BYTES_MAX) -> str:
    """The content type, lower case and without parameters. Raises BadContentType."""
    if len(content_type) > bytes_max:
        raise BadContentType(f"at most {bytes_max} bytes")
    if not (content_type.isascii() and content_type.isprintable()):
        raise BadContentType("it holds printable ASCII characters only")
    if _WHOLE.fullmatch(content_type) is None:
        raise BadContentType("expected type/subtype, perhaps with parameters, such as text/plain; charset=utf-8")
    return normalise(content_type)


def normalise(content_type: str) -> str:
    """Lower case, without parameters: what two content types are compared by."""
    semicolon = content_type.find(";")
    if semicolon >= 0:
        content_type = content_type[:semicolon]
    return content_type.strip().lower()


def shown(stored: str) -> str:
    """What readers are told of a stored content type that `check` would refuse: earlier versions stored any."""
    if stored.isascii() and stored.isprintable() and _WHOLE.fullmatch(stored) is not None:
        return stored
    media = normalise(stored)
    return media if _MEDIA.fullmatch(media) is not None else DEFAULT
