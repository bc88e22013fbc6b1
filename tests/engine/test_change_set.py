"""Change sets: what is marked is taken once; what a failed checkpoint gives back is marked again, unless something
newer is; what happens meanwhile is in the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwater.engine.change_set import ChangeSet, UnsavedChanges
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.usage import ReadUsage
from headwater.model.buckets import Bucket
from headwater.model.commands import Durability
from headwater.model.events import Created
from headwater.model.extents import Extent
from headwater.model.row import BucketRow
from headwater.model.stream_state import born
from tests.engine import HandClock
from tests.engine.histories import Notes


class World:
    def __init__(self) -> None:
        self.notes = Notes()
        self.usage = ReadUsage(HandClock())
        self.unsaved = UnsavedChanges({"notes": self.notes}, self.usage)


def stream(sid: int, tail: int = 0) -> LoadedStream:
    made = LoadedStream(born(Created(f"b/{sid}", sid, "text/plain", 0, Durability.FSYNC, []), 1))
    made.tail = tail
    return made


def bucket(name: str = "b") -> Bucket:
    return Bucket(BucketRow(name, 1, True, 0, 1))


def extent(sid: int, start: int) -> Extent:
    values: dict[str, Any] = {name: 0 for name in Extent.__struct_fields__}
    return Extent(**values | {"sid": sid, "start": start, "end": start + 10, "file": "f"})


ONE, BUCKET = stream(1), bucket()
KINDS: dict[str, tuple[Callable[[World], object], Callable[[ChangeSet], object]]] = {
    "a changed stream": (
        lambda world: world.unsaved.dirty.update({1: ONE}),
        lambda taken: [row.sid for row in taken.rows],
    ),
    "a changed bucket": (
        lambda world: world.unsaved.dirty_buckets.update(b=BUCKET),
        lambda taken: [row.name for row in taken.bucket_rows],
    ),
    "a deletion": (lambda world: world.unsaved.removed.update({1: "b/1"}), lambda taken: dict(taken.removed)),
    "a creation": (lambda world: world.unsaved.unlisted.update({"b/1": ONE}), lambda taken: list(taken.created)),
    "an extent": (
        lambda world: world.unsaved.new_extents.setdefault(1, []).append(extent(1, 0)),
        lambda taken: {sid: [one.start for one in found] for sid, found in taken.extents.items()},
    ),
    "a file": (lambda world: world.unsaved.new_files.append("f"), lambda taken: list(taken.files)),
    "a trim": (lambda world: world.unsaved.cuts.update({1: 5}), lambda taken: dict(taken.cuts)),
    "a loss": (lambda world: world.unsaved.lost.update({1: ONE}), lambda taken: list(taken.lost)),
    "a domain's row": (
        lambda world: world.notes.apply(b"a=1", 0, 1),
        lambda taken: {name: found for name, found in taken.things.items() if found},
    ),
    "a read": (lambda world: world.usage.add("b/1", 7), lambda taken: [(one.reads, one.bytes) for one in taken.reads]),
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_survives_failed_checkpoints_and_is_committed_once(world: World, kind: str) -> None:
    mark, told = KINDS[kind]
    nothing = told(World().unsaved.take_changes())
    mark(world)
    for _ in range(3):
        taken = world.unsaved.take_changes()
        assert told(taken) != nothing
        expected = told(taken)
        world.unsaved.give_back(taken)
    taken = world.unsaved.take_changes()
    assert told(taken) == expected
    world.unsaved.commit(taken)
    again = world.unsaved.take_changes()
    assert told(again) == nothing and again.empty


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("succeeds", [True, False])
def test_what_changes_during_a_checkpoint_is_in_the_next(world: World, kind: str, succeeds: bool) -> None:
    mark, told = KINDS[kind]
    nothing = told(World().unsaved.take_changes())
    taken = world.unsaved.take_changes()
    mark(world)
    assert told(taken) == nothing, "what is taken does not change any more"
    (world.unsaved.commit if succeeds else world.unsaved.give_back)(taken)
    assert told(world.unsaved.take_changes()) != nothing


def test_what_is_given_back_overwrites_nothing_newer(world: World) -> None:
    unsaved = world.unsaved
    one, kept = stream(1), bucket()
    unsaved.dirty[1], unsaved.cuts[1], unsaved.lost[1], unsaved.dirty_buckets["b"] = one, 5, one, kept
    taken = unsaved.take_changes()
    one.tail = 40
    newer = bucket()
    unsaved.cuts[1], unsaved.dirty_buckets["b"] = 30, newer
    unsaved.give_back(taken)
    again = unsaved.take_changes()
    assert taken.rows[0].tail == 0 and again.rows[0].tail == 40
    assert again.cuts == {1: 30} and again.buckets == {"b": newer}


def test_a_commit_takes_only_the_extents_files_and_names_that_were_written(world: World) -> None:
    unsaved = world.unsaved
    first, second = stream(1), stream(2)
    unsaved.new_extents[1] = [extent(1, 0)]
    unsaved.new_files.append("a")
    unsaved.unlisted["b/1"] = first
    taken = unsaved.take_changes()
    unsaved.new_extents[1].append(extent(1, 10))
    unsaved.new_files.append("b")
    unsaved.unlisted["b/1"] = second  # deleted and created again
    unsaved.commit(taken)
    assert [one.start for one in unsaved.new_extents[1]] == [10] and unsaved.new_files == ["b"]
    assert unsaved.unlisted == {"b/1": second}


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_stream_that_is_deleted_during_a_checkpoint_does_not_come_back(world: World, succeeds: bool) -> None:
    unsaved = world.unsaved
    one = stream(1)
    unsaved.dirty[1] = unsaved.lost[1] = unsaved.unlisted[one.key] = one
    unsaved.cuts[1] = 5
    unsaved.new_extents[1] = [extent(1, 0)]
    taken = unsaved.take_changes()
    unsaved.forget(one)
    (unsaved.commit if succeeds else unsaved.give_back)(taken)
    again = unsaved.take_changes()
    assert again.removed == {1: one.key}
    assert not (again.rows or again.lost or again.cuts or again.extents or again.created)


@pytest.mark.parametrize("when", ["captured", "waiting"])
def test_a_stream_that_is_deleted_while_rows_are_captured_has_no_row(world: World, when: str) -> None:
    unsaved = world.unsaved
    one, two = stream(1), stream(2)
    unsaved.dirty.update({1: one, 2: two})
    unsaved.begin_capture()
    assert unsaved.capture(1)
    gone = two if when == "captured" else one
    unsaved.forget(gone)
    taken = unsaved.take_changes()
    assert [row.sid for row in taken.rows] == [3 - gone.sid] and taken.removed == {gone.sid: gone.key}


def test_a_stream_that_changes_after_its_row_was_captured_is_captured_again(world: World) -> None:
    unsaved = world.unsaved
    one = unsaved.dirty[1] = stream(1)
    unsaved.begin_capture()
    assert unsaved.capture(10) and not unsaved.capture(10)
    one.tail = 7
    unsaved.dirty[1] = one
    taken = unsaved.take_changes()
    assert [row.tail for row in taken.rows] == [7]
    assert taken.streams == {1: one} == unsaved.capturing
    unsaved.commit(taken)
    assert unsaved.capturing == {} and unsaved.take_changes().empty


def test_changes_are_taken_one_set_at_a_time(world: World) -> None:
    taken = world.unsaved.take_changes()
    with pytest.raises(RuntimeError, match="another was under way"):
        world.unsaved.take_changes()
    world.unsaved.commit(taken)
    for end in (world.unsaved.commit, world.unsaved.give_back):
        with pytest.raises(RuntimeError, match="taken last"):
            end(taken)


def test_a_change_set_tells_the_catalog_everything(world: World) -> None:
    for mark, _ in KINDS.values():
        mark(world)
    world.unsaved.dirty[2] = stream(2)
    change = world.unsaved.take_changes().at(90, 80, 3)
    assert (change.position, change.log_floor, change.next_sid) == (90, 80, 3)
    assert [row.sid for row in change.rows] == [2], "stream 1 is marked as deleted"
    assert change.gone == [("b/1", 1)] and [row.name for row in change.buckets] == ["b"]
    assert [one.start for one in change.extents] == [0] and change.files == ["f"] and change.cuts == [(1, 5)]
    assert change.things == [("notes", "a", b"1")] and [one.reads for one in change.reads] == [1]
