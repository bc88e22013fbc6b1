"""Chunks onto a node: many streams in one request, each chunk exactly once, however often it is sent.

Owns the requests of a sink and what their answers mean. Never decides what a chunk holds or how it is numbered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headwater.spark.chunks import Chunk
from headwater.spark.node import PAUSE_S_MAX, PAUSE_S_MIN, Node, NodeError, NodeRefused

PATH = "/__headwater/append"
REQUEST_BYTES = 4 * 1024 * 1024
REQUEST_ROWS = 50_000
"""Half of what a node with its default append_records_max takes in one request; one that takes less has it in halves. A
chunk alone is never too much: 1,000 rows are the least that the setting allows."""
ENTRIES_MAX = 5_000
PATIENCE_S = 300.0
"""How long a node may be away or busy. Spark tries the task again after that, and it goes on where it was."""


class SinkFailed(NodeError):
    """The rows cannot be written like this; the message says why, and what to do."""


class Identity(NamedTuple):
    """Who writes. The node knows a chunk again by this, its stream and its number."""

    producer_id: str
    epoch: int


class Entry(msgspec.Struct):
    """One entry of a bulk append, as the node takes it."""

    stream: str
    content_type: str
    binary: list[bytes]
    producer_id: str
    producer_epoch: int
    producer_seq: int
    create: bool


class _Fault(msgspec.Struct):
    code: str
    message: str
    retryable: bool = False


class _Answer(msgspec.Struct):
    status: int
    error: _Fault | None = None
    duplicate: bool = False
    producer_epoch: str | None = None
    producer_expected_seq: str | None = None


_GAPS = ("producer_seq_conflict", "epoch_starts_at_zero")
_encode = msgspec.msgpack.Encoder().encode
_answers = msgspec.json.Decoder(list[_Answer]).decode


class Sender:
    """Sends the chunks of one task. `chunks_known`, `rows_known`: those that the node had already."""

    def __init__(self, node: Node, identity: Identity, create: bool, patience_s: float = PATIENCE_S) -> None:
        self._node = node
        self._identity = identity
        self._create = create
        self._patience_s = patience_s
        self.chunks = self.rows = self.chunks_known = self.rows_known = 0

    def send(self, chunks: Iterable[Chunk]) -> None:
        """Returns when all are durable on the node. Raises SinkFailed, NodeError."""
        waiting: list[Entry] = []
        bytes_count = rows_count = 0
        for chunk in chunks:
            waiting.append(
                Entry(chunk.stream, chunk.content_type, chunk.records, *self._identity, chunk.seq, self._create)
            )
            bytes_count += chunk.bytes_count + 5 * len(chunk.records)
            rows_count += len(chunk.records)
            if bytes_count >= REQUEST_BYTES or rows_count >= REQUEST_ROWS or len(waiting) >= ENTRIES_MAX:
                self._deliver(waiting)
                waiting, bytes_count, rows_count = [], 0, 0
        if waiting:
            self._deliver(waiting)

    def _deliver(self, entries: list[Entry]) -> None:
        give_up_s = time.monotonic() + self._patience_s
        pause_s = PAUSE_S_MIN
        while entries:
            left = self._post(entries)
            if len(left) < len(entries):
                give_up_s, pause_s = time.monotonic() + self._patience_s, PAUSE_S_MIN
            entries = left
            if entries:
                if time.monotonic() + pause_s > give_up_s:
                    raise SinkFailed(
                        f"{self._node.url} has taken nothing for {self._patience_s:.0f} s "
                        f"({len(entries)} chunks wait, the first for {entries[0].stream!r}): "
                        "see whether it can write to its lake and its disk"
                    )
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _post(self, entries: list[Entry]) -> list[Entry]:
        """One attempt. Returns what has to be sent again, in order."""
        try:
            # Safe to repeat: the node tells a chunk it has from a new one.
            answer = self._node.call(
                "POST", PATH, _encode(entries), {"Content-Type": "application/msgpack"}, repeat=True
            )
        except NodeRefused as refused:
            if refused.status != 413:
                raise
            if len(entries) == 1:
                raise SinkFailed(
                    f"the node takes no request with a chunk of {sum(map(len, entries[0].binary))} bytes, "
                    f"for {entries[0].stream!r}: raise its body_bytes_max, or write shorter records"
                ) from None
            middle = len(entries) // 2
            return self._post(entries[:middle]) + self._post(entries[middle:])
        again: list[Entry] = []
        held: set[str] = set()
        answers = _answers(answer.body)
        if len(answers) != len(entries):
            raise NodeError(f"{self._node.url} answered {len(answers)} of {len(entries)} entries")
        for entry, told in zip(entries, answers, strict=True):
            if told.error is None:
                self.chunks += 1
                self.rows += len(entry.binary)
                if told.duplicate:
                    self.chunks_known += 1
                    self.rows_known += len(entry.binary)
            elif _is_passing(told.error) or (entry.stream in held and told.error.code in _GAPS):
                # A chunk behind one that has to wait leaves a gap until that one is there.
                held.add(entry.stream)
                again.append(entry)
            else:
                raise SinkFailed(self._why(entry, told, told.error))
        return again

    def _why(self, entry: Entry, told: _Answer, fault: _Fault) -> str:
        identity = f"{entry.producer_id!r} with epoch {entry.producer_epoch}"
        said = f"stream {entry.stream!r}: {told.status} {fault.code}: {fault.message}"
        match fault.code:
            case "stale_epoch":
                return (
                    f"{said}. A newer batch of this query was written already (epoch {told.producer_epoch}, this is "
                    f"{identity}): another copy of the query runs, or it began again from an older checkpoint. Stop "
                    "the other one; after going back on purpose, write on with a higher epochBase or another producerId"
                )
            case "producer_seq_conflict" | "epoch_starts_at_zero":
                return (
                    f"{said}. Chunk {entry.producer_seq} of {identity} came where {told.producer_expected_seq or 0} "
                    "was due: the stream was deleted and made again while this batch was written, or its rows lie in "
                    "two partitions. Write it anew with another producerId, with all rows of a stream in one partition "
                    "(to_streams and start_stream see to that)"
                )
            case "too_many_producers":
                return f"{said}. Name a producerId and count its epochBase up, instead of a new one for every write"
            case "content_type_mismatch":
                return f"{said}. Name the stream's type (contentType, --content-type)"
            case "stream_not_found":
                return f"{said}. Create it, or let it be made (createStreams, --create)"
            case "bucket_not_found":
                return f"{said}. Create the bucket, or write the stream as bucket/name without a leading slash"
            case _:
                return said


def _is_passing(fault: _Fault) -> bool:
    # Producers are forgotten after days: nothing to wait for in a task.
    return fault.retryable and fault.code != "too_many_producers"
