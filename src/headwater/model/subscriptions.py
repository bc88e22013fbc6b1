"""Subscriptions: a durable cursor per linked stream, and the wake-ups that say there is work behind them.

Owns fencing, leases, acknowledgement and the retry schedule of one subscription, as decide and evolve. Never reads a
clock, draws an id, checks a token or looks a stream up: all of that arrives as arguments.

    idle --work--> woken --claim, delivery--> leased --done, release--> idle
                     |  ^                        |
                     +--+ delivery failed        +--lease passed--> idle        (and woken again while work is left)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import assert_never

import msgspec

from headwater.errors import AlreadyClaimed, BadAck, BadSubscription, Fenced, NoPendingWork
from headwater.model import glob
from headwater.model.names import DEFAULT_BUCKET

WEBHOOK, PULL_WAKE = "webhook", "pull-wake"
LEASE_MS_MIN, LEASE_MS_MAX, LEASE_MS_DEFAULT = 1_000, 600_000, 30_000
RETRY_MS_FIRST, RETRY_MS_MAX = 1_000, 60_000
CLOCK_STEP_MS_MAX = 10_000
"""By how much clocks of nodes may differ, or one be set back, before moments that they set are taken for wrong."""
JITTER_STEPS = 1_000
RESERVED = "__ds"

Tail = Callable[[str, int], int]
"""(path, sid) -> what is visible of that stream; -1 when there is no such stream, or another one by that name."""
UNKNOWN_TAIL = 1 << 62
"""Of a stream that nobody can be asked about: there may be work after any offset."""


class Config(msgspec.Struct, frozen=True, array_like=True):
    """What a subscription was created with. Persisted: fields are only ever added at the end."""

    kind: str
    pattern: str | None
    url: str | None
    wake_stream: str | None
    lease_ms: int
    description: str | None
    digest: str
    """Of all of the above and the streams that were named: tells the same request from another one."""


class Wake(msgspec.Struct, frozen=True, array_like=True):
    """A wake-up under way. Its generation is the subscription's."""

    wake_id: str
    stream: str
    """The stream that had work first."""
    issued_ms: int
    holder: str | None = None
    lease_until_ms: int | None = None
    """None: not claimed, or not delivered yet. A lease does not run before someone can have heard of it."""


class Link:
    """A stream's place in a subscription."""

    __slots__ = ("acked", "explicit", "sid")

    def __init__(self, sid: int, acked: int, explicit: bool) -> None:
        self.sid = sid
        """The stream's incarnation; 0 while there is no stream of that name."""
        self.acked = acked
        """Everything before this offset is done with."""
        self.explicit = explicit


class Subscription:
    __slots__ = (
        "base_url",
        "complete",
        "config",
        "created_ms",
        "failures",
        "generation",
        "id",
        "links",
        "pending",
        "retry_at_ms",
        "uid",
        "wake",
    )

    def __init__(self, uid: str, name: str, config: Config, base_url: str, created_ms: int, generation: int) -> None:
        self.uid = uid
        """Of this life of the id: a subscription that is deleted and created again is another one."""
        self.id = name
        self.config = config
        self.base_url = base_url
        self.created_ms = created_ms
        self.generation = generation
        self.wake: Wake | None = None
        self.failures = 0
        """Deliveries of the present wake that failed."""
        self.retry_at_ms = 0
        self.complete = config.pattern is None
        """False while streams that existed before it are still being linked."""
        self.links: dict[str, Link] = {}
        self.pending: dict[str, None] = {}
        """Linked streams with records after the cursor, the longest waiting first."""

    @property
    def leased(self) -> bool:
        return self.wake is not None and self.wake.lease_until_ms is not None


# ---- events -----------------------------------------------------------------------------------------------------

LinkRow = tuple[str, int, int]
"""(path, sid, acked)"""
AckRow = tuple[str, int, bool]
"""(path, offset, whether work is left behind it)"""


class Created(msgspec.Struct, frozen=True, array_like=True, tag="created"):
    uid: str
    id: str
    config: Config
    base_url: str
    generation: int
    links: list[LinkRow]


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    uid: str


class Linked(msgspec.Struct, frozen=True, array_like=True, tag="linked"):
    uid: str
    links: list[LinkRow]
    explicit: bool = False
    complete: bool = False
    """True on the last of the events that link what existed before the subscription."""


class Unlinked(msgspec.Struct, frozen=True, array_like=True, tag="unlinked"):
    """An explicit link was taken back; where the pattern matches the stream stays linked."""

    uid: str
    path: str
    matched: bool


class Lost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """The stream was deleted."""

    uid: str
    path: str


class Woken(msgspec.Struct, frozen=True, array_like=True, tag="woken"):
    uid: str
    wake_id: str
    stream: str


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag="claimed"):
    uid: str
    holder: str


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag="delivered"):
    uid: str


class Postponed(msgspec.Struct, frozen=True, array_like=True, tag="postponed"):
    """A delivery failed and is tried again later."""

    uid: str
    retry_at_ms: int


class Acked(msgspec.Struct, frozen=True, array_like=True, tag="acked"):
    """Cursors moved, or a worker merely said that it lives; either renews the lease."""

    uid: str
    acks: list[AckRow]


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The wake is over: done, released, its lease passed, or nothing was left to do."""

    uid: str
    acks: list[AckRow] = []


Change = Linked | Unlinked | Lost | Woken | Claimed | Delivered | Postponed | Acked | Ended
Event = Created | Removed | Change


# ---- what the outside asks --------------------------------------------------------------------------------------


class Shown(msgspec.Struct, frozen=True):
    """What a worker shows to prove that a wake is its own."""

    token_holds: bool
    wake_id: str | None
    generation: int | None


def wake(sub: Subscription, wake_id: str) -> Woken | None:
    """A new wake-up, when there is work and nobody has been called for it."""
    if sub.wake is not None or not sub.pending:
        return None
    return Woken(sub.uid, wake_id, next(iter(sub.pending)))


def claim(sub: Subscription, worker: str, wake_id: str, now_ms: int) -> list[Change]:
    """`worker` takes the lease. `wake_id` names the wake-up that has to be made when there is none yet."""
    if sub.config.kind != PULL_WAKE:
        raise BadSubscription("only a pull-wake subscription is claimed")
    events: list[Change] = []
    current = sub.wake
    if current is not None and current.lease_until_ms is not None:
        if not lease_over(sub, now_ms):
            raise AlreadyClaimed(current.holder or "", sub.generation)
        events.append(Ended(sub.uid))
        current = None
    if not sub.pending:
        raise NoPendingWork
    if current is None:
        events.append(Woken(sub.uid, wake_id, next(iter(sub.pending))))
    events.append(Claimed(sub.uid, worker))
    return events


def acknowledge(
    sub: Subscription, shown: Shown, acks: list[tuple[str, int]], done: bool, tail: Tail, now_ms: int
) -> Acked | Ended:
    """All of `acks` count, or none does. Raises Fenced, BadAck."""
    fence(sub, shown, now_ms)
    reached: dict[str, int] = {}
    for path, offset in acks:
        link = sub.links.get(path)
        if link is None:
            raise BadAck(f"{path!r} is not linked to this subscription")
        if offset < link.acked:
            raise BadAck(f"offset {offset} of {path!r} lies before the cursor {link.acked}")
        if offset > max(tail(path, link.sid), link.acked):
            raise BadAck(f"offset {offset} of {path!r} lies beyond the tail")
        reached[path] = max(offset, reached.get(path, 0))
    rows = [(path, offset, tail(path, sub.links[path].sid) > offset) for path, offset in reached.items()]
    return Ended(sub.uid, rows) if done else Acked(sub.uid, rows)


def release(sub: Subscription, shown: Shown, now_ms: int) -> Ended:
    fence(sub, shown, now_ms)
    return Ended(sub.uid)


def fence(sub: Subscription, shown: Shown, now_ms: int) -> None:
    """Raises Fenced unless the wake is the worker's own and its lease runs."""
    current = sub.wake
    if current is None or not shown.token_holds:
        raise Fenced
    if shown.wake_id != current.wake_id or shown.generation != sub.generation:
        raise Fenced
    if sub.config.kind == PULL_WAKE and current.holder is None:
        raise Fenced
    if current.lease_until_ms is not None and lease_over(sub, now_ms):
        raise Fenced


def expire(sub: Subscription, now_ms: int) -> Ended | None:
    return Ended(sub.uid) if lease_over(sub, now_ms) else None


def lease_over(sub: Subscription, now_ms: int) -> bool:
    """True when there is a lease, and its time has passed."""
    until_ms = None if sub.wake is None else sub.wake.lease_until_ms
    return until_ms is not None and _come(until_ms, sub.config.lease_ms, now_ms)


def retry_due(sub: Subscription, now_ms: int) -> bool:
    """True when a delivery failed, and may be tried again."""
    return sub.retry_at_ms > 0 and _come(sub.retry_at_ms, RETRY_MS_MAX + RETRY_MS_MAX // 5, now_ms)


def _come(at_ms: int, ahead_ms: int, now_ms: int) -> bool:
    """Whether a moment has come that was set `ahead_ms` before, at most.

    One that lies further ahead was set by a clock that was wrong, perhaps of another node: nobody waits for it."""
    return now_ms >= at_ms or at_ms > now_ms + ahead_ms + CLOCK_STEP_MS_MAX


def abandon(sub: Subscription) -> Ended | None:
    """A wake that nobody took up ends when its work has gone: the next work must be able to wake again."""
    if sub.wake is None or sub.leased or sub.pending:
        return None
    return Ended(sub.uid)


def delivered(sub: Subscription, wake_id: str, done: bool, told: list[LinkRow], tail: Tail) -> Delivered | Ended | None:
    """A webhook took the wake. `told` is what it was told of: path, sid and tail; `done` acknowledges exactly that."""
    if sub.wake is None or sub.wake.wake_id != wake_id:
        return None
    if not done:
        return None if sub.leased else Delivered(sub.uid)
    rows: list[AckRow] = []
    for path, sid, offset in told:
        link = sub.links.get(path)
        if link is not None and link.sid == sid and offset >= link.acked:
            rows.append((path, offset, tail(path, sid) > offset))
    return Ended(sub.uid, rows)


def failed(sub: Subscription, wake_id: str, now_ms: int, jitter: int) -> Postponed | None:
    """A delivery failed. None when the wake is over, or when its receiver has called back meanwhile."""
    if sub.wake is None or sub.wake.wake_id != wake_id or sub.leased:
        return None
    return Postponed(sub.uid, now_ms + retry_delay_ms(sub.failures + 1, jitter))


def retry_delay_ms(failures: int, jitter: int) -> int:
    """1 s after the first failure, doubling to 60 s; `jitter` in [0, JITTER_STEPS] makes that 20% less to 20% more."""
    base_ms = min(RETRY_MS_FIRST << min(failures - 1, 6), RETRY_MS_MAX)
    return base_ms + base_ms * (2 * jitter - JITTER_STEPS) // (5 * JITTER_STEPS)


def unlink(sub: Subscription, path: str) -> Unlinked | None:
    link = sub.links.get(path)
    if link is None or not link.explicit:
        return None
    return Unlinked(sub.uid, path, link.sid != 0 and covers(sub.config, path))


def next_at_ms(sub: Subscription, now_ms: int) -> int | None:
    """When the subscription wants to be looked at although nothing happened: a lease passes, a retry is due."""
    current = sub.wake
    if current is None:
        return None
    if current.lease_until_ms is not None:
        return now_ms if lease_over(sub, now_ms) else current.lease_until_ms
    return now_ms if retry_due(sub, now_ms) else sub.retry_at_ms or None


# ---- what is true afterwards ------------------------------------------------------------------------------------


def born(event: Created, at_ms: int) -> Subscription:
    sub = Subscription(event.uid, event.id, event.config, event.base_url, at_ms, event.generation)
    for path, sid, acked in event.links:
        sub.links[path] = Link(sid, acked, True)
    return sub


def evolve(sub: Subscription, event: Change, at_ms: int) -> None:
    """Makes `event` true. The fold of all events, in order, is the state."""
    if isinstance(event, Linked):
        for path, sid, acked in event.links:
            _link(sub, path, sid, acked, event.explicit)
        sub.complete = sub.complete or event.complete
    elif isinstance(event, Unlinked):
        link = sub.links[event.path]
        link.explicit = False
        if not event.matched:
            _drop(sub, event.path)
    elif isinstance(event, Lost):
        link = sub.links[event.path]
        if link.explicit:
            link.sid = link.acked = 0
            sub.pending.pop(event.path, None)
        else:
            _drop(sub, event.path)
    elif isinstance(event, Woken):
        sub.generation += 1
        sub.wake = Wake(event.wake_id, event.stream, at_ms)
    elif isinstance(event, Claimed):
        sub.wake = msgspec.structs.replace(_present(sub), holder=event.holder)
        _renew(sub, at_ms)
    elif isinstance(event, Delivered):
        _renew(sub, at_ms)
    elif isinstance(event, Postponed):
        sub.failures += 1
        sub.retry_at_ms = event.retry_at_ms
    elif isinstance(event, Acked):
        _ack(sub, event.acks)
        _renew(sub, at_ms)
    elif isinstance(event, Ended):
        _ack(sub, event.acks)
        sub.wake = None
        sub.failures = sub.retry_at_ms = 0
    else:
        assert_never(event)


def _link(sub: Subscription, path: str, sid: int, acked: int, explicit: bool) -> None:
    link = sub.links.get(path)
    if link is None:
        sub.links[path] = Link(sid, acked, explicit)
        return
    link.explicit = link.explicit or explicit
    if link.sid != sid:
        link.sid, link.acked = sid, acked
        sub.pending.pop(path, None)


def _drop(sub: Subscription, path: str) -> None:
    del sub.links[path]
    sub.pending.pop(path, None)


def _present(sub: Subscription) -> Wake:
    if sub.wake is None:
        raise RuntimeError(f"subscription {sub.id} has no wake to change")
    return sub.wake


def _renew(sub: Subscription, at_ms: int) -> None:
    sub.wake = msgspec.structs.replace(_present(sub), lease_until_ms=at_ms + sub.config.lease_ms)
    sub.failures = sub.retry_at_ms = 0


def _ack(sub: Subscription, acks: Iterable[AckRow]) -> None:
    for path, offset, more in acks:
        link = sub.links[path]
        link.acked = max(link.acked, offset)
        if not more:
            sub.pending.pop(path, None)


def touched(event: Change) -> list[str]:
    """The links that an event may have changed."""
    if isinstance(event, Linked):
        return [path for path, _, _ in event.links]
    if isinstance(event, Unlinked | Lost):
        return [event.path]
    if isinstance(event, Acked | Ended):
        return [path for path, _, _ in event.acks]
    return []


# ---- names ------------------------------------------------------------------------------------------------------


def path_of(key: str) -> str:
    """A stream's path below /v1/stream/, which is how subscriptions name it."""
    bucket, _, name = key.partition("/")
    return name if bucket == DEFAULT_BUCKET and "/" not in name else key


def key_of(path: str) -> str:
    return path if "/" in path else f"{DEFAULT_BUCKET}/{path}"


def reserved(path: str) -> bool:
    return path == RESERVED or path.startswith(RESERVED + "/")


def covers(config: Config, path: str) -> bool:
    """Whether the pattern takes in the stream. A subscription's own wake-ups are no work for it."""
    return config.pattern is not None and path != config.wake_stream and glob.matches(config.pattern, path)


def digest(
    kind: str,
    pattern: str | None,
    streams: Iterable[str],
    url: str | None,
    wake_stream: str | None,
    lease_ms: int,
    description: str | None,
) -> str:
    """Two requests ask for the same subscription exactly when these are equal."""
    facts = (kind, pattern, sorted(set(streams)), url, wake_stream, lease_ms, description)
    return sha256(msgspec.json.encode(facts)).hexdigest()
