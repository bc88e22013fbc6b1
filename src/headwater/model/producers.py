"""Idempotent producers: judging (epoch, seq) against what was accepted before.

Owns the rules of the protocol's producer headers. Never changes state: acceptance is recorded by the event.
"""

from __future__ import annotations

from headwater.errors import EpochStartsAtZero, SequenceGap, StaleEpoch
from headwater.model.commands import Producer

NUMBER_MAX = (1 << 53) - 1

Seen = tuple[int, int, int]
"""(epoch, last accepted seq, last seen ms)"""


def judge(seen: Seen | None, producer: Producer) -> bool:
    """True to accept, False for a duplicate. Raises StaleEpoch, EpochStartsAtZero or SequenceGap."""
    if seen is None:
        if producer.seq != 0:
            raise SequenceGap(0, producer.seq)
        return True
    epoch, last_seq, _ = seen
    if producer.epoch == epoch:
        if producer.seq == last_seq + 1:
            return True
        if producer.seq <= last_seq:
            return False
        raise SequenceGap(last_seq + 1, producer.seq)
    if producer.epoch < epoch:
        raise StaleEpoch(epoch)
    if producer.seq != 0:
        raise EpochStartsAtZero(producer.seq)
    return True
