"""Rules of one stream that deserve a sentence of their own: closing retries, ids, windows, tags of the tail.
Never repeats what the histories beside the slow model already compare."""

from __future__ import annotations

import pytest

from headwater.errors import (
    ContentTypeMismatch,
    NonMonotonicId,
    PreconditionFailed,
    StreamClosed,
    StreamExists,
    StreamSeqConflict,
    TooManyProducers,
)
from headwater.model.commands import Append, Command, Create, Durability, Producer
from headwater.model.events import Appended, Created, Deleted, Touched
from headwater.model.stream import Limits, Unchanged, decide
from headwater.model.stream_state import NEVER_MS, Stream, born, evolve

KEY = "_default/s"
LIMITS = Limits()


class Subject:
    """A stream under test: commands in, outcomes out, time by hand."""

    def __init__(self, create: Create | None = None, limits: Limits = LIMITS) -> None:
        self.now_ms = 1_000
        self.position = 10
        self.limits = limits
        created = decide(None, create or Create(KEY, "text/plain", []), self.now_ms, 7, limits)
        assert isinstance(created, Created)
        self.stream = Stream(born(created, self.position))
        evolve(self.stream, created, self.position)

    def run(self, command: Command) -> Appended | Unchanged:
        outcome = decide(self.stream, command, self.now_ms, 8, self.limits)
        if isinstance(outcome, Unchanged):
            return outcome
        assert isinstance(outcome, Appended)
        self.position += 10
        evolve(self.stream, outcome, self.position)
        return outcome

    def post(self, payload: bytes = b"x", **more: object) -> Appended | Unchanged:
        return self.run(Append([payload], **more))  # type: ignore[arg-type]


def test_a_close_repeated_with_the_same_tuple_and_another_body_keeps_the_original() -> None:
    subject = Subject()
    closer = Producer("p", 0, 0)
    subject.run(Append([b"last"], "text/plain", closer, close=True))
    assert subject.run(Append([b"another"], "text/plain", closer, close=True)) == Unchanged(4, True, closer)
    assert subject.stream.timeline.payloads == [b"last"]


def test_a_closed_stream_refuses_a_producers_older_append_even_though_it_was_accepted_once() -> None:
    subject = Subject()
    subject.post(producer=Producer("p", 0, 0))
    subject.run(Append([], None, Producer("p", 0, 1), close=True))
    with pytest.raises(StreamClosed) as caught:
        subject.post(producer=Producer("p", 0, 0))
    assert caught.value.next_offset == 1


def test_closing_a_closed_stream_again_without_data_changes_nothing() -> None:
    subject = Subject()
    subject.run(Append([], close=True))
    assert subject.run(Append([], close=True)) == Unchanged(0, True)


def test_a_stream_closed_at_its_creation_takes_no_data() -> None:
    subject = Subject(Create(KEY, "text/plain", [b"all there is"], closed=True))
    assert subject.stream.closed
    with pytest.raises(StreamClosed):
        subject.post()


def test_closed_comes_before_the_content_type_and_the_content_type_before_the_producer() -> None:
    subject = Subject()
    subject.post(producer=Producer("p", 3, 0))
    wrong = Append([b"x"], "image/png", Producer("p", 0, 0), stream_seq="a")
    with pytest.raises(ContentTypeMismatch) as caught:
        subject.run(wrong)
    assert (caught.value.expected, caught.value.received) == ("text/plain", "image/png")
    subject.run(Append([], close=True))
    with pytest.raises(StreamClosed):
        subject.run(wrong)


def test_records_that_name_no_content_type_are_taken_by_a_json_stream_only_if_each_is_a_value() -> None:
    subject = Subject(Create(KEY, "application/json; charset=utf-8", []))
    subject.run(Append([b" [1, 2]", b'"x"', b"{}"]))
    for bad in ([b"{"], [b"1", b"x"], [b"1,2"], [b"[1", b"2]"], [b" "], [b'"\xff"']):
        with pytest.raises(ContentTypeMismatch) as caught:
            subject.run(Append(bad))
        assert caught.value.expected == "application/json; charset=utf-8"
    subject.run(Append([], close=True))
    with pytest.raises(StreamClosed):
        subject.run(Append([b"{"]))


def test_a_duplicate_is_a_duplicate_before_its_stream_seq_is_looked_at() -> None:
    subject = Subject()
    producer = Producer("p", 0, 0)
    subject.post(producer=producer, stream_seq="b")
    assert subject.post(producer=producer, stream_seq="b") == Unchanged(1, False, producer)


def test_a_duplicate_answers_with_the_highest_accepted_seq() -> None:
    subject = Subject()
    for seq in range(3):
        subject.post(producer=Producer("p", 4, seq))
    assert subject.post(producer=Producer("p", 4, 1)) == Unchanged(3, False, Producer("p", 4, 2))


def test_stream_seq_is_compared_as_text_and_has_to_grow() -> None:
    subject = Subject()
    subject.post(stream_seq="2")
    for too_small in ("2", "10", ""):
        with pytest.raises(StreamSeqConflict) as caught:
            subject.post(stream_seq=too_small)
        assert (caught.value.last, caught.value.received) == ("2", too_small)
    subject.post(stream_seq="20")
    subject.post()
    assert subject.stream.stream_seq == "20"


def test_a_clock_that_steps_back_does_not_make_ids_smaller() -> None:
    subject = Subject()
    subject.post()
    subject.now_ms = 400
    second = subject.run(Append([b"x", b"y"]))
    subject.now_ms = 1_001
    third = subject.post()
    assert isinstance(second, Appended) and isinstance(third, Appended)
    assert (second.ms, second.n) == (1_000, 1)
    assert (third.ms, third.n) == (1_001, 0)
    # The clock itself is kept beside the id: it says when things happened.
    assert second.at_ms == 400


def test_an_id_chosen_by_the_client_may_repeat_its_millisecond_but_not_go_below_it() -> None:
    subject = Subject()
    subject.post(ms=5_000)
    again = subject.post(ms=5_000)
    assert isinstance(again, Appended) and (again.ms, again.n) == (5_000, 1)
    with pytest.raises(NonMonotonicId) as caught:
        subject.post(ms=4_999)
    assert (caught.value.last_ms, caught.value.received_ms) == (5_000, 4_999)


def test_ids_of_a_client_ahead_of_the_clock_are_continued_by_the_server() -> None:
    subject = Subject()
    largest = (1 << 64) - 1
    subject.post(ms=largest)
    following = subject.post()
    assert isinstance(following, Appended) and (following.ms, following.n) == (largest, 1)
    assert list(subject.stream.timeline.ms) == [largest, largest]


def test_if_match_takes_only_the_etag_of_the_present_tail() -> None:
    subject = Subject()
    empty = subject.stream.etag
    subject.post(if_match=empty)
    with pytest.raises(PreconditionFailed) as caught:
        subject.post(if_match=empty)
    assert caught.value.etag == subject.stream.etag
    subject.post(if_match=subject.stream.etag)


def test_the_etag_tells_tails_closure_and_incarnations_apart() -> None:
    subject, other = Subject(), Subject()
    other.stream.sid = 8
    seen = [subject.stream.etag, other.stream.etag]
    subject.post()
    seen.append(subject.stream.etag)
    subject.run(Append([], close=True))
    seen.append(subject.stream.etag)
    assert len(set(seen)) == 4


def test_a_producer_that_fell_silent_makes_room_for_a_new_one() -> None:
    subject = Subject(limits=Limits(producers_max=2, producer_idle_ms=100))
    subject.post(producer=Producer("old", 0, 0))
    subject.now_ms += 60
    subject.post(producer=Producer("busy", 0, 0))
    subject.now_ms += 40
    with pytest.raises(TooManyProducers) as caught:
        subject.post(producer=Producer("new", 0, 0))
    assert caught.value.limit == 2
    subject.now_ms += 1
    subject.post(producer=Producer("new", 0, 0))
    assert list(subject.stream.producers) == ["busy", "new"]


def test_known_producers_go_on_when_there_is_no_room_for_new_ones() -> None:
    subject = Subject(limits=Limits(producers_max=1))
    subject.post(producer=Producer("p", 0, 0))
    subject.post(producer=Producer("p", 0, 1))
    subject.post(producer=Producer("p", 1, 0))
    assert subject.stream.producers == {"p": (1, 0, subject.now_ms)}


def test_a_sliding_window_restarts_with_appends_and_reads_and_an_absolute_one_never_moves() -> None:
    sliding = Subject(Create(KEY, None, [], ttl_ms=500))
    fixed = Subject(Create(KEY, None, [], expires_ms=9_000))
    unlimited = Subject()
    assert [s.stream.deadline_ms for s in (sliding, fixed, unlimited)] == [1_500, 9_000, NEVER_MS]
    for subject in (sliding, fixed, unlimited):
        subject.now_ms = 1_200
        subject.post()
    assert [s.stream.deadline_ms for s in (sliding, fixed, unlimited)] == [1_700, 9_000, NEVER_MS]
    for subject in (sliding, fixed, unlimited):
        evolve(subject.stream, Touched(7, 1_600), 99)
    assert [s.stream.deadline_ms for s in (sliding, fixed, unlimited)] == [2_100, 9_000, NEVER_MS]


def test_a_window_of_nothing_is_over_at_once() -> None:
    assert Subject(Create(KEY, None, [], ttl_ms=0)).stream.deadline_ms == 1_000


@pytest.mark.parametrize(
    "other",
    [
        Create(KEY, "text/html", []),
        Create(KEY, None, []),
        Create(KEY, "text/plain", [], ttl_ms=1),
        Create(KEY, "text/plain", [], expires_ms=1),
        Create(KEY, "text/plain", [], closed=True),
        Create(KEY, "text/plain", [], durability=Durability.DISK),
        Create(KEY, "text/plain", [], exclusive=True),
    ],
)
def test_a_create_that_differs_from_the_existing_stream_is_refused_and_says_in_what(other: Create) -> None:
    with pytest.raises(StreamExists) as caught:
        decide(Subject().stream, other, 2_000, 8, LIMITS)
    assert caught.value.what


def test_a_stream_gets_the_nodes_durability_unless_it_names_its_own() -> None:
    limits = Limits(durability=Durability.DISK)
    assert Subject(limits=limits).stream.durability is Durability.DISK
    named = Create(KEY, None, [], durability=Durability.FSYNC)
    assert Subject(named, limits).stream.durability is Durability.FSYNC


def test_the_event_of_a_deletion_leaves_the_state_to_whoever_drops_it() -> None:
    subject = Subject()
    subject.post()
    before = subject.stream.row()
    evolve(subject.stream, Deleted(7, KEY, 2_000), 500)
    after = subject.stream.row()
    assert after.position == 500
    assert (after.tail, after.count, after.closed) == (before.tail, before.count, before.closed)
