"""Two nodes of a cluster, each served with TLS and with an address for its own calls.
Requests are sent on, and redirects say https."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.http import Connection, ConnectionEnded, EventStream
from tests.support.node import HOST, Node

TEXT = {"Content-Type": "text/plain"}
ADMIN_READY = re.compile(r'"address": "127\.0\.0\.1:(\d+)", "event": "admin ready"')


@pytest.fixture(scope="module", params=["off", "on"], ids=["plain between nodes", "TLS between nodes"])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[list[Node]]:
    place = tmp_path_factory.mktemp("cluster")
    secret = place / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    pair = authority.node("cluster")
    shared = ("--cluster", f"file://{place}/log", "--lake", f"{place}/lake", "--cluster-secret-file", str(secret))
    own = ("--cluster-listen", f"{HOST}:0", "--admin-listen", f"{HOST}:0", "--groups", "4")
    between = ("--cluster-tls-ca", str(authority.file)) if request.param == "on" else ()
    with ExitStack() as held:
        flags = (*pair.flags, *shared, *own, *between)
        started = [held.enter_context(Node.started(place / f"node-{n}", flags=flags)) for n in range(2)]
        yield started
        for node in started:
            assert "Traceback" not in node.stderr(), node.output()


@pytest.mark.full
def test_nodes_of_a_cluster_serve_with_tls_and_send_on_what_others_own(nodes: list[Node], authority: Authority) -> None:
    moved = 0
    for n in range(8):
        path = f"/v1/stream/shared-{n}"
        for at, node in enumerate(nodes):
            with Connection(HOST, node.port, tls=authority.trusting()) as connection:
                answer = connection.request("PUT", path, TEXT)
                assert answer.status == (201 if at == 0 else 200)
                assert connection.request("POST", path, TEXT, b"x").status == 204
                assert connection.request("GET", path).body == b"x" * (at + 1)
                redirected = connection.request("GET", path, {"Headwater-Redirect": "307"})
                if redirected.status == 307:
                    moved += 1
                    other = nodes[1 - at]
                    assert redirected.header("location") == f"https://{HOST}:{other.port}{path}"
    assert moved


@pytest.mark.full
def test_each_node_has_an_address_for_its_own_calls_that_redirects_nobody(
    nodes: list[Node], authority: Authority
) -> None:
    for node in nodes:
        found = ADMIN_READY.search(node.stderr())
        assert found is not None, node.output()
        with Connection(HOST, int(found[1]), tls=authority.trusting()) as own:
            for group in range(4):
                path = f"/__headwater/groups/{group}/lake/files"
                assert own.request("GET", path, {"Headwater-Redirect": "307"}).status == 200
            assert own.request("GET", "/__headwater/cluster").status == 200
        with Connection(HOST, node.port, tls=authority.trusting()) as client:
            assert client.request("GET", "/__headwater/cluster").status == 404
            assert client.request("GET", "/readyz").status == 200


@pytest.mark.full
def test_followers_of_what_another_node_owns_get_events_one_by_one(nodes: list[Node], authority: Authority) -> None:
    for n in range(6):
        path = f"/v1/stream/live-{n}"
        with ExitStack() as held:
            first, second = (
                held.enter_context(Connection(HOST, node.port, tls=authority.trusting())) for node in nodes
            )
            assert first.request("PUT", path, TEXT).status == 201
            follower = held.enter_context(Connection(HOST, nodes[n % 2].port, tls=authority.trusting()))
            feed = EventStream.open(follower, f"{path}?offset=now&live=sse")
            events = iter(feed)
            assert next(events).name == "control"
            assert second.request("POST", path, TEXT, b"x").status == 204
            assert next(events).data == "x"
            next(events)
            assert first.request("POST", path, {"Stream-Closed": "true"}).status == 204
            assert [event.json()["streamClosed"] for event in events] == [True]
            assert feed.ended_cleanly


@pytest.mark.full
def test_who_shows_no_certificate_of_the_cluster_does_not_come_as_far_as_the_secret(
    nodes: list[Node], authority: Authority, tmp_path: Path
) -> None:
    found = re.search(r'"address": "127\.0\.0\.1:(\d+)", "groups": \d+, "event": "joined"', nodes[0].stderr())
    assert found is not None, nodes[0].output()
    gate, stranger = int(found[1]), Authority(tmp_path, "stranger")
    if "--cluster-tls-ca" not in nodes[0].flags:
        pytest.skip("nodes speak without TLS")
    for context in (authority.trusting(), authority.trusting(stranger.node("stranger"))):
        with pytest.raises((ssl.SSLError, ConnectionError, ConnectionEnded)):
            Connection(HOST, gate, tls=context).request("GET", "/__headwater/members")
    with Connection(HOST, gate) as plain:
        assert plain.request("GET", "/__headwater/members").status == 404
