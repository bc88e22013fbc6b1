"""One kept-alive HTTP connection to a server, for the command line and for Spark.

Never sends a request twice: a failure says whether the server can have seen the request, and the caller decides. It is
the standard library's http.client; docs/dependencies.md says what httpx would cost here.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import responses
from typing import NamedTuple
from urllib.parse import urlsplit

from headwater.client.tls_files import TlsFiles, explained, from_environment, wants_certificate

TIMEOUT_S = 120.0
"""Of connecting, and of every read and write. A server answers a long-poll within a minute."""
CHUNK_BYTES = 64 * 1024
MESSAGE_CHARS_MAX = 500
HTTP_PORT, HTTPS_PORT = 80, 443


class Failed(Exception):
    """There is no complete answer; the text says why."""


class NotConnected(Failed):
    """No connection came about: the server certainly did nothing."""


class NobodyListens(NotConnected):
    """The machine is there, and no program accepts connections at the port."""


class NoTls(NotConnected):
    """The other side does not speak TLS, or its certificate is not trusted."""


class Lost(Failed):
    """The connection ended before the answer was complete: what the server did is not known."""


class NotHttp(Lost):
    """What came is not an HTTP response."""


class CannotBeSent(Failed):
    """The request has a control character in its path or in a header; nothing was sent."""


class Address(NamedTuple):
    secure: bool
    host: str
    port: int
    prefix: str
    """What every path begins with; without a slash at its end."""
    tls: TlsFiles = TlsFiles()


def address(url: str, tls: TlsFiles | None = None) -> Address | None:
    """None when the text is not the address of a server. Without `tls` the environment names its files."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    if parts.query or parts.fragment or "@" in parts.netloc:
        return None
    secure = parts.scheme == "https"
    port = port or (HTTPS_PORT if secure else HTTP_PORT)
    files = from_environment(os.environ) if tls is None else tls
    return Address(secure, parts.hostname, port, parts.path.rstrip("/"), files)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def next_offset(self) -> str:
        return self.headers.get("stream-next-offset", "")

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def closed(self) -> bool:
        return self.headers.get("stream-closed", "").lower() == "true"

    @property
    def up_to_date(self) -> bool:
        return self.headers.get("stream-up-to-date", "").lower() == "true"

    def error(self) -> tuple[str, str]:
        """Code and message of a refusal. The code is empty, and the message one line, when the server is not ours."""
        try:
            error = json.loads(self.body)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, LookupError, TypeError, RecursionError):
            line = self.body.decode("utf-8", "replace").strip().partition("\n")[0]
            code, message = "", line[:MESSAGE_CHARS_MAX]
        return code, message or f"the server answered {self.status} {responses.get(self.status, '')}".rstrip()


def printable(text: str) -> str:
    """Text from elsewhere made safe for a terminal: one line, no control characters."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


class Connection:
    """For one thread at a time. Connects when it is first used, and again after a failure."""

    def __init__(self, server: Address, timeout_s: float = TIMEOUT_S) -> None:
        self._prefix = server.prefix
        self._server = server
        self._http = http.client.HTTPConnection(server.host, server.port, timeout=timeout_s)
        if server.secure:
            self._http.default_port = HTTPS_PORT

    def close(self) -> None:
        self._http.close()

    def wait_for(self, timeout_s: float) -> None:
        """From now on this is the time of connecting, and of every read and write."""
        self._http.timeout = timeout_s
        if self._http.sock is not None:
            self._http.sock.settimeout(timeout_s)

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        fresh: bool = False,
    ) -> Answer:
        """The answer, whatever its status. Raises Failed.

        A kept connection that the server has ended is replaced before it is used. `fresh`: so is every other one. The
        server may end a kept connection just as a request is sent, and then nobody knows whether the request arrived.
        """
        self._connect(fresh)
        try:
            return self._answer(self._sent(method, path, headers, body))
        except (OSError, http.client.HTTPException) as why:
            self.close()
            raise _lost(why) from why

    @contextmanager
    def streamed(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[tuple[Answer, Iterator[bytes]]]:
        """A GET whose body comes in chunks, as they arrive; the connection is closed with the block.

        An answer of 300 and above comes with its whole body and without chunks. Chunks raise Lost when the body breaks
        off; its proper end just ends them.
        """
        self._connect(fresh=True)
        try:
            chunks: Iterator[bytes] = iter(())
            try:
                response = self._sent("GET", path, headers, None)
                if response.status >= 300:
                    whole = self._answer(response)
                else:
                    whole, chunks = Answer(response.status, _lowered(response), b""), _chunks(response)
            except (OSError, http.client.HTTPException) as why:
                raise _lost(why) from why
            yield whole, chunks
        finally:
            self.close()

    def _connect(self, fresh: bool) -> None:
        if self._http.sock is not None:
            # Between two requests nothing may arrive: a readable socket is one that the server has closed.
            if not fresh and not _is_readable(self._http.sock):
                return
            self.close()
        try:
            self._http.connect()
            if self._server.secure:
                self._secure()
        except ConnectionRefusedError as why:
            raise NobodyListens(why.strerror or "connection refused") from why
        except ssl.SSLError as why:
            self.close()
            raise NoTls(explained(why, self._server.host)) from why
        except (OSError, UnicodeError) as why:
            self.close()
            raise NotConnected(getattr(why, "strerror", None) or str(why) or "timed out") from why

    def _secure(self) -> None:
        """Raises OSError, ssl.SSLError."""
        plain = self._http.sock
        self._http.sock = self._server.tls.context().wrap_socket(plain, server_hostname=self._server.host)

    def _sent(
        self, method: str, path: str, headers: Mapping[str, str] | None, body: bytes | None
    ) -> http.client.HTTPResponse:
        encoded = {name: value.encode("utf-8", "surrogateescape") for name, value in (headers or {}).items()}
        try:
            self._http.request(method, self._prefix + path, body, encoded)
        except ValueError as why:
            self.close()  # It holds half a request.
            raise CannotBeSent(str(why)) from None
        except ConnectionError as why:
            # A server that refuses a body (413) answers, and need not read the rest of it.
            try:
                response = self._http.getresponse()
            except (OSError, http.client.HTTPException):
                raise why from None
            if response.status < 400:
                raise  # Nothing that was not sent in full is done.
            response.will_close = True
            return response
        return self._http.getresponse()

    def _answer(self, response: http.client.HTTPResponse) -> Answer:
        answer = Answer(response.status, _lowered(response), response.read())
        if response.will_close:
            self.close()
        return answer


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as why:
            raise _lost(why) from why
        if not chunk:
            return
        yield chunk


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()  # select.select() takes no file descriptor above 1,023, and an executor may have many open
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _lost(why: Exception) -> Failed:
    if wants_certificate(why):
        return NoTls(explained(why, ""))  # type: ignore[arg-type]
    if type(why) is http.client.BadStatusLine:
        return NotHttp("the answer is not HTTP")
    return Lost(str(why) if isinstance(why, TimeoutError) and str(why) else type(why).__name__)


def _lowered(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
