"""What topics add to the rules of one stream: records with labels, deletions anywhere, floors, caps that refuse.
Topics: the two floors, deletion that advances only one of them, and the full-topic policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import StreamExists, TooManyHoles, TopicFull
from headwater.model import retention, stream
from headwater.model.commands import Append, Command, Configure, Create, DeleteRecords, Retention, Trim
from headwater.model.events import Configured, Created, RecordsDeleted, SnapshotPublished, StreamEvent, Trimmed
from headwater.model.holes import Run
from headwater.model.labels import LABELS_BYTES, Labels
from headwater.model.stream import Limits, Unchanged, decide
from headwater.model.stream_state import Stream, born, evolve
from headwater.model.timeline import RECORD_BYTES, Timeline
from headwater.model.topics import TopicConfig

KEY = "_default/t"
REJECT = TopicConfig(reject_when_full=True)


class Subject:
    """A topic's stream: records of one byte each, so that number and offset are the same."""

    def __init__(self, policy: Retention | None = None, topic: TopicConfig | None = None) -> None:
        created = decide(None, Create(KEY, "text/plain", [], retention=policy, topic=topic), 1_000, 7, Limits())
        assert isinstance(created, Created)
        self.stream = Stream(born(created, 10))
        evolve(self.stream, created, 10)

    def run(self, command: Command) -> StreamEvent | Unchanged:
        outcome = decide(self.stream, command, 1_000, 8, Limits())
        assert not isinstance(outcome, stream.CreatedAndAppended)
        if not isinstance(outcome, Unchanged):
            evolve(self.stream, outcome, self.stream.position + 10)
        return outcome

    def write(self, count: int) -> None:
        self.run(Append([b"x"] * count))

    def delete(self, *numbers: int) -> StreamEvent | Unchanged:
        return self.run(DeleteRecords([Run(number, number + 1, number, number + 1) for number in sorted(numbers)]))

    @property
    def floors(self) -> tuple[int, int]:
        return self.stream.evict_floor, self.stream.earliest_seq


def test_a_deletion_in_the_middle_leaves_a_hole_and_both_floors() -> None:
    subject = Subject()
    subject.write(5)
    outcome = subject.delete(1, 3)
    assert isinstance(outcome, RecordsDeleted)
    assert subject.floors == (1, 1)
    assert (subject.stream.live_count, subject.stream.live_bytes, subject.stream.count) == (3, 3, 5)


def test_a_deletion_at_the_front_moves_the_beginning_and_never_the_evict_floor() -> None:
    subject = Subject()
    subject.write(5)
    subject.delete(1, 2)
    subject.delete(0)
    assert subject.floors == (1, 4)
    assert (subject.stream.earliest, len(subject.stream.holes)) == (3, 0)
    assert subject.stream.timeline.payloads == [b"x"] * 2


def test_what_is_deleted_already_is_passed_over_and_counted_once() -> None:
    subject = Subject()
    subject.write(6)
    subject.delete(2, 3)
    outcome = subject.run(DeleteRecords([Run(1, 5, 1, 5)]))
    assert isinstance(outcome, RecordsDeleted)
    assert outcome.runs == [Run(1, 2, 1, 2), Run(4, 5, 4, 5)]
    assert isinstance(subject.run(DeleteRecords([Run(1, 5, 1, 5)])), Unchanged)
    assert isinstance(subject.run(DeleteRecords([Run(6, 9, 6, 9)])), Unchanged)


@pytest.mark.parametrize(
    "wrong",
    [
        Run(3, 4, 3, 6),  # ends in the hole that follows
        Run(3, 4, 4, 5),
        Run(7, 8, 6, 8),  # begins in the hole before it
        Run(9, 10, 9, 11),  # beyond the tail
        Run(9, 10, 8, 9),
        Run(0, 1, 1, 2),
        Run(8, 9, 9, 8),
    ],
)
def test_a_deletion_that_contradicts_where_other_records_lie_changes_nothing(wrong: Run) -> None:
    subject = Subject()
    subject.write(10)
    subject.run(DeleteRecords([Run(4, 7, 4, 7)]))
    before = subject.stream.row()
    with pytest.raises(RuntimeError, match="cannot lie at"):
        subject.run(DeleteRecords([wrong]))
    assert subject.stream.row() == before


def test_a_trim_up_to_a_hole_begins_after_it() -> None:
    subject = Subject()
    subject.write(6)
    subject.delete(2, 3)
    assert isinstance(subject.run(Trim(2)), Trimmed)
    assert subject.floors == (1, 5)
    assert subject.stream.earliest == 4


def test_a_policy_moves_both_floors_and_does_not_count_what_was_deleted() -> None:
    subject = Subject(Retention(records=3))
    subject.write(6)
    subject.delete(1, 4)
    offset = retention.cut(subject.stream, subject.stream.tail, 1_000)
    assert offset == 1, "four are there: 0, 2, 3, 5"
    evolve(subject.stream, Trimmed(7, offset, 1, 1_000, evicted=True), 100)
    assert subject.floors == (2, 3), "the second was deleted on purpose"
    assert retention.cut(subject.stream, subject.stream.tail, 1_000) is None


def test_what_was_deleted_behind_the_last_record_that_a_policy_takes_is_not_lost() -> None:
    subject = Subject(Retention(age_ms=10))
    subject.write(5)
    subject.delete(1, 2)
    evolve(subject.stream, Trimmed(7, 3, 3, 1_000, evicted=True), 100)
    assert subject.floors == (2, 4)


@given(st.integers(1, 25), st.sets(st.integers(0, 24)), st.integers(1, 10))
def test_a_cap_keeps_exactly_the_newest_records_that_are_there(count: int, deleted: set[int], cap: int) -> None:
    subject = Subject(Retention(records=cap))
    subject.write(count)
    subject.delete(*(one for one in deleted if one < count))
    alive = [one for one in range(count) if one not in deleted]
    offset = retention.cut(subject.stream, subject.stream.tail, 1_000)
    if len(alive) <= cap:
        assert offset is None
    else:
        assert offset is not None
        assert [one for one in alive if one >= offset] == alive[-cap:]


@pytest.mark.parametrize("policy", [Retention(records=3), Retention(bytes=3)])
def test_a_full_topic_that_rejects_takes_nothing_of_a_batch(policy: Retention) -> None:
    subject = Subject(policy, REJECT)
    subject.write(2)
    with pytest.raises(TopicFull):
        subject.write(2)
    assert subject.stream.count == 2
    subject.write(1)
    with pytest.raises(TopicFull):
        subject.write(1)
    subject.delete(1)
    subject.write(1)
    assert (subject.stream.count, subject.stream.live_count) == (4, 3)


def test_a_topic_that_discards_what_is_old_is_never_full() -> None:
    subject = Subject(Retention(records=1), TopicConfig())
    subject.write(5)
    assert subject.stream.count == 5


def test_a_topic_is_made_again_only_with_the_same_configuration() -> None:
    subject = Subject(None, REJECT)
    assert isinstance(subject.run(Create(KEY, "text/plain", [], topic=REJECT)), Unchanged)
    with pytest.raises(StreamExists):
        subject.run(Create(KEY, "text/plain", [], topic=TopicConfig()))
    assert isinstance(Subject().run(Create(KEY, "text/plain", [], topic=TopicConfig())), Unchanged)


def test_a_configuration_changes_once() -> None:
    subject = Subject()
    change = Configure(Retention(records=9), REJECT)
    assert isinstance(subject.run(change), Configured)
    assert (subject.stream.retention, subject.stream.topic) == (Retention(records=9), REJECT)
    assert isinstance(subject.run(change), Unchanged)


def test_holes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HOLES_MAX", 3)
    subject = Subject()
    subject.write(20)
    subject.delete(2, 4, 6)
    with pytest.raises(TooManyHoles):
        subject.delete(8)
    subject.delete(0)
    subject.run(Trim(5))
    subject.delete(8)


def test_a_fork_shares_the_holes_before_it_and_none_that_come_later() -> None:
    source = Subject()
    source.write(6)
    source.delete(1, 4)
    shared = source.stream.holes.up_to(3, 3)
    source.delete(2)
    assert list(shared) == [Run(1, 2, 1, 2)]


def test_a_timeline_holds_labels_beside_records_and_counts_them() -> None:
    timeline, red = Timeline(0), Labels("red", "n1", b"{}", "k")
    timeline.extend([b"a"], 0, 1, 0, 10)
    assert timeline.labels is None
    timeline.extend([b"b", b"c"], 1, 1, 1, 20, [None, red])
    timeline.extend([b"d"], 3, 1, 3, 30)
    assert timeline.labels == [None, None, red, None]
    size = LABELS_BYTES + len("red") + len("n1") + len("{}") + len("k")
    assert timeline.held_bytes == 4 + 4 * RECORD_BYTES + size
    assert timeline.drop_before(3) == 3 + 3 * RECORD_BYTES + size
    assert timeline.labels == [None]
    assert timeline.held_bytes == 1 + RECORD_BYTES


def test_what_was_deleted_stays_so_in_the_lake_after_a_snapshot_or_a_policy_passed_it() -> None:
    subject = Subject()
    subject.write(9)
    evolve(subject.stream, Trimmed(7, 1, 1, 1_000, evicted=True), 100)
    assert subject.stream.deleted_seq == 0
    evolve(subject.stream, SnapshotPublished(7, 2, 2, "text/plain", "blob", 1, 1_000), 110)
    assert subject.stream.deleted_seq == 0
    subject.delete(4)
    evolve(subject.stream, SnapshotPublished(7, 6, 6, "text/plain", "blob", 1, 1_000), 120)
    assert (subject.stream.deleted_seq, subject.stream.deleted_offset) == (6, 6)
    evolve(subject.stream, Trimmed(7, 7, 7, 1_000, evicted=True), 130)
    assert subject.stream.deleted_seq == 6
    subject.delete(7)
    assert (subject.stream.deleted_seq, subject.stream.first_seq) == (8, 8)
    assert isinstance(subject.run(Trim(9)), Trimmed)
    assert subject.stream.deleted_seq == 9


def test_jobs_that_are_deleted_one_by_one_leave_memory_together() -> None:
    subject = Subject()
    subject.write(20)
    for number in range(2):
        subject.delete(number)
    assert (subject.stream.first_seq, subject.stream.timeline.seq) == (2, 0)
    subject.delete(2)
    assert (subject.stream.first_seq, subject.stream.timeline.seq, subject.stream.live_count) == (3, 3, 17)
    assert isinstance(subject.run(Trim(4)), Trimmed)
    assert subject.stream.timeline.seq == 4, "a trim frees what it trims"
