"""A look at the jobs of a queue that leases nothing.

Owns which jobs are shown of each state. Never changes a queue.

    ready      those that come back first, then those that were never handed out, in the order they will be
    leased     by number
    delayed    by the time they are ready at: given back with a delay, or scheduled
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import chain, islice
from typing import NamedTuple

from headwater.engine.record_reads import TopicRecord
from headwater.errors import Failure, GroupMoved
from headwater.model.queues import NotInMemory
from headwater.topics.queue import Queue

LOOKED_STATES = ("ready", "leased", "delayed")
STEPS_MAX = 10_000
"""Jobs that a look at ready ones passes over, because they are scheduled for later."""


class Looked(NamedTuple):
    records: list[TopicRecord]


def look(queue: Queue, state: str, limit: int, bytes_max: int, done: Callable[[Looked | Failure], None]) -> None:
    """Calls `done` with the first jobs of a state, `limit` at most. Raises NotServedHere."""
    if queue.closed:
        raise GroupMoved(queue.stream.sid % queue.engine.groups_count)
    if state == "leased":
        seqs = nsmallest(limit, queue.state.leases)
    elif state == "delayed":
        held = queue.state
        ahead = islice(queue.jobs.scheduled(held.claim_cursor, queue.now_ms()), limit)
        seqs = [seq for _, seq in nsmallest(limit, chain(((ms, seq) for seq, ms in held.delayed.items()), ahead))]
    else:
        try:
            seqs = _ready(queue, limit)
        except NotInMemory:
            queue.jobs.look_up_times(queue.state.claim_cursor, queue.now_ms())
            soon = queue.engine.group_of(queue.stream).group.soon

            def again() -> None:
                try:
                    look(queue, state, limit, bytes_max, done)
                except Failure as failure:
                    done(failure)

            soon(again)
            return
    order = {seq: place for place, seq in enumerate(seqs)}

    def read(found: list[TopicRecord] | Failure) -> None:
        done(found if isinstance(found, Failure) else Looked(sorted(found, key=lambda one: order[one.seq])))

    queue.jobs.read(sorted(seqs), bytes_max, read)


def _ready(queue: Queue, limit: int) -> list[int]:
    """Raises NotInMemory."""
    state, jobs = queue.state, queue.jobs
    now_ms = queue.now_ms()
    found = [seq for seq in nsmallest(limit, state.reclaim) if jobs.is_live(seq)]
    cursor = state.claim_cursor
    for _ in range(STEPS_MAX):
        if len(found) >= limit:
            break
        seq = jobs.next_live(cursor)
        if seq is None:
            break
        ready_ms = jobs.deliver_at(seq)
        if ready_ms is None or ready_ms <= now_ms:
            found.append(seq)
        cursor = seq + 1
    return found
