"""The queues of the groups that this process serves.

Owns their states: made when a queue is first used, forgotten when its group leaves, its topic is deleted or it holds
nothing and others need the room. Never decides about jobs (`model.queues`) and never answers a client.

Lease ids begin at a random number below 2^52, so that an id of an earlier life of the process, whose leases nobody
knows any more, is not given out again for the same job: no clock and no log entry is needed for that. A queue that
keeps its leases goes on with its numbers.
"""

from __future__ import annotations

from itertools import count

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.queue_leases import leases_of
from headwater.errors import Failure, NotAQueue
from headwater.model import queues as model
from headwater.model.queue_state import Counts, QueueState
from headwater.model.topics import QueueConfig
from headwater.ports import Rng
from headwater.topics.access import TopicAccess
from headwater.topics.dead_letters import DeadLetters
from headwater.topics.jobs_ahead import Room
from headwater.topics.queue import Queue
from headwater.topics.queue_figures import QueueFigures

QUEUES_MAX = 10_000
"""Queues in memory. Overflow: those that hold nothing are forgotten, and their counts of claims and acks with them."""
FIRST_LEASE_BELOW = 1 << 52
CLAIM_BYTES_MAX = 8 << 20


class Queues:
    """A `Listener` of the engine."""

    def __init__(self, engine: Engine, access: TopicAccess, rng: Rng, claim_bytes_max: int = CLAIM_BYTES_MAX) -> None:
        self._engine = engine
        self._rng = rng
        self.claim_bytes_max = claim_bytes_max
        self._letters = DeadLetters(engine, access)
        self._room = Room()
        self._by_sid: dict[int, Queue] = {}
        self._looked_count = 0
        """As many were there when those that hold nothing were last looked for."""
        self._connections = count(1)
        self._claims_before = self._acks_before = self._dead_before = 0
        self._closed = False
        self.figures = QueueFigures()

    # ---- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Called once, when the groups of this process are recovered."""
        self._engine.listeners.append(self)
        for owned in list(self._engine.owned.values()):
            self.entered(owned)

    def entered(self, owned: OwnedGroup) -> None:
        """Rows of queues that were deleted while nobody looked go."""
        leases = leases_of(owned.group)
        if not leases.states:
            return
        loaded = owned.group.loaded
        alive = {stream.sid for stream in loaded.by_key.values()}
        for sid in list(leases.states):
            if sid in loaded.removed or (sid not in alive and owned.group.catalog.load_sid(sid) is None):
                leases.forget(sid)

    def left(self, owned: OwnedGroup) -> None:
        """Each queue follows its stream: it has been told."""

    def close(self) -> None:
        """Whoever waits for jobs is told that there are none, so that the doors can close."""
        self._closed = True
        for queue in list(self._by_sid.values()):
            queue.dismiss()

    async def stop(self) -> None:
        await self._letters.stop()

    # ---- queues ---------------------------------------------------------------------------------------------------

    def of(self, stream: LoadedStream) -> Queue:
        """The queue that a topic is. Raises NotAQueue, NotServedHere."""
        queue = self._by_sid.get(stream.sid)
        if queue is not None and queue.stream is stream and not queue.closed:
            return queue
        config = None if stream.topic is None else stream.topic.queue
        if config is None:
            raise NotAQueue
        return self._made(stream, config)

    def configured(self, stream: LoadedStream) -> None:
        """The topic was given another configuration. Whoever waits at one that is no queue any more is told so."""
        queue = self._by_sid.get(stream.sid)
        if queue is not None and not queue.closed:
            try:
                queue.check()
            except NotAQueue as failure:
                queue.refuse_all(failure)

    def _made(self, stream: LoadedStream, config: QueueConfig) -> Queue:
        if len(self._by_sid) >= max(QUEUES_MAX, 2 * self._looked_count):
            self._forget_idle()
        first_lease_id = self._rng.below(FIRST_LEASE_BELOW) + 1
        group = self._engine.group_of(stream).group
        leases = leases_of(group)
        kept = leases.states.get(stream.sid) if config.leases_durable else None
        if kept is None:
            leases.forget(stream.sid)
            state = QueueState(config, first_lease_id)
        else:
            state = kept
        queue = Queue(self._engine, stream, state, self.claim_bytes_max, self._room, self._forget)
        queue.on_dying, queue.figures = self._letters.begin, self.figures
        self._engine.follow(stream, queue)
        self._by_sid[stream.sid] = queue
        if kept is not None:
            self._resume(queue)
        return queue

    def _resume(self, queue: Queue) -> None:
        """A state out of the log: jobs may have gone since, and the connections of that life have ended."""
        state = queue.state
        queue.check()
        queue.meet_clock()
        state.prune(queue.jobs.is_live)
        for connection in list(state.connections):
            event = model.release(state, connection)
            if event is not None:
                queue.commit(event)
        if state.dying:
            self._letters.begin(queue)

    def _forget_idle(self) -> None:
        for queue in list(self._by_sid.values()):
            if queue.idle:
                leases = leases_of(self._engine.group_of(queue.stream).group)
                if queue.stream.sid not in leases.states:
                    self._engine.unfollow(queue.stream, queue)
                    queue.closed = True
                    queue.jobs.ahead.close()
                    self._forget(queue)
        self._looked_count = len(self._by_sid)

    def _forget(self, queue: Queue) -> None:
        """The queue is closed."""
        sid = queue.stream.sid
        if self._by_sid.get(sid) is queue:
            del self._by_sid[sid]
            self._claims_before += queue.state.claims_count
            self._acks_before += queue.state.acks_count
            self._dead_before += queue.state.dead_lettered
        owned = self._engine.owned.get(sid % self._engine.groups_count)
        if owned is not None and not owned.group.loaded.has(queue.stream):
            leases_of(owned.group).forget(sid)

    def new_connection(self) -> int:
        """A number for a connection whose leases end with it."""
        return next(self._connections)

    # ---- for people -------------------------------------------------------------------------------------------------

    def shown(self, stream: LoadedStream) -> dict[str, object]:
        """What is told of a topic's state beside that of other topics."""
        if stream.topic is None or stream.topic.queue is None:
            return {}
        try:
            counts = self.of(stream).counts()
        except Failure:
            return {}  # the group has just left, or its log has failed: the topic is shown as it was
        return {
            "queue": {
                "ready": counts.ready,
                "leased": counts.leased,
                "delayed": counts.delayed,
                "dead_lettered": counts.dead_lettered,
            }
        }

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def count(self) -> int:
        return len(self._by_sid)

    def counts(self) -> Counts:
        """Of all queues here, as their states have it: a lease that has just expired still counts as one."""
        found = [queue.state.counts(queue.jobs.live_count) for queue in self._by_sid.values()]
        return Counts(*(sum(getattr(one, name) for one in found) for name in Counts.__struct_fields__))

    @property
    def dying_count(self) -> int:
        """Jobs that are on their way to the dead letters."""
        return sum(len(queue.state.dying) for queue in self._by_sid.values())

    @property
    def claims_count(self) -> int:
        """Jobs handed out here since the start."""
        return self._claims_before + sum(queue.state.claims_count for queue in self._by_sid.values())

    @property
    def acks_count(self) -> int:
        return self._acks_before + sum(queue.state.acks_count for queue in self._by_sid.values())

    @property
    def dead_lettered_count(self) -> int:
        return self._dead_before + sum(queue.state.dead_lettered for queue in self._by_sid.values())
