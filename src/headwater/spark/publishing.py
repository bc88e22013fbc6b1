"""Snapshots onto a node, many streams in one request, until each is answered for good.

Owns the requests and their repetition. Never decides what a snapshot holds, nor what a refusal means to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from headwater.client.backoff import Backoff
from headwater.model.names import DEFAULT_BUCKET
from headwater.spark.node import Node

PATH = "/__headwater/snapshots"
ENTRIES_MAX = 1_000
BATCH_BYTES_MAX = 16 << 20
"""What one request carries at most, and what a single snapshot may be."""
BUSY = (429, 503)

Entry = dict[str, Any]


def entry_of(stream: str, offset: int, content_type: str, body: bytes) -> Entry:
    """`stream`: bucket/name."""
    name = stream.removeprefix(f"{DEFAULT_BUCKET}/")
    return {"stream": name, "offset": offset, "content_type": content_type, "body": body}


def publish(node: Node, entries: Sequence[Entry], patience_s: float) -> list[dict[str, Any]]:
    """The node's answers, in order; one of `BUSY` where it stayed so. Raises NodeError."""
    answers: list[dict[str, Any]] = [{} for _ in entries]
    open_places = list(range(len(entries)))
    backoff = Backoff(patience_s)
    while open_places:
        body = msgspec.msgpack.encode([entries[at] for at in open_places])
        # Safe to repeat: the same snapshot at the same offset replaces itself.
        told = json.loads(node.call("POST", PATH, body, {"Content-Type": "application/msgpack"}, repeat=True).body)
        for at, answer in zip(open_places, told, strict=True):
            answers[at] = answer
        left = [at for at in open_places if answers[at]["status"] in BUSY]
        if len(left) < len(open_places):
            backoff.restart()
        open_places = left
        if open_places and not backoff.wait():
            break
    return answers
