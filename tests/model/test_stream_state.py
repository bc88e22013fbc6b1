"""A stream's state and its row: every field of the one is in the other."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.model.buckets import Bucket
from headwater.model.commands import Retention
from headwater.model.events import Forked
from headwater.model.holes import Holes, Run
from headwater.model.row import BucketRow, Snapshot, StreamRow
from headwater.model.stream_state import Stream
from headwater.model.topics import TopicConfig

HOLES = Holes()
HOLES.add([Run(136, 137, 138, 139)])
FULL: dict[str, Any] = {
    "key": "bucket/name",
    "sid": 101,
    "position": 102,
    "content_type": "application/json",
    "created_ms": 103,
    "durability": 1,
    "ttl_ms": 104,
    "expires_ms": 105,
    "touched_ms": 106,
    "closed": True,
    "closed_by": ("p", 107, 108),
    "producers": [("p", 109, 110, 111)],
    "stream_seq": "seq",
    "tail": 112,
    "count": 113,
    "earliest": 114,
    "last_ms": 115,
    "last_n": 116,
    "last_write_ms": 117,
    "first_seq": 118,
    "snapshot": Snapshot(119, "text/plain", "blob", 120),
    "retention": Retention(age_ms=121),
    "forked": Forked(122, 123, 124, 125, 126, 132, 133),
    "children": 127,
    "soft_deleted": True,
    "cold_end": 128,
    "cold_position": 129,
    "lost_position": 130,
    "lost_at": 131,
    "topic": TopicConfig(priority=134),
    "holes": HOLES.packed(),
    "evict_floor": 135,
    "deleted_seq": 140,
    "deleted_offset": 141,
    "counted": 142,
}
"""A value for each field that no other field has, and that is not its default."""


def test_a_stream_takes_every_field_of_its_row_and_gives_it_back() -> None:
    assert FULL.keys() == set(StreamRow.__struct_fields__), "a field is missing here"
    row = StreamRow(**FULL)
    for field in msgspec.structs.fields(StreamRow):
        assert field.default is msgspec.NODEFAULT or getattr(row, field.name) != field.default, field.name
    stream = Stream(row)
    assert stream.row() == row
    for name, value in FULL.items():
        if name not in ("producers", "holes"):
            assert getattr(stream, name) == value
    assert stream.producers == {"p": (109, 110, 111)}
    assert list(stream.holes) == [Run(136, 137, 138, 139)]


def test_a_row_is_the_same_after_it_was_kept() -> None:
    row = StreamRow(**FULL)
    kept = msgspec.msgpack.encode(row)
    assert msgspec.msgpack.decode(kept, type=StreamRow) == row
    assert msgspec.msgpack.encode(Stream(row).row()) == kept


def test_a_bucket_takes_every_field_of_its_row_and_gives_it_back() -> None:
    row = BucketRow("b", 1, True, 2, 3, 4)
    assert Bucket(row).row() == row and set(Bucket.__slots__) == set(BucketRow.__struct_fields__)
