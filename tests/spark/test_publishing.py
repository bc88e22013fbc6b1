"""Snapshots of many streams until each is answered for good, and what a newest state makes of the answers. The node is
a list of answers here."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headwater.spark import publishing
from headwater.spark.chunks import Chunk
from headwater.spark.publishing import ENTRIES_MAX, entry_of, publish
from headwater.spark.sending import Entry, SinkFailed
from headwater.spark.states import States, check_state


class FakeNode:
    """Answers each request with the next of some lists of statuses; the last one for ever."""

    url = "http://127.0.0.1:1"

    def __init__(self, *statuses: dict[str, int]) -> None:
        self._statuses = list(statuses)
        self.requests: list[list[dict[str, Any]]] = []

    def call(self, method: str, path: str, body: bytes, headers: dict[str, str], *, repeat: bool) -> Any:
        assert (method, path, repeat) == ("POST", publishing.PATH, True)
        entries = msgspec.msgpack.decode(body)
        self.requests.append(entries)
        told = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        answers = [{"status": told.get(one["stream"], 204)} for one in entries]
        for answer in answers:
            if answer["status"] != 204:
                answer["error"] = {"code": "a_code", "message": "why"}  # type: ignore[assignment]
        return type("Answer", (), {"body": json.dumps(answers).encode()})


def entries(*names: str) -> list[dict[str, Any]]:
    return [entry_of(f"b/{name}", 7, "text/plain", b"x") for name in names]


def taken(stream: str, body: bytes = b"x") -> Entry:
    return Entry(stream, "text/plain", [body], "producer", 0, 0, True)


def test_only_what_was_not_taken_is_sent_again_and_answers_stand_in_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwater.client.backoff.PAUSE_S_MIN", 0.0)
    node = FakeNode({"b/y": 503, "b/z": 404}, {"b/y": 429}, {})
    found = publish(node, entries("x", "y", "z"), 60.0)  # type: ignore[arg-type]
    assert [answer["status"] for answer in found] == [204, 204, 404]
    assert [[one["stream"] for one in some] for some in node.requests] == [["b/x", "b/y", "b/z"], ["b/y"], ["b/y"]]
    busy = publish(FakeNode({"b/y": 503}), entries("y"), 0.0)  # type: ignore[arg-type]
    assert [answer["status"] for answer in busy] == [503]
    assert publish(FakeNode({}), [], 0.0) == []  # type: ignore[arg-type]


def test_a_stream_without_a_bucket_goes_by_its_name() -> None:
    assert entry_of("_default/plain", 1, "t", b"")["stream"] == "plain"
    assert entry_of("b/_default/x", 1, "t", b"")["stream"] == "b/_default/x"


def test_states_are_published_where_their_records_end_a_request_for_many() -> None:
    node = FakeNode({})
    states = States(node, 1.0)  # type: ignore[arg-type]
    for number in range(ENTRIES_MAX + 1):
        states.add(taken(f"b/{number}"), number)
    assert len(node.requests) == 1
    states.finish()
    assert [len(some) for some in node.requests] == [ENTRIES_MAX, 1]
    assert [one["offset"] for one in node.requests[0]] == list(range(ENTRIES_MAX))


def test_a_state_that_a_newer_one_overtook_is_passed_over_and_others_that_are_refused_fail_the_batch() -> None:
    for status, fails in ((410, False), (404, True), (503, True)):
        states = States(FakeNode({"b/s": status}), 0.0)  # type: ignore[arg-type]
        states.add(taken("b/s"), 5)
        if fails:
            with pytest.raises(SinkFailed, match=f"'b/s' was appended, and not published: {status} a_code: why"):
                states.finish()
        else:
            states.finish()


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (Chunk("b/s", "t", 0, [b"1", b"2"], 2), "several rows of a batch are for 'b/s'"),
        (Chunk("b/s", "t", 1, [b"1"], 1), "several rows of a batch are for 'b/s'"),
        (Chunk("b/s", "t", 0, [b"x" * (publishing.BATCH_BYTES_MAX + 1)], 0), "has 16777217 bytes"),
        (Chunk("ds/x", "t", 0, [b"1"], 1), "has no snapshots"),
    ],
)
def test_what_cannot_be_the_one_state_of_a_stream_is_told_before_it_is_sent(chunk: Chunk, said: str) -> None:
    with pytest.raises(SinkFailed, match=said):
        check_state(chunk)
