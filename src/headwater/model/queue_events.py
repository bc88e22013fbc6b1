"""What happens to the leases of a queue, as values, and the shape in which its state is kept.

Owns the layouts that go into a log and a catalog. Never decides and never changes a state: `model.queues` does.
"""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job in one claimer's hands. Persisted: fields are only ever added at the end."""

    seq: int
    lease_id: int
    """Of this delivery; no other delivery of any job of the queue has it."""
    deadline_ms: int
    deliveries: int
    """How often the job was handed out, this time included."""
    node: str | None = None
    connection: int | None = None
    """The connection that ends the lease when it ends; None: the lease ends by its deadline alone."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """What one claimer got in a pass: the leases of `seqs` count up from `first_lease_id`."""

    seqs: list[int]
    first_lease_id: int
    deadline_ms: int
    node: str | None = None
    connection: int | None = None


class Passed(msgspec.Struct, frozen=True, array_like=True, tag="passed"):
    """One claim pass. What is in the first four lists is true before the first grant is."""

    expired: list[int]
    """Leases that ended by their deadline; the jobs are to be handed out again."""
    due: list[int]
    """Delayed jobs whose time has come."""
    dead: list[tuple[int, str]]
    """(seq, reason): leases that ended by their deadline, of jobs that were handed out often enough."""
    scheduled: list[tuple[int, int]]
    """(seq, ready at ms): jobs the cursor came past before their time."""
    grants: list[Grant]
    cursor: int


class Released(msgspec.Struct, frozen=True, array_like=True, tag="released"):
    """Leases that ended without an ack, by a nack or with their connection."""

    jobs: list[tuple[int, int]]
    """(seq, ready at ms); 0: at once."""
    dead: list[tuple[int, str]]
    """(seq, reason)"""


class Extended(msgspec.Struct, frozen=True, array_like=True, tag="extended"):
    deadlines: list[tuple[int, int]]
    """(seq, deadline ms)"""


class Acked(msgspec.Struct, frozen=True, array_like=True, tag="acked"):
    """Jobs that are done. Their records are deleted by an event of their own, in the stream."""

    seqs: list[int]


class DeadLettered(msgspec.Struct, frozen=True, array_like=True, tag="dead"):
    """Jobs that were moved to the dead letter topic. Their records are deleted as those of acked jobs are."""

    seqs: list[int]


QueueEvent = Passed | Released | Extended | Acked | DeadLettered


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """The whole state of a queue. Persisted: fields are only ever added at the end. Every list is sorted."""

    claim_cursor: int
    next_lease_id: int
    leases: list[Lease]
    reclaim: list[int]
    delayed: list[tuple[int, int]]
    """(seq, ready at ms)"""
    dying: list[tuple[int, str]]
    """(seq, reason)"""
    deliveries: list[tuple[int, int]]
    """(seq, count), of jobs without a lease"""
    dead_lettered: int
    claims_count: int
    acks_count: int
    at_ms: int = 0
    """What the clock said that the latest of this was decided by."""


_encoder = msgspec.msgpack.Encoder()
_events: msgspec.msgpack.Decoder[QueueEvent] = msgspec.msgpack.Decoder(QueueEvent)
_rows = msgspec.msgpack.Decoder(QueueRow)


def encode(thing: QueueEvent | QueueRow) -> bytes:
    return _encoder.encode(thing)


def decode_event(body: bytes) -> QueueEvent:
    return _events.decode(body)


def decode_row(body: bytes) -> QueueRow:
    return _rows.decode(body)
