"""The layouts of a queue's events and of its state, as bytes that logs and catalogs already hold.
Owns examples that must be readable for ever; a field may be added at the end of one, and nothing else may change."""

from __future__ import annotations

import msgspec
import pytest

from headwater.model.queue_events import (
    Acked,
    DeadLettered,
    Extended,
    Grant,
    Lease,
    Passed,
    QueueEvent,
    QueueRow,
    Released,
    decode_event,
    decode_row,
    encode,
)

EVENTS: list[tuple[QueueEvent, list[object]]] = [
    (
        Passed([1], [2], [(3, "why")], [(4, 900)], [Grant([1, 2], 70, 1_000, "a", 5), Grant([9], 72, 2_000)], 10),
        [
            *("passed", [1], [2], [[3, "why"]], [[4, 900]]),
            [[[1, 2], 70, 1_000, "a", 5], [[9], 72, 2_000, None, None]],
            10,
        ],
    ),
    (Released([(1, 0), (2, 900)], [(3, "why")]), ["released", [[1, 0], [2, 900]], [[3, "why"]]]),
    (Extended([(1, 900)]), ["extended", [[1, 900]]]),
    (Acked([1, 2]), ["acked", [1, 2]]),
    (DeadLettered([1]), ["dead", [1]]),
]


@pytest.mark.parametrize(("event", "layout"), EVENTS, ids=lambda part: type(part).__name__)
def test_an_event_has_the_layout_that_logs_hold(event: QueueEvent, layout: list[object]) -> None:
    assert msgspec.msgpack.decode(encode(event)) == layout
    assert decode_event(msgspec.msgpack.encode(layout)) == event


def test_a_state_has_the_layout_that_catalogs_hold() -> None:
    row = QueueRow(5, 70, [Lease(1, 60, 900, 2, "a", 7)], [2], [(3, 900)], [(4, "why")], [(2, 1)], 8, 9, 10, 800)
    layout = [5, 70, [[1, 60, 900, 2, "a", 7]], [2], [[3, 900]], [[4, "why"]], [[2, 1]], 8, 9, 10, 800]
    assert msgspec.msgpack.decode(encode(row)) == layout
    assert decode_row(msgspec.msgpack.encode(layout)) == row


def test_a_state_without_what_was_added_later_is_read() -> None:
    layout = [5, 70, [[1, 60, 900, 2]], [2], [[3, 900]], [[4, "why"]], [[2, 1]], 8, 9, 10]
    row = decode_row(msgspec.msgpack.encode(layout))
    assert (row.leases, row.at_ms) == ([Lease(1, 60, 900, 2)], 0)


def test_a_claim_of_one_job_is_a_short_event() -> None:
    """With `leases_durable` each pass is logged: an idle sweep or a list of one must not cost much."""
    event = Passed(
        [], [], [], [], [Grant([1_000_000], 1_700_000_000_000_000, 1_700_000_000_000, "worker-1")], 1_000_001
    )
    assert len(encode(event)) <= 60
