"""Requests forged through this server: no subscription makes it call an address of its own network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import Node

URLS = [
    "http://127.0.0.1:1/hook",
    "https://127.0.0.1/hook",
    "https://2130706433/hook",
    "https://0x7f000001/hook",
    "https://0177.0.0.1/hook",
    "https://127.1/hook",
    "https://[::1]/hook",
    "https://[::ffff:127.0.0.1]/hook",
    "https://[::ffff:a9fe:a9fe]/latest/meta-data",
    "https://169.254.169.254/latest/meta-data",
    "https://10.0.0.1/hook",
    "https://localhost/hook",
    "https://localhost./hook",
    "https://a.localhost/hook",
    "https://user:pass@example.com/hook",
    "https://example.com#@127.0.0.1/hook",
    "https://127.0.0.1%2f@example.com/hook",
    "file:///etc/passwd",
    "gopher://127.0.0.1:25/x",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), memory=True) as made:
        yield made


def refused(node: Node, url: str) -> tuple[int, str]:
    body = json.dumps({"type": "webhook", "pattern": "shop/*", "webhook": {"url": url}}).encode()
    answer = node.request("PUT", "/v1/stream/__ds/subscriptions/hook", {"Content-Type": "application/json"}, body)
    return answer.status, str(json.loads(answer.body).get("error", {}).get("message", ""))


@pytest.mark.parametrize("url", URLS)
def test_a_webhook_that_would_reach_inside_is_not_made(node: Node, url: str) -> None:
    status, message = refused(node, url)
    assert status == 400, message
    assert node.request("GET", "/v1/stream/__ds/subscriptions/hook").status == 404


def test_one_to_a_public_address_is_made(node: Node) -> None:
    status, message = refused(node, "https://93.184.216.34/hook")
    assert status == 201, message
    assert node.request("DELETE", "/v1/stream/__ds/subscriptions/hook").status == 204


def test_a_name_that_means_an_address_inside_is_refused_by_what_it_means(node: Node) -> None:
    names = [
        name
        for line in Path("/etc/hosts").read_text().splitlines()
        for name in line.partition("#")[0].split()[1:]
        if name != "localhost" and not name.endswith(".localhost")
    ]
    if not names:
        pytest.skip("this machine has no other name for itself")
    status, message = refused(node, f"https://{names[0]}/hook")
    assert status == 400 and ("not public" in message or "not a valid name" in message), message
