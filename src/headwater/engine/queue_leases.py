"""The leases of queues that keep them, as their group's log and catalog have them.

Owns the fold of their events and the rows of a checkpoint. Never decides (`model.queues` does), and never knows what a
job is. Queues that do not keep their leases are not here.

    body of an event: one byte, the stream's id in 8 bytes (big endian), then
        0  a row      the queue keeps its leases from now on, and has these
        1  an event   of `model.queue_events`
    row of the catalog: by the stream's id in digits, a `QueueRow`

A checkpoint writes the whole row of a queue that changed: about 40 bytes for each job that it holds. Rows of streams
that were deleted are forgotten by whoever serves the group (`forget`), not by the fold.
"""

from __future__ import annotations

from headwater.engine.group import Group
from headwater.model.queue_events import QueueEvent, decode_event
from headwater.model.queue_events import encode as encode_event
from headwater.model.queue_state import QueueState
from headwater.model.topics import QueueConfig

_ROW, _EVENT = b"\0", b"\1"
_SID_BYTES = 8


def encode_row(sid: int, state: QueueState) -> bytes:
    return _ROW + sid.to_bytes(_SID_BYTES, "big") + state.snapshot()


def encode(sid: int, event: QueueEvent) -> bytes:
    return _EVENT + sid.to_bytes(_SID_BYTES, "big") + encode_event(event)


class QueueLeases:
    """The `Domain` of queues, of one group."""

    name = "queues"
    in_memory = True

    def __init__(self) -> None:
        self.states: dict[int, QueueState] = {}
        """By the stream's id."""
        self._changed: set[int] = set()

    def adopt(self, sid: int, state: QueueState) -> None:
        """The very state that is decided by: the row that is logged next tells of it."""
        self.states[sid] = state

    def forget(self, sid: int) -> None:
        """The queue is gone, or does not keep its leases any more. Not logged: whoever serves the group finds out."""
        if self.states.pop(sid, None) is not None:
            self._changed.add(sid)

    # ---- the Domain ---------------------------------------------------------------------------------------------

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        sid = int.from_bytes(body[1 : 1 + _SID_BYTES], "big")
        rest = body[1 + _SID_BYTES :]
        state = self.states.get(sid)
        if state is None:
            state = self.states[sid] = QueueState(QueueConfig(), 1)
        if body[:1] == _ROW:
            state.restore(rest)
        else:
            state.apply(decode_event(rest))
        state.at_ms = at_ms
        self._changed.add(sid)

    def restore(self, things: dict[str, bytes]) -> None:
        for name, row in things.items():
            state = self.states[int(name)] = QueueState(QueueConfig(), 1)
            state.restore(row)

    def changes(self) -> dict[str, bytes | None]:
        changed, self._changed = self._changed, set()
        states = self.states
        return {str(sid): states[sid].snapshot() if sid in states else None for sid in changed}

    def retry(self, changes: dict[str, bytes | None]) -> None:
        self._changed.update(map(int, changes))


def leases_of(group: Group) -> QueueLeases:
    found = group.domains[QueueLeases.name]
    if not isinstance(found, QueueLeases):
        raise TypeError(f"the domain {QueueLeases.name} is another one's")
    return found
