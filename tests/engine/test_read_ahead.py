"""Read-ahead: who is taken to read on, how much is made ready for them, and what it never does.
The lake is a list of what was asked of it; its threads are real, and are waited for."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from headwater.engine import read_ahead as module
from headwater.engine.read_ahead import ANSWERS, AWAY_S, GROUPS_MAX, PLACES_MAX, Ahead
from headwater.model.extents import Extent, Records, Run, Stretch
from headwater.ports import BlobsUnavailable, Writer

SID, PIECE = 7, 1 << 20


class Prepared:
    """A lake that notes what it is to make ready, and can be made to wait with it."""

    def __init__(self, ahead_bytes_max: int = 1 << 30) -> None:
        self.ahead_bytes_max = ahead_bytes_max
        self.ready: set[Extent] = set()
        self.asked: list[Extent] = []
        self.gate = threading.Event()
        self.gate.set()
        self.away = False

    def stretch(self, extent: Extent, start: int, limit: int, commas: bool, wait: bool) -> Stretch | None:
        assert not wait, "nobody on the event loop waits"
        return Stretch(start, start, 0, memoryview(b"")) if extent in self.ready else None

    def prepare(self, extent: Extent, commas: bool) -> None:
        self.asked.append(extent)
        assert self.gate.wait(30)
        if self.away:
            raise BlobsUnavailable("gone fishing")
        self.ready.add(extent)

    def settle(self, runs: list[Run], writer: Writer) -> tuple[str, list[Extent]]:
        raise NotImplementedError

    def read(self, extent: Extent, start: int, end: int, labels: bool = False) -> Records:
        raise NotImplementedError


class Harness:
    def __init__(self, ahead_bytes_max: int = 1 << 30) -> None:
        self.lake = Prepared(ahead_bytes_max)
        self.now_s = 100.0
        self.ahead = Ahead(self.lake, lambda: self.now_s)  # type: ignore[arg-type]  # the parts that it uses

    def read(self, start: int, end: int, follows: bool | None = None, sid: int = SID) -> bool:
        """A reader takes [start, end), in pieces' numbers; returns whether it was expected."""
        expected = self.ahead.expects(sid, start * PIECE)
        wanted = expected if follows is None else follows
        size = (end - start) * PIECE
        self.ahead.left(sid, end * PIECE, wanted, extents(end, 64), size, False)
        return expected

    def settled(self) -> list[int]:
        """Which pieces the lake was asked to make ready, once all that was asked is done."""
        self.lake.gate.set()
        self.ahead._pool.shutdown(wait=True)
        return sorted(extent.start // PIECE for extent in self.lake.asked)


def extents(first: int, until: int) -> list[Extent]:
    edges = [number * PIECE for number in range(first, until + 1)]
    return [Extent(SID, low, high, 0, 0, 0, "f", low // PIECE, 0, 1) for low, high in pairwise(edges)]


def test_a_reader_that_comes_back_where_it_was_left_has_the_next_part_made_ready() -> None:
    harness = Harness()
    assert not harness.read(10, 12)
    assert harness.read(12, 14)
    assert harness.settled() == [*range(14, 14 + 2 * ANSWERS)]


def test_a_reader_that_jumps_about_has_nothing_made_ready() -> None:
    harness = Harness()
    for start in (5, 30, 2, 17):
        assert not harness.read(start, start + 2)
    assert harness.settled() == []


def test_nothing_is_made_ready_twice_whether_it_is_there_or_on_its_way() -> None:
    harness = Harness()
    harness.lake.gate.clear()
    for _ in range(3):
        harness.read(0, 2, follows=True)
    harness.lake.gate.set()
    while len(harness.lake.ready) < 2 * ANSWERS:
        pass
    harness.read(0, 2, follows=True)
    assert harness.settled() == [*range(2, 2 + 2 * ANSWERS)]


def test_one_reader_has_a_few_row_groups_ahead_of_it_however_much_it_reads() -> None:
    harness = Harness()
    harness.read(0, 30, follows=True)
    assert len(harness.settled()) == GROUPS_MAX


def test_a_reader_of_small_pieces_has_a_row_group_ahead_of_it() -> None:
    harness = Harness()
    harness.ahead.left(SID, 0, True, extents(0, 64), 1_000, False)
    assert harness.settled() == [0, 1]


def test_all_readers_together_stay_below_the_bound_until_one_comes_back_or_stays_away() -> None:
    harness = Harness(ahead_bytes_max=5 * PIECE)
    for sid in range(10):
        harness.read(0, 1, follows=True, sid=sid)
    assert harness.ahead._bytes <= 5 * PIECE
    assert harness.ahead.expects(0, 1 * PIECE)
    assert harness.ahead._bytes <= (5 - ANSWERS) * PIECE
    harness.now_s += AWAY_S + 1
    harness.read(40, 41, follows=True)
    assert harness.ahead._bytes == ANSWERS * PIECE, "the others are gone, and hold no share"
    assert {*range(41, 41 + ANSWERS)} <= set(harness.settled())


def test_places_of_readers_are_bounded() -> None:
    harness = Harness()
    for sid in range(PLACES_MAX * 2):
        harness.read(0, 2, sid=sid)
    assert len(harness.ahead._places) == PLACES_MAX
    assert not harness.ahead.expects(0, 2 * PIECE) and harness.ahead.expects(PLACES_MAX * 2 - 1, 2 * PIECE)


def test_no_more_is_on_its_way_than_allowed_when_the_store_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 5)
    harness = Harness()
    harness.lake.gate.clear()
    for start in range(0, 40, 4):
        harness.read(start, start + 2, follows=True)
    assert len(harness.ahead._coming) == 5
    assert len(harness.settled()) == 5 and not harness.ahead._coming


def test_a_failure_ahead_is_forgotten_and_tried_again() -> None:
    harness = Harness()
    harness.lake.away = True
    harness.read(0, 1, follows=True)
    while harness.ahead._coming:
        pass
    harness.lake.away = False
    harness.read(0, 1, follows=True)
    assert harness.settled() == sorted([*range(1, 1 + ANSWERS)] * 2)
