"""Chunks onto a node: many streams in one request, each chunk exactly once, however often it is sent.

Owns the requests of a sink and what their answers mean. Never decides what a chunk holds or how it is numbered.

A chunk that no request can carry goes record by record, all but its last under a producer of its own:

    chunk 4 of producer P, records a b c    ->    a: P/parts 0    b: P/parts 1    c: P 4

So P has a chunk's number when, and only when, all of it is there; and `splits` says which chunks went like that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from headwater.client.backoff import Backoff
from headwater.spark.chunks import Chunk, Label
from headwater.spark.node import Node, NodeError, NodeRefused
from headwater.spark.splits import Splits

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


class Entry(msgspec.Struct, omit_defaults=True):
    """One entry of a bulk append, as the node takes it."""

    stream: str
    content_type: str
    binary: list[bytes]
    producer_id: str
    producer_epoch: int
    producer_seq: int
    create: bool
    labels: list[Label | None] | None = None


class _Fault(msgspec.Struct):
    code: str
    message: str
    retryable: bool = False


class _Answer(msgspec.Struct):
    status: int
    error: _Fault | None = None
    stream_next_offset: str = "0"
    duplicate: bool = False
    producer_epoch: str | None = None
    producer_expected_seq: str | None = None


_GAP, _TOO_LARGE = "producer_seq_conflict", 413
_GAPS = (_GAP, "epoch_starts_at_zero")
_PARTS = "/parts"
_ENTRY_BYTES = 400
"""Of an entry beside its record, at most about."""
_FAR_SEQ = (1 << 53) - 1
_encode = msgspec.msgpack.Encoder().encode
_answers = msgspec.json.Decoder(list[_Answer]).decode


class Sender:
    """Sends the chunks of one task. `chunks_known`, `rows_known`: those that the node had already."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        create: bool,
        patience_s: float = PATIENCE_S,
        taken: Callable[[Entry, int], None] | None = None,
    ) -> None:
        """`taken` is told of each chunk that the node has, in one piece, and of its stream's tail."""
        self._taken = taken
        self._node = node
        self._identity = identity
        self._create = create
        self._patience_s = patience_s
        self._splits = Splits(node, identity.producer_id, identity.epoch)
        self._parts: dict[str, int] = {}
        """How many records of a stream went under the other producer in this batch."""
        self._request_bytes = REQUEST_BYTES
        self.chunks = self.rows = self.chunks_known = self.rows_known = 0

    def send(self, chunks: Iterable[Chunk]) -> None:
        """Returns when all are durable on the node. Raises SinkFailed, NodeError."""
        waiting: list[Entry] = []
        bytes_count = rows_count = 0
        for chunk in chunks:
            labels = chunk.labels
            if labels is not None and not any(labels):
                labels = None
            entry = Entry(
                chunk.stream, chunk.content_type, chunk.records, *self._identity, chunk.seq, self._create, labels
            )
            if self._splits.knows(chunk.stream, chunk.seq):
                self._deliver(waiting)
                waiting, bytes_count, rows_count = [], 0, 0
                self._send_records(entry)
                continue
            waiting.append(entry)
            bytes_count += chunk.bytes_count + 5 * len(chunk.records) + _labels_bytes(labels)
            rows_count += len(chunk.records)
            if bytes_count >= self._request_bytes or rows_count >= REQUEST_ROWS or len(waiting) >= ENTRIES_MAX:
                self._deliver(waiting)
                waiting, bytes_count, rows_count = [], 0, 0
        self._deliver(waiting)

    def _deliver(self, entries: list[Entry], of_a_chunk: bool = False) -> int:
        """Returns how many of them the node had already, when all are there."""
        known = self.chunks_known
        counts = self.chunks, self.rows, self.chunks_known, self.rows_known
        backoff = Backoff(self._patience_s)
        while entries:
            left = self._post(entries, set(), of_a_chunk)
            if len(left) < len(entries):
                backoff.restart()
            entries = left
            if entries and not backoff.wait():
                raise SinkFailed(
                    f"{self._node.url} has taken nothing for {self._patience_s:.0f} s "
                    f"({len(entries)} chunks wait, the first for {entries[0].stream!r}): "
                    "see whether it can write to its lake and its disk"
                )
        known = self.chunks_known - known
        if of_a_chunk:  # whoever sends a chunk's records counts it
            self.chunks, self.rows, self.chunks_known, self.rows_known = counts
        return known

    def _post(self, entries: list[Entry], held: set[str], of_a_chunk: bool) -> list[Entry]:
        """One attempt. Returns what has to be sent again, in order; `held`: the streams that it is for."""
        body = _encode(entries)
        try:
            # Safe to repeat: the node tells a chunk it has from a new one.
            answer = self._node.call("POST", PATH, body, {"Content-Type": "application/msgpack"}, repeat=True)
        except NodeRefused as refused:
            if refused.status != _TOO_LARGE:
                raise
            if len(entries) == 1:
                return self._too_large(entries[0], held, of_a_chunk, str(refused))
            self._request_bytes = min(self._request_bytes, max(len(body) // 2, 1))
            middle = len(entries) // 2
            again = self._post(entries[:middle], held, of_a_chunk)
            return again + self._post(entries[middle:], held, of_a_chunk)
        again = []
        answers = _answers(answer.body)
        if len(answers) != len(entries):
            raise NodeError(f"{self._node.url} answered {len(answers)} of {len(entries)} entries")
        for entry, told in zip(entries, answers, strict=True):
            if told.error is None:
                self._count(entry, told.duplicate)
                if self._taken is not None:
                    self._taken(entry, int(told.stream_next_offset))
            elif _is_passing(told.error) or (entry.stream in held and told.error.code in _GAPS):
                # A chunk after one that has to wait leaves a gap until that one is there.
                held.add(entry.stream)
                again.append(entry)
            elif told.status == _TOO_LARGE:
                left = self._too_large(entry, held, of_a_chunk, f"{told.error.code}: {told.error.message}")
                again += left
                if not left:
                    held.add(entry.stream)  # those after it found a gap in this request, and go again
            else:
                raise SinkFailed(self._why(entry, told, told.error))
        return again

    def _count(self, entry: Entry, known: bool) -> None:
        self.chunks += 1
        self.rows += len(entry.binary)
        if known:
            self.chunks_known += 1
            self.rows_known += len(entry.binary)

    # ---- chunks that are too large --------------------------------------------------------------------------------

    def _too_large(self, entry: Entry, held: set[str], of_a_chunk: bool, said: str) -> list[Entry]:
        """The node takes no request with this entry alone. Raises SinkFailed when it is a single record."""
        if of_a_chunk or len(entry.binary) == 1:
            raise SinkFailed(
                f"the node takes no record of {max(map(len, entry.binary))} bytes, for {entry.stream!r}, in a request "
                f"that has up to {_ENTRY_BYTES + _labels_bytes(entry.labels)} bytes beside it ({said}): raise its "
                "body_bytes_max, or write shorter records"
            )
        if entry.stream in held:
            return [entry]
        if self._is_there(entry):  # in one piece: the node took larger requests when it was sent
            self._count(entry, True)
            return []
        self._splits.add(entry.stream, entry.producer_seq)
        self._request_bytes = min(self._request_bytes, sum(map(len, entry.binary)) // 2)
        self._send_records(entry)
        return []

    def _send_records(self, entry: Entry) -> None:
        """Each record of a chunk by itself. What the node has of them it knows by its number."""
        stream, count = entry.stream, self._parts.get(entry.stream, 0)
        *first, last = entry.binary
        labels = entry.labels or [None] * len(entry.binary)
        producer, epoch = self._identity.producer_id + _PARTS, self._identity.epoch
        parts = [
            Entry(
                stream,
                entry.content_type,
                [record],
                producer,
                epoch,
                count + index,
                entry.create,
                _alone(labels[index]),
            )
            for index, record in enumerate(first)
        ]
        for some in _requests(parts, self._request_bytes):
            self._deliver(some, of_a_chunk=True)
        self._parts[stream] = count + len(parts)
        # Only now: with this one the chunk is there.
        end = Entry(
            stream,
            entry.content_type,
            [last],
            *self._identity,
            entry.producer_seq,
            entry.create,
            _alone(labels[-1]),
        )
        self._count(entry, self._deliver([end], of_a_chunk=True) > 0)

    def _is_there(self, entry: Entry) -> bool:
        """Whether the node has the chunk. A number far ahead is refused for sure, with the one that is due."""
        asked = Entry(entry.stream, entry.content_type, [b"0"], *self._identity, _FAR_SEQ, create=False)
        answer = self._node.call("POST", PATH, _encode([asked]), {"Content-Type": "application/msgpack"}, repeat=True)
        (told,) = _answers(answer.body)
        return (
            told.error is not None
            and told.error.code == _GAP
            and int(told.producer_expected_seq or 0) > entry.producer_seq
        )

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


def _alone(label: Label | None) -> list[Label | None] | None:
    return None if label is None else [label]


def _labels_bytes(labels: list[Label | None] | None) -> int:
    """About as long as they are encoded."""
    total = 0
    for one in labels or ():
        if one is not None:
            total += 24 + sum(len(text or "") for text in (one.tag, one.node, one.meta, one.key))
    return total


def _is_passing(fault: _Fault) -> bool:
    # Producers are forgotten after days: nothing to wait for in a task.
    return fault.retryable and fault.code != "too_many_producers"


def _requests(entries: list[Entry], bytes_max: int) -> Iterator[list[Entry]]:
    """The same in pieces of about so many bytes."""
    some: list[Entry] = []
    size = 0
    for entry in entries:
        some.append(entry)
        size += sum(map(len, entry.binary)) + len(entry.stream) + _ENTRY_BYTES + _labels_bytes(entry.labels)
        if size >= bytes_max or len(some) == ENTRIES_MAX:
            yield some
            some, size = [], 0
    if some:
        yield some
