"""Where the state of a schedule is kept: a stream of the node, of which the newest state counts.

Owns the stream, who may write to it, and that nobody else does. Never runs anything, and never waits.

    _headwater/pipeline-schedule/<name>     JSON, a record each:
        {"at_ms", "epoch", "state": {...}}  what is known now, whole
        {"at_ms", "epoch"}                  its server is still there

Who serves a schedule writes as one producer, with an epoch that is greater than that of whoever served it before: the
node refuses everything that a former server still sends. Two that claim the same epoch send the same number, so
the node takes one of them; what the stream holds says whose it was.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from typing import Any

import msgspec

from headwater.client.connection import Answer
from headwater.spark.job_runs import RUNS_BUCKET
from headwater.spark.node import Node, NodeRefused
from headwater.spark.schedules.state import Job

FOLDER = "pipeline-schedule"
PRODUCER_ID = "schedule"
RECORDS_KEPT, BYTES_KEPT = 1_000, 16 << 20
STATE_EVERY = 100
"""So often a sign of life is a whole state: retention never takes the newest one."""
_JSON = "application/json"
_LOST = frozenset(
    {"stale_epoch", "producer_seq_conflict", "epoch_starts_at_zero", "stream_not_found", "stream_deleted"}
)
"""Refusals after which the stream is not the one that was claimed, or is another server's."""


class Fenced(Exception):
    """Another server has claimed the schedule, or the stream was put back or deleted: nothing more is written."""


class State(msgspec.Struct, frozen=True):
    epoch: int
    server: str
    """Of whoever claimed it: host, process and something unique."""
    lease_ms: int
    released: bool
    jobs: dict[str, Job]


class _Record(msgspec.Struct, frozen=True):
    at_ms: int
    epoch: int
    state: State | None = None


class Ledger:
    """Raises NodeError where the node does not answer; what was being written then is written first the next time."""

    def __init__(self, node: Node, name: str) -> None:
        self.server = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._node = node
        self._stream = f"{RUNS_BUCKET}/{FOLDER}/{name}"
        self._path = node.stream_path(self._stream)
        self._offset = "-1"
        self._state: State | None = None
        self._epoch, self._seq = 0, 0
        """Epoch 0: the schedule is not this server's. Two may send the same epoch, and only one of them has it."""
        self._unsure: bytes | None = None
        """Sent, without an answer."""
        self._signs = 0
        self._lock = threading.Lock()
        """The jobs' thread writes, and the one that renews."""

    @property
    def state(self) -> State | None:
        """The newest that was read or written."""
        return self._state

    def forget(self) -> None:
        """The next read begins with the first record: the stream may have been put back or made anew."""
        with self._lock:
            self._offset, self._state, self._epoch = "-1", None, 0

    def read(self) -> bool:
        """Reads on; returns whether there was anything new. Raises NodeError."""
        with self._lock:
            return self._read()

    def claim(self, lease_ms: int, at_ms: int) -> bool:
        """Whether this server serves the schedule from now on. What is known of its jobs stays. Raises NodeError."""
        with self._lock:
            before = self._state
            self._epoch = 0
            epoch = (0 if before is None else before.epoch) + 1
            mine = State(epoch, self.server, lease_ms, False, {} if before is None else before.jobs)
            self._node.put_stream(
                self._stream,
                _JSON,
                {"Stream-Retention-Records": str(RECORDS_KEPT), "Stream-Retention-Bytes": str(BYTES_KEPT)},
            )
            try:
                self._post(msgspec.json.encode(_Record(at_ms, epoch, mine)), epoch, 0)
            except Fenced:
                self._read()
                return False
            self._read()
            found = self._state
            if found is None or (found.epoch, found.server) != (epoch, self.server):
                return False
            self._epoch, self._seq, self._unsure, self._signs = epoch, 1, None, 0
            return True

    def write(self, jobs: dict[str, Job], at_ms: int, released: bool = False) -> None:
        """On return it is durable. Raises Fenced, NodeError."""
        with self._lock:
            if self._state is None:
                raise Fenced("the schedule is not this server's")
            state = msgspec.structs.replace(self._state, jobs=jobs, released=released)
            self._send(_Record(at_ms, self._epoch, state))
            self._state, self._signs = state, 0

    def renew(self, at_ms: int) -> None:
        """Says that this server is still there. Raises Fenced, NodeError."""
        with self._lock:
            self._signs += 1
            whole = self._signs >= STATE_EVERY
            self._send(_Record(at_ms, self._epoch, self._state if whole else None))
            if whole:
                self._signs = 0

    def _send(self, record: _Record) -> None:
        if not self._epoch:
            raise Fenced("the schedule is not this server's")
        body = msgspec.json.encode(record)
        for one in (body,) if self._unsure is None else (self._unsure, body):
            self._unsure = one
            self._post(one, self._epoch, self._seq)
            self._unsure = None
            self._seq += 1

    def _post(self, body: bytes, epoch: int, seq: int) -> None:
        headers = {
            "Content-Type": _JSON,
            "Producer-Id": PRODUCER_ID,
            "Producer-Epoch": str(epoch),
            "Producer-Seq": str(seq),
        }
        try:
            self._node.call("POST", self._path, body, headers, repeat=True)
        except NodeRefused as refused:
            if refused.code in _LOST:
                raise Fenced(str(refused)) from None
            raise

    def _read(self) -> bool:
        seen = False
        try:
            records = _records(self._node, self._path, self._offset)
        except NodeRefused as refused:
            if refused.code != "offset_beyond_tail":
                raise
            self._state, records = None, _records(self._node, self._path, "-1")  # the stream was put back
        for record in records:
            if isinstance(record, str):
                self._offset = record
                continue
            seen = True
            self._state = record.state or self._state
        return seen


def last_states(node: Node) -> dict[str, State]:
    """The newest state of each schedule of the node. Raises NodeError."""
    found: dict[str, State] = {}
    path: str | None = f"/__headwater/buckets/{RUNS_BUCKET}/streams?prefix={FOLDER}/"
    while path is not None:
        try:
            page = node.json("GET", path)
        except NodeRefused as refused:
            if refused.status == 404:
                return found
            raise
        for stream in page["streams"]:
            name = stream["stream_id"].removeprefix(f"{FOLDER}/")
            records = _records(node, node.stream_path(f"{RUNS_BUCKET}/{FOLDER}/{name}"), "-1")
            for record in records:
                if not isinstance(record, str) and record.state is not None:
                    found[name] = record.state
        following = page.get("next_cursor")
        path = None if following is None else f"{path.partition('&')[0]}&after={following}"
    return found


def _records(node: Node, path: str, offset: str) -> list[_Record | str]:
    """What comes behind the offset, and after each page the offset behind it. A stream that is not there is empty."""
    found: list[_Record | str] = []
    while True:
        try:
            answer: Answer = node.call("GET", f"{path}?offset={offset}")
        except NodeRefused as refused:
            if refused.status == 404:
                return [*found, "-1"]
            if refused.status == 410 and "stream-earliest-offset" in refused.headers:
                offset = refused.headers["stream-earliest-offset"]
                continue
            raise
        records: list[Any] = json.loads(answer.body or b"[]")
        found += [msgspec.convert(record, _Record) for record in records]
        offset = answer.headers["stream-next-offset"]
        found.append(offset)
        if answer.headers.get("stream-up-to-date", "").lower() == "true":
            return found
