"""Streams that hold a newest state: each row is appended, and then published as its stream's snapshot.

Owns that a state is published where its record ends, so that whoever follows the stream is told of it, and whoever
comes later starts from it. Never publishes what was not appended under the batch's number: a task of an older batch is
refused before it comes to that.

    row --append, numbered--> record …--] 5120 --snapshot at 5120--> what was before 5120 is let go of
"""

from __future__ import annotations

from headwater.errors import BadName
from headwater.model.names import bucket_of, bucketed_key, flat_key, stream_of
from headwater.spark.chunks import Chunk
from headwater.spark.node import Node
from headwater.spark.options import NAME_BYTES_MAX
from headwater.spark.publishing import BATCH_BYTES_MAX, BUSY, ENTRIES_MAX, entry_of, publish
from headwater.spark.publishing import Entry as Snapshot
from headwater.spark.sending import Entry, SinkFailed

_OVERTAKEN = 410
"""A newer snapshot is there, or the stream was trimmed beyond it."""


def check_state(chunk: Chunk) -> None:
    """Raises SinkFailed for what cannot be the one state of a stream that has snapshots."""
    if chunk.seq or len(chunk.records) > 1:
        raise SinkFailed(
            f"several rows of a batch are for {chunk.stream!r}: in the output modes complete and update a row is all "
            "that its stream comes to. Name a stream for each group of rows, or write in append mode"
        )
    if len(chunk.records[0]) > BATCH_BYTES_MAX:
        raise SinkFailed(
            f"the state of {chunk.stream!r} has {len(chunk.records[0])} bytes: at most {BATCH_BYTES_MAX} are published"
        )
    try:
        key = flat_key(chunk.stream, NAME_BYTES_MAX)
        bucketed_key(bucket_of(key), stream_of(key))
    except BadName as bad:
        raise SinkFailed(f"{chunk.stream!r} has no snapshots: {bad.message()}. Name another stream") from None


class States:
    """What one task has appended and has yet to publish."""

    def __init__(self, node: Node, patience_s: float) -> None:
        self._node = node
        self._patience_s = patience_s
        self._waiting: list[Snapshot] = []
        self._bytes = 0

    def add(self, entry: Entry, tail: int) -> None:
        """An entry that the node has. Raises what `finish` raises."""
        (body,) = entry.binary
        if self._bytes + len(body) > BATCH_BYTES_MAX or len(self._waiting) == ENTRIES_MAX:
            self.finish()
        self._waiting.append(entry_of(entry.stream, tail, entry.content_type, body))
        self._bytes += len(body)

    def finish(self) -> None:
        """On return all are published. Raises SinkFailed, NodeError."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for one, answer in zip(waiting, publish(self._node, waiting, self._patience_s), strict=True):
            status = answer["status"]
            if status in (204, _OVERTAKEN):
                continue
            error = answer.get("error") or {}
            why = f"{status} {error.get('code')}: {error.get('message')}"
            if status in BUSY:
                why += f", for {self._patience_s:.0f} s: see whether the node can write to its lake and its disk"
            raise SinkFailed(f"the state of {one['stream']!r} was appended, and not published: {why}")
