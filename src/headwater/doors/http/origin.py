"""Where clients reach this server: the beginning of URLs that answers carry.

Owns what of it is believed, by the settings `public_url` and `trusted_proxies`. Never invents a host.

    auto        what a trusted proxy says of the scheme and host that the client used; without one, the node's own
                scheme and the request's Host: what a client says of itself, good for that client
    forwarded   the same, and proxies have to be named
    a URL       that one, whatever a request says
"""

from __future__ import annotations

import re

from headwater.config import Settings
from headwater.doors.http.client_address import Proxies
from headwater.doors.http.headers import Headers
from headwater.setting_values import AUTO
from headwater.web_settings import FORWARDED

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


class Origin:
    __slots__ = ("_proxies", "_public_url", "_scheme")

    def __init__(self, settings: Settings) -> None:
        self._public_url = None if settings.public_url in (AUTO, FORWARDED) else settings.public_url
        self._scheme = settings.scheme
        self._proxies = Proxies(settings)

    def base_url(self, headers: Headers) -> str | None:
        """The server's URL, without a slash at its end; None when the request names no host that could stand in one."""
        if self._public_url is not None:
            return self._public_url
        scheme, host = self._proxies.reached_by(headers)
        if scheme not in ("http", "https"):
            scheme = self._scheme
        host = host or headers.get(b"host", b"").decode("latin-1")
        return f"{scheme}://{host}" if _HOST.fullmatch(host) is not None else None

    def redirect(self, path: str) -> str:
        """The Location of another path of this server. A path alone is enough, unless a proxy puts something before
        it."""
        return path if self._public_url is None else self._public_url + path
