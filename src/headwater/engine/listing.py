"""Pages of a bucket's streams: the catalog's rows, corrected by what happened since the last checkpoint.

Owns that merge. Never loads a stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headwater.engine.loaded_stream import UNBORN, LoadedStream
from headwater.engine.loaded_streams import LoadedStreams
from headwater.model.holes import totals
from headwater.model.names import stream_of
from headwater.model.row import StreamRow

SLICE_COUNT = 200
"""Rows read in one turn of the event loop: half a millisecond."""


class Listed(msgspec.Struct, frozen=True):
    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    earliest_offset: int
    created_at_ms: int
    last_write_at_ms: int
    records: int
    followers: int


class Page(msgspec.Struct, frozen=True):
    streams: list[Listed]
    has_more: bool


def page(loaded: LoadedStreams, bucket: str, prefix: str, after: str, limit: int, now_ms: int) -> Page:
    """The `limit` streams of the bucket that follow `after`, in bytewise order of their ids. Costs as `rows`."""
    found, has_more = rows(loaded, bucket, prefix, after, limit, now_ms)
    return Page([_listed(one) for one in found], has_more)


def rows(
    loaded: LoadedStreams, bucket: str, prefix: str, after: str, limit: int, now_ms: int
) -> tuple[list[StreamRow | LoadedStream], bool]:
    """The same streams as they are kept, and whether there are more.

    Costs a range of the catalog's index, and a walk over the streams created since the last checkpoint; not a walk over
    the bucket.
    """
    low = f"{bucket}/{max(after, prefix)}" if after >= prefix else f"{bucket}/{prefix}"
    exact = after < prefix or not after  # `low` itself may be a stream: the range of the catalog is exclusive
    high = beyond(f"{bucket}/{prefix}")
    found: dict[str, StreamRow | LoadedStream] = {}
    wanted = limit + 1
    start = low
    if exact and (row := loaded.catalog.load(low)) is not None:
        found[low] = row
    while True:
        part = loaded.catalog.page(start, high, wanted)
        for row in part:
            found[row.key] = row
        shown = _visible(loaded, found, now_ms)
        if len(part) < wanted or len(shown) >= wanted:
            break
        start = part[-1].key
    # Rows come in order, so nothing after the last one that this page needs can be on it.
    end = list(shown)[wanted - 1] if len(shown) >= wanted else high
    fresh: dict[str, StreamRow | LoadedStream] = {
        key: stream for key, stream in loaded.unlisted.items() if low < key < end or (exact and key == low)
    }
    shown.update(_visible(loaded, fresh, now_ms))
    keys = sorted(shown)[:wanted]  # code points sort as their UTF-8 bytes do
    return [shown[key] for key in keys[:limit]], len(keys) > limit


def keys_below(loaded: LoadedStreams, start: str, position: int) -> Iterator[str]:
    """Keys that begin with `start` and whose stream changed after the log position. Walks the range of the catalog."""
    seen: set[str] = set()
    for key, stream in list(loaded.by_key.items()):
        if key.startswith(start):
            seen.add(key)
            if stream.position > position:
                yield key
    # The catalog's ranges exclude their lower end, which may be a stream itself.
    if start not in seen and (exact := loaded.catalog.load(start)) is not None and exact.position > position:
        yield start
    low, high = start, beyond(start)
    while part := loaded.catalog.page(low, high, 1000):
        for row in part:
            if row.key not in seen and row.position > position:
                yield row.key
        low = part[-1].key


def visible(loaded: LoadedStreams, key: str, now_ms: int) -> bool:
    """Whether a reader would find that stream. Costs a look into the catalog; loads nothing."""
    row = loaded.by_key.get(key) or loaded.catalog.load(key)
    return row is not None and bool(_visible(loaded, {key: row}, now_ms))


def keys_from(loaded: LoadedStreams, start: str, now_ms: int) -> Iterator[list[str]]:
    """Keys of visible streams that begin with `start`, in slices: the newest, then the catalog's range."""
    fresh = [item for item in loaded.unlisted.items() if item[0].startswith(start)]
    for at in range(0, len(fresh), SLICE_COUNT):
        yield list(_visible(loaded, dict(fresh[at : at + SLICE_COUNT]), now_ms))
    if start and visible(loaded, start, now_ms):
        yield [start]  # the catalog's ranges exclude their lower end
    low, high = start, beyond(start) if start else "\U0010ffff"
    while part := loaded.catalog.page(low, high, SLICE_COUNT):
        yield list(_visible(loaded, {row.key: row for row in part}, now_ms))
        low = part[-1].key


def beyond(prefix: str) -> str:
    """The first string after all that begin with `prefix`, which holds a character that has a successor."""
    prefix = prefix.rstrip("\U0010ffff")
    last = ord(prefix[-1])
    # Surrogates are no characters: what follows U+D7FF is U+E000.
    return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


def _visible(
    loaded: LoadedStreams, rows: dict[str, StreamRow | LoadedStream], now_ms: int
) -> dict[str, StreamRow | LoadedStream]:
    """The rows that are streams to a reader, each as its live self where it is loaded."""
    shown: dict[str, StreamRow | LoadedStream] = {}
    for key, row in rows.items():
        live = loaded.by_key.get(key)
        if live is not None:
            if live.visible != UNBORN and not live.soft_deleted and live.deadline_ms > now_ms:
                shown[key] = live
        elif row.sid not in loaded.removed and isinstance(row, StreamRow) and not row.soft_deleted:
            deadline_ms = row.deadline_ms
            if deadline_ms is None or deadline_ms > now_ms:
                shown[key] = row
    return shown


def _listed(row: StreamRow | LoadedStream) -> Listed:
    live = isinstance(row, LoadedStream)
    return Listed(
        stream_id=stream_of(row.key),
        status="Closed" if row.closed else "Open",
        content_type=row.content_type,
        tail_offset=row.visible if isinstance(row, LoadedStream) else row.tail,
        earliest_offset=row.earliest,
        created_at_ms=row.created_ms,
        last_write_at_ms=row.last_write_ms,
        records=row.live_count if isinstance(row, LoadedStream) else row.count - row.first_seq - totals(row.holes)[0],
        followers=len(row.followers or ()) if live and isinstance(row, LoadedStream) else 0,
    )
