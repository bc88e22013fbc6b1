"""A log that failed under a group: all who wait are told, nobody is promised anything, what was shown stays readable.
Ceilings stand here too: the other way a write is turned away without a trace."""

from __future__ import annotations

import pytest

from headwater.errors import LogUnavailable, Overloaded, StreamNotFound
from headwater.model.commands import Append, Create, Delete, Durability
from headwater.model.events import Appended, Deleted
from headwater.model.timeline import RECORD_BYTES
from headwater.ports import BROKEN, LogFailure
from tests.engine import KEY, STEP, Bench, Ear, Inbox


def test_everyone_who_waits_is_told_that_the_log_is_unavailable() -> None:
    bench = Bench()
    bench.create()
    bench.create("_default/disk", durability=Durability.DISK)
    bench.submit(Create("_default/unborn", None, []), "_default/unborn")
    reader, barrier = Inbox(), Inbox()
    bench.group.after_published("_default/unborn", reader)
    bench.group.barrier(barrier)
    waiting = [
        bench.post(seq=0),
        bench.post(seq=0),
        bench.post(seq=7),
        bench.post(key="_default/disk"),
        bench.submit(Delete()),
        reader,
        barrier,
    ]
    assert all(inbox.waits for inbox in waiting)
    bench.fail("no space left")
    for inbox in waiting:
        assert isinstance(inbox.outcome, LogUnavailable) and inbox.outcome.reason == "no space left"


def test_what_was_synced_before_the_failure_is_still_answered_as_such() -> None:
    bench = Bench()
    bench.create()
    synced = bench.post(b"one")
    position = bench.log.tail
    lost = bench.post(b"two")
    bench.turn()
    bench.log.synced = position
    bench.fail()
    assert isinstance(synced.outcome, Appended) and isinstance(lost.outcome, LogUnavailable)
    assert bench.read() == b"one"


def test_a_failed_log_takes_no_more_commands_and_shows_what_it_showed() -> None:
    bench = Bench()
    bench.create()
    bench.post(b"shown")
    bench.sync()
    bench.post(b"lost")
    bench.fail()
    logged = len(bench.log.events)
    for command in (Append([b"x"]), Create("_default/new", None, []), Delete(), Append([], close=True)):
        key = command.key if isinstance(command, Create) else KEY
        assert isinstance(bench.submit(command, key).outcome, LogUnavailable)
    assert len(bench.log.events) == logged
    assert bench.read() == b"shown" and not bench.group.find(KEY, touch=True).closed_visible
    assert bench.group.failed


def test_a_duplicate_that_meets_the_failure_before_anyone_was_told_is_not_taken_for_durable() -> None:
    bench = Bench()
    bench.create()
    original = bench.post(seq=0)
    bench.turn()

    class Sudden(type(bench.log)):  # type: ignore[misc]
        """Fails right after the group has looked."""

        looks_count = 0

        @property
        def failure(self) -> LogFailure | None:
            Sudden.looks_count += 1
            return None if Sudden.looks_count == 1 else LogFailure(BROKEN, "gone")

        @failure.setter
        def failure(self, reason: LogFailure | None) -> None: ...

    bench.log.__class__ = Sudden
    duplicate = bench.post(seq=0)
    assert isinstance(duplicate.outcome, LogUnavailable)
    bench.group.progress()
    assert isinstance(original.outcome, LogUnavailable)


def test_a_reader_of_a_creation_that_never_became_durable_is_told_so() -> None:
    bench = Bench()
    bench.submit(Create(KEY, None, [b"x"]))
    bench.fail()
    assert bench.group.unpublished(KEY)
    reader = Inbox()
    bench.group.after_published(KEY, reader)
    assert isinstance(reader.outcome, LogUnavailable)
    with pytest.raises(StreamNotFound):
        bench.read()


def test_followers_are_not_woken_by_what_a_failed_log_lost() -> None:
    bench = Bench()
    bench.create()
    ear = Ear()
    bench.group.follow(bench.group.find(KEY, touch=False), ear)
    bench.post()
    bench.submit(Delete())
    bench.fail()
    assert ear.wakes == [] and ear.gone_count == 0


def test_time_that_runs_out_on_a_failed_log_is_seen_but_not_logged() -> None:
    bench = Bench()
    bench.create(ttl_ms=100)
    bench.fail()
    logged = len(bench.log.events)
    bench.clock.ms += 100
    with pytest.raises(StreamNotFound):
        bench.read()
    assert bench.group.expire_due(10) == 1
    assert len(bench.log.events) == logged


# ---- the ceiling of hot memory ----------------------------------------------------------------------------------


def test_above_the_ceiling_data_is_turned_away_until_some_is_deleted() -> None:
    bench = Bench(hot_bytes_max=10)
    bench.create()
    bench.create("_default/other")
    bench.post(b"x" * 11)
    bench.sync()
    assert bench.group.loaded.hot_bytes == 11 + RECORD_BYTES
    logged = len(bench.log.events)
    assert isinstance(bench.post().outcome, Overloaded)
    assert isinstance(bench.submit(Create("_default/new", None, [b"x"]), "_default/new").outcome, Overloaded)
    assert len(bench.log.events) == logged
    assert bench.read() == b"x" * 11
    bench.submit(Delete())
    bench.sync()
    assert bench.group.loaded.hot_bytes == 0
    bench.post(key="_default/other")
    bench.sync()
    assert bench.read("_default/other") == b"x"


def test_what_waits_for_the_disk_counts_twice() -> None:
    bench = Bench(hot_bytes_max=1 + RECORD_BYTES + STEP // 2)
    bench.create()
    bench.post()
    assert isinstance(bench.post().outcome, Overloaded | None) and len(bench.log.events) == 2
    bench.sync()
    bench.post()
    assert len(bench.log.events) == 3


def test_records_count_with_what_they_take_beside_their_payload() -> None:
    bench = Bench(hot_bytes_max=10 * RECORD_BYTES)
    bench.create()
    bench.submit(Append([b"x"] * 10))
    bench.sync()
    assert bench.group.loaded.hot_bytes == 10 * (RECORD_BYTES + 1)
    assert isinstance(bench.post().outcome, Overloaded)


def test_a_duplicate_is_recognised_and_a_stream_deleted_above_the_ceiling() -> None:
    bench = Bench(hot_bytes_max=0)
    bench.create()
    bench.post(seq=0)
    bench.sync()
    assert not isinstance(bench.post(seq=0).outcome, Overloaded | None)
    deleted = bench.submit(Delete())
    bench.sync()
    assert isinstance(deleted.outcome, Deleted)
