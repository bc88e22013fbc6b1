"""When an answer may leave and what a reader may see: never before the log holds it, as its class promises.
Time and disk stand still here until a test moves them."""

from __future__ import annotations

import pytest

from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import SequenceGap, StreamClosed, StreamExists, StreamNotFound
from headwater.model.commands import Append, Create, Delete, Durability, Producer
from headwater.model.events import Appended, Created, Deleted
from headwater.model.stream import CreatedAndAppended, Unchanged
from headwater.model.timeline import RECORD_BYTES
from tests.engine import KEY, STEP, Bench, Ear, Inbox, null_group, visible


def test_an_append_is_neither_answered_nor_visible_before_its_sync() -> None:
    bench = Bench()
    bench.create()
    inbox = bench.post(b"one")
    assert inbox.waits and bench.read() == b""
    bench.write()
    assert inbox.waits and bench.read() == b""
    bench.sync()
    assert isinstance(inbox.outcome, Appended) and bench.read() == b"one"


def test_a_watermark_between_two_appends_releases_only_the_first() -> None:
    bench = Bench()
    bench.create()
    first = bench.post(b"one")
    between = bench.log.tail
    second = bench.post(b"two")
    bench.sync(between)
    assert not first.waits and second.waits
    assert bench.read() == b"one"
    bench.sync()
    assert not second.waits and bench.read() == b"onetwo"


def test_answers_leave_in_the_order_of_their_commands() -> None:
    bench = Bench()
    bench.create()
    inboxes = [bench.post(b"%d" % number, seq=number) for number in range(3)]
    inboxes.append(bench.post(seq=1))
    inboxes.append(bench.post(seq=9))
    inboxes.append(bench.post())
    bench.told.clear()
    bench.sync()
    assert bench.told == inboxes


def test_pipelined_appends_of_one_producer_are_judged_by_what_is_pending() -> None:
    bench = Bench()
    bench.create()
    accepted = [bench.post(seq=0), bench.post(seq=1)]
    gap = bench.post(seq=3)
    bench.sync()
    assert all(isinstance(inbox.outcome, Appended) for inbox in accepted)
    assert isinstance(gap.outcome, SequenceGap) and gap.outcome.expected == 2


def test_duplicate_waits_until_original_is_durable() -> None:
    bench = Bench()
    bench.create()
    original = bench.post(seq=0)
    duplicate = bench.post(seq=0)
    bench.write()
    assert original.waits and duplicate.waits
    bench.sync()
    assert isinstance(original.outcome, Appended)
    assert duplicate.outcome == Unchanged(1, False, Producer("p", 0, 0))


def test_a_duplicate_of_a_durable_append_is_answered_at_once() -> None:
    bench = Bench()
    bench.create()
    bench.post(seq=0)
    bench.sync()
    assert not bench.post(seq=0).waits


@pytest.mark.parametrize(
    ("pending", "refused", "failure"),
    [
        (Append([], close=True), Append([b"x"]), StreamClosed),
        (Append([b"x"], None, Producer("p", 0, 0)), Append([b"x"], None, Producer("p", 0, 2)), SequenceGap),
        (Delete(), Append([b"x"]), StreamNotFound),
        (Delete(), Delete(), StreamNotFound),
    ],
)
def test_a_refusal_waits_for_the_write_it_was_judged_by(pending, refused, failure: type[Exception]) -> None:
    bench = Bench()
    bench.create()
    bench.submit(pending)
    inbox = bench.submit(refused)
    bench.write()
    assert inbox.waits
    bench.sync()
    assert isinstance(inbox.outcome, failure)


def test_a_repeated_create_waits_for_the_first() -> None:
    bench = Bench()
    first = bench.submit(Create(KEY, "text/plain", []))
    same = bench.submit(Create(KEY, "text/plain", []))
    other = bench.submit(Create(KEY, "text/html", []))
    assert first.waits and same.waits and other.waits
    bench.sync()
    assert isinstance(first.outcome, Created)
    assert isinstance(same.outcome, Unchanged) and isinstance(other.outcome, StreamExists)


def test_a_refusal_with_nothing_pending_is_answered_at_once() -> None:
    bench = Bench()
    assert isinstance(bench.post().outcome, StreamNotFound)


def test_all_that_one_turn_brings_is_committed_once() -> None:
    bench = Bench()
    bench.create()
    commits = bench.log.commits_count
    for _ in range(5):
        bench.post()
    assert bench.log.commits_count == commits and len(bench.scheduled) == 1
    bench.turn()
    assert bench.log.commits_count == commits + 1
    bench.post()
    bench.turn()
    assert bench.log.commits_count == commits + 2


# ---- laxer classes ----------------------------------------------------------------------------------------------


def test_a_stream_of_class_disk_answers_when_written() -> None:
    bench = Bench()
    bench.create(durability=Durability.DISK)
    inbox = bench.post(b"one")
    assert inbox.waits and bench.read() == b""
    assert not bench.log.syncs[bench.log.tail]
    bench.write()
    assert isinstance(inbox.outcome, Appended) and bench.read() == b"one"
    assert bench.log.synced < bench.log.tail


def test_a_stream_of_class_memory_answers_at_once() -> None:
    bench = Bench()
    bench.create(durability=Durability.MEMORY)
    inbox = bench.post(b"one")
    assert isinstance(inbox.outcome, Appended) and bench.read() == b"one"
    assert not bench.log.syncs[bench.log.tail]
    bench.turn()
    assert bench.log.commits_count > 1


def test_a_duplicate_in_a_stream_of_class_disk_waits_until_its_original_is_written() -> None:
    bench = Bench()
    bench.create(durability=Durability.DISK)
    original = bench.post(seq=0)
    duplicate, gap = bench.post(seq=0), bench.post(seq=5)
    assert original.waits and duplicate.waits and gap.waits
    bench.write()
    assert isinstance(original.outcome, Appended) and isinstance(duplicate.outcome, Unchanged)
    assert isinstance(gap.outcome, SequenceGap)


def test_a_duplicate_of_class_disk_waits_for_its_original_also_when_a_sync_is_pending() -> None:
    bench = Bench()
    bench.create(durability=Durability.DISK)
    bench.create("_default/synced")
    bench.post(key="_default/synced")
    pending = bench.log.tail
    original = bench.post(seq=0)
    duplicate = bench.post(seq=0)
    bench.sync(pending)
    assert original.waits and duplicate.waits
    bench.sync()
    assert not original.waits and not duplicate.waits


def test_refusals_of_a_synced_stream_do_not_wait_for_appends_of_class_disk() -> None:
    bench = Bench()
    bench.create()
    bench.create("_default/disk", durability=Durability.DISK)
    bench.post(key="_default/disk")
    assert isinstance(bench.post(seq=4).outcome, SequenceGap)


@pytest.mark.parametrize("durability", list(Durability))
def test_creation_and_deletion_are_synced_whatever_the_class(durability: Durability) -> None:
    bench = Bench()
    created = bench.submit(Create(KEY, None, [b"first"], durability=durability))
    bench.write()
    assert created.waits
    bench.sync()
    assert isinstance(created.outcome, Created) and bench.read() == b"first"
    deleted = bench.submit(Delete())
    bench.write()
    assert deleted.waits
    bench.sync()
    assert isinstance(deleted.outcome, Deleted)


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.MEMORY])
def test_records_that_a_lax_class_showed_before_the_creation_was_durable_stay_shown(durability: Durability) -> None:
    bench = Bench()
    bench.submit(Create(KEY, None, [b"first"], durability=durability))
    bench.post(b"second")
    bench.write()
    assert bench.group.unpublished(KEY)
    bench.sync()
    assert bench.read() == b"firstsecond"


def test_a_barrier_waits_for_every_class() -> None:
    bench = Bench()
    bench.create(durability=Durability.MEMORY)
    bench.post()
    inbox = Inbox()
    bench.group.barrier(inbox)
    bench.write()
    assert inbox.waits
    bench.sync()
    assert isinstance(inbox.outcome, Unchanged)
    at_once = Inbox()
    bench.group.barrier(at_once)
    assert isinstance(at_once.outcome, Unchanged)


# ---- coming and going -------------------------------------------------------------------------------------------


def test_a_reader_of_a_stream_whose_creation_is_pending_waits_for_it() -> None:
    bench = Bench()
    bench.submit(Create(KEY, None, [b"first"]))
    assert bench.group.unpublished(KEY)
    with pytest.raises(StreamNotFound):
        bench.group.find(KEY, touch=False)
    reader = Inbox()
    bench.group.after_published(KEY, reader)
    bench.write()
    assert reader.waits
    bench.sync()
    assert isinstance(reader.outcome, Unchanged)
    assert not bench.group.unpublished(KEY) and bench.read() == b"first"


def test_readers_of_other_streams_do_not_wait_for_a_creation() -> None:
    bench = Bench()
    bench.create()
    bench.submit(Create("_default/new", None, []), "_default/new")
    assert not bench.group.unpublished(KEY)
    assert bench.read() == b""


def test_a_reader_of_a_stream_whose_deletion_is_pending_waits_and_then_finds_nothing() -> None:
    bench = Bench()
    bench.create()
    bench.submit(Delete())
    assert bench.group.unpublished(KEY)
    bench.sync()
    assert not bench.group.unpublished(KEY)
    with pytest.raises(StreamNotFound):
        bench.read()


def test_a_name_that_is_deleted_and_created_again_is_settled_with_the_last_of_these() -> None:
    bench = Bench()
    bench.create()
    bench.post(b"old")
    bench.sync()
    old = bench.group.find(KEY, touch=False)
    bench.submit(Delete())
    deletion = bench.log.tail
    bench.submit(Create(KEY, "text/html", [b"new"]))
    bench.sync(deletion)
    assert bench.group.unpublished(KEY)
    bench.sync()
    new = bench.group.find(KEY, touch=False)
    assert (new.sid, bench.read()) == (old.sid + 1, b"new")
    assert bench.group.loaded.hot_bytes == 3 + RECORD_BYTES


def test_an_append_after_a_recreation_goes_to_the_new_stream() -> None:
    bench = Bench()
    bench.create()
    first = bench.post(b"old", seq=0)
    bench.submit(Delete())
    bench.submit(Create(KEY, "text/plain", []))
    second = bench.post(b"new", seq=0)
    bench.sync()
    assert isinstance(first.outcome, Appended) and isinstance(second.outcome, Appended)
    assert first.outcome.sid != second.outcome.sid
    assert bench.read() == b"new"


# ---- followers --------------------------------------------------------------------------------------------------


def test_a_follower_is_woken_once_for_all_that_one_pass_made_visible_after_the_writers_were_answered() -> None:
    bench = Bench()
    bench.create()
    stream = bench.group.find(KEY, touch=False)

    class Late(Ear):
        def wake(self, stream: LoadedStream) -> None:
            super().wake(stream)
            assert len(bench.told) == 4, "a follower came before a writer"

    ear = Late()
    bench.group.follow(stream, ear)
    for _ in range(3):
        bench.post(b"xy")
    bench.write()
    assert ear.wakes == []
    bench.sync()
    assert ear.wakes == [6]
    stream.followers.discard(ear)
    bench.post()
    bench.sync()
    assert ear.wakes == [6]


def test_a_follower_hears_of_a_close_that_brings_no_data() -> None:
    bench = Bench()
    bench.create()
    stream, ear = bench.group.find(KEY, touch=False), Ear()
    bench.group.follow(stream, ear)
    bench.submit(Append([], close=True))
    assert not stream.closed_visible
    bench.sync()
    assert ear.wakes == [0] and stream.closed_visible


def test_a_follower_hears_of_a_deletion_once_it_is_durable() -> None:
    bench = Bench()
    bench.create()
    stream, ear = bench.group.find(KEY, touch=False), Ear()
    bench.group.follow(stream, ear)
    bench.submit(Delete())
    assert ear.gone_count == 0
    bench.sync()
    assert ear.gone_count == 1
    bench.submit(Create(KEY, None, [b"x"]))
    bench.sync()
    assert ear.wakes == []


def test_a_follower_that_leaves_while_others_are_woken_is_no_trouble() -> None:
    bench = Bench()
    bench.create()
    stream = bench.group.find(KEY, touch=False)

    class Leaver(Ear):
        def wake(self, stream: LoadedStream) -> None:
            super().wake(stream)
            stream.followers.discard(self)

    ears = [Leaver() for _ in range(5)]
    for ear in ears:
        bench.group.follow(stream, ear)
    bench.post()
    bench.sync()
    bench.post()
    bench.sync()
    assert [ear.wakes for ear in ears] == [[1]] * 5


# ---- a node that keeps nothing ----------------------------------------------------------------------------------


def test_a_group_without_a_disk_answers_everything_at_once() -> None:
    group = null_group()
    created, appended, duplicate, deleted = Inbox(), Inbox(), Inbox(), Inbox()
    group.submit(KEY, Create(KEY, None, [b"one"]), created)
    assert isinstance(created.outcome, Created) and not group.unpublished(KEY)
    ear = Ear()
    group.follow(group.find(KEY, touch=False), ear)
    group.submit(KEY, Append([b"two"], None, Producer("p", 0, 0)), appended)
    group.submit(KEY, Append([b"two"], None, Producer("p", 0, 0)), duplicate)
    assert isinstance(appended.outcome, Appended) and isinstance(duplicate.outcome, Unchanged)
    assert visible(group, KEY) == b"onetwo" and ear.wakes == [6]
    group.submit(KEY, Delete(), deleted)
    assert isinstance(deleted.outcome, Deleted) and ear.gone_count == 1
    with pytest.raises(StreamNotFound):
        group.find(KEY, touch=False)


# ---- an append that makes its stream --------------------------------------------------------------------------


def made(bench: Bench, payload: bytes = b"x", seq: int | None = None, durability: Durability | None = None) -> Inbox:
    producer = None if seq is None else Producer("p", 0, seq)
    create = Create(KEY, "text/plain", [], durability=durability)
    return bench.submit(Append([payload], "text/plain", producer, create=create))


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK, Durability.MEMORY])
def test_an_append_that_makes_its_stream_is_answered_and_seen_when_both_are_synced(durability: Durability) -> None:
    bench = Bench()
    first, second = made(bench, b"a", 0, durability), made(bench, b"b", 1)
    assert [type(event).__name__ for _, event in bench.log.events] == ["Created", "Appended", "Appended"]
    assert bench.group.unpublished(KEY)
    bench.sync(until=STEP)  # the creation alone
    assert first.waits and bench.group.unpublished(KEY)
    bench.sync(until=2 * STEP)
    assert type(first.outcome) is CreatedAndAppended and not bench.group.unpublished(KEY)
    bench.sync()
    assert type(second.outcome) is Appended
    assert bench.read() == b"ab"


def test_an_append_that_makes_an_ephemeral_stream_is_logged_with_it_and_counted_as_unlogged_memory() -> None:
    bench = Bench()
    first = made(bench, b"a", 0, Durability.EPHEMERAL)
    bench.sync()
    assert type(first.outcome) is CreatedAndAppended
    second = made(bench, b"b", 1)
    bench.sync()
    assert type(second.outcome) is Appended
    assert [type(event).__name__ for _, event in bench.log.events] == ["Created", "Appended", "Reserved"]
    loaded = bench.group.loaded
    assert bench.read() == b"ab"
    assert (loaded.hot_bytes, loaded.unlogged_bytes) == (0, loaded.by_key[KEY].timeline.held_bytes)
    assert loaded.holding == {}, "nothing of it settles"


def test_an_append_that_is_refused_makes_no_stream() -> None:
    bench = Bench()
    refused = made(bench, seq=7)
    assert type(refused.outcome) is SequenceGap
    assert bench.log.events == []
    assert type(bench.post().outcome) is StreamNotFound


def test_an_append_that_may_make_its_stream_leaves_one_that_is_there_as_it_is() -> None:
    bench = Bench()
    bench.create(durability=Durability.MEMORY)
    assert type(made(bench).outcome) is Appended
