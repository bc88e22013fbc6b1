"""The registry's fold: what a checkpoint wrote plus what the log says since is what the live registry holds.
It owns random histories of events; it never opens a log or a catalog."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.model import subscriptions as model
from headwater.model.subscriptions import PULL_WAKE, WEBHOOK, Config, Subscription
from headwater.subscriptions import registry as module
from headwater.subscriptions.registry import Registry, encode

IDS = ["one", "two/with slash"]
PATHS = ["events/a", "events/b", "named", "wake/one"]
KINDS = ["create", "remove", "link", "name", "unname", "lose", "grow", "wake", "lease", "ack", "end", "fail"]

steps = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(IDS),
        st.sampled_from(PATHS),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=60,
)


class History:
    """A live registry, the rows that checkpoints left, and the events since."""

    def __init__(self) -> None:
        self.live = Registry()
        self.rows: dict[str, bytes] = {}
        self.since: list[tuple[bytes, int]] = []
        self.lives = 0
        self.now = 0

    def happen(self, event: model.Event | None) -> None:
        if event is not None:
            body = encode(event)
            self.since.append((body, self.now))
            self.live.apply(body, self.now, self.now)

    def checkpoint(self, fails: bool) -> None:
        changes = self.live.changes()
        if fails:
            self.live.retry(changes)
            return
        for name, row in changes.items():
            if row is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = row
        self.since.clear()

    def recovered(self) -> Registry:
        other = Registry()
        other.restore(dict(sorted(self.rows.items())))
        for body, at_ms in self.since:
            other.apply(body, at_ms, at_ms)
        return other

    def step(self, kind: str, name: str, path: str, number: int, flag: bool) -> None:
        self.now += 1
        sub = self.live.by_id.get(name)
        if sub is None:
            if kind == "create":
                self.lives += 1
                pattern = "events/*" if flag else None
                type_ = WEBHOOK if number % 2 else PULL_WAKE
                config = Config(type_, pattern, "u", "wake/one", 1_000, None, str(number))
                links = [(path, number, number)]
                event = model.Created(f"uid{self.lives}", name, config, "http://h", self.live.generation(name), links)
                self.happen(event)
            return
        self.happen(self.event(kind, sub, path, number, flag))
        if kind == "grow" and path in sub.links:
            self.live.grew(sub, path)

    def event(self, kind: str, sub: Subscription, path: str, number: int, flag: bool) -> model.Event | None:
        uid = sub.uid
        if kind == "remove":
            return model.Removed(uid)
        if kind == "link":
            return model.Linked(uid, [(path, number, number)], complete=flag)
        if kind == "name":
            return model.Linked(uid, [(path, number, number)], explicit=True)
        if kind == "unname":
            return model.unlink(sub, path)
        if kind == "lose" and path in sub.links:
            return model.Lost(uid, path)
        if kind == "wake":
            return model.wake(sub, f"w_{self.now}")
        if sub.wake is None:
            return None
        acks = [(path, number, flag)] if path in sub.links else []
        if kind == "lease":
            return model.Claimed(uid, "worker") if flag else model.Delivered(uid)
        if kind == "ack":
            return model.Acked(uid, acks)
        if kind == "end":
            return model.Ended(uid, acks)
        if kind == "fail":
            return model.failed(sub, sub.wake.wake_id, self.now, number)
        return None


def dump(registry: Registry, pending: bool) -> object:
    def one(sub: Subscription) -> object:
        links = {path: (link.sid, link.acked, link.explicit) for path, link in sub.links.items()}
        facts = (sub.uid, sub.config, sub.base_url, sub.created_ms, sub.generation, sub.wake, sub.failures)
        return facts, sub.retry_at_ms, sub.complete, links, set(sub.pending) if pending else None

    subs = {name: one(sub) for name, sub in registry.by_id.items()}
    members = {path: {sub.id for sub in registry.index.members(path)} for path in PATHS}
    return subs, members, {name: registry.generation(name) for name in IDS}, set(registry.index.by_uid)


@given(steps, st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=6))
def test_rows_and_later_events_rebuild_the_live_registry(ops: list, checkpoints: list[tuple[int, bool]]) -> None:
    history = History()
    due = dict(checkpoints)
    for number, op in enumerate(ops):
        if number in due:
            history.checkpoint(fails=due[number])
        history.step(*op)
    assert dump(history.recovered(), pending=False) == dump(history.live, pending=False)
    history.checkpoint(fails=False)
    # Growth is no event of its own: what rows say of it is complete as soon as a checkpoint took it.
    assert dump(history.recovered(), pending=True) == dump(history.live, pending=True)


@given(steps)
def test_an_acknowledgement_rewrites_its_own_links_and_no_others(ops: list) -> None:
    history = History()
    for op in ops:
        history.step(*op)
    for sub in history.live.by_id.values():
        if sub.wake is None or not sub.links:
            continue
        history.live.changes()
        path = next(iter(sub.links))
        history.happen(model.Acked(sub.uid, [(path, 100, False)]))
        assert set(history.live.changes()) == {f"s/{sub.id}", f"l/{sub.uid}/{path}"}


def test_the_oldest_tombstones_are_forgotten_beyond_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(module, "TOMBSTONES_MAX", 2)
    registry = Registry()
    config = Config(WEBHOOK, None, "u", None, 1_000, None, "d")
    for number in range(4):
        registry.apply(encode(model.Created(f"u{number}", f"s{number}", config, "b", 9, [])), number, number)
        registry.apply(encode(model.Removed(f"u{number}")), number, number)
    assert [registry.generation(f"s{number}") for number in range(4)] == [0, 0, 9, 9]
    assert {name for name, row in registry.changes().items() if name.startswith("t/") and row} == {"t/s2", "t/s3"}
