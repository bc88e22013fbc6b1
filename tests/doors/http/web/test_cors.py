"""Pages of named origins, with credentials: each answer is made out to the page that asked, and to no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from headwater.doors.http import respond
from tests.doors.http.web.conftest import ORIGINS
from tests.support.http import Response
from tests.support.node import Node

DOORS = Path(respond.__file__).parent
SAFE = {"cache-control", "content-type", "content-length", "content-language", "expires", "last-modified", "pragma"}
"""Headers that every page may read (the Fetch standard's safelist)."""
NOT_FOR_PAGES = {"connection", "upgrade", "transfer-encoding", "sec-websocket-accept", "x-accel-buffering", "host"}
"""What a browser keeps to itself, or sends."""


def asked(node: Node, origin: str | None, method: str, path: str, body: bytes | None = None) -> Response:
    headers = {"Content-Type": "text/plain"} | ({} if origin is None else {"Origin": origin})
    return node.request(method, path, headers, body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/stream/cors", (200, 201)),
        ("POST", "/v1/stream/cors", (204,)),
        ("GET", "/v1/stream/cors?offset=-1", (200,)),
        ("GET", "/v1/stream/cors?offset=now&live=sse", (200,)),
        ("HEAD", "/v1/stream/cors", (200,)),
        ("GET", "/v1/stream/missing", (404,)),
        ("POST", "/v1/stream/cors?bad=%", (204, 400)),
        ("OPTIONS", "/v1/stream/cors", (204,)),
        ("GET", "/healthz", (200,)),
    ],
)
def test_an_answer_is_made_out_to_the_page_that_asked(
    node: Node, method: str, path: str, status: tuple[int, ...]
) -> None:
    body = b"x" if method == "POST" else None
    for origin in (*ORIGINS, "https://evil.example", "null", None):
        asked(node, None, "PUT", "/v1/stream/cors")
        if "live=sse" in path:
            with node.connect() as connection:
                headers = {} if origin is None else {"Origin": origin}
                connection.send(b"GET %b HTTP/1.1\r\nHost: a\r\n" % path.encode())
                connection.send(b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items()) + b"\r\n")
                head = connection.read_head()
                found, answer_status = head.header("access-control-allow-origin"), head.status
        else:
            answer = asked(node, origin, method, path, body)
            found, answer_status = answer.header("access-control-allow-origin"), answer.status
            assert answer.header("access-control-allow-credentials") == "true"
            assert answer.header("vary") == "Origin"
            assert answer.header("access-control-expose-headers") != "*"
        assert answer_status in status
        assert found == (origin if origin in ORIGINS else ORIGINS[0])


def test_a_preflight_is_kept_and_lets_credentials_and_every_header_of_ours_through(node: Node) -> None:
    answer = asked(node, ORIGINS[1], "OPTIONS", "/v1/stream/cors")
    assert answer.header("access-control-max-age") == "86400"
    allowed = str(answer.header("access-control-allow-headers")).lower().split(", ")
    assert "*" not in allowed and {"authorization", "stream-seq", "producer-id", "if-match"} <= set(allowed)
    assert "*" not in str(answer.header("access-control-allow-methods"))


def test_a_refusal_of_what_cannot_be_parsed_further_is_readable_by_the_page_too(node: Node) -> None:
    with node.connect() as connection:
        connection.send(
            b"POST /v1/stream/cors HTTP/1.1\r\nHost: a\r\nOrigin: %b\r\nContent-Length: 99999999999\r\n\r\n"
            % ORIGINS[1].encode()
        )
        answer = connection.read_response()
    assert (answer.status, answer.header("access-control-allow-origin")) == (413, ORIGINS[1])


def test_pages_of_a_named_origin_may_read_every_header_that_answers_have() -> None:
    """Those that stand as the first of a pair in the door's code, or in its table of facts of failures."""
    sent = set()
    for path in DOORS.rglob("*.py"):
        source = path.read_text()
        for found in ast.walk(ast.parse(source)):
            if isinstance(found, ast.Tuple) and len(found.elts) == 2 and isinstance(found.elts[0], ast.Constant):
                sent.add(str(found.elts[0].value))
        sent |= set(re.findall(r'Told\("([A-Z][A-Za-z-]+)"', source))
    names = {name.lower() for name in sent if re.fullmatch(r"[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*)*", name)}
    headers = {name for name in names if "-" in name or name in ("etag", "location", "allow", "date")}
    headers = {name for name in headers if not name.startswith(("access-control-", "accept-", "sec-"))}
    exposed = {name.lower() for name in respond.EXPOSED.split(", ")}
    taken = {name.lower() for name in respond.ALLOWED_HEADERS.split(", ")}
    assert headers - exposed - taken - SAFE - NOT_FOR_PAGES == set()
