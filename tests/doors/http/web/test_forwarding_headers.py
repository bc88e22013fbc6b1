"""Headers that proxies set are believed of trusted proxies alone, also where a head is remembered or sent on."""

from __future__ import annotations

from itertools import count

import pytest

from tests.doors.http.web.conftest import PROXY
from tests.support.http import Connection
from tests.support.node import HOST, Node

SAID = {"X-Forwarded-For": "203.0.113.5", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "streams.example"}
NAMES = (f"{n:08d}" for n in count())


def location(node: Node, source: str | None, headers: dict[str, str]) -> str | None:
    with Connection(HOST, node.port, source=source) as connection:
        answer = connection.request("PUT", f"/v1/stream/{next(NAMES)}", {"Content-Type": "text/plain", **headers})
        assert answer.status == 201
        return answer.header("location")


def test_a_trusted_proxy_says_where_its_client_reached_it_and_nobody_else_does(node: Node) -> None:
    """In turns, so that a head which one of them sent is never taken for the other's. With several workers, most of
    them are sent on to another process."""
    for _ in range(6):
        assert str(location(node, PROXY, SAID)).startswith("https://streams.example/v1/stream/")
        assert str(location(node, None, SAID)).startswith(f"http://{HOST}:{node.port}/v1/stream/")


def test_the_same_head_means_something_else_of_somebody_else(node: Node) -> None:
    """Byte for byte the same request, first by the proxy: a remembered head of it would be believed."""
    path = f"/v1/stream/__ds/subscriptions/{next(NAMES)}"
    body = b'{"type":"pull-wake","pattern":"a/*","wake_stream":"a/wakes"}'
    headers = {"Content-Type": "application/json", "Host": "direct.example", **SAID}
    for _ in range(2):
        for source in (PROXY, None):
            with Connection(HOST, node.port, source=source) as connection:
                assert connection.request("PUT", path, headers, body).status in (200, 201)
    headers = {"Content-Type": "text/plain", "Host": "direct.example", **SAID}
    found = set()
    for source in (PROXY, None) * 2:
        with Connection(HOST, node.port, source=source) as connection:
            answer = connection.request("PUT", "/v1/stream/same", headers)
            assert answer.status == 201
            found.add((source, str(answer.header("location")).partition("/v1/")[0]))
            assert connection.request("DELETE", "/v1/stream/same").status == 204
    assert found == {(PROXY, "https://streams.example"), (None, "http://direct.example")}


@pytest.mark.parametrize(
    "host", ["evil.example/path", "evil example", "a@evil.example", "evil.example#", "evil.example:x", "[::1", ""]
)
def test_a_host_that_is_none_is_refused_and_never_put_into_a_url(node: Node, host: str) -> None:
    with Connection(HOST, node.port) as connection:
        answer = connection.request("PUT", f"/v1/stream/{next(NAMES)}", {"Content-Type": "text/plain", "Host": host})
        if answer.status == 400:
            return
        assert host == "" or answer.status == 201
        assert host not in str(answer.header("location")) or host == ""


def test_a_second_host_is_refused_whatever_the_proxy_would_take(node: Node) -> None:
    with Connection(HOST, node.port) as connection:
        headers = [("Host", "a.example"), ("Host", "evil.example"), ("Content-Type", "text/plain")]
        assert connection.request("PUT", f"/v1/stream/{next(NAMES)}", headers).status == 400


def test_more_forwarding_headers_than_headers_may_be_are_refused_from_everybody(node: Node) -> None:
    for source in (PROXY, None):
        with Connection(HOST, node.port, source=source) as connection:
            headers = [("X-Forwarded-For", "1.2.3.4")] * 200
            assert connection.request("GET", "/healthz", headers).status == 431
