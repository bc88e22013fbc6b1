"""A wall clock that is set: by little it is followed, by much it is believed after a minute, and while it is wrong for
some seconds nothing is seen of that. Both clocks are the test's."""

from __future__ import annotations

import pytest

from headwater.ports.clock import BELIEVED_AFTER_S, CLOCK_STEP_MS_MAX, BelievedTime, SystemClock

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000


class Machine:
    def __init__(self) -> None:
        self.elapsed_ms = 5_000
        self.wrong_ms = 0
        self.time = BelievedTime(lambda: (BEGIN_MS + self.elapsed_ms + self.wrong_ms) * 10**6, self._elapsed_ns)

    def _elapsed_ns(self) -> int:
        return self.elapsed_ms * 10**6

    @property
    def told_ms(self) -> int:
        return self.time.now_ms() - BEGIN_MS

    def pass_time(self, ms: int) -> list[int]:
        """Looks at the clock every second; how far from the right time it was."""
        found = []
        for _ in range(ms // 1_000):
            self.elapsed_ms += 1_000
            found.append(self.told_ms - self.elapsed_ms)
        return found


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS, CLOCK_STEP_MS_MAX + 1])
def test_a_clock_that_is_wrong_for_ten_seconds_is_not_believed(wrong_ms: int) -> None:
    machine = Machine()
    machine.wrong_ms = wrong_ms
    assert set(machine.pass_time(10_000)) == {0}
    machine.wrong_ms = 0
    assert set(machine.pass_time(200_000)) == {0}


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_was_set_for_good_is_believed_after_a_minute(wrong_ms: int) -> None:
    machine = Machine()
    machine.wrong_ms = wrong_ms
    found = machine.pass_time(2 * int(BELIEVED_AFTER_S) * 1_000)
    assert found == sorted(found, key=abs)
    assert found[int(BELIEVED_AFTER_S) - 1] == 0 and found[int(BELIEVED_AFTER_S) + 1] == wrong_ms


def test_a_clock_that_says_something_else_every_time_is_never_believed() -> None:
    machine = Machine()
    for number in range(200):
        machine.wrong_ms = (number % 3 + 1) * HOUR_MS
        assert machine.pass_time(1_000) == [0]


@pytest.mark.parametrize("wrong_ms", [1, -1, CLOCK_STEP_MS_MAX, -CLOCK_STEP_MS_MAX])
def test_a_small_step_is_followed_at_once(wrong_ms: int) -> None:
    machine = Machine()
    machine.wrong_ms = wrong_ms
    assert machine.told_ms == machine.elapsed_ms + wrong_ms
    machine.wrong_ms = 2 * wrong_ms
    assert machine.told_ms == machine.elapsed_ms + 2 * wrong_ms


def test_all_clocks_of_a_process_say_the_same() -> None:
    one, other = SystemClock(), SystemClock()
    before, between, after = one.now_ms(), other.now_ms(), one.now_ms()
    assert before <= between <= after
