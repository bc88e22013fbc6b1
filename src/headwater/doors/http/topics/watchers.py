"""Who waits for topics to grow: long-polls and tails, told when it is their topic's turn.

Owns one follower for each topic that is waited for, however many wait. Never reads records and never writes to a
socket: whoever waits does, when it is told.

    a topic grows -> mark(topic, priority, deliver) -> deliver: those who wait for it are told, some at a time

`topics.delivery` calls them in the order of the topics' priorities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.topics.priorities import Priorities

TURN_WATCHERS = 64
"""Told in one delivery. The others are told in another turn of the topic, with other topics in between."""


class Deliveries(Protocol):
    """When topics that have grown are delivered to those who wait for them."""

    def mark(self, id: Hashable, priority: int, deliver: Callable[[], object]) -> None:
        """The topic has grown: `deliver` is called once, for this mark and all others until then."""
        ...

    def discard(self, id: Hashable) -> None:
        """The topic is gone, or nobody waits for it any more."""
        ...


class Watcher(Protocol):
    """Someone who waits. None of these may raise."""

    def grown(self, stream: LoadedStream) -> None:
        """There may be more records, or the topic was closed."""
        ...

    def gone(self, stream: LoadedStream) -> None:
        """The topic was deleted; it is not waited for any more."""
        ...

    def left(self, stream: LoadedStream) -> None:
        """Another process serves the topic from now on; it is not waited for here any more."""
        ...


class Watchers:
    def __init__(self, engine: Engine, deliveries: Deliveries, priorities: Priorities) -> None:
        self._engine = engine
        self.deliveries = deliveries
        self.priorities = priorities
        self.now_s = engine.clock.monotonic_s
        self.waited_s = 0.0
        """While watchers are told that a topic has grown: how long it has waited for its turn."""
        self._watched: dict[int, _Watched] = {}
        """By sid."""

    def watch(self, stream: LoadedStream, watcher: Watcher) -> None:
        """Raises NotServedHere when the topic's group has left."""
        watched = self._watched.get(stream.sid)
        if watched is None or watched.stream is not stream:
            watched = _Watched(self, stream)
            self._engine.follow(stream, watched)
            self._watched[stream.sid] = watched
        watched.watchers[watcher] = None

    def unwatch(self, stream: LoadedStream, watcher: Watcher) -> None:
        watched = self._watched.get(stream.sid)
        if watched is not None and watched.stream is stream:
            watched.watchers.pop(watcher, None)
            if not watched.watchers:
                self._engine.unfollow(stream, watched)
                self._forget(watched)

    def _forget(self, watched: _Watched) -> None:
        if self._watched.get(watched.stream.sid) is watched:
            del self._watched[watched.stream.sid]
            self.deliveries.discard(watched.stream.sid)


class _Watched:
    """One topic that is waited for. A Follower."""

    __slots__ = ("_grown_again", "_marked_s", "_owner", "_untold", "stream", "watchers")

    def __init__(self, owner: Watchers, stream: LoadedStream) -> None:
        self._owner = owner
        self.stream = stream
        self.watchers: dict[Watcher, None] = {}
        """In the order they came: the first is told first."""
        self._untold: deque[Watcher] = deque()
        """Those of a delivery that are not told yet."""
        self._grown_again = False
        """Since the first of them were told."""
        self._marked_s = 0.0
        """When the oldest mark that is not served was made; 0.0: there is none."""

    def wake(self, stream: LoadedStream) -> None:
        if self._untold:
            self._grown_again = True
        self._mark()

    def _mark(self) -> None:
        owner = self._owner
        if not self._marked_s:
            self._marked_s = owner.now_s()
        owner.deliveries.mark(self.stream.sid, owner.priorities.of(self.stream), self._deliver)

    def _deliver(self) -> None:
        owner, untold = self._owner, self._untold
        waited_s, self._marked_s = max(owner.now_s() - self._marked_s, 0.0), 0.0
        if not untold:
            untold.extend(self.watchers)
        for _ in range(min(len(untold), TURN_WATCHERS)):
            watcher = untold.popleft()
            if watcher in self.watchers:
                owner.waited_s = waited_s
                watcher.grown(self.stream)
        more = bool(untold) or self._grown_again
        if not untold:
            self._grown_again = False
        if more and self.watchers:
            self._mark()

    def gone(self, stream: LoadedStream) -> None:
        self._owner._forget(self)
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.gone(stream)

    def left(self, stream: LoadedStream) -> None:
        self._owner._forget(self)
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.left(stream)
