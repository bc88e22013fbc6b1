"""The tests of the engine, and the world they run it in: a clock and a log that only move when a test moves them.
Nothing here decides what is right; it only holds still until asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.access_records import AccessRecords
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.marks import Marks
from headwater.engine.pending_answers import Outcome
from headwater.engine.placements import Placements
from headwater.engine.queue_leases import QueueLeases
from headwater.engine.read_plan import plan
from headwater.engine.reads import Reads
from headwater.engine.reads_by_id import ReadsById
from headwater.engine.record_reads import RecordReads
from headwater.engine.recovery import recover
from headwater.engine.router_definitions import RouterDefinitions
from headwater.engine.schema_records import SchemaRecords
from headwater.engine.topic_deletes import TopicDeletes
from headwater.histogram import Histogram
from headwater.log.null import NullLog
from headwater.model.commands import Append, Command, Create, Durability, Producer
from headwater.model.events import Event
from headwater.model.offsets import START
from headwater.model.stream import Limits
from headwater.ports import BROKEN, Catalog, Lake, Log, LogFailure, SystemClock

KEY = "_default/s"
STEP = 10
"""How far every event moves the hand-made log."""


class HandClock(SystemClock):
    """Its wall clock moves by hand. What works beside the log goes on by itself: pauses are real."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


class HandLog:
    """A log whose watermarks the test moves. Events are kept in `events`, with the positions they were given."""

    def __init__(self, replayed: list[tuple[int, Event]] | None = None) -> None:
        self._replayed = replayed or []
        self.head = 0
        self.tail = self.written = self.synced = self._replayed[-1][0] if self._replayed else 0
        self.failure: str | None = None
        self.events: list[tuple[int, Event]] = []
        self.syncs: dict[int, bool] = {}
        """Which events asked to be synced, by position."""
        self.commits_count = 0
        self.trims: list[int] = []
        self.sync_times = Histogram()

    def add(self, event: Event, sync: bool) -> int:
        self.tail += STEP
        self.events.append((self.tail, event))
        self.syncs[self.tail] = sync
        return self.tail

    def commit(self) -> None:
        self.commits_count += 1

    def replay(self, promised: int = 0) -> Iterator[tuple[int, Event]]:
        return iter(self._replayed)

    def start(self, on_progress: Callable[[], None]) -> None: ...

    def seal(self) -> None: ...

    def trim(self, below: int) -> None:
        self.trims.append(below)

    def close(self) -> None: ...


class Inbox:
    """A waiter: holds what it was told, and refuses to be told twice."""

    def __init__(self, told: list[Inbox] | None = None) -> None:
        self._told = told
        self.outcome: Outcome | None = None

    def resolve(self, outcome: Outcome) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome
        if self._told is not None:
            self._told.append(self)

    @property
    def waits(self) -> bool:
        return self.outcome is None


class Bench:
    """One group on a hand-made log, with an empty catalog of its own unless it is given one."""

    def __init__(
        self,
        log: HandLog | None = None,
        catalog: Catalog | None = None,
        limits: Limits | None = None,
        hot_bytes_max: int = 1 << 30,
    ) -> None:
        self.log = HandLog() if log is None else log
        self.clock = HandClock()
        self.scheduled: list[Callable[[], None]] = []
        self.told: list[Inbox] = []
        """Waiters in the order they were answered."""
        self.group = group_on(self.log, catalog, self.clock, self.scheduled.append, limits, hot_bytes_max)

    def submit(self, command: Command, key: str = KEY) -> Inbox:
        inbox = Inbox(self.told)
        self.group.submit(key, command, inbox)
        return inbox

    def create(self, key: str = KEY, *, durability: Durability | None = None, ttl_ms: int | None = None) -> None:
        """A stream whose creation is durable."""
        self.submit(Create(key, "text/plain", [], ttl_ms=ttl_ms, durability=durability), key)
        self.sync()

    def post(self, payload: bytes = b"x", key: str = KEY, seq: int | None = None) -> Inbox:
        return self.submit(Append([payload], None, None if seq is None else Producer("p", 0, seq)), key)

    def turn(self) -> None:
        """Ends a turn of the event loop: what was scheduled runs."""
        scheduled, self.scheduled[:] = list(self.scheduled), []
        for callback in scheduled:
            callback()

    def write(self, until: int | None = None) -> None:
        """The log's writer gets to `until` (or the tail) and has not synced it."""
        self.turn()
        self.log.written = self.log.tail if until is None else until
        self.group.progress()

    def sync(self, until: int | None = None) -> None:
        self.turn()
        self.log.synced = self.log.tail if until is None else until
        self.log.written = max(self.log.written, self.log.synced)
        self.group.progress()

    def fail(self, reason: str = "the disk is on fire") -> None:
        self.turn()
        self.log.failure = LogFailure(BROKEN, reason)
        self.group.progress()

    def read(self, key: str = KEY) -> bytes:
        """What a reader who starts at the beginning sees."""
        return visible(self.group, key)


def visible(group: Group, key: str) -> bytes:
    return b"".join(plan(group.find(key, touch=False), START, 1 << 40).payloads)


def group_on(
    log: Log,
    catalog: Catalog | None = None,
    clock: HandClock | None = None,
    schedule: Callable[[Callable[[], None]], object] = lambda callback: callback(),
    limits: Limits | None = None,
    hot_bytes_max: int = 1 << 30,
) -> Group:
    return Group(
        log,
        SqliteCatalog(None) if catalog is None else catalog,
        HandClock() if clock is None else clock,
        schedule,
        limits or Limits(),
        hot_bytes_max,
    )


def engine_on(group: Group, lake: Lake | None = None) -> Engine:
    """An engine of one group, without what works beside it. Runs inside an event loop."""
    return Engine({0: owned_on(group, lake)}, 1, group.clock)


def owned_on(group: Group, lake: Lake | None = None) -> Any:
    """As much of an owned group as an engine and its doors use, without files and what works beside it."""
    reads = Reads(group, lake)
    by_number, marks = RecordReads(group, reads), Marks(group)
    placements = group.domains[Placements.name] = Placements(group.catalog)
    group.domains[RouterDefinitions.name] = RouterDefinitions()
    group.domains[AccessRecords.name] = AccessRecords()
    group.domains[SchemaRecords.name] = SchemaRecords()
    group.domains[QueueLeases.name] = QueueLeases()
    return SimpleNamespace(
        group=group,
        reads=reads,
        by_id=ReadsById(group, reads),
        by_number=by_number,
        marks=marks,
        deletes=TopicDeletes(group, marks, by_number),
        number=group.number,
        placements=placements,
        recover=partial(recover, group),
    )


def null_group() -> Group:
    """A group that keeps nothing and answers at once."""
    return group_on(NullLog())


class Ear:
    """A follower that remembers what it was told."""

    def __init__(self) -> None:
        self.wakes: list[int] = []
        """The visible end at each wake-up."""
        self.gone_count = 0
        self.left_count = 0

    def wake(self, stream: LoadedStream) -> None:
        self.wakes.append(stream.visible)

    def gone(self, stream: LoadedStream) -> None:
        self.gone_count += 1

    def left(self, stream: LoadedStream) -> None:
        self.left_count += 1
