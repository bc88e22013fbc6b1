"""Requests that a subscription refuses, each with its code, and what a node without the development setting refuses.
It owns the table of bad requests; nothing in it ever changes a subscription."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.subscriptions.support import Api, a_node, receiving
from tests.support.node import Node
from tests.support.waiting import until

HOOK = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "http://127.0.0.1:9/hook"}}
PULL = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "wake"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A node as it is in production."""
    with Node.started(tmp_path_factory.mktemp("strict"), memory=True, flags=("--s3p", "off")) as node:
        yield Api(node)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "text",
        {**HOOK, "type": "poll"},
        {**HOOK, "type": None},
        {**HOOK, "pattern": None},
        {**HOOK, "pattern": ""},
        {**HOOK, "pattern": "/"},
        {**HOOK, "pattern": 7},
        {**HOOK, "pattern": "a\0b"},
        {**HOOK, "pattern": "x" * 1_025},
        {**HOOK, "pattern": "/".join(["**", "a"] * 5)},
        {**HOOK, "streams": "a"},
        {**HOOK, "streams": [1]},
        {**HOOK, "streams": [""]},
        {**HOOK, "streams": ["a/../b"]},
        {**HOOK, "streams": ["__ds/x"]},
        {**HOOK, "streams": ["x" * 1_025]},
        {**HOOK, "streams": [str(n) for n in range(10_001)]},
        {**HOOK, "webhook": None},
        {**HOOK, "webhook": "http://127.0.0.1/"},
        {**HOOK, "webhook": {}},
        {**HOOK, "webhook": {"url": ""}},
        {**HOOK, "webhook": {"url": 7}},
        {**HOOK, "lease_ttl_ms": 999},
        {**HOOK, "lease_ttl_ms": 600_001},
        {**HOOK, "lease_ttl_ms": 1_000.5},
        {**HOOK, "lease_ttl_ms": "1000"},
        {**HOOK, "lease_ttl_ms": True},
        {**HOOK, "description": 7},
        {**HOOK, "description": "x" * 4_097},
        {**PULL, "wake_stream": None},
        {**PULL, "wake_stream": ""},
        {**PULL, "wake_stream": "__ds/wake"},
        {**PULL, "wake_stream": ["wake"]},
        {"type": "pull-wake", "wake_stream": "wake", "streams": []},
    ],
)
def test_a_bad_configuration_is_refused_and_creates_nothing(api: Api, room: str, body: Any) -> None:
    answer = api.subscription("PUT", room, body=body)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert answer.header("x-content-type-options") == "nosniff"
    assert api.subscription("GET", room).status == 404


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"type":"\xff"}', b"[" * 100_000, b'{"type":"\\ud800"}', b"nul"])
def test_a_body_that_is_not_json_is_refused(api: Api, room: str, raw: bytes) -> None:
    for method, action in (("PUT", ""), ("POST", "/streams"), ("POST", "/claim")):
        answer = api.node.request(method, f"/v1/stream/__ds/subscriptions/{room}{action}", {}, raw)
        assert (answer.status, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_a_body_beyond_the_bound_is_refused(api: Api, room: str) -> None:
    answer = api.subscription("PUT", room, body={**PULL, "description": "x" * 600_000})
    assert answer.status == 413


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "subscriptions", 404),
        ("GET", "subscriptions/", 404),
        ("GET", "nothing", 404),
        ("GET", "", 404),
        ("GET", "subscriptions/x", 404),
        ("GET", "subscriptions/x/y", 404),
        ("POST", "subscriptions/x/claim/more", 404),
        ("POST", "subscriptions/x", 405),
        ("GET", "subscriptions/x/claim", 405),
        ("PUT", "subscriptions/x/streams", 405),
        ("POST", "subscriptions/x/streams/y", 405),
        ("POST", "jwks.json", 405),
        ("GET", "subscriptions/%ff", 400),
        ("GET", "subscriptions/" + "x" * 257, 400),
        ("GET", "subscriptions/a%0Ab", 400),
        ("DELETE", "subscriptions/x/streams/a", 404),
        ("POST", "subscriptions/x/ack", 401),
        ("POST", "subscriptions/x/callback", 401),
        ("POST", "subscriptions/x/release", 401),
        ("POST", "subscriptions/x/claim", 400),
        ("POST", "subscriptions/x/streams", 400),
    ],
)
def test_a_request_that_leads_nowhere_says_why(api: Api, method: str, path: str, status: int) -> None:
    answer = api.call(method, f"__ds/{path}")
    assert answer.status == status, answer
    assert answer.json()["error"]["message"]


def test_the_options_of_a_subscription_are_open_to_browsers(api: Api) -> None:
    answer = api.call("OPTIONS", "__ds/subscriptions/x")
    assert answer.status == 204
    assert "Authorization" in (answer.header("access-control-allow-headers") or "")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/hook",
        "http://localhost/hook",
        "https://localhost/hook",
        "https://127.0.0.1/hook",
        "https://10.0.0.1/hook",
        "https://192.168.1.1/hook",
        "https://169.254.169.254/latest/meta-data/",
        "https://100.64.0.1/",
        "https://0.0.0.0/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:a00:1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[fe80::1]/",
        "https://[fd00:ec2::254]/",
        "http://example.com/hook",
        "ftp://example.com/",
        "not a url",
    ],
)
def test_a_node_in_production_calls_no_local_or_private_webhook(strict: Api, room: str, url: str) -> None:
    answer = strict.webhook(room, url)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")
    assert strict.subscription("GET", room).status == 404


@pytest.mark.parametrize("url", ["http://10.0.0.1/hook", "http://[::1]/", "https://127.0.0.1/", "http://127.1/"])
def test_the_development_setting_opens_nothing_but_its_exception(api: Api, room: str, url: str) -> None:
    answer = api.webhook(room, url)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")


def test_localhost_by_name_reaches_a_receiver_in_development(api: Api, room: str) -> None:
    with receiving((200, {"done": True})) as receiver:
        assert api.webhook(room, receiver.url.replace("127.0.0.1", "localhost"), pattern=f"{room}/*").status == 201
        api.stream(f"{room}/a", 1)
        assert receiver.next().headers["host"].startswith("localhost:")


def test_turning_the_development_setting_off_stops_deliveries_of_what_it_had_let_in(tmp_path: Path) -> None:
    with receiving() as receiver, a_node(tmp_path) as (node, api):
        assert api.webhook("sub", receiver.url).status == 201
        node.kill()
        node.env.clear()
        node.start()
        api.stream("events/a", 1)
        view = until(lambda: (view := api.show("sub"))["status"] == "failed" and view, "the refusal shows")
        assert view["retry"]["failures"] >= 1
        assert receiver.calls == []


@pytest.mark.parametrize("field", ["pattern", "description", "wake_stream"])
def test_half_of_a_surrogate_pair_is_refused_by_its_name(strict: Api, field: str) -> None:
    body = b'{"type":"pull-wake","pattern":"a/*","wake_stream":"wake","%s":"\\ud800"}' % field.encode()
    answer = strict.node.request("PUT", "/v1/stream/__ds/subscriptions/half", (), body)
    assert answer.status == 400
    error = answer.json()["error"]
    assert error["code"] == "INVALID_REQUEST" and "surrogate pair" in error["message"]
