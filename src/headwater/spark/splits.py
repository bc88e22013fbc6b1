"""Which chunks of a batch were written record by record, because the node took no request with one of them whole.

Owns the list of them, which is kept on the node. Never holds the name of a stream.

    _headwater/sink-splits/<hash of the producer>-<epoch>    a line for each: hash of stream and number of the chunk

Chunks are cut the same way for ever, and what a node takes may change between an attempt and its repetition. So it is
written down here, before the first record of such a chunk is sent, that it goes record by record; a repetition does
the same, whatever the node would take by then.
"""

from __future__ import annotations

import xxhash

from headwater.spark.job_runs import RUNS_BUCKET
from headwater.spark.node import Node, NodeRefused

KEPT_S = 30 * 86_400
"""A node forgets producers that were idle for longer than `producer_idle_ms`, a week by default: these last longer."""
_TEXT = {"Content-Type": "text/plain"}


class Splits:
    """Of one producer and epoch. Raises NodeError."""

    def __init__(self, node: Node, producer_id: str, epoch: int) -> None:
        self._node = node
        self._name = f"{RUNS_BUCKET}/sink-splits/{xxhash.xxh3_128_hexdigest(producer_id.encode())}-{epoch}"
        self._known: set[str] | None = None

    def knows(self, stream: str, seq: int) -> bool:
        """Whether that chunk goes record by record. Asks the node once."""
        if self._known is None:
            self._known = self._read()
        return bool(self._known) and _line(stream, seq) in self._known

    def add(self, stream: str, seq: int) -> None:
        """From now on it does: on return the node has it on stable storage."""
        self._node.put_stream(self._name, _TEXT["Content-Type"], {"Stream-TTL": str(KEPT_S)})
        body = f"{_line(stream, seq)}\n".encode()
        # A line that is there twice means the same as one.
        self._node.call("POST", self._node.stream_path(self._name), body, _TEXT, repeat=True)
        self._known = (self._known or set()) | {_line(stream, seq)}

    def _read(self) -> set[str]:
        path = self._node.stream_path(self._name)
        try:
            answer = self._node.call("GET", path)
        except NodeRefused as refused:
            if refused.status in (404, 410):
                return set()
            raise
        body = answer.body
        while answer.headers.get("stream-up-to-date", "").lower() != "true":
            answer = self._node.call("GET", f"{path}?offset={answer.headers['stream-next-offset']}")
            body += answer.body
        return set(body.decode().split())


def _line(stream: str, seq: int) -> str:
    return xxhash.xxh3_128_hexdigest(f"{seq}\0{stream}".encode())
