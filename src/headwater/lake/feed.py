"""Records that are not in the lake yet, as the same rows: Arrow IPC for the data pipeline.

Owns the encoding. Never decides which records: the engine's feed does. Runs beside the event loop, so it gives the GIL
away between slices and leaves the rows to Arrow, which works without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headwater.model.labels import Labels
from headwater.model.names import bucket_of, stream_of
from headwater.ports import breathe

if TYPE_CHECKING:
    import pyarrow as pa

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What an Arrow IPC stream ends with."""
COLUMNS = (
    *("bucket", "stream", "incarnation", "seq", "offset", "ts_ms", "n", "group", "position", "tag", "node"),
    *("content_type", "payload", "meta", "job"),
)
"""Those of `layout.WIDE`, in order: said here for whoever loads no Arrow."""


class FeedStream(Protocol):
    key: str
    sid: int
    content_type: str


class FeedBatch(Protocol):
    """Records of one event of the log (see `engine.feed.Batch`)."""

    @property
    def stream(self) -> FeedStream: ...
    @property
    def seq(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def payloads(self) -> list[bytes]: ...
    @property
    def ends(self) -> list[int]: ...
    @property
    def ms(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def labels(self) -> list[Labels | None] | None: ...


def encode_feed(batches: Sequence[FeedBatch], group: int) -> bytes:
    """One Arrow IPC stream with a row per record, in the order given. Runs in a worker thread."""
    # Imported here: a node whose feed is never read loads no Arrow.
    import pyarrow as pa

    table = _rows(batches, group, None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def begin_feed(columns: Sequence[str]) -> bytes:
    """What an Arrow IPC stream of these columns begins with; parts and END follow."""
    import pyarrow as pa

    from headwater.lake.layout import WIDE

    schema = pa.schema([WIDE.field(name) for name in columns])
    begin: bytes = schema.serialize().to_pybytes()
    return begin


def encode_part(batches: Sequence[FeedBatch], group: int, columns: Sequence[str]) -> bytes:
    """Rows of some columns as a part of such a stream; nothing when there are none. Runs in a worker thread."""
    if not batches:
        return b""
    found = _rows(batches, group, columns).combine_chunks().to_batches()
    return b"".join(batch.serialize().to_pybytes() for batch in found)


def _rows(batches: Sequence[FeedBatch], group: int, wanted: Sequence[str] | None) -> pa.Table:
    """A row per record. None: all columns, of `WIDE` when some record needs them."""
    import pyarrow as pa

    from headwater.lake.columns import SLICE_COUNT, Strings, binaries, numbers
    from headwater.lake.labels import columns as label_columns
    from headwater.lake.labels import need_wide
    from headwater.lake.layout import LABELS, SCHEMA, WIDE

    streams: dict[int, FeedStream] = {}
    places: dict[int, int] = {}
    """Which row of the streams' facts each one is, by sid."""
    owners = array("i")
    seqs, begins, ms, n, positions = array("q"), array("q"), array("q"), array("q"), array("q")
    payloads: list[bytes] = []
    labels: list[Labels | None] | None = None
    for start in range(0, len(batches), SLICE_COUNT):
        for batch in batches[start : start + SLICE_COUNT]:
            sid = batch.stream.sid
            owner = places.get(sid)
            if owner is None:
                owner = places[sid] = len(places)
                streams[sid] = batch.stream
            records = batch.payloads
            count = len(records)
            if batch.labels is not None or labels is not None:
                labels = [None] * len(payloads) if labels is None else labels
                labels += [None] * count if batch.labels is None else batch.labels
            payloads += records
            begins.append(batch.start)
            if count == 1:
                owners.append(owner)
                seqs.append(batch.seq)
                ms.append(batch.ms)
                n.append(batch.n)
                positions.append(batch.position)
            else:
                owners += array("i", (owner,)) * count
                seqs.extend(range(batch.seq, batch.seq + count))
                begins.extend(batch.ends[:-1])
                ms += array("q", (batch.ms,)) * count
                n.extend(range(batch.n, batch.n + count))
                positions += array("q", (batch.position,)) * count
        breathe()
    known = list(streams.values())
    buckets, names, types = Strings(), Strings(), Strings()
    for start in range(0, len(known), SLICE_COUNT):
        some = known[start : start + SLICE_COUNT]
        buckets.extend(bucket_of(stream.key) for stream in some)
        names.extend(stream_of(stream.key) for stream in some)
        types.extend(stream.content_type for stream in some)
        breathe()
    count = len(payloads)
    owner_of = numbers(pa.int32(), owners)
    if wanted is None:
        schema = WIDE if need_wide(labels) else SCHEMA
    else:
        schema = pa.schema([WIDE.field(name) for name in wanted])
    labelled = any(name in LABELS for name in schema.names)
    of_labels = label_columns(labels, count, wide=True) if labelled else {}
    made = {
        "bucket": lambda: buckets.array().take(owner_of),
        "stream": lambda: names.array().take(owner_of),
        "incarnation": lambda: numbers(pa.int64(), array("q", streams)).take(owner_of),
        "seq": lambda: numbers(pa.int64(), seqs),
        "offset": lambda: numbers(pa.int64(), begins),
        "ts_ms": lambda: numbers(pa.int64(), ms),
        "n": lambda: numbers(pa.int64(), n),
        "group": lambda: numbers(pa.int32(), array("i", (group,)) * count),
        "position": lambda: numbers(pa.int64(), positions),
        "content_type": lambda: types.array().take(owner_of),
        "payload": lambda: binaries(payloads),
    }
    columns = [of_labels[name] if name in of_labels else made[name]() for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)
