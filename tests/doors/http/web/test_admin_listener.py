"""The node's own calls on an address of their own: clients' listener has none of them, the other one has everything."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from headwater.doors.http.admin_listener import is_own
from headwater.security.policy import Concern, Rule
from tests.support.here import Here
from tests.support.http import Connection, request
from tests.support.node import HOST, Node

ADMIN_READY = re.compile(r'"address": "127\.0\.0\.1:(\d+)", "event": "admin ready"')


def rules() -> list[tuple[str, Rule]]:
    with Here.started(memory=True) as here:
        return list(here.node.policy)


@pytest.fixture(scope="module", params=["1", "3"], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, int]]:
    flags = ("--admin-listen", f"{HOST}:0", "--workers", request.param)
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=flags) as node:
        found = ADMIN_READY.search(node.stderr())
        assert found is not None, node.output()
        yield node, int(found[1])
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


def test_every_route_about_everything_or_the_node_itself_is_kept_from_clients_and_no_other() -> None:
    """By the table of rules: a new one is kept, unless it is about streams."""
    for route, rule in rules():
        path = re.sub(r"\{\w+\}", "1", route).encode()
        assert is_own(path) == (rule.concern in (Concern.EVERYTHING, Concern.NODE)), route


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/metrics?name=x",
        "/__headwater/config",
        "/__headwater/metrics",
        "/__headwater/groups",
        "/__headwater/groups/0/feed",
        "/__headwater/plan",
        "/__headwater/lake",
        "/__headwater/tokens",
        "/__headwater",
        "/__headwater/",
        "/__headwater/appendix",
        "http://a/__headwater/config",
        "/__headwater%2Fconfig",
        "/%5F%5Fheadwater/config",
        "//__headwater/config",
        "/./__headwater/config",
        "/ds/../__headwater/config",
        "/__HEADWATER/config",
    ],
)
def test_clients_find_nothing_there_however_it_is_written(node: tuple[Node, int], path: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        answer = request(node[0].port, method, path)
        plain = path.startswith(("/__headwater", "/metrics", "http://a/__headwater")) and "%" not in path
        assert answer.status == 404 or (not plain and (answer.status in (400, 405) or method == "OPTIONS")), path
        if method == "GET":
            assert b"listen" not in answer.body and b"headwater_" not in answer.body


def test_the_other_address_serves_everything_and_both_serve_health_and_calls_about_streams(
    node: tuple[Node, int],
) -> None:
    server, admin = node
    for path in ("/metrics", "/__headwater/config", "/__headwater/groups", "/healthz", "/readyz"):
        assert request(admin, "GET", path).status == 200, path
    for path in ("/healthz", "/readyz"):
        assert request(server.port, "GET", path).status == 200, path
    text = {"Content-Type": "text/plain"}
    for n in range(6):
        path = f"/v1/stream/both-{n}"
        assert request(admin, "PUT", path, text).status == 201
        assert request(server.port, "POST", path, text, b"x").status == 204
        assert request(admin, "GET", path).body == b"x"
        assert request(server.port, "GET", f"/__headwater/groups/{n % 3}/feed").status == 404
    entry = b'[{"path": "/both-0", "content_type": "text/plain", "text": ["y"]}]'
    for port in (server.port, admin):
        assert request(port, "POST", "/__headwater/append", {"Content-Type": "application/json"}, entry).status != 404


def test_a_request_that_was_let_through_before_opens_nothing_for_others(node: tuple[Node, int]) -> None:
    """The same bytes on both listeners: what one of them remembers is not asked by the other."""
    server, admin = node
    with Connection(HOST, admin) as own, Connection(HOST, server.port) as client:
        for _ in range(3):
            assert own.request("GET", "/__headwater/config", {"Host": "same"}).status == 200
            assert client.request("GET", "/__headwater/config", {"Host": "same"}).status == 404
