"""Deletions by what records are, in steps: each is durable before the next, and a refusal leaves what came before."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.engine import topic_deletes
from headwater.engine.marks import Marks
from headwater.engine.topic_deletes import RecordsGone, TopicDeletes, merged
from headwater.errors import StreamNotFound, TooManyHoles
from headwater.model import stream as rules
from headwater.model.commands import Append, Delete
from headwater.model.holes import Run
from headwater.model.labels import Labels
from tests.engine import KEY
from tests.engine.shore import Shore, asked, save


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletes, "LOOK_COUNT", 3)
    monkeypatch.setattr(topic_deletes, "STEP_COUNT", 6)


class Desk:
    """The group's scheduled calls run, and its log syncs, until an answer is there."""

    def __init__(self, shore: Shore, tags: list[str | None]) -> None:
        self.shore = shore
        shore.create()
        shore.group.resolve_cold = shore.reads.resolve
        shore.submit(Append([b"x"] * len(tags), labels=[None if tag is None else Labels(tag) for tag in tags]))
        shore.sync()
        self.deletes = TopicDeletes(shore.group, Marks(shore.group), shore.by_number)
        self.told: list[Any] = []

    def ask(self, match: tuple[str, str] | None, before_seq: int | None = None) -> None:
        self.deletes.delete(KEY, match, before_seq, self.told.append)

    def answer(self) -> Any:
        for _ in range(100):
            if self.told:
                break
            self.shore.turn()
            self.shore.sync()
        return self.told.pop()

    async def live(self) -> list[int]:
        return [one.seq for one in await self.shore.records(0)]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("match", [("Eq", "a"), ("Glob", "a")])
def test_a_large_wish_is_done_in_steps(match: tuple[str, str]) -> None:
    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["a", "b"] * 20)
        events = len(shore.log.events)
        desk.ask(match)
        assert desk.answer() == RecordsGone(20, 2, 40)
        assert len(shore.log.events) - events == 4, "six records each"
        assert await desk.live() == list(range(2, 41, 2))
        desk.ask(match)
        assert desk.answer() == RecordsGone(0, 2, 40)

    asked(play)


def test_nothing_is_answered_before_it_is_durable() -> None:
    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["a", "b", "a"])
        desk.ask(("Eq", "a"))
        shore.turn()
        assert desk.told == [] and await desk.live() == [2]
        shore.sync()
        assert desk.told == [RecordsGone(2, 2, 3)]

    asked(play)


def test_neither_what_nobody_sees_yet_nor_what_comes_meanwhile_is_deleted() -> None:
    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["a"])
        shore.submit(Append([b"x"], labels=[Labels("a")]))
        desk.ask(("Eq", "a"))
        assert desk.answer() == RecordsGone(1, 2, 2)
        assert await desk.live() == [2]

    asked(play)


@pytest.mark.usefixtures("small_steps")
def test_too_many_holes_are_refused_and_what_is_left_still_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["b", "a"] * 20)
        monkeypatch.setattr(rules, "HOLES_MAX", 10)
        desk.ask(("Eq", "a"))
        refused = desk.answer()
        assert isinstance(refused, TooManyHoles) and refused.details() == {"deleted": 6}
        left = await desk.live()
        assert len(left) == 34
        desk.ask(None, 14)
        assert desk.answer() == RecordsGone(7, 14, 40)
        desk.ask(("Eq", "a"), 28)
        assert desk.answer() == RecordsGone(7, 15, 40)

    asked(play)


def test_a_stream_that_is_not_there_or_goes_meanwhile_is_said_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletes, "LOOK_COUNT", 3)

    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["a"] * 10)
        desk.deletes.delete("_default/nowhere", ("Eq", "a"), None, desk.told.append)
        assert isinstance(desk.answer(), StreamNotFound)
        desk.ask(("Eq", "a"))
        shore.submit(Delete())
        assert isinstance(desk.answer(), StreamNotFound)

    asked(play)


@pytest.mark.usefixtures("small_steps")
def test_a_stream_that_is_unloaded_between_two_steps_is_gone_on_with() -> None:
    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["a"] * 10)
        shore.flush()
        await save(shore)
        desk.ask(("Eq", "a"))
        del shore.group.loaded.by_key[KEY]
        assert desk.answer() == RecordsGone(10, 11, 10)

    asked(play)


def test_what_is_cold_goes_before_a_number() -> None:
    async def play(shore: Shore) -> None:
        desk = Desk(shore, ["a", "b", "a", "b", "a"])
        shore.flush()
        desk.ask(("Eq", "b"))
        assert desk.answer() == RecordsGone(2, 1, 5)
        future = shore.reads._loop.create_future()
        desk.deletes.delete(KEY, None, 4, future.set_result)
        while not future.done():
            shore.sync()
            await shore.records(0)
        assert future.result() == RecordsGone(2, 5, 5)
        assert await desk.live() == [5]

    asked(play)


def test_neighbours_become_one_run() -> None:
    runs = [Run(4, 5, 8, 9), Run(1, 2, 2, 4), Run(2, 4, 4, 8), Run(7, 8, 12, 13), Run(1, 2, 2, 4)]
    assert merged(runs) == [Run(1, 5, 2, 9), Run(7, 8, 12, 13)]
    assert merged([]) == []
