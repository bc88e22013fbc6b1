"""Who waits for topics to grow: long-polls and tails, told when it is their topic's turn.

Owns one follower for each topic that is waited for, however many wait. Never reads records and never writes to a
socket: whoever waits does, when it is told.

    a topic grows -> mark(topic, priority, deliver) -> deliver: everybody who waits for it is told

`AtOnce` delivers without an order. Something that serves dirty topics by their priority takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream


class Deliveries(Protocol):
    """When topics that have grown are delivered to those who wait for them."""

    def mark(self, id: Hashable, priority: int, deliver: Callable[[], object]) -> None:
        """The topic has grown: `deliver` is called once, for this mark and all others until then."""
        ...

    def discard(self, id: Hashable) -> None:
        """The topic is gone, or nobody waits for it any more."""
        ...


class AtOnce:
    def mark(self, id: Hashable, priority: int, deliver: Callable[[], object]) -> None:
        deliver()

    def discard(self, id: Hashable) -> None: ...


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
    def __init__(self, engine: Engine, deliveries: Deliveries) -> None:
        self._engine = engine
        self.deliveries = deliveries
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

    __slots__ = ("_owner", "stream", "watchers")

    def __init__(self, owner: Watchers, stream: LoadedStream) -> None:
        self._owner = owner
        self.stream = stream
        self.watchers: dict[Watcher, None] = {}
        """In the order they came: the first is told first."""

    def wake(self, stream: LoadedStream) -> None:
        topic = stream.topic
        self._owner.deliveries.mark(stream.sid, 0 if topic is None else topic.priority, self._deliver)

    def _deliver(self) -> None:
        for watcher in list(self.watchers):
            watcher.grown(self.stream)

    def gone(self, stream: LoadedStream) -> None:
        self._owner._forget(self)
        for watcher in list(self.watchers):
            watcher.gone(stream)

    def left(self, stream: LoadedStream) -> None:
        self._owner._forget(self)
        for watcher in list(self.watchers):
            watcher.left(stream)
