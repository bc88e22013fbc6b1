"""Which positions two copies of a log share, and which a log refuses, beside a model that keeps whole histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import AnotherLog, LogSetBack
from headwater.model.lineage import INCARNATIONS_MAX, Incarnation, Lineage, shared


def lineage(*entries: tuple[str, int]) -> Lineage:
    return Lineage(tuple(Incarnation(*one) for one in entries))


def test_a_position_is_in_the_log_up_to_where_its_incarnation_ended() -> None:
    log = lineage(("a", 0), ("b", 50), ("d", 100))
    for incarnation, position in (("a", 0), ("a", 50), ("b", 100), ("d", 300)):
        log.check("a", incarnation, position, 300)
    for incarnation, position, end in (("a", 51, 50), ("b", 101, 100), ("d", 301, 300), ("c", 10, None)):
        with pytest.raises(LogSetBack) as refused:
            log.check("a", incarnation, position, 300)
        assert (refused.value.position, refused.value.end) == (position, end)
    with pytest.raises(AnotherLog):
        log.check("b", "a", 0, 300)


def test_two_copies_share_what_was_written_before_they_parted() -> None:
    here = lineage(("a", 0), ("b", 50), ("d", 100)).incarnations
    assert shared(lineage(("a", 0), ("b", 50)).incarnations, 400, here, 300) == 100
    assert shared(lineage(("a", 0), ("b", 50), ("c", 250)).incarnations, 400, here, 300) == 100
    assert shared(lineage(("b", 50), ("c", 70)).incarnations, 400, here, 300) == 70
    assert shared(lineage(("b", 50)).incarnations, 80, here, 300) == 80
    assert shared(lineage(("d", 100)).incarnations, 400, here, 300) == 300, "the log lost its end"
    assert shared(lineage(("x", 0)).incarnations, 400, here, 300) == 0


def test_a_log_that_was_started_very_often_is_still_known() -> None:
    log = lineage(("first", 0))
    for number in range(3 * INCARNATIONS_MAX):
        log = log.begun(f"{number}", number)
        log = log.begun(f"{number} again", number)
    assert len(log.incarnations) <= INCARNATIONS_MAX
    newest = 3 * INCARNATIONS_MAX - 1
    assert log.log == "first" and log.newest.position == newest
    log.check("first", f"{newest - 1_000} again", newest - 1_000, newest)
    with pytest.raises(LogSetBack):
        log.check("first", "7 again", 7, newest)


class World:
    """Copies of a log as all that was ever written to each: a list of what stands at every position."""

    def __init__(self) -> None:
        self.made = 0
        self.copies: list[tuple[list[str], Lineage]] = [([], Lineage())]
        self._start(0)

    def _start(self, number: int) -> None:
        written, log = self.copies[number]
        self.made += 1
        self.copies[number] = written, log.begun(f"{self.made:x}", len(written))

    def act(self, kind: str, number: int, amount: int) -> None:
        number %= len(self.copies)
        written, log = self.copies[number]
        if kind == "write":
            self.copies[number] = [*written, *(f"{number}.{self.made}.{len(written) + i}" for i in range(amount))], log
        elif kind == "restart":
            self._start(number)
        else:
            at = len(written) * amount // 10  # a copy that was made earlier: it knows the incarnations up to there
            known = tuple(one for one in log.incarnations if one.position <= at) or log.incarnations[:1]
            self.copies.append((written[:at], Lineage(known)))
            self._start(len(self.copies) - 1)


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "restart", "copy"]), st.integers(0, 5), st.integers(0, 10)), max_size=20
    )
)
def test_what_is_let_through_is_the_same_history(acts: list[tuple[str, int, int]]) -> None:
    world = World()
    for act in acts:
        world.act(*act)
    for seen, log in world.copies:
        for written, here in world.copies:
            common = 0
            while common < min(len(seen), len(written)) and seen[common] == written[common]:
                common += 1
            found = shared(log.incarnations, len(seen), here.incarnations, len(written))
            assert found <= common, "what differs is never taken for shared"
            try:
                here.check(log.log, log.newest.id, len(seen), len(written))
            except LogSetBack:
                assert len(seen) > found or (len(seen) == found and log.newest.id not in dict(here.incarnations))
            else:
                assert seen == written[: len(seen)] and found == len(seen)
