"""Pauses between attempts, with a clock that only the test moves and chance that is always the same."""

from __future__ import annotations

import pytest

from headwater.client import retries
from headwater.client.retries import NO_RETRIES, Patience, Retries


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


class Chance:
    def __init__(self, share: float) -> None:
        self.share = share

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.share


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries, "time", clock)
    monkeypatch.setattr(retries, "random", Chance(1.0))
    return clock


def pauses(patience: Patience, clock: Clock, *asked_s: float) -> list[float]:
    found = []
    for asked in asked_s or (0.0,) * 20:
        pause_s = patience.pause_s(asked)
        if pause_s is None:
            break
        found.append(round(pause_s, 6))
        clock.now_s += pause_s
    return found


def test_pauses_double_up_to_the_longest_until_the_total_time_is_over(clock: Clock) -> None:
    patience = Patience(Retries(total_s=10.0, pause_s_first=1.0, pause_s_max=4.0))
    assert pauses(patience, clock) == [1.0, 2.0, 4.0]


def test_a_pause_is_never_shorter_than_the_server_asks_for(clock: Clock) -> None:
    assert pauses(Patience(Retries(total_s=100.0)), clock, 3.0, 0.0, 7.0) == [3.0, 0.2, 7.0]


def test_it_gives_up_at_once_when_the_server_asks_for_more_time_than_is_left(clock: Clock) -> None:
    assert Patience(Retries(total_s=10.0)).pause_s(60.0) is None


def test_chance_shortens_a_pause_by_half_at_most(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "random", Chance(0.0))
    assert pauses(Patience(Retries(total_s=1.0, pause_s_first=0.5, pause_s_max=0.5)), clock) == [0.25] * 4


def test_without_retries_there_is_one_attempt(clock: Clock) -> None:
    assert Patience(NO_RETRIES).pause_s() is None
