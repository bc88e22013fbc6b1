"""The body of a read: cut into writes, let go of when its client stalls, and read again where it left off.
The connection is a list of writes; ticks are called by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.doors.http import live_reads
from headwater.doors.http.live_reads import STALLED_TICKS, ReadPump, body_parts
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import Data, Slice
from headwater.errors import Failure, Overloaded
from headwater.model.commands import Durability
from headwater.model.events import Created
from headwater.model.json_mode import array
from headwater.model.stream_state import born


class Wire:
    """A connection that takes `room` writes, then pauses."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.written: list[bytes] = []
        self.streamer: Any = None
        self.paused = self.finished = self.aborted = False
        self.turns: list[Any] = []

    def after_others(self, act: Any) -> None:
        self.turns.append(act)

    def pass_turns(self) -> None:
        while self.turns:
            self.turns.pop(0)()

    def write(self, data: Data) -> None:
        self.written.append(bytes(data))
        self.room -= 1
        self.paused = self.room <= 0

    def stream(self, streamer: Any) -> None:
        self.streamer = streamer

    def finish(self, exchange: Any) -> None:
        self.finished, self.streamer = True, None

    def abort(self) -> None:
        self.aborted = True

    def drain(self, room: int) -> None:
        self.room, self.paused = room, False
        self.streamer.drained()
        self.pass_turns()

    def stall(self) -> None:
        for tick in range(STALLED_TICKS + 1):
            self.streamer.tick(float(tick))

    @property
    def body(self) -> bytes:
        return b"".join(self.written[1:])


class Again:
    """Reads that answer with a record or two at a time, or fail."""

    def __init__(self, stream: LoadedStream, records: list[bytes], failure: Failure | None = None) -> None:
        self.stream, self.records, self.failure = stream, records, failure
        self.reads_count = 0

    def part(self, offset: int, count: int) -> Slice:
        edges = [0]
        for record in self.records:
            edges.append(edges[-1] + len(record))
        first = edges.index(offset)
        some = self.records[first : first + count]
        end = edges[first + len(some)]
        return Slice(self.stream, some, offset, end, False, False, len(some), end - offset)

    def read(self, stream: LoadedStream, offset: int, bytes_max: int, done: Any, joined: bool) -> None:
        assert joined
        self.reads_count += 1
        done(self.failure or self.part(offset, 2))


def stream_of(content_type: str) -> LoadedStream:
    return LoadedStream(born(Created("_default/s", 1, content_type, 1, Durability.FSYNC, []), 10))


def pumped(content_type: str, records: list[bytes], room: int, failure: Failure | None = None) -> tuple[Wire, Again]:
    again = Again(stream_of(content_type), records, failure)
    wire = Wire(room)
    exchange: Any = SimpleNamespace(connection=wire, begin=wire.write, request=SimpleNamespace(keep_alive=True))
    ReadPump(exchange, b"head", again, again.part(0, len(records)))  # type: ignore[arg-type]
    wire.pass_turns()
    return wire, again


def expected(content_type: str, records: list[bytes]) -> bytes:
    return array(records) if content_type == "application/json" else b"".join(records)


records_or_none = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30)


@settings(max_examples=150)
@given(records_or_none, st.sampled_from(["application/json", "text/plain"]), st.lists(st.integers(1, 4), max_size=40))
def test_a_body_is_the_same_however_often_its_client_stalls(
    records: list[bytes], content_type: str, rooms: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_reads, "SLICE_BYTES", 16)
        wire, _ = pumped(content_type, records, 2)
        for room in rooms:
            if not wire.finished:
                wire.stall()
                wire.drain(room)
        if not wire.finished:
            wire.drain(1_000)
    assert wire.finished and not wire.aborted
    assert wire.written[0] == b"head" and wire.body == expected(content_type, records)


def test_a_long_body_lets_others_have_their_turn() -> None:
    records = [bytes([number]) * live_reads.SLICE_BYTES for number in range(16)]
    again = Again(stream_of("text/plain"), records)
    wire = Wire(1_000)
    exchange: Any = SimpleNamespace(connection=wire, begin=wire.write, request=SimpleNamespace(keep_alive=True))
    ReadPump(exchange, b"head", again, again.part(0, len(records)))  # type: ignore[arg-type]
    turns = 0
    while not wire.finished:
        assert len(wire.body) == min(turns + 1, 8) * live_reads.TURN_BYTES and len(wire.turns) == 1
        wire.turns.pop()()
        turns += 1
    assert wire.body == b"".join(records)


def test_a_client_that_takes_its_time_is_not_read_for_again() -> None:
    records = [bytes([number]) * live_reads.SLICE_BYTES for number in range(6)]
    wire, again = pumped("text/plain", records, 2)
    while not wire.finished:
        for tick in range(STALLED_TICKS):
            wire.streamer.tick(float(tick))
        wire.drain(1)
    assert wire.body == b"".join(records) and again.reads_count == 0


def test_a_stalled_client_holds_no_records() -> None:
    wire, again = pumped("text/plain", [b"x" * live_reads.SLICE_BYTES] * 6, 2)
    wire.stall()
    assert wire.streamer._parts is None
    wire.drain(1_000)
    assert wire.finished and again.reads_count == 3


def test_a_body_that_cannot_be_read_again_is_cut_off() -> None:
    wire, _ = pumped("text/plain", [b"x" * live_reads.SLICE_BYTES] * 6, 2, Overloaded("the lake does not answer"))
    wire.stall()
    wire.drain(1_000)
    assert wire.aborted and not wire.finished


def test_stretches_are_written_in_views_and_never_copied() -> None:
    stretch = memoryview(bytes(5 * live_reads.SLICE_BYTES + 7))
    for is_json, ends in ((False, b""), (True, b"[]")):
        parts = list(body_parts([stretch], is_json))
        views = [part for part in parts if isinstance(part, memoryview)]
        assert all(view.obj is stretch.obj and len(view) <= live_reads.TURN_BYTES for view in views)
        assert sum(map(len, views)) == len(stretch)
        assert b"".join(part for part in parts if isinstance(part, bytes)) == ends
