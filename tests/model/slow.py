"""A stream the slow way: a list of everything that was accepted, asked anew for every question.

Owns the rules a second time, as the protocol's text words them. Never shares code with the model it is held against.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn

from headwater.model.commands import Append, Create

Answer = tuple[str, dict[str, Any]]
"""What came of a command: `created`, `appended`, `deleted`, `same` or `refused`, and the facts a client could see."""

PRODUCERS_MAX = 2
PRODUCER_IDLE_MS = 50


@dataclass
class Accepted:
    """One append that was taken, with everything it brought."""

    at_ms: int
    payloads: list[bytes]
    ids: list[tuple[int, int]]
    producer: tuple[str, int, int] | None
    stream_seq: str | None
    closes: bool
    forgets_before_ms: int = 0


@dataclass
class SlowStream:
    key: str
    sid: int
    content_type: str
    durability: int
    ttl_ms: int | None
    expires_ms: int | None
    created_ms: int
    history: list[Accepted] = field(default_factory=list)

    # ---- questions, each answered from the whole history --------------------------------------------------------

    @property
    def payloads(self) -> list[bytes]:
        return [payload for accepted in self.history for payload in accepted.payloads]

    @property
    def ids(self) -> list[tuple[int, int]]:
        return [number for accepted in self.history for number in accepted.ids]

    @property
    def tail(self) -> int:
        return len(b"".join(self.payloads))

    @property
    def closed(self) -> bool:
        return any(accepted.closes for accepted in self.history)

    @property
    def closing_tuple(self) -> tuple[str, int, int] | None:
        return next((accepted.producer for accepted in self.history if accepted.closes), None)

    @property
    def last_stream_seq(self) -> str | None:
        given = [accepted.stream_seq for accepted in self.history if accepted.stream_seq is not None]
        return given[-1] if given else None

    def producers(self) -> dict[str, tuple[int, int, int]]:
        """id -> (epoch, seq, last seen) of the newest append taken from each, without those forgotten since."""
        known: dict[str, tuple[int, int, int]] = {}
        for accepted in self.history:
            known = {name: seen for name, seen in known.items() if seen[2] >= accepted.forgets_before_ms}
            if accepted.producer is not None:
                name, epoch, seq = accepted.producer
                known[name] = (epoch, seq, accepted.at_ms)
        return known

    @property
    def last_written_ms(self) -> int:
        """When data last came. A stream's creation counts, closing it does not."""
        return [self.created_ms, *(accepted.at_ms for accepted in self.history if accepted.payloads)][-1]

    @property
    def last_touched_ms(self) -> int:
        """When a sliding expiry last restarted: at creation, and with every append or close."""
        if self.ttl_ms is None:
            return self.created_ms
        return [self.created_ms, *(accepted.at_ms for accepted in self.history)][-1]


def create(stream: SlowStream | None, command: Create, now_ms: int, sid: int) -> tuple[Answer, SlowStream | None]:
    """PUT: 201 when new; 200 when content type, expiry and closure are the same; 409 otherwise."""
    content_type = command.content_type or "application/octet-stream"
    if stream is not None:
        same = (
            not command.exclusive
            and plain(content_type) == plain(stream.content_type)
            and (command.ttl_ms, command.expires_ms) == (stream.ttl_ms, stream.expires_ms)
            and command.closed == stream.closed
            and command.durability in (None, stream.durability)
        )
        if not same:
            return refused("stream_exists_incompatible"), stream
        return ("same", {"end": stream.tail, "closed": stream.closed, "producer": None}), stream
    born = SlowStream(
        command.key, sid, content_type, int(command.durability or 0), command.ttl_ms, command.expires_ms, now_ms
    )
    if command.records or command.closed:
        ids = [(now_ms, n) for n in range(len(command.records))]
        born.history.append(Accepted(now_ms, command.records, ids, None, None, command.closed))
    return ("created", {"sid": sid, "end": born.tail, "closed": born.closed}), born


def append(stream: SlowStream | None, command: Append, etag: str, now_ms: int) -> Answer:
    """POST. Checks in the protocol's order: closing retry, closed, content type, producer, Stream-Seq, If-Match, id."""
    if stream is None:
        return refused("stream_not_found")
    sent = command.producer and (command.producer.id, command.producer.epoch, command.producer.seq)
    if stream.closed:
        retried = sent is not None and sent == stream.closing_tuple
        close_again = sent is None and command.close and command.records == []
        if retried or close_again:
            return "same", {"end": stream.tail, "closed": True, "producer": sent}
        return refused("stream_closed", next_offset=stream.tail)
    if command.content_type not in (None, plain(stream.content_type)):
        return refused("content_type_mismatch", expected=stream.content_type, received=command.content_type)
    untyped_json = command.content_type is None and plain(stream.content_type) == "application/json"
    if untyped_json and not all(map(is_json_value, command.records)):
        default = "application/octet-stream"
        return refused("content_type_mismatch", expected=stream.content_type, received=default)
    forgets_before_ms = 0
    if sent is not None:
        verdict = judge_producer(stream, sent, now_ms)
        if isinstance(verdict, tuple):
            return verdict
        forgets_before_ms = verdict
    last = stream.last_stream_seq
    if command.stream_seq is not None and last is not None and not command.stream_seq > last:
        return refused("stream_seq_conflict", last=last, received=command.stream_seq)
    if command.if_match not in (None, etag):
        return refused("precondition_failed", etag=etag)
    last_ms = stream.ids[-1][0] if stream.ids else 0
    if command.ms is not None and command.ms < last_ms:
        return refused("non_monotonic_id", last_ms=last_ms, received_ms=command.ms)
    ms = max(now_ms, last_ms) if command.ms is None else command.ms
    taken = [n for (at, n) in stream.ids if at == ms]
    first = max(taken) + 1 if taken else 0
    start = stream.tail
    ids = [(ms, first + index) for index in range(len(command.records))]
    stream.history.append(
        Accepted(now_ms, command.records, ids, sent, command.stream_seq, command.close, forgets_before_ms)
    )
    return "appended", {"start": start, "end": stream.tail, "closed": command.close, "producer": sent}


def judge_producer(stream: SlowStream, sent: tuple[str, int, int], now_ms: int) -> Answer | int:
    """An answer when the append is refused or was taken before; else the moment before which others are forgotten."""
    name, epoch, seq = sent
    known = stream.producers()
    if name not in known:
        if seq != 0:
            return refused("producer_seq_conflict", expected=0, received=seq)
        if len(known) < PRODUCERS_MAX:
            return 0
        silent_before_ms = now_ms - PRODUCER_IDLE_MS
        if not any(seen_ms < silent_before_ms for _, _, seen_ms in known.values()):
            return refused("too_many_producers", limit=PRODUCERS_MAX)
        return silent_before_ms
    current, highest, _ = known[name]
    if epoch < current:
        return refused("stale_epoch", current=current)
    if epoch > current:
        return refused("epoch_starts_at_zero", received=seq) if seq != 0 else 0
    if seq <= highest:
        return "same", {"end": stream.tail, "closed": False, "producer": (name, current, highest)}
    if seq > highest + 1:
        return refused("producer_seq_conflict", expected=highest + 1, received=seq)
    return 0


def is_json_value(record: bytes) -> bool:
    try:
        json.loads(record.decode(), parse_constant=no_value)
    except ValueError:
        return False
    return True


def no_value(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def plain(content_type: str) -> str:
    """A content type without its parameters and its letters' case, which do not tell two apart."""
    return content_type.split(";")[0].strip().lower()


def refused(code: str, **facts: Any) -> Answer:
    return "refused", {"code": code, **facts}
