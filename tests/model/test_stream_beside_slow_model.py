"""Random histories of one name, judged by the model and by the slow one: same answers, same state, every time.
Owns the histories. Never looks inside either model except to compare what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import Failure, row
from headwater.log import entries, frames
from headwater.model.commands import Append, Create, Delete, Durability, Producer
from headwater.model.events import Appended, Created, Deleted, StreamEvent
from headwater.model.row import StreamRow
from headwater.model.stream import Limits, Unchanged, decide
from headwater.model.stream_state import Stream, born, evolve
from tests.model import slow
from tests.model.slow import Answer, SlowStream

KEY = "_default/s"
LIMITS = Limits(producers_max=slow.PRODUCERS_MAX, producer_idle_ms=slow.PRODUCER_IDLE_MS)
NOW_MS = 1_000_000
TYPES = ("text/plain", "Text/Plain; charset=utf-8", "application/json", None)

EVERY_OUTCOME = {
    *("created", "appended", "deleted", "same"),
    *("stream_exists_incompatible", "stream_not_found", "stream_closed", "content_type_mismatch", "stale_epoch"),
    *("producer_seq_conflict", "epoch_starts_at_zero", "too_many_producers", "stream_seq_conflict"),
    *("precondition_failed", "non_monotonic_id"),
}


# ---- histories: what is sent is chosen relative to the state it meets, so that near misses are common ------------


@dataclass(frozen=True)
class Put:
    content_type: str | None
    records: list[bytes]
    expiry: tuple[int | None, int | None]
    closed: bool
    durability: Durability | None
    exclusive: bool


@dataclass(frozen=True)
class Post:
    records: list[bytes]
    content_type: str | None
    producer: tuple[str, int, int] | None
    """Id, and epoch and seq as distances from what would be accepted."""
    stream_seq: str | None
    close: bool
    if_match: bool | None
    """Whether the ETag sent is the right one; None sends none."""
    ms_ahead: int | None


@dataclass(frozen=True)
class Remove:
    pass


payloads = st.lists(st.binary(min_size=1, max_size=5), max_size=3)
puts = st.builds(
    Put,
    content_type=st.sampled_from(TYPES),
    records=payloads,
    expiry=st.sampled_from([(None, None), (None, None), (60_000, None), (None, 2_000_000)]),
    closed=st.sampled_from([False] * 9 + [True]),
    durability=st.sampled_from([None, None, *Durability]),
    exclusive=st.sampled_from([False, False, False, True]),
)
records = st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=3)
producers = st.tuples(
    st.sampled_from(["p", "q", "r"]), st.sampled_from([0, 0, 0, 1, -1]), st.sampled_from([0, 0, 0, -1, -2, 1])
)
posts = st.builds(
    Post,
    records=records,
    content_type=st.sampled_from(["text/plain", "text/plain", "text/plain", "application/json", None]),
    producer=st.none() | producers,
    stream_seq=st.none() | st.text("ab", max_size=4),
    close=st.sampled_from([False] * 29 + [True]),
    if_match=st.sampled_from([None] * 6 + [True, False]),
    ms_ahead=st.sampled_from([None, None, 0, 1, 40, -1]),
)
# Nothing but the producer can be wrong with these.
retries = st.builds(Post, records, st.none(), producers, st.none(), st.just(False), st.none(), st.none())
closes = posts.map(lambda post: Post([], None, post.producer, post.stream_seq, True, None, None))
# A clock that mostly walks on, sometimes stands still and sometimes steps back.
ticks = st.sampled_from([0, 0, 1, 1, 5, 30, 60, -1, -40])
mix = [retries] * 12 + [posts] * 8 + [puts] * 3 + [closes, st.just(Remove())]
steps = st.tuples(ticks, st.sampled_from(mix).flatmap(lambda kind: kind))
# Most histories begin with a stream that text can be appended to.
plain = Put("text/plain", [], (None, None), False, None, False)
sliding = Put("text/plain", [b"one"], (90, None), False, None, False)
starts = st.sampled_from([[(0, plain)], [(0, plain)], [(0, sliding)], []])
histories = st.tuples(starts, st.lists(steps, min_size=12, max_size=40)).map(lambda parts: parts[0] + parts[1])


def command_for(step: Put | Post | Remove, stream: SlowStream | None, etag: str) -> Create | Append | Delete:
    if isinstance(step, Remove):
        return Delete()
    if isinstance(step, Put):
        ttl_ms, expires_ms = step.expiry
        return Create(
            key=KEY,
            content_type=step.content_type,
            records=step.records,
            ttl_ms=ttl_ms,
            expires_ms=expires_ms,
            closed=step.closed,
            durability=step.durability,
            exclusive=step.exclusive,
        )
    producer = None
    if step.producer is not None:
        name, epoch_off, seq_off = step.producer
        epoch, seq, _ = stream.producers().get(name, (0, -1, 0)) if stream is not None else (0, -1, 0)
        fresh = 0 if epoch_off > 0 else seq + 1
        producer = Producer(name, max(epoch + epoch_off, 0), max(fresh + seq_off, 0))
    last_ms = stream.ids[-1][0] if stream is not None and stream.ids else NOW_MS
    return Append(
        step.records,
        step.content_type,
        producer,
        step.stream_seq,
        step.close,
        None if step.if_match is None else etag if step.if_match else '"other"',
        None if step.ms_ahead is None else last_ms + step.ms_ahead,
    )


# ---- both models as the same kind of answer ----------------------------------------------------------------------


def answer_of(outcome: StreamEvent | Unchanged | Failure) -> Answer:
    if isinstance(outcome, Failure):
        facts = {name: value for name, value in vars(outcome).items() if name != "what"}
        return "refused", {"code": row(outcome).code, **facts}
    if isinstance(outcome, Unchanged):
        return "same", {"end": outcome.end, "closed": outcome.closed, "producer": triple(outcome.producer)}
    if isinstance(outcome, Appended):
        return "appended", {
            "start": outcome.start,
            "end": outcome.end,
            "closed": outcome.closed,
            "producer": triple(outcome.producer),
        }
    if isinstance(outcome, Created):
        end = len(b"".join(outcome.records))
        return "created", {"sid": outcome.sid, "end": end, "closed": outcome.closed}
    assert isinstance(outcome, Deleted) and not outcome.soft
    return "deleted", {"sid": outcome.sid}


def triple(producer: Producer | None) -> tuple[str, int, int] | None:
    return None if producer is None else (producer.id, producer.epoch, producer.seq)


def slow_answer(
    stream: SlowStream | None, command: Create | Append | Delete, etag: str, now_ms: int, sid: int
) -> tuple[Answer, SlowStream | None]:
    if isinstance(command, Create):
        return slow.create(stream, command, now_ms, sid)
    if isinstance(command, Append):
        return slow.append(stream, command, etag, now_ms), stream
    if stream is None:
        return slow.refused("stream_not_found"), None
    return ("deleted", {"sid": stream.sid}), None


def contents(stream: Stream) -> dict[str, Any]:
    """Everything a stream holds."""
    timeline = stream.timeline
    return {
        "row": stream.row(),
        "deadline_ms": stream.deadline_ms,
        "payloads": list(timeline.payloads),
        "ends": list(timeline.ends),
        "ids": list(zip(timeline.ms, timeline.n, strict=True)),
        "positions": list(timeline.positions),
        "timeline_start": timeline.start,
    }


def slow_contents(stream: SlowStream, position: int) -> dict[str, Any]:
    ends = [len(b"".join(stream.payloads[: index + 1])) for index in range(len(stream.payloads))]
    last_ms, last_n = stream.ids[-1] if stream.ids else (0, -1)
    return {
        "row": StreamRow(
            key=stream.key,
            sid=stream.sid,
            position=position,
            content_type=stream.content_type,
            created_ms=stream.created_ms,
            durability=stream.durability,
            ttl_ms=stream.ttl_ms,
            expires_ms=stream.expires_ms,
            touched_ms=stream.last_touched_ms,
            closed=stream.closed,
            closed_by=stream.closing_tuple,
            producers=[(name, *seen) for name, seen in stream.producers().items()],
            stream_seq=stream.last_stream_seq,
            tail=stream.tail,
            count=len(stream.payloads),
            earliest=0,
            last_ms=last_ms,
            last_n=last_n,
            last_write_ms=stream.last_written_ms,
        ),
        "payloads": stream.payloads,
        "ends": ends,
        "ids": stream.ids,
    }


class Fast:
    """The model as the engine drives it, and a twin that is built only from what a log would hand back."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.twin: Stream | None = None
        self.position = 0

    def run(self, command: Create | Append | Delete, now_ms: int, sid: int) -> StreamEvent | Unchanged | Failure:
        before = None if self.stream is None else contents(self.stream)
        try:
            outcome: StreamEvent | Unchanged | Failure = decide(self.stream, command, now_ms, sid, LIMITS)
        except Failure as failure:
            outcome = failure
        # Deciding changes nothing, whatever it decides.
        assert (None if self.stream is None else contents(self.stream)) == before
        if not isinstance(outcome, Unchanged | Failure):
            parts: list[bytes] = []
            size = entries.encode(outcome, self.position, parts)
            frame = frames.read_one(memoryview(b"".join(parts)), 0, self.position)
            assert frame is not None and frame.end - frame.position == size
            self.position += size
            self.stream = happen(self.stream, outcome, self.position)
            read_back = entries.decode(frame)
            assert isinstance(read_back, StreamEvent)
            self.twin = happen(self.twin, read_back, self.position)
        return outcome


def happen(stream: Stream | None, event: StreamEvent, position: int) -> Stream | None:
    if isinstance(event, Created):
        stream = Stream(born(event, position))
    assert stream is not None
    evolve(stream, event, position)
    return None if isinstance(event, Deleted) else stream


def test_every_history_gets_the_same_answers_and_leaves_the_same_state_as_in_the_slow_model() -> None:
    met: set[str] = set()

    @settings(max_examples=150)
    @given(histories)
    def run(history: list[tuple[int, Put | Post | Remove]]) -> None:
        fast, obvious, now_ms, sid = Fast(), None, NOW_MS, 1
        for tick, step in history:
            now_ms += tick
            etag = "" if fast.stream is None else fast.stream.etag
            command = command_for(step, obvious, etag)
            outcome = fast.run(command, now_ms, sid)
            expected, obvious = slow_answer(obvious, command, etag, now_ms, sid)
            kind, facts = answer_of(outcome)
            assert (kind, facts) == expected, (command, outcome)
            met.add(facts["code"] if kind == "refused" else kind)
            sid += kind == "created"
            assert (fast.stream is None) == (obvious is None)
            if fast.stream is not None and obvious is not None and fast.twin is not None:
                held = contents(fast.stream)
                wanted = slow_contents(obvious, held["row"].position)
                assert {name: held[name] for name in wanted} == wanted
                # The state is the fold of its events, also of events that went through the log's bytes.
                assert contents(fast.twin) == held
                assert Stream(held["row"]).row() == held["row"]

    run()
    assert met == EVERY_OUTCOME, "the histories miss an outcome, or met one nobody named"


@given(histories)
@settings(max_examples=30)
def test_ids_grow_strictly_whatever_the_clock_does(history: list[tuple[int, Put | Post | Remove]]) -> None:
    fast, obvious, now_ms, sid = Fast(), None, NOW_MS, 1
    for tick, step in history:
        now_ms += tick
        etag = "" if fast.stream is None else fast.stream.etag
        command = command_for(step, obvious, etag)
        fast.run(command, now_ms, sid)
        _, obvious = slow_answer(obvious, command, etag, now_ms, sid)
        sid += 1
        if fast.stream is not None:
            ids = contents(fast.stream)["ids"]
            assert ids == sorted(set(ids))
