"""The tests of the catalog, and the shortest ways to write down a row and a change.
Nothing here reads a catalog back; that is for the tests."""

from __future__ import annotations

from typing import Any

from headwater.model.row import StreamRow
from headwater.ports import Change


def stream_row(key: str = "_default/s", sid: int = 1, **fields: Any) -> StreamRow:
    plain: dict[str, Any] = {
        "position": 10,
        "content_type": "text/plain",
        "created_ms": 1_000,
        "durability": 0,
        "ttl_ms": None,
        "expires_ms": None,
        "touched_ms": 1_000,
        "closed": False,
        "closed_by": None,
        "producers": [],
        "stream_seq": None,
        "tail": 0,
        "count": 0,
        "earliest": 0,
        "last_ms": 0,
        "last_n": -1,
        "last_write_ms": 1_000,
    }
    return StreamRow(key=key, sid=sid, **(plain | fields))


def change(**fields: Any) -> Change:
    nothing: dict[str, Any] = {name: [] for name in ("rows", "buckets", "gone", "extents", "files", "cuts", "things")}
    return Change(**(nothing | {"position": 100, "log_floor": 0, "next_sid": 2} | fields))
