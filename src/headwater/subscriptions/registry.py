"""The subscriptions of a group, as its log and catalog keep them, and the search over those of all groups of a process.

Owns the fold of subscription events, the rows of a checkpoint and the search for a stream's subscriptions. Never
decides and never acts: the manager does both.

Rows in the catalog, msgpack arrays, by name:

    s/<id>           uid, config, base url, created ms, generation, wake, failures, retry at ms, complete
    l/<uid>/<path>   sid, acked offset, explicit, pending
    t/<id>           generation, deleted ms          (a deleted subscription)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from headwater.engine.row_changes import RowChanges
from headwater.model import subscriptions as model
from headwater.model.glob import Patterns
from headwater.model.subscriptions import Config, Link, Subscription, Wake

TOMBSTONES_MAX = 100_000
"""Ids whose generations go on where they ended when the id is used again. Overflow: the oldest are forgotten, and only
that is lost: their tokens and wake ids stay void."""

_SubscriptionRow = tuple[str, Config, str, int, int, Wake | None, int, int, bool]
_LinkRow = tuple[int, int, bool, bool]
_TombstoneRow = tuple[int, int]

_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(model.Event).decode
_decode_subscription = msgspec.msgpack.Decoder(_SubscriptionRow).decode
_decode_link = msgspec.msgpack.Decoder(_LinkRow).decode
_decode_tombstone = msgspec.msgpack.Decoder(_TombstoneRow).decode


def encode(event: model.Event) -> bytes:
    return _encode(event)


Interest = tuple[bool, str]
"""What a subscription wants to hear of: (True, a pattern), or (False, the path of one stream)."""


class Index:
    """Finds subscriptions of several groups by uid, and by what they want to hear of."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Subscription] = {}
        self.version = 0
        """Grows whenever the answer of `members` may change."""
        self.patterns: Counter[str] = Counter()
        """How many subscriptions have each pattern."""
        self._patterns = Patterns()
        self._explicit: dict[str, set[str]] = {}
        """By path: the subscriptions that name it."""

    def members(self, path: str) -> list[Subscription]:
        """The subscriptions that a stream belongs to, linked to it already or not."""
        if model.reserved(path):
            return []
        named = self._explicit.get(path, set())
        matched = {uid for uid in self._patterns.matching(path) if self.by_uid[uid].config.wake_stream != path}
        return [self.by_uid[uid] for uid in matched | named]

    def holds(self, sub: Subscription) -> bool:
        """Whether it is this very one that is at work here. A group that left and came back brings its subscriptions
        anew: what was begun for the one before has no effect."""
        return self.by_uid.get(sub.uid) is sub

    def wanting(self, interest: Interest) -> list[str]:
        """Uids of the subscriptions that want to hear of exactly that."""
        is_pattern, text = interest
        if not is_pattern:
            return list(self._explicit.get(text, ()))
        return [uid for uid, sub in self.by_uid.items() if sub.config.pattern == text]

    def interests(self) -> Iterator[Interest]:
        for pattern in self.patterns:
            yield True, pattern
        for path in self._explicit:
            yield False, path

    def wants(self, interest: Interest) -> bool:
        is_pattern, text = interest
        return text in (self.patterns if is_pattern else self._explicit)

    def admit(self, sub: Subscription) -> None:
        self.by_uid[sub.uid] = sub
        if sub.config.pattern is not None:
            self.patterns[sub.config.pattern] += 1
            self._patterns.add(sub.config.pattern, sub.uid)
        for path, link in sub.links.items():
            if link.explicit:
                self.name(path, sub.uid)
        self.version += 1

    def remove(self, sub: Subscription) -> None:
        del self.by_uid[sub.uid]
        pattern = sub.config.pattern
        if pattern is not None:
            self._patterns.remove(pattern, sub.uid)
            self.patterns[pattern] -= 1
            if not self.patterns[pattern]:
                del self.patterns[pattern]
        for path in sub.links:
            self.disown(path, sub.uid)
        self.version += 1

    def name(self, path: str, uid: str) -> None:
        self._explicit.setdefault(path, set()).add(uid)
        self.version += 1

    def disown(self, path: str, uid: str) -> None:
        named_by = self._explicit.get(path)
        if named_by is not None:
            named_by.discard(uid)
            if not named_by:
                del self._explicit[path]
        self.version += 1


class Registry(RowChanges):
    """The `Domain` of subscriptions in one group."""

    name = "subscriptions"
    in_memory = True

    def __init__(self, index: Index | None = None) -> None:
        super().__init__()
        self.by_id: dict[str, Subscription] = {}
        self.index = Index() if index is None else index
        """Shared by the registries of the groups that a process serves. One that it only follows has its own: nothing
        wakes its subscriptions."""
        self._tombstones: dict[str, _TombstoneRow] = {}
        # Rows are encoded when they change, not when they are asked for: a checkpoint must not stall the loop.

    def named_by(self, path: str) -> list[str]:
        """Ids of the subscriptions that name a stream, whether or not it is there."""
        return sorted(
            sub.id
            for sub in self.by_id.values()
            if path in (sub.config.pattern, sub.config.wake_stream) or path in sub.links
        )

    def generation(self, name: str) -> int:
        """The last generation of an id that was deleted; 0 when it was never used."""
        return self._tombstones.get(name, (0, 0))[0]

    def move(self, index: Index) -> None:
        """From now on its subscriptions are found in that index, and no longer in the one before."""
        for sub in self.by_id.values():
            self.index.remove(sub)
            index.admit(sub)
        self.index = index

    def grew(self, sub: Subscription, path: str) -> None:
        """A linked stream has records after its cursor, and did not before."""
        sub.pending[path] = None
        self._put_link(sub, path)

    # ---- the Domain ---------------------------------------------------------------------------------------------

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        event = _decode_event(body)
        if isinstance(event, model.Created):
            sub = model.born(event, at_ms)
            self._admit(sub)
            if self._tombstones.pop(sub.id, None) is not None:
                self._changes[f"t/{sub.id}"] = None
            for path in sub.links:
                self._put_link(sub, path)
            self._put(sub)
            return
        sub = self.index.by_uid[event.uid]
        if isinstance(event, model.Removed):
            self._remove(sub, at_ms)
            return
        paths = model.touched(event)
        explicit_before = [path for path in paths if (link := sub.links.get(path)) and link.explicit]
        model.evolve(sub, event, at_ms)
        if isinstance(event, model.Linked | model.Unlinked | model.Lost):
            self._name(sub, paths, explicit_before)
        for path in paths:
            self._put_link(sub, path)
        self._put(sub)

    def restore(self, things: dict[str, bytes]) -> None:
        links: dict[str, list[tuple[str, bytes]]] = {}
        buried: list[tuple[str, _TombstoneRow]] = []
        for name, row in things.items():
            kind, _, rest = name.partition("/")
            if kind == "s":
                uid, config, base_url, created_ms, generation, *rest_of_row = _decode_subscription(row)
                sub = Subscription(uid, rest, config, base_url, created_ms, generation)
                sub.wake, sub.failures, sub.retry_at_ms, sub.complete = rest_of_row
                self._admit(sub)
            elif kind == "l":
                uid, _, path = rest.partition("/")
                links.setdefault(uid, []).append((path, row))
            else:
                buried.append((rest, _decode_tombstone(row)))
        for uid, rows in links.items():
            sub = self.index.by_uid[uid]
            for path, row in rows:
                sid, acked, explicit, pending = _decode_link(row)
                sub.links[path] = Link(sid, acked, explicit)
                if explicit:
                    self.index.name(path, uid)
                if pending:
                    sub.pending[path] = None
        self._tombstones = dict(sorted(buried, key=lambda entry: entry[1][1]))

    # ---- inside -------------------------------------------------------------------------------------------------

    def _admit(self, sub: Subscription) -> None:
        self.by_id[sub.id] = sub
        self.index.admit(sub)

    def _remove(self, sub: Subscription, at_ms: int) -> None:
        del self.by_id[sub.id]
        self.index.remove(sub)
        for path in sub.links:
            self._changes[f"l/{sub.uid}/{path}"] = None
        self._changes[f"s/{sub.id}"] = None
        self._tombstones[sub.id] = tombstone = (sub.generation, at_ms)
        self._changes[f"t/{sub.id}"] = _encode(tombstone)
        if len(self._tombstones) > TOMBSTONES_MAX:
            oldest = next(iter(self._tombstones))
            del self._tombstones[oldest]
            self._changes[f"t/{oldest}"] = None

    def _name(self, sub: Subscription, paths: list[str], explicit_before: list[str]) -> None:
        before = set(explicit_before)
        for path in paths:
            link = sub.links.get(path)
            explicit = link is not None and link.explicit
            if explicit and path not in before:
                self.index.name(path, sub.uid)
            elif not explicit and path in before:
                self.index.disown(path, sub.uid)

    def _put(self, sub: Subscription) -> None:
        row: _SubscriptionRow = (
            sub.uid,
            sub.config,
            sub.base_url,
            sub.created_ms,
            sub.generation,
            sub.wake,
            sub.failures,
            sub.retry_at_ms,
            sub.complete,
        )
        self._changes[f"s/{sub.id}"] = _encode(row)

    def _put_link(self, sub: Subscription, path: str) -> None:
        link = sub.links.get(path)
        row: bytes | None = None
        if link is not None:
            row = _encode((link.sid, link.acked, link.explicit, path in sub.pending))
        self._changes[f"l/{sub.uid}/{path}"] = row
