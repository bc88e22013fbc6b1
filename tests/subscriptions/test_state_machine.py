"""One subscription's decisions beside a slow model that spells the protocol's rules out, under Hypothesis.
It owns that model; it never touches a clock, a log or a socket."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.errors import AlreadyClaimed, BadAck, Failure, Fenced, NoPendingWork
from headwater.model import subscriptions as model
from headwater.model.subscriptions import PULL_WAKE, WEBHOOK, Config, Created, Shown, Subscription, born, evolve

LEASE_MS = 1_000
PATHS = ["events/a", "events/b", "events/c"]
MOSTLY = st.sampled_from([True] * 5 + [False])
SELDOM = st.sampled_from([False] * 5 + [True])


@dataclass
class Slow:
    """What the protocol says, in the plainest words."""

    kind: str
    tails: dict[str, int] = field(default_factory=dict)
    sids: dict[str, int] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    generation: int = 0
    wake_id: str | None = None
    holder: str | None = None
    lease_until: int | None = None
    failures: int = 0

    def pending(self) -> set[str]:
        return {path for path, acked in self.acked.items() if self.tails[path] > acked}

    def entitled(self, shown: Shown, now: int) -> bool:
        return (
            self.wake_id is not None
            and shown.token_holds
            and shown.wake_id == self.wake_id
            and shown.generation == self.generation
            and (self.kind == WEBHOOK or self.holder is not None)
            and (self.lease_until is None or now < self.lease_until)
        )

    def end(self) -> None:
        self.wake_id = self.holder = self.lease_until = None
        self.failures = 0


class Machine(RuleBasedStateMachine):
    kind = PULL_WAKE

    @initialize()
    def create(self) -> None:
        config = Config(self.kind, "events/*", "https://x.example/", "wake", LEASE_MS, None, "digest")
        self.sub = born(Created("uid", "sub", config, "http://here", 0, []), 0)
        self.slow = Slow(self.kind)
        self.now = 1_000
        self.wakes = 0
        self.steps = 0
        self.next_sid = 1
        self.generations: list[int] = []
        self.cursors: dict[tuple[str, int], int] = {}

    # ---- what drives both -----------------------------------------------------------------------------------

    def happen(self, event: model.Change) -> None:
        if isinstance(event, model.Woken):
            self.generations.append(self.sub.generation + 1)
        evolve(self.sub, event, self.now)

    def tail(self, path: str, sid: int) -> int:
        return self.slow.tails[path] if self.slow.sids.get(path) == sid else -1

    def fresh_id(self) -> str:
        self.wakes += 1
        return f"w_{self.wakes}"

    def refused(self, act, *expected: type[Failure]) -> None:
        before = state_of(self.sub)
        with pytest.raises(expected):
            act()
        assert state_of(self.sub) == before

    # ---- streams --------------------------------------------------------------------------------------------

    @rule(path=st.sampled_from(PATHS), size=st.integers(1, 5))
    def append(self, path: str, size: int) -> None:
        if path not in self.slow.sids:
            self.slow.sids[path] = self.next_sid
            self.slow.tails[path] = 0
            self.next_sid += 1
        start, sid = self.slow.tails[path], self.slow.sids[path]
        self.slow.tails[path] += size
        if path not in self.sub.links:
            self.happen(model.Linked("uid", [(path, sid, start)]))
            self.slow.acked[path] = start
        self.sub.pending[path] = None

    @rule(path=st.sampled_from(PATHS), really=SELDOM)
    def delete(self, path: str, really: bool) -> None:
        if not really:
            return
        if path in self.slow.sids:
            del self.slow.sids[path], self.slow.tails[path]
        if path in self.sub.links:
            self.happen(model.Lost("uid", path))
            del self.slow.acked[path]
        event = model.abandon(self.sub)
        if event is not None:
            self.happen(event)
        if self.slow.wake_id and self.slow.lease_until is None and not self.slow.pending():
            self.slow.end()

    # ---- time -----------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 10, 10, 10, 100, LEASE_MS - 1, LEASE_MS, 2 * LEASE_MS]))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule()
    def look_at_the_clock(self) -> None:
        event = model.expire(self.sub, self.now)
        if self.slow.lease_until is not None and self.now >= self.slow.lease_until:
            assert event is not None
            self.happen(event)
            self.slow.end()
        else:
            assert event is None

    # ---- wakes ----------------------------------------------------------------------------------------------

    @rule()
    def wake(self) -> None:
        wake_id = self.fresh_id()
        event = model.wake(self.sub, wake_id)
        if self.slow.wake_id is None and self.slow.pending():
            assert event is not None
            assert event.stream in self.slow.pending()
            self.happen(event)
            self.slow.generation += 1
            self.slow.wake_id = wake_id
        else:
            assert event is None

    @precondition(lambda self: self.steps % 4 == 0)
    @rule(right=SELDOM, which=st.sampled_from(["token", "wake_id", "generation"]), data=st.data())
    def release(self, right: bool, which: str, data: st.DataObject) -> None:
        shown = self.shown(right, which, data)
        if self.slow.entitled(shown, self.now):
            self.happen(model.release(self.sub, shown, self.now))
            self.slow.end()
        else:
            self.refused(lambda: model.release(self.sub, shown, self.now), Fenced)

    @precondition(lambda self: self.sub.wake is not None or self.steps % 4 == 0)
    @rule(
        right=MOSTLY,
        which=st.sampled_from(["token", "wake_id", "generation"]),
        done=SELDOM,
        near=st.lists(st.sampled_from(["before", "cursor", "after", "tail", "beyond"]), max_size=4),
        unknown=SELDOM,
        data=st.data(),
    )
    def acknowledge(
        self, right: bool, which: str, done: bool, near: list[str], unknown: bool, data: st.DataObject
    ) -> None:
        acks = [("events/none", 0)] if unknown else []
        for place in near if self.slow.acked else []:
            path = data.draw(st.sampled_from(sorted(self.slow.acked)))
            acked, tail = self.slow.acked[path], self.slow.tails[path]
            offsets = {"before": acked - 1, "cursor": acked, "after": acked + 1, "tail": tail, "beyond": tail + 1}
            acks.append((path, max(0, offsets[place])))
        shown = self.shown(right, which, data)

        def act() -> model.Acked | model.Ended:
            return model.acknowledge(self.sub, shown, acks, done, self.tail, self.now)

        if not self.slow.entitled(shown, self.now):
            self.refused(act, Fenced)
            return
        if any(
            path not in self.slow.acked or not self.slow.acked[path] <= offset <= self.slow.tails[path]
            for path, offset in acks
        ):
            self.refused(act, BadAck)
            return
        self.happen(act())
        for path, offset in acks:
            self.slow.acked[path] = max(self.slow.acked[path], offset)
        if done:
            self.slow.end()
        else:
            self.slow.lease_until = self.now + LEASE_MS
            self.slow.failures = 0

    def shown(self, right: bool, which: str, data: st.DataObject) -> Shown:
        """What belongs to the present wake, or that with one thing wrong."""
        shown = Shown(True, self.slow.wake_id, self.slow.generation)
        if right:
            return shown
        if which == "token":
            return Shown(False, shown.wake_id, shown.generation)
        if which == "wake_id":
            other = data.draw(st.sampled_from([None, "w_0", f"w_{self.wakes + 1}"]))
            return Shown(True, other, shown.generation)
        other_generation = data.draw(st.sampled_from([None, self.slow.generation - 1, self.slow.generation + 1]))
        return Shown(True, shown.wake_id, other_generation)

    # ---- what must hold after every step --------------------------------------------------------------------

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "sub"):
            return
        self.steps += 1
        sub, slow = self.sub, self.slow
        assert {path: link.acked for path, link in sub.links.items()} == slow.acked
        assert set(sub.pending) == slow.pending()
        assert sub.generation == slow.generation
        assert (sub.wake.wake_id if sub.wake else None) == slow.wake_id
        assert (sub.wake.holder if sub.wake else None) == slow.holder
        assert (sub.wake.lease_until_ms if sub.wake else None) == slow.lease_until
        assert sub.failures == slow.failures
        assert model.next_at_ms(sub, self.now) is None or slow.wake_id is not None

    @invariant()
    def generations_grow_strictly(self) -> None:
        if hasattr(self, "sub"):
            assert self.generations == list(range(1, len(self.generations) + 1))

    @invariant()
    def no_cursor_ever_moves_back(self) -> None:
        if not hasattr(self, "sub"):
            return
        for path, link in self.sub.links.items():
            assert link.acked >= self.cursors.get((path, link.sid), 0)
            self.cursors[path, link.sid] = link.acked


class PullWake(Machine):
    @precondition(lambda self: not self.sub.leased or self.steps % 3 == 0)
    @rule(worker=st.sampled_from(["worker-1", "worker-2"]))
    def claim(self, worker: str) -> None:
        wake_id = self.fresh_id()
        slow = self.slow

        def act() -> list[model.Change]:
            return model.claim(self.sub, worker, wake_id, self.now)

        held = slow.lease_until is not None and self.now < slow.lease_until
        if held:
            holder = slow.holder
            try:
                act()
            except AlreadyClaimed as refusal:
                assert (refusal.holder, refusal.generation) == (holder, slow.generation)
            self.refused(act, AlreadyClaimed)
            return
        if not slow.pending():
            self.refused(act, NoPendingWork)
            return
        if slow.lease_until is not None:
            slow.end()
        for event in act():
            self.happen(event)
        if slow.wake_id is None:
            slow.generation += 1
            slow.wake_id = wake_id
        slow.holder = worker
        slow.lease_until = self.now + LEASE_MS


class Webhook(Machine):
    kind = WEBHOOK

    @precondition(lambda self: not self.sub.leased or self.steps % 3 == 0)
    @rule(done=SELDOM, stale=SELDOM)
    def deliver(self, done: bool, stale: bool) -> None:
        slow = self.slow
        told = [(path, slow.sids[path], slow.tails[path]) for path in slow.pending()]
        wake_id = "w_0" if stale else slow.wake_id or "w_0"
        event = model.delivered(self.sub, wake_id, done, told, self.tail)
        if stale or slow.wake_id is None:
            assert event is None
            return
        if event is not None:
            self.happen(event)
        if done:
            for path, _, offset in told:
                slow.acked[path] = offset
            slow.end()
        elif slow.lease_until is None:
            slow.lease_until = self.now + LEASE_MS
            slow.failures = 0

    @rule(jitter=st.integers(0, model.JITTER_STEPS))
    def fail_to_deliver(self, jitter: int) -> None:
        slow = self.slow
        event = model.failed(self.sub, slow.wake_id or "w_0", self.now, jitter)
        if slow.wake_id is None or slow.lease_until is not None:
            assert event is None
            return
        assert event is not None
        self.happen(event)
        slow.failures += 1
        base = min(60_000, 1_000 * 2 ** (slow.failures - 1))
        assert 0.8 * base - 1 <= event.retry_at_ms - self.now <= 1.2 * base + 1
        assert model.next_at_ms(self.sub, self.now) == event.retry_at_ms


def state_of(sub: Subscription) -> object:
    links = {path: (link.sid, link.acked, link.explicit) for path, link in sub.links.items()}
    return links, list(sub.pending), sub.generation, sub.wake, sub.failures, sub.retry_at_ms, sub.complete


class TestPullWake(PullWake.TestCase):
    settings = settings(max_examples=150, stateful_step_count=40)


class TestWebhook(Webhook.TestCase):
    settings = settings(max_examples=150, stateful_step_count=40)


# ---- rules that are easier to read alone ----------------------------------------------------------------------------


def a_subscription(kind: str = PULL_WAKE, pattern: str | None = "events/*") -> Subscription:
    config = Config(kind, pattern, None, "wake/pool", LEASE_MS, None, "digest")
    return born(Created("uid", "sub", config, "http://here", 4, [("named", 0, 0)]), 0)


def test_a_new_life_of_an_id_goes_on_counting_generations() -> None:
    sub = a_subscription()
    sub.pending["named"] = None
    event = model.wake(sub, "w_1")
    assert event is not None
    evolve(sub, event, 5)
    assert sub.generation == 5


def claimed(now_ms: int) -> tuple[Subscription, Shown]:
    """A worker holds the lease of a stream that ends at 9 and is acknowledged up to 5."""
    sub = a_subscription()
    evolve(sub, model.Linked("uid", [("events/a", 7, 5)]), 0)
    sub.pending["events/a"] = None
    for event in model.claim(sub, "worker", "w_1", now_ms):
        evolve(sub, event, now_ms)
    return sub, Shown(True, "w_1", sub.generation)


@pytest.mark.parametrize("offset", [0, 4, 10, 11])
def test_an_ack_before_the_cursor_or_beyond_the_tail_changes_nothing(offset: int) -> None:
    sub, shown = claimed(0)
    before = state_of(sub)
    with pytest.raises(BadAck):
        model.acknowledge(sub, shown, [("events/a", 9), ("events/a", offset)], True, lambda path, sid: 9, 1)
    assert state_of(sub) == before


def test_a_lease_is_good_up_to_its_last_millisecond_and_fenced_from_then_on() -> None:
    sub, shown = claimed(0)
    assert model.expire(sub, LEASE_MS - 1) is None
    assert model.release(sub, shown, LEASE_MS - 1)
    for late_ms in (LEASE_MS, LEASE_MS + 1):
        with pytest.raises(Fenced):
            model.release(sub, shown, late_ms)
        with pytest.raises(Fenced):
            model.acknowledge(sub, shown, [("events/a", 9)], True, lambda path, sid: 9, late_ms)
    taken_over = model.claim(sub, "other", "w_2", LEASE_MS)
    assert [type(event) for event in taken_over] == [model.Ended, model.Woken, model.Claimed]


def test_a_pull_wake_that_nobody_claimed_lets_nobody_act_on_it() -> None:
    sub = a_subscription()
    sub.pending["named"] = None
    evolve(sub, model.Woken("uid", "w_1", "named"), 0)
    with pytest.raises(Fenced):
        model.release(sub, Shown(True, "w_1", sub.generation), 0)


def test_an_explicit_link_that_is_taken_back_leaves_the_link_of_the_pattern() -> None:
    sub = a_subscription()
    evolve(sub, model.Linked("uid", [("events/a", 7, 30)], explicit=True), 0)
    sub.pending["events/a"] = None
    event = model.unlink(sub, "events/a")
    assert event is not None
    evolve(sub, event, 0)
    assert (sub.links["events/a"].acked, sub.links["events/a"].explicit) == (30, False)
    assert list(sub.pending) == ["events/a"]
    assert model.unlink(sub, "events/a") is None


def test_an_explicit_link_outside_the_pattern_goes_with_its_cursor() -> None:
    sub = a_subscription()
    event = model.unlink(sub, "named")
    assert event is not None
    evolve(sub, event, 0)
    assert not sub.links
    assert model.unlink(sub, "named") is None


def test_a_stream_that_is_deleted_starts_anew_under_its_explicit_link() -> None:
    sub = a_subscription()
    evolve(sub, model.Linked("uid", [("named", 7, 30)]), 0)
    evolve(sub, model.Lost("uid", "named"), 0)
    assert (sub.links["named"].sid, sub.links["named"].acked, sub.links["named"].explicit) == (0, 0, True)
    evolve(sub, model.Linked("uid", [("named", 8, 0)]), 0)
    assert (sub.links["named"].sid, sub.links["named"].acked, sub.links["named"].explicit) == (8, 0, True)


def test_a_webhook_that_says_done_acknowledges_only_what_it_was_told_of_that_very_stream() -> None:
    sub = a_subscription(WEBHOOK)
    evolve(sub, model.Linked("uid", [("events/a", 7, 0), ("events/b", 8, 0)]), 0)
    sub.pending.update({"events/a": None, "events/b": None})
    evolve(sub, model.Woken("uid", "w_1", "events/a"), 0)
    tails = {"events/a": 50, "events/b": 90}
    told = [("events/a", 7, 40), ("events/b", 9, 90), ("events/gone", 3, 3)]
    event = model.delivered(sub, "w_1", True, told, lambda path, sid: tails[path])
    assert event is not None
    evolve(sub, event, 0)
    assert sub.links["events/a"].acked == 40
    assert sub.links["events/b"].acked == 0
    assert list(sub.pending) == ["events/a", "events/b"]


def test_a_subscriptions_own_wake_stream_is_not_taken_in_by_its_pattern() -> None:
    config = Config(PULL_WAKE, "**", None, "wake/pool", LEASE_MS, None, "digest")
    assert not model.covers(config, "wake/pool")
    assert model.covers(config, "wake/other")


@pytest.mark.parametrize(
    ("key", "path"),
    [("_default/x", "x"), ("events/a", "events/a"), ("events/a/b", "events/a/b"), ("_default/a/b", "_default/a/b")],
)
def test_paths_and_keys_name_the_same_stream(key: str, path: str) -> None:
    assert model.path_of(key) == path
    assert model.key_of(path) == key


def test_retries_begin_after_a_second_and_never_wait_longer_than_72() -> None:
    middle = model.JITTER_STEPS // 2
    assert [model.retry_delay_ms(n, middle) for n in range(1, 9)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        60_000,
        60_000,
    ]
    assert model.retry_delay_ms(1, 0) == 800
    assert model.retry_delay_ms(10**9, model.JITTER_STEPS) == 72_000


def test_the_digest_ignores_order_and_repetition_of_streams_and_nothing_else() -> None:
    facts = ["webhook", "a/*", ["x", "y"], "https://h.example/", None, 30_000, "text"]
    same = model.digest(*facts[:2], ["y", "x", "x"], *facts[3:])
    assert model.digest(*facts) == same
    others = ["pull-wake", None, ["x"], "https://h.example/other", "w", 30_001, None]
    digests = {model.digest(*facts[:n], other, *facts[n + 1 :]) for n, other in enumerate(others)}
    assert len(digests) == len(facts)
    assert same not in digests
