"""Where clients reach this server: the beginning of URLs that answers carry.

Owns what of it is believed, by the setting `public_url`. Never invents a host.

    auto        http:// and the request's Host: what a client says of itself, good for that client
    forwarded   X-Forwarded-Proto and X-Forwarded-Host where a proxy sets them, otherwise as auto
    a URL       that one, whatever a request says
"""

from __future__ import annotations

import re

from headwater.doors.http.headers import Headers

AUTO, FORWARDED = "auto", "forwarded"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


def base_url(headers: Headers, public_url: str) -> str | None:
    """The server's URL, without a slash at its end; None when the request names no host that could stand in one."""
    if public_url not in (AUTO, FORWARDED):
        return public_url
    scheme, host = "http", headers.get(b"host", b"")
    if public_url == FORWARDED:
        # Of several proxies in a row the first one listed is the one that the client met.
        if _first(headers, b"x-forwarded-proto").lower() == b"https":
            scheme = "https"
        host = _first(headers, b"x-forwarded-host") or host
    named = host.decode("latin-1")
    return f"{scheme}://{named}" if _HOST.fullmatch(named) is not None else None


def redirect(path: str, public_url: str) -> str:
    """The Location of another path of this server. A path alone is enough, unless a proxy puts something before it."""
    return path if public_url in (AUTO, FORWARDED) else public_url + path


def _first(headers: Headers, name: bytes) -> bytes:
    return headers.get(name, b"").partition(b",")[0].strip()
