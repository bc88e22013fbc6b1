"""A node that keeps one kind of stream in memory, and a clock that only waiting moves. Both do what a test
says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from headwater.spark.node import NodeError, NodeRefused

M = 60_000


class Killed(BaseException):
    """The process ends here, whatever it was about to do."""


class Streams:
    """As much of a `Node` as a ledger calls, with the node's rules for producers."""

    def __init__(self) -> None:
        self.records: list[Any] | None = None
        self.producer: tuple[int, int] | None = None
        self.around: Callable[[str], None] = lambda when: None
        """Called before and after each append; may raise."""
        self.away = False

    stream_path = staticmethod(lambda name: f"/v1/stream/{name}")

    def put_stream(self, name: str, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        self._reached()
        self.records = self.records or []

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        repeat: bool | None = None,
    ) -> Any:
        self._reached()
        if self.records is None:
            raise NodeRefused(path, 404, "stream_not_found", "", {})
        if method == "GET":
            start = max(0, int(path.partition("offset=")[2]))
            found = {"stream-next-offset": str(len(self.records)), "stream-up-to-date": "true"}
            return SimpleNamespace(status=200, body=json.dumps(self.records[start:]).encode(), headers=found)
        self.around("before")
        epoch, seq = int((headers or {})["Producer-Epoch"]), int((headers or {})["Producer-Seq"])
        known = self.producer or (-1, -1)
        if epoch < known[0]:
            raise NodeRefused(path, 403, "stale_epoch", "", {})
        if epoch > known[0] and seq:
            raise NodeRefused(path, 400, "epoch_starts_at_zero", "", {})
        if epoch == known[0] and seq > known[1] + 1:
            raise NodeRefused(path, 409, "producer_seq_conflict", "", {})
        if epoch > known[0] or seq > known[1]:
            self.producer = (epoch, seq)
            self.records.append(json.loads(body or b""))
        self.around("after")
        return SimpleNamespace(status=200, body=b"", headers={})

    def _reached(self) -> None:
        if self.away:
            raise NodeError("nobody answers")


BEAT_MS = 30_000


class World:
    """A `World`: waiting passes the time, until it is told to stop. What a thread does meanwhile is `beat`."""

    def __init__(self, now_ms: int = 0) -> None:
        self.ms = now_ms
        self.stop_ms = 1 << 60
        self.beat: Callable[[], None] = lambda: None
        self.at: Callable[[int], None] = lambda ms: None
        """Told whenever time has passed."""

    @property
    def stopping(self) -> bool:
        return self.ms >= self.stop_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1_000

    def wait(self, seconds: float) -> None:
        self.go_on(min(max(1, round(seconds * 1_000)), max(0, self.stop_ms - self.ms)))

    def go_on(self, ms: int) -> None:
        until_ms = self.ms + ms
        while self.ms < until_ms:
            beat_ms = (self.ms // BEAT_MS + 1) * BEAT_MS
            self.ms = min(beat_ms, until_ms)
            self.at(self.ms)
            if self.ms == beat_ms:
                self.beat()
