"""Pauses between attempts, with a clock that only sleeping moves."""

from __future__ import annotations

import pytest

from headwater.client import backoff
from headwater.client.backoff import PAUSE_S_MAX, Backoff


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(backoff, "time", clock)
    return clock


def test_pauses_double_until_patience_ends(time: Time) -> None:
    pauses = Backoff(1.0)
    while pauses.wait():
        pass
    assert time.pauses == [0.1, 0.2, 0.4]


def test_a_server_may_ask_for_a_longer_pause_but_not_for_any(time: Time) -> None:
    pauses = Backoff(60.0)
    assert pauses.wait(2) and pauses.wait() and pauses.wait(3_600)
    assert time.pauses == [2, 4, PAUSE_S_MAX]


def test_a_success_renews_patience_and_shortens_the_pause(time: Time) -> None:
    pauses = Backoff(0.5)
    assert pauses.wait() and pauses.wait() and not pauses.wait()
    pauses.restart()
    assert pauses.wait()
    assert time.pauses == [0.1, 0.2, 0.1]
