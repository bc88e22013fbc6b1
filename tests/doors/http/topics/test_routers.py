"""Routers over HTTP: defined, shown, listed and deleted; what is refused, and with which words.
That records arrive once and in order is tested beside the router itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, body_of, refused, told
from tests.support.http import Response
from tests.support.node import Node
from tests.support.waiting import until

WITHIN_S = 60.0
DEFAULTS = {
    "filter": None, "preserve_tag": True, "preserve_node": True, "preserve_meta": True, "allow_cycle": False,
}  # fmt: skip


class Calls:
    """Requests about routers; those that were defined are deleted at the end."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.names: list[str] = []

    def call(self, method: str, name: str = "", body: Any = None) -> Response:
        path = f"/v0/routers{name and '/'}{name}"
        return self.node.request(method, path, (), None if body is None else body_of(body))

    def put(self, name: str, source: Topic | str, dest: Topic | str, **more: Any) -> Response:
        self.names.append(name)
        return self.call("PUT", name, {"source": _name(source), "dest": _name(dest), **more})

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = told(self.call("GET", name))["state"]
        return found


def _name(topic: Topic | str) -> str:
    return topic if isinstance(topic, str) else topic.name


@pytest.fixture
def routers(node: Node) -> Iterator[Calls]:
    calls = Calls(node)
    yield calls
    for name in calls.names:
        calls.call("DELETE", name)


def until_data(topic: Topic, *data: Any) -> None:
    until(lambda: topic.request("GET").status == 200 and len(topic.data()) >= len(data), "the copies come", WITHIN_S)
    assert topic.data() == list(data)


def test_a_router_copies_records_with_their_labels(routers: Calls, node: Node, topic: Topic) -> None:
    dest = Topic(node, fresh_name("dest"))
    name = fresh_name("r")
    defined = told(routers.put(name, topic, dest), 201)
    assert defined["router"] == name and defined["created"] is True
    assert defined["config"] == {"source": topic.name, "dest": dest.name, **DEFAULTS}
    topic.write({"n": 1}, tag="red", node="me", meta={"k": [1]})
    topic.write(2)
    until_data(dest, {"n": 1}, 2)
    first, second = dest.diff()["records"]
    assert (first["tag"], first["node"], first["meta"]) == ("red", "me", {"k": [1]})
    assert set(second) == {"seq", "ts", "data"}
    assert [one["data"] for one in dest.diff(node="me")["records"]] == [2], "readers leave out what they wrote"
    assert dest.config()["content_type"] == "application/json"
    state = routers.state(name)
    assert (state["cursor"], state["source_head"], state["lag"], state["lost"]) == (2, 2, 0, 0)
    assert state["trouble"] is None and state["source_epoch"] == topic.state()["epoch"]


def test_the_same_router_again_is_answered_200_and_another_one_409(routers: Calls, new: New) -> None:
    source, dest, other = new(), new(), new()
    name = fresh_name("r")
    assert routers.put(name, source, dest).status == 201
    again = told(routers.put(name, source, dest, allow_cycle=False, filter=None))
    assert again["created"] is False and again["config"]["dest"] == dest.name
    answer = routers.put(name, source, other)
    assert refused(answer) == (409, "topic_exists_incompatible")
    assert answer.json()["error"]["detail"]["reason"] == "router_exists"


def test_a_dest_takes_one_router_only(routers: Calls, new: New) -> None:
    source, dest, other = new(), new(), new()
    name = fresh_name("r")
    assert routers.put(name, source, dest).status == 201
    answer = routers.put(fresh_name("r"), other, dest)
    assert refused(answer) == (409, "topic_exists_incompatible")
    detail = answer.json()["error"]["detail"]
    assert (detail["reason"], detail["router"]) == ("router_dest_fan_in", name)


def test_a_cycle_is_refused_and_named_unless_it_is_allowed(routers: Calls, new: New) -> None:
    a, b, c = new(), new(), new()
    assert routers.put(fresh_name("r"), a, b).status == 201
    assert routers.put(fresh_name("r"), b, c).status == 201
    name = fresh_name("r")
    answer = routers.put(name, c, a)
    assert refused(answer) == (409, "router_cycle")
    assert answer.json()["error"]["detail"]["cycle"] == [c.name, a.name, b.name, c.name]
    assert refused(routers.call("GET", name)) == (404, "router_not_found")
    assert routers.put(name, c, a, allow_cycle=True, filter=["tag", "Eq", "round"]).status == 201


def test_a_filter_and_what_is_not_preserved(routers: Calls, new: New) -> None:
    source, dest = new(), new()
    name = fresh_name("r")
    config = {"filter": ["tag", "Glob", "re*"], "preserve_tag": False, "preserve_node": False, "preserve_meta": False}
    assert told(routers.put(name, source, dest, **config), 201)["config"]["filter"] == ["tag", "Glob", "re*"]
    source.write(1, tag="red", node="n", meta={"a": 1})
    source.write(2, tag="blue")
    source.write(3)
    source.write(4, tag="re")
    until_data(dest, 1, 4)
    assert all(set(one) == {"seq", "ts", "data"} for one in dest.diff()["records"])
    deadline_s = time.monotonic() + WITHIN_S
    while routers.state(name)["lag"]:
        assert time.monotonic() < deadline_s
    assert routers.state(name)["cursor"] == 4


def test_routers_are_listed_by_name_and_a_deleted_one_forwards_nothing(routers: Calls, new: New) -> None:
    source, dest, more = new(), new(), new()
    first, second = sorted((fresh_name("r"), fresh_name("r")))
    assert routers.put(second, source, dest).status == 201
    assert routers.put(first, source, more).status == 201
    listed = told(routers.call("GET"))["routers"]
    names = [one["router"] for one in listed]
    assert names == sorted(names) and {first, second} <= set(names)
    assert all(set(one) == {"router", "config", "state"} for one in listed)
    source.write(1)
    until_data(dest, 1)
    assert told(routers.call("DELETE", second)) == {"router": second, "deleted": True}
    source.write(2)
    until_data(more, 1, 2)
    assert dest.data() == [1], "it stays, as it was"
    assert refused(routers.call("DELETE", second)) == (404, "router_not_found")
    assert refused(routers.call("GET", second)) == (404, "router_not_found")
    assert routers.put(second, source, dest).status == 201
    until_data(dest, 1, 2)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"\xff", {}, {"source": "a"}, {"source": 1, "dest": "b"}, {"source": "", "dest": "b"},
     {"source": "a", "dest": "__ds/x"}, {"source": "a", "dest": "a"}, {"source": "a", "dest": "_default/a"},
     {"source": "a", "dest": "b", "sauce": 1}, {"source": "a", "dest": "b", "allow_cycle": 1},
     {"source": "a", "dest": "b", "preserve_tag": None}, {"source": "a", "dest": "b", "filter": []},
     {"source": "a", "dest": "b", "filter": "tag"}, {"source": "a", "dest": "b", "filter": ["tag", "Ne", "x"]},
     {"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]}, {"source": "a", "dest": "b", "filter": {}},
     {"source": "a", "dest": "b", "filter": ["tag", ["Eq"], "x"]},
     {"source": "a", "dest": "b", "filter": ["tag", "Eq", ""]},
     {"source": "a", "dest": "b", "filter": ["tag", "Eq", 5]},
     {"source": "a", "dest": "b", "filter": ["tag", "Glob", "*x"]}, {"source": "a" * 2_000, "dest": "b"},
     b'{"source":"\\ud800","dest":"b"}', b'{"source":"a","dest":"b","filter":["tag","Eq","\\ud800"]}',
     b'{"\\ud800":1}'],
)  # fmt: skip
def test_a_definition_of_another_shape_is_a_bad_request(routers: Calls, body: Any) -> None:
    answer = routers.call("PUT", "shape", body)
    assert refused(answer) == (400, "bad_request"), body
    assert refused(routers.call("GET", "shape")) == (404, "router_not_found")


@pytest.mark.parametrize("name", ["-a", "a%20b", "%00", "a" * 129, "%C3%A4", "a%2Fb", "%FF"])
def test_a_name_of_another_shape_is_a_bad_request(routers: Calls, name: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        assert refused(routers.call(method, name, {"source": "a", "dest": "b"}))[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [("GET", "/v0/routers/", (400, "bad_request")), ("GET", "/v0/routers/a/b", (404, "no_such_route")),
     ("GET", "/v0/routersa", (404, "no_such_route")), ("POST", "/v0/routers", (405, "method_not_allowed")),
     ("PATCH", "/v0/routers/a", (405, "method_not_allowed")), ("POST", "/v0/routers/a", (405, "method_not_allowed"))],
)  # fmt: skip
def test_other_paths_and_methods_are_refused(node: Node, method: str, path: str, found: tuple[int, str]) -> None:
    assert refused(node.request(method, path)) == found


def test_a_body_that_no_router_needs_is_too_large(routers: Calls) -> None:
    assert refused(routers.call("PUT", "large", b" " * 65_537)) == (413, "body_too_large")


def test_a_router_that_cannot_forward_says_why(routers: Calls, new: New, node: Node) -> None:
    source, dest = new(content_type="text/plain"), new()
    name = fresh_name("r")
    source.write("no JSON")
    assert routers.put(name, source, dest).status == 201
    deadline_s = time.monotonic() + WITHIN_S
    while (trouble := routers.state(name)["trouble"]) is None:
        assert time.monotonic() < deadline_s
    assert f"{dest.name} cannot be written to" in trouble
    metrics = node.request("GET", "/metrics").body.decode()
    assert "headwater_routers_stuck 1" in metrics
