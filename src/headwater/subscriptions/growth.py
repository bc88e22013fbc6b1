"""What streams tell subscriptions: that they grew, or are gone, in this process or another.

Owns what follows for every subscription that a stream belongs to. Never asks another process: `neighbours` does.
"""

from __future__ import annotations

from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import GroupMoved, LogUnavailable
from headwater.model import subscriptions as model
from headwater.model.subscriptions import Link, Subscription
from headwater.subscriptions.hints import Hint
from headwater.subscriptions.local_streams import Row
from headwater.subscriptions.wakes import Wakes

MEMBERS_KEPT_MAX = 100_000


class Growth:
    """An `Observer` of all groups of this process."""

    def __init__(self, wakes: Wakes, groups_count: int) -> None:
        self._wakes = wakes
        self._index = wakes.index
        self._groups_count = groups_count
        self._members: dict[int, tuple[int, str, list[Subscription]]] = {}
        """By sid: version of the index, path, subscriptions. Overflow: all are forgotten."""

    # ---- streams of this process --------------------------------------------------------------------------------

    def grown(self, stream: LoadedStream, start: int) -> None:
        index = self._index
        if not index.by_uid:
            return
        known = self._members.get(stream.sid)
        if known is None or known[0] != index.version:
            path = model.path_of(stream.key)
            known = (index.version, path, index.members(path))
            if len(self._members) >= MEMBERS_KEPT_MAX:
                self._members.clear()
            self._members[stream.sid] = known
        for sub in known[2]:
            # One it is not linked to yet is older than the stream, unless the walk is still to come by.
            self._grew(sub, known[1], stream.sid, stream.fork_at if sub.complete else start)

    def deleted(self, stream: LoadedStream) -> None:
        self._members.pop(stream.sid, None)
        self.lost(model.path_of(stream.key), stream.sid)

    def pass_ended(self) -> None:
        """Nothing waits for the end of a pass: `grown` has left its work to a turn of its own."""

    def left(self) -> None:
        """Whoever serves the group now tells of its streams."""

    # ---- streams of any process ---------------------------------------------------------------------------------

    def heard(self, hint: Hint) -> None:
        """Another process says that a stream grew or is gone. It may have said so before."""
        if hint.deleted:
            self.lost(hint.path, hint.sid)
            return
        for sub in self._index.members(hint.path):
            link = sub.links.get(hint.path)
            if self._is_new(link, hint.sid):
                self._grew(sub, hint.path, hint.sid, hint.fork_at if sub.complete else hint.start)
            elif link is not None and link.sid == hint.sid and hint.tail > link.acked:
                self._grew(sub, hint.path, hint.sid, 0)

    def recall(self, row: Row) -> None:
        """A stream as it was found: what it did while nobody told of it is made up for."""
        path, sid, tail, fork_at = row
        for sub in self._index.members(path):
            link = sub.links.get(path)
            if link is None and not sub.complete:
                continue  # the walk comes to it
            if self._is_new(link, sid):
                if tail > fork_at:
                    self._grew(sub, path, sid, fork_at)
            elif link is not None and link.sid == sid and tail > link.acked and path not in sub.pending:
                self._grew(sub, path, sid, 0)

    def lost(self, path: str, sid: int) -> None:
        """The stream is gone."""
        for sub in self._index.members(path):
            link = sub.links.get(path)
            if link is not None and link.sid == sid:
                self._wakes.try_note(model.Lost(sub.uid, path))
                self._wakes.try_note(model.abandon(sub))

    def _is_new(self, link: Link | None, sid: int) -> bool:
        """Whether the link does not know that stream yet. Ids of one group grow: a smaller one was there before."""
        if link is None:
            return True
        return link.sid != sid and (link.sid < sid or link.sid % self._groups_count != sid % self._groups_count)

    def _grew(self, sub: Subscription, path: str, sid: int, linked_at: int) -> None:
        try:
            link = sub.links.get(path)
            if link is None or link.sid != sid:
                self._wakes.note(model.Linked(sub.uid, [(path, sid, linked_at)]))
        except (LogUnavailable, GroupMoved):
            return
        if path not in sub.pending:
            self._wakes.registry(sub.id).grew(sub, path)
        if sub.wake is None:
            self._wakes.look_later(sub)
