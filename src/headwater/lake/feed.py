"""Records that are not in the lake yet, as the same rows: Arrow IPC for the data pipeline.

Owns the encoding. Never decides which records: the engine's feed does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headwater.model.names import bucket_of, stream_of


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


def encode_feed(batches: Sequence[FeedBatch], group: int) -> bytes:
    """One Arrow IPC stream with a row per record, in the order given. Runs in a worker thread."""
    import pyarrow as pa

    from headwater.lake.layout import SCHEMA

    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    for batch in batches:
        stream = batch.stream
        count = len(batch.payloads)
        columns["bucket"] += [bucket_of(stream.key)] * count
        columns["stream"] += [stream_of(stream.key)] * count
        columns["incarnation"] += [stream.sid] * count
        columns["seq"] += range(batch.seq, batch.seq + count)
        columns["offset"] += [batch.start, *batch.ends[:-1]]
        columns["ts_ms"] += [batch.ms] * count
        columns["n"] += range(batch.n, batch.n + count)
        columns["group"] += [group] * count
        columns["position"] += [batch.position] * count
        columns["tag"] += [None] * count
        columns["node"] += [None] * count
        columns["content_type"] += [stream.content_type] * count
        columns["payload"] += batch.payloads
    table = pa.table(columns, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded
