"""Producers: one verdict for every pair of what was seen and what is sent, held against the protocol's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import EpochStartsAtZero, Failure, SequenceGap, StaleEpoch
from headwater.model.commands import Producer
from headwater.model.producers import NUMBER_MAX, judge

small = st.integers(0, 4)
numbers = small | st.integers(NUMBER_MAX - 2, NUMBER_MAX)


def verdict(seen: tuple[int, int, int] | None, producer: Producer) -> object:
    try:
        return judge(seen, producer)
    except Failure as failure:
        return type(failure), vars(failure)


@given(numbers, numbers)
def test_a_new_producer_starts_with_seq_zero_in_any_epoch(epoch: int, seq: int) -> None:
    expected = True if seq == 0 else (SequenceGap, {"expected": 0, "received": seq})
    assert verdict(None, Producer("p", epoch, seq)) == expected


@given(numbers, numbers, numbers, numbers)
def test_a_known_producer_is_fenced_deduplicated_or_kept_in_sequence(
    epoch: int, last_seq: int, sent_epoch: int, sent_seq: int
) -> None:
    expected: object
    if sent_epoch < epoch:
        expected = (StaleEpoch, {"current": epoch})
    elif sent_epoch > epoch:
        expected = True if sent_seq == 0 else (EpochStartsAtZero, {"received": sent_seq})
    elif sent_seq in range(last_seq + 1):
        expected = False
    elif sent_seq == last_seq + 1:
        expected = True
    else:
        expected = (SequenceGap, {"expected": last_seq + 1, "received": sent_seq})
    assert verdict((epoch, last_seq, 0), Producer("p", sent_epoch, sent_seq)) == expected


def test_when_a_producer_was_last_seen_does_not_matter_for_the_verdict() -> None:
    for seen_ms in (0, 1 << 60):
        assert judge((1, 5, seen_ms), Producer("p", 1, 6))
        with pytest.raises(StaleEpoch):
            judge((1, 5, seen_ms), Producer("p", 0, 6))
