"""Entries: every event survives the log's bytes; a body that is no entry is told apart, whatever it holds."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.log import entries, frames
from headwater.log.entries import BadEntry
from headwater.log.frames import Frame
from headwater.model.commands import Durability, Producer, Retention
from headwater.model.events import (
    Appended,
    BucketCreated,
    BucketDeleted,
    ColdEvent,
    Configured,
    Created,
    Deleted,
    Event,
    Forked,
    Noted,
    RecordsDeleted,
    Reserved,
    Settled,
    SnapshotPublished,
    SwapPart,
    Swapped,
    Touched,
    Trimmed,
)
from headwater.model.extents import Extent
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.producers import NUMBER_MAX
from headwater.model.topics import QueueConfig, TopicConfig

u64 = st.integers(0, (1 << 64) - 1)
sids = st.integers(0, (1 << 63) - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
records = st.lists(st.binary(min_size=1, max_size=50), max_size=5)
producers = st.builds(Producer, texts, st.integers(0, NUMBER_MAX), st.integers(0, NUMBER_MAX))


labels = st.builds(Labels, st.none() | texts, st.none() | texts, st.none() | st.binary(max_size=20), st.none() | texts)
topics = st.builds(
    TopicConfig, st.booleans(), st.integers(-1000, 1000), st.booleans(), st.none() | st.just(QueueConfig())
)


@st.composite
def appends(draw: st.DrawFn) -> Appended:
    brought = draw(records)
    start = draw(st.integers(0, 1 << 62))
    producer = draw(st.none() | producers)
    labelled = st.lists(st.none() | labels, min_size=len(brought), max_size=len(brought))
    return Appended(
        sid=draw(sids),
        start=start,
        end=start + len(b"".join(brought)),
        at_ms=draw(u64),
        ms=draw(u64),
        n=draw(u64),
        records=brought,
        closed=draw(st.booleans()),
        producer=producer,
        stream_seq=draw(st.none() | texts),
        forget_before_ms=draw(u64) if producer is not None else 0,
        labels=draw(st.none() | labelled),
    )


optional = st.none() | u64
extents = st.builds(Extent, sids, u64, u64, u64, u64, u64, texts, u64, u64, u64)
cold = {
    Created: st.builds(
        Created,
        key=texts,
        sid=sids,
        content_type=texts,
        at_ms=u64,
        durability=st.sampled_from(Durability),
        records=records,
        ttl_ms=optional,
        expires_ms=optional,
        closed=st.booleans(),
        retention=st.none() | st.builds(Retention, optional, optional, optional),
        forked=st.none() | st.builds(Forked, sids, u64, u64, u64, u64, optional, u64),
        topic=st.none() | topics,
    ),
    Deleted: st.builds(Deleted, sid=sids, key=texts, at_ms=u64, expired=st.booleans(), soft=st.booleans()),
    Touched: st.builds(Touched, sid=sids, at_ms=u64),
    Trimmed: st.builds(Trimmed, sid=sids, earliest=u64, at_ms=u64, first_seq=u64, evicted=st.booleans()),
    RecordsDeleted: st.builds(
        RecordsDeleted, sid=sids, runs=st.lists(st.builds(Run, u64, u64, u64, u64), max_size=3), at_ms=u64
    ),
    Configured: st.builds(
        Configured,
        sid=sids,
        retention=st.none() | st.builds(Retention, optional, optional, optional),
        topic=st.none() | topics,
        at_ms=u64,
    ),
    Reserved: st.builds(Reserved, sid=sids, seq=u64, offset=u64, at_ms=u64),
    SnapshotPublished: st.builds(
        SnapshotPublished, sid=sids, offset=u64, first_seq=u64, content_type=texts, blob=texts, size=u64, at_ms=u64
    ),
    BucketCreated: st.builds(BucketCreated, name=texts, at_ms=u64),
    BucketDeleted: st.builds(BucketDeleted, name=texts, at_ms=u64),
    Settled: st.builds(Settled, file=texts, extents=st.lists(extents, max_size=3), at_ms=u64),
    SwapPart: st.builds(SwapPart, swap=u64, extents=st.binary(max_size=50)),
    Swapped: st.builds(
        Swapped,
        swap=u64,
        removed=st.lists(texts, max_size=3),
        added=st.lists(texts, max_size=3),
        parts_count=u64,
        extents=st.binary(max_size=50),
        at_ms=u64,
    ),
    Noted: st.builds(Noted, domain=texts, body=st.binary(max_size=50), at_ms=u64),
}
events = st.one_of(appends(), *cold.values())


def test_every_kind_of_event_that_can_be_logged_is_tried_here() -> None:
    assert set(cold) == set(get_args(ColdEvent))
    assert {*cold, Appended} == {kind for part in get_args(Event) for kind in (get_args(part) or (part,))}


def written(event: Event, position: int) -> bytes:
    parts: list[bytes] = []
    size = entries.encode(event, position, parts)
    data = b"".join(parts)
    assert len(data) == size
    return data


def read(data: bytes, base: int) -> Event:
    frame = frames.read_one(memoryview(data), 0, base)
    assert frame is not None and frame.end == base + len(data)
    return entries.decode(frame)


@settings(max_examples=300)
@given(events, st.integers(0, 1 << 62))
def test_every_event_comes_back_as_it_was(event: Event, position: int) -> None:
    assert read(written(event, position), position) == event


@pytest.mark.parametrize("size", [4095, 4096, 4097, 1 << 20])
@pytest.mark.parametrize("producer", [None, Producer("p", 1, 2)])
def test_a_large_payload_is_framed_like_a_small_one(size: int, producer: Producer | None) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    event = Appended(1, 0, size, 1, 1, 0, [payload], True, producer, "seq", 5 if producer else 0)
    assert read(written(event, 77), 77) == event


def test_many_records_in_one_event_keep_their_boundaries() -> None:
    brought = [b"x" * (n % 7 + 1) for n in range(2_000)]
    event = Appended(1, 10, 10 + len(b"".join(brought)), 1, 1, 0, brought, False, None, None)
    assert read(written(event, 0), 0) == event


def test_the_class_of_an_append_is_for_its_answer_only() -> None:
    event = Appended(1, 0, 1, 1, 1, 0, [b"x"], False, None, None, durability=2)
    assert read(written(event, 0), 0) == Appended(1, 0, 1, 1, 1, 0, [b"x"], False, None, None)


@settings(max_examples=50)
@given(events)
def test_events_follow_one_another_in_one_file(event: Event) -> None:
    first = written(event, 100)
    second = written(event, 100 + len(first))
    found = list(frames.scan(memoryview(first + second), 100))
    assert [entries.decode(frame) for frame in found] == [event, event]


@settings(max_examples=300)
@given(st.sampled_from([frames.KIND_APPENDED, frames.KIND_COLD, 0, 200]), st.binary(max_size=80))
@example(frames.KIND_APPENDED, b"")
@example(frames.KIND_APPENDED, bytes(40) + b"\xff\xff\xff\xff" + bytes(4))
@example(frames.KIND_APPENDED, bytes(40) + b"\x01\0\0\0\xff\0\0\0\x95\xc0\0\0\xc0\0")
@example(frames.KIND_COLD, b"\x81\xa4type\xa7deleted")
def test_a_body_that_is_no_entry_is_named_as_such_with_its_position(kind: int, body: bytes) -> None:
    frame = Frame(1234, 1234 + len(body), kind, 0, memoryview(body))
    try:
        event = entries.decode(frame)
    except BadEntry as error:
        assert "1234" in str(error)
    else:
        assert kind in (frames.KIND_APPENDED, frames.KIND_COLD)
        assert isinstance(event, (Appended, *cold))
        if isinstance(event, Appended):
            assert event.end - event.start == len(b"".join(event.records))


def test_an_entry_of_a_kind_from_another_version_is_refused() -> None:
    with pytest.raises(BadEntry, match="unknown kind 77"):
        entries.decode(Frame(0, 10, 77, 0, memoryview(b"")))


@pytest.mark.parametrize("sizes", [[5_000], [600] * 20, [100] * 100, [1, 20_000], [511] * 9, [2_000_000, 3] * 2])
def test_records_that_are_not_joined_make_the_same_frame(sizes: list[int]) -> None:
    brought = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
    event = Appended(1, 7, 7 + sum(sizes), 2, 3, 4, brought, False, None, None)
    parts: list[bytes] = []
    size = entries.encode(event, 100, parts)
    frame = frames.read_one(memoryview(b"".join(parts)), 0, 100)
    assert frame is not None and frame.end == 100 + size
    assert entries.decode(frame) == event
