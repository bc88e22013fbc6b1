"""What a topic holds, as readers see it: its numbers.

Owns their meaning at this door. Never loads a stream and never changes one.
"""

from __future__ import annotations

import msgspec

from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import shown_count


class State(msgspec.Struct, frozen=True):
    head_seq: int
    """Number of the newest record that readers see, deleted or not; 0 before the first."""
    earliest_seq: int
    """Of the first record that is there; one more than `head_seq` when none is."""
    evict_floor: int
    """Of the first record that was not lost by a cap or by its age."""
    count: int
    bytes: int
    epoch: int
    """Another one when the topic was deleted and made again."""


def state_of(stream: LoadedStream) -> State:
    head = shown_count(stream)
    # What was written and is not shown yet is counted with the stream, and not here.
    hidden_count, hidden_bytes = stream.count - head, stream.tail - max(stream.visible, 0)
    return State(
        head_seq=head,
        earliest_seq=min(stream.earliest_seq, head + 1),
        evict_floor=min(stream.evict_floor, head + 1),
        count=max(0, stream.live_count - hidden_count),
        bytes=max(0, stream.live_bytes - hidden_bytes),
        epoch=stream.epoch,
    )
