"""Answers about topics as bytes: the short and the long way say the same, and slices of a large one are all of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.doors.http.respond import Responder
from headwater.doors.http.topics import answers
from headwater.doors.http.topics.answers import Timing
from tests.doors.http.topics.surface import PERFORMANCE


class Taken:
    """An exchange that keeps its answer."""

    def __init__(self, keep_alive: bool = True) -> None:
        self.responder = Responder("*", False)
        self.request = SimpleNamespace(keep_alive=keep_alive)
        self.data = b""

    def reply(self, data: bytes) -> None:
        self.data = data

    @property
    def parts(self) -> tuple[bytes, list[bytes], Any]:
        head, _, body = self.data.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        return status, sorted(line for line in lines if not line.startswith(b"Content-Length")), json.loads(body)


def test_an_answer_is_the_same_however_it_is_put_together() -> None:
    short, long = Taken(), Taken(keep_alive=False)
    for taken in (short, long):
        exchange: Any = taken
        answers.reply(exchange, 200, b'"a":1', Timing())
        assert b"Content-Length: %d\r\n" % len(taken.data.partition(b"\r\n\r\n")[2]) in taken.data
    (status, headers, body), (other_status, other_headers, other_body) = short.parts, long.parts
    assert status == other_status and [*other_headers] == sorted([*headers, b"Connection: close"])
    assert body["a"] == other_body["a"] == 1 and set(body["performance"]) == PERFORMANCE


@pytest.mark.parametrize("status", [200, 201])
def test_a_value_keeps_its_fields(status: int) -> None:
    taken: Any = Taken()
    answers.reply_value(taken, status, {"topic": "é", "more": [1]}, Timing())
    head, _, body = taken.parts
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (body["topic"], body["more"]) == ("é", [1])


def test_parts_of_a_large_answer_are_slices_of_all_of_it() -> None:
    parts = [bytes([65 + n % 26]) * (n * 100) for n in range(200)]
    assert b"".join(answers._in_slices(parts)) == b"".join(parts)
    assert all(len(one) >= answers.SLICE_BYTES for one in list(answers._in_slices(parts))[:-1])


def test_time_is_told_by_what_it_went_to(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [10.0]
    monkeypatch.setattr(answers, "perf_counter", lambda: now_s[0])
    timing = Timing()
    now_s[0] += 0.001
    timing.judged()
    now_s[0] += 0.0025
    timing.throttle_wait_s = 0.0004
    told = json.loads(b"{%b}" % timing.block())["performance"]
    assert told == {"queue_ms": 1.0, "fsync_ms": 2.5, "throttle_wait_ms": 0.4, "total_ms": 3.5}
    timing.waits_for_log = False
    assert json.loads(b"{%b}" % timing.block())["performance"]["fsync_ms"] == 0
