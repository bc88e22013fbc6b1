"""What the tests of the architecture document look at: floors, gaps and records, from every cursor, at every door.
It asserts only what holds of every topic at every time; what a topic has to hold stands in the tests."""

from __future__ import annotations

import json
from typing import Any

from tests.doors.http.topics.surface import Topic
from tests.doors.s3p.client import Client, Error
from tests.support.http import read_messages
from tests.support.node import Node


def settle(node: Node) -> None:
    """Everything that is durable leaves memory for the lake."""
    assert node.request("POST", "/__headwater/flush").status == 200


def floors(topic: Topic) -> tuple[int, int]:
    """(evict_floor, earliest_seq)"""
    state = topic.state()
    return state["evict_floor"], state["earliest_seq"]


def seqs(diff: dict[str, Any]) -> list[int]:
    return [one["seq"] for one in diff["records"]]


def gap(diff: dict[str, Any]) -> tuple[int, int] | None:
    found = diff.get("tombstone")
    return None if found is None else (found["gap_from"], found["gap_to"])


def everything(topic: Topic) -> dict[str, Any]:
    """All that a reader from the beginning, and one who asks for the state, can know."""
    return {"config": topic.config(), "state": topic.state(), "diff": whole(topic)}


def whole(topic: Topic, from_seq: int = 0, **query: Any) -> dict[str, Any]:
    """The difference up to the head, of as many answers as it takes: one ends where memory and lake meet. Only the
    first of them can tell of a loss here, where nothing is written meanwhile."""
    found = topic.diff(from_seq=from_seq, limit=10_000, **query)
    last = found
    while not last["up_to_date"]:
        last = topic.diff(from_seq=last["next_seq"], limit=10_000, **query)
        assert gap(last) is None
        found["records"] += last["records"]
    return {**last, **{name: found[name] for name in ("records", "tombstone") if name in found}}


def hold_floors(topic: Topic) -> None:
    """What §1 says of the two floors, for every cursor: tombstone iff from_seq + 1 < evict_floor, otherwise silence."""
    state = topic.state()
    assert 1 <= state["evict_floor"] <= state["earliest_seq"] <= state["head_seq"] + 1
    live = seqs(whole(topic))
    assert len(live) == state["count"]
    assert live[:1] == ([state["earliest_seq"]] if state["count"] else [])
    for cursor in range(state["head_seq"] + 1):
        found = whole(topic, cursor)
        lost = cursor + 1 < state["evict_floor"]
        assert gap(found) == ((cursor + 1, state["evict_floor"] - 1) if lost else None)
        assert seqs(found) == [seq for seq in live if seq > cursor]
        assert found["next_seq"] == state["head_seq"]


def at_every_door(topic: Topic) -> list[Any]:
    """The values of a JSON topic, which have to be the same at the doors for topics, Durable Streams and S3P."""
    values = [one["data"] for one in whole(topic)["records"]]
    assert streamed(topic) == values
    with Client.of(topic.node) as s3p:
        read: list[bytes] = []
        at = "0-0"
        while page := s3p.read(topic.name.encode(), min_id=at):
            assert not isinstance(page, Error), page
            read += [payload for _, payload in page]
            ms, _, n = page[-1][0].partition("-")
            at = f"{ms}-{int(n) + 1}"
    assert [json.loads(payload) for payload in read] == values
    return values


def streamed(topic: Topic) -> list[Any]:
    """The values by the plain protocol of streams, from the first that is there: what is gone is 410 and says where
    that is."""
    path = f"/v1/stream/{topic.name}"
    with topic.node.connect() as connection:
        refusal = connection.request("GET", f"{path}?offset=-1")
        start = "-1" if refusal.status == 200 else refusal.header("stream-earliest-offset")
        assert start is not None, refusal
        return read_messages(connection, path, start)
