"""Streams as a test of the pipeline sees them over HTTP: whole contents, in order, and how much there is.
It reads with plain requests and knows nothing of how anything was written."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from tests.support.node import Node


def names(node: Node, bucket: str) -> list[str]:
    """Every stream of a bucket, by name."""
    found: list[str] = []
    query = "limit=1000"
    while True:
        answer = node.request("GET", f"/{bucket}/streams?{query}")
        if answer.status == 404:
            return []
        page = answer.json()
        found += [one["stream_id"] for one in page["streams"]]
        if not page["has_more"]:
            return found
        query = f"limit=1000&after={quote(page['next_cursor'])}"


def read(node: Node, name: str) -> bytes:
    """The whole payload of a stream that is no JSON stream."""
    return b"".join(_answers(node, name))


def read_json(node: Node, name: str) -> list[Any]:
    """Every message of a JSON stream."""
    return [message for body in _answers(node, name) for message in json.loads(body)]


def tail(node: Node, name: str) -> int:
    """How many bytes of payload the stream has; 0 when there is none."""
    answer = node.request("HEAD", f"/v1/stream/{quote(name)}")
    return int(answer.header("stream-next-offset") or "0") if answer.status == 200 else 0


def _answers(node: Node, name: str) -> list[bytes]:
    found: list[bytes] = []
    offset = "-1"
    while True:
        answer = node.request("GET", f"/v1/stream/{quote(name)}?offset={offset}")
        assert answer.status == 200, answer
        found.append(answer.body)
        offset = answer.header("stream-next-offset") or ""
        if answer.header("stream-up-to-date") == "true":
            return found
