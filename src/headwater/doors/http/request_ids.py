"""What a request is called in answers, error bodies and log lines, by its client or by this server; and its path there.

Owns which names of clients are taken over. Never lets anything else of what a client sends into a header or a log line:
a name that is too long, or has other characters, is replaced.
"""

from __future__ import annotations

import re

from headwater.doors.http.wire import Request
from headwater.ports import SystemRng

NAME = "X-Request-Id"
HEADER = b"x-request-id"
ID_BYTES_MAX = 128
PATH_CHARS_MAX = 200
_VALID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,%d}" % ID_BYTES_MAX)
_LINE = b"\r\nX-Request-Id: "
_rng = SystemRng()


def new() -> str:
    return _rng.token(8).hex()


def of(request: Request) -> str:
    """The client's name for the request, or a new one."""
    given = request.headers.get(HEADER)
    return given.decode("ascii") if given is not None and _VALID.fullmatch(given) else new()


def settled(request: Request) -> str:
    """The same; whoever gets the request from here takes it over. Not for a head that is remembered."""
    found = of(request)
    request.headers[HEADER] = found.encode("ascii")
    return found


def with_id(answer: bytes, request_id: str) -> bytes:
    """The answer, or its head, with the request's name; one that has a name keeps that."""
    head_end = answer.find(b"\r\n\r\n")
    if answer.find(_LINE, 0, head_end) >= 0:
        return answer
    line_end = answer.find(b"\r\n")
    return b"%b%b%b%b" % (answer[:line_end], _LINE, request_id.encode("ascii"), answer[line_end:])


def path_of(request: Request) -> str:
    """For a log line or a span: without the query, which may hold a signature."""
    return request.target.partition(b"?")[0][:PATH_CHARS_MAX].decode("latin-1")
