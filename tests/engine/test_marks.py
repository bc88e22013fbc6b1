"""Marks of records that memory holds, that are on their way into the catalog, and that only the catalog knows.
What becomes of them in whole histories is in `test_deleted_records`."""

from __future__ import annotations

import pytest

from headwater.engine import held_marks
from headwater.engine import marks as module
from headwater.engine.marks import Marks
from headwater.model.commands import Append, Create, DeleteRecords, Fork, Trim
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.stream_state import Stream
from tests.engine import KEY
from tests.engine.shore import Shore, asked, save

FORK = "_default/fork"


def post(shore: Shore, *tags: str | None, key: str = KEY) -> None:
    labels = [None if tag is None else Labels(tag) for tag in tags]
    shore.submit(Append([b"x"] * len(tags), labels=labels), key)
    shore.sync()


def numbers(shore: Shore, marks: Marks, mark: str, key: str = KEY, count_max: int = 100, first: int = 0) -> list[int]:
    return [run.first for run in marks.find(shore.group.find(key, False), mark, count_max, first)]


def test_a_mark_is_found_wherever_its_record_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_COUNT", 2)

    async def play(shore: Shore) -> None:
        shore.create()
        marks = Marks(shore.group)
        post(shore, "a", None, "b", "a")
        assert numbers(shore, marks, "t:a") == [0, 3]
        shore.flush()
        assert numbers(shore, marks, "t:a") == [0, 3]
        post(shore, "a", "a", "b")
        assert numbers(shore, marks, "t:a") == [0, 3, 4, 5]
        await save(shore)
        assert shore.group.loaded.new_marks == {}
        assert numbers(shore, marks, "t:a") == [0, 3, 4, 5]
        shore.flush()
        post(shore, "a")
        assert numbers(shore, marks, "t:a") == [0, 3, 4, 5, 7]
        assert numbers(shore, marks, "t:a", first=4, count_max=2) == [4, 5]
        assert numbers(shore, Marks(shore.group), "t:a") == [0, 3, 4, 5, 7], "another index comes to the same"
        stream = shore.group.find(KEY, False)
        assert [(one.mark, one.run) for one in marks.find_prefix(stream, "t:", 3)] == [
            ("t:a", Run(0, 1, 0, 1)),
            ("t:a", Run(3, 4, 3, 4)),
            ("t:a", Run(4, 5, 4, 5)),
        ]
        assert [one.run.first for one in marks.find_between(stream, "t:b", "t:c", 9)] == [2, 6]

    asked(play)


def test_a_step_over_many_records_with_one_mark_looks_at_no_more_than_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    run = Marks._run

    def count(self: Marks, stream: Stream, number: int) -> Run:
        looked_at.append(number)
        return run(self, stream, number)

    monkeypatch.setattr(Marks, "_run", count)

    async def play(shore: Shore) -> None:
        shore.create()
        marks = Marks(shore.group)
        post(shore, *["a", "b"] * 100)
        stream, after, found = shore.group.find(KEY, False), ("", -1), []
        while some := marks.find_prefix(stream, "t:", 30, after):
            found += [(one.mark, one.run.first) for one in some]
            after = found[-1]
        assert found == sorted(("t:" + "ab"[number % 2], number) for number in range(200))
        assert len(looked_at) == 200

    asked(play)


def test_what_is_deleted_or_let_go_of_is_not_found_and_a_fork_keeps_its_own() -> None:
    async def play(shore: Shore) -> None:
        shore.create()
        marks = Marks(shore.group)
        post(shore, *["a"] * 6)
        shore.flush()
        await save(shore)
        post(shore, *["a"] * 2)
        shore.submit(Create(FORK, None, [], fork=Fork(KEY, 7)), FORK)
        shore.sync()
        post(shore, "a", key=FORK)
        shore.submit(DeleteRecords([Run(2, 4, 2, 4), Run(6, 7, 6, 7)]))
        shore.submit(Trim(1, 1))
        shore.sync()
        assert numbers(shore, marks, "t:a") == [1, 4, 5, 7]
        assert numbers(shore, marks, "t:a", FORK) == [0, 1, 2, 3, 4, 5, 6, 7]
        shore.submit(DeleteRecords([Run(0, 6, 0, 6)]), FORK)
        assert numbers(shore, marks, "t:a", FORK) == [6, 7]
        assert numbers(shore, marks, "t:a") == [1, 4, 5, 7]

    asked(play)


def test_memory_holds_no_mark_of_what_the_catalog_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_marks, "STALE_MIN", 8)

    async def play(shore: Shore) -> None:
        shore.create()
        marks = Marks(shore.group)
        for number in range(0, 200, 4):
            post(shore, *(f"tag{one}" for one in range(number, number + 4)))
            assert numbers(shore, marks, f"t:tag{number}") == [number]
            shore.flush()
            await save(shore)
        assert numbers(shore, marks, "t:tag3") == [3]
        held = marks._held[shore.group.find(KEY, False).sid]
        assert len(held) <= 16
        post(shore, *(f"more{one}" for one in range(20)))
        assert numbers(shore, marks, "t:more7") == [207]
        marks.tidy()
        assert marks._held, "the catalog knows nothing of these"
        shore.flush()
        await save(shore)
        marks.tidy()
        assert not marks._held
        assert numbers(shore, marks, "t:more7") == [207]

    asked(play)


def test_an_index_that_is_made_in_steps_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_COUNT", 3)

    async def play(shore: Shore) -> None:
        shore.create()
        marks = Marks(shore.group)
        post(shore, "a", "b", None, "a", "c")
        shore.flush()
        post(shore, "a")
        shore.flush()
        post(shore, None, "d", "a", "a")
        stream = shore.group.find(KEY, False)
        steps = 1
        while not marks.make_ready(stream):
            steps += 1
        assert steps == 4, "ten records, three a step"
        assert numbers(shore, marks, "t:a") == [0, 3, 5, 8, 9]
        assert [(one.mark, one.run.first) for one in marks.find_prefix(stream, "t:", 9)] == [
            *[("t:a", number) for number in (0, 3, 5, 8, 9)],
            *[("t:b", 1), ("t:c", 4), ("t:d", 7)],
        ]
        post(shore, "ab", "d")
        assert marks.make_ready(stream)
        assert [one.mark for one in marks.find_prefix(stream, "t:", 9, ("t:a", 9))] == [
            "t:ab",
            "t:b",
            "t:c",
            "t:d",
            "t:d",
        ]

    asked(play)
