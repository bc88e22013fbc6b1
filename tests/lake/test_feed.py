"""The feed's rows: the same as the lake would hold of the same records, one by one and in the order given.
A slow model builds them from Python values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.feed import encode_feed
from headwater.lake.layout import SCHEMA, WIDE
from headwater.model.labels import Labels
from tests.lake.rows import LABELS, label_cells


@dataclass
class Named:
    key: str
    sid: int
    content_type: str


@dataclass
class Event:
    stream: Named
    seq: int
    start: int
    payloads: list[bytes]
    ends: list[int]
    ms: int
    n: int
    position: int
    labels: list[Labels | None] | None = None


STREAMS = [Named(f"bück{number % 2}/a/{number}", 7 + number, "text/plain") for number in range(5)]


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    found = []
    for number, stream in enumerate(draw(st.lists(st.sampled_from(STREAMS), max_size=30))):
        payloads = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=4))
        start = draw(st.integers(0, 1 << 60))
        ends = [start + sum(map(len, payloads[: index + 1])) for index in range(len(payloads))]
        seq, ms = draw(st.integers(0, 1 << 60)), draw(st.integers(0, 1 << 60))
        labels = draw(st.none() | st.lists(LABELS, min_size=len(payloads), max_size=len(payloads)))
        found.append(Event(stream, seq, start, payloads, ends, ms, draw(st.integers(0, 9)), number * 100, labels))
    return found


def rows(batches: list[Event], group: int) -> list[dict[str, object]]:
    return [
        {
            "bucket": batch.stream.key.partition("/")[0],
            "stream": batch.stream.key.partition("/")[2],
            "incarnation": batch.stream.sid,
            "seq": batch.seq + index,
            "offset": batch.ends[index] - len(payload),
            "ts_ms": batch.ms,
            "n": batch.n + index,
            "group": group,
            "position": batch.position,
            "content_type": batch.stream.content_type,
            "payload": payload,
            **label_cells(None if batch.labels is None else batch.labels[index]),
        }
        for batch in batches
        for index, payload in enumerate(batch.payloads)
    ]


@given(events(), st.integers(0, 63))
@settings(max_examples=100)
def test_a_feed_holds_a_row_per_record_in_the_order_of_its_events(batches: list[Event], group: int) -> None:
    table = pa.ipc.open_stream(encode_feed(batches, group)).read_all()
    expected = rows(batches, group)
    wide = any(row["meta"] is not None or row["job"] is not None for row in expected)
    assert table.schema == (WIDE if wide else SCHEMA)
    names = table.column_names
    assert table.to_pylist() == [{name: row[name] for name in names} for row in expected]


def test_a_feed_of_more_streams_than_a_slice_holds_them_all() -> None:
    batches = [
        Event(Named(f"many/{number}", number, "text/plain"), 0, 0, [b"x"], [1], 1, 0, number) for number in range(1_000)
    ]
    table = pa.ipc.open_stream(encode_feed(batches, 3)).read_all()
    assert table["stream"].to_pylist() == [str(number) for number in range(1_000)]
