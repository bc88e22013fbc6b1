"""Calls to a node: which ones are repeated, how long a call waits, and how a caller travels to an executor."""

from __future__ import annotations

import pickle

import pytest

from headwater.spark.node import Node, NodeError, NodeRefused, Seen
from tests.support.scripted import answer, scripted

BUSY = answer("503 Service Unavailable", [("Retry-After", "0")])
DONE = answer("200 OK", body=b"{}")


def test_a_busy_node_is_waited_for_whatever_the_call() -> None:
    with scripted([BUSY], [DONE]) as script:
        assert Node(script.url).call("POST", "/x", b"1", repeat=False).body == b"{}"
        assert len(script.received) == 2


def refused(code: str) -> bytes:
    body = b'{"error":{"code":"%s","message":"why"}}' % code.encode()
    return answer("503 Service Unavailable", [("Retry-After", "0")], body)


@pytest.mark.parametrize("code", ["group_moved", "not_served_here", "no_owner", "member_unavailable", "shutting_down"])
def test_a_change_of_owners_is_waited_for_whatever_the_call(code: str) -> None:
    with scripted([refused(code)], [DONE]) as script:
        assert Node(script.url).call("POST", "/x", b"1", repeat=False).body == b"{}"
        assert len(script.received) == 2


@pytest.mark.parametrize("code", ["outcome_unknown", "log_unavailable"])
def test_an_answer_that_leaves_the_outcome_open_is_asked_for_again_only_where_that_is_safe(code: str) -> None:
    with scripted([refused(code)], [DONE]) as script:
        assert Node(script.url).call("POST", "/x", b"1", repeat=True).status == 200
    with scripted([refused(code)], [DONE]) as script:
        with pytest.raises(NodeRefused, match=code):
            Node(script.url).call("POST", "/x", b"1", repeat=False)
        assert len(script.received) == 1


def test_a_call_whose_answer_is_lost_is_repeated_only_where_that_is_safe() -> None:
    with scripted([], [DONE]) as script:
        assert Node(script.url).call("GET", "/x").status == 200
    with scripted([], [DONE]) as script:
        with pytest.raises(NodeError, match="the connection was lost"):
            Node(script.url).call("POST", "/x", b"1")
        assert len(script.received) == 1


def test_a_node_that_is_not_there_is_said_to_be_away_when_patience_ends() -> None:
    with scripted() as script:
        pass
    with pytest.raises(NodeError, match=f"no node answers at {script.url} .*: start one, or name it"):
        Node(script.url, patience_s=0.15).call("GET", "/x")


def test_a_refusal_is_not_repeated_and_can_travel_from_an_executor() -> None:
    body = b'{"error":{"code":"no_such_group","message":"there is no group 7"}}'
    with scripted([answer("404 Not Found", body=body)]) as script:
        with pytest.raises(NodeRefused) as caught:
            Node(script.url).call("GET", "/x")
        assert (caught.value.status, caught.value.code) == (404, "no_such_group")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_node_with_an_open_connection_travels_to_an_executor() -> None:
    with scripted([DONE], [DONE]) as script:
        node = Node(script.url, "secret", expects={0: Seen("log", "1", 9)})
        node.call("GET", "/x")
        pickle.loads(pickle.dumps(node)).call("GET", "/x")
        first, second = (request.headers for request in script.received)
        assert first == second and second["authorization"] == "Bearer secret"
        assert second["headwater-expected-log"] == "0:log/1/9"


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h:x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(NodeError, match="http://HOST:PORT"):
        Node(url)
