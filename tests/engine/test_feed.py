"""Many streams as one feed: in the order of the log, without a gap, whenever it is woken.
The log's marks move by hand, so that a wake can come at every moment."""

from __future__ import annotations

import random

import pytest

from headwater.engine.feed import Feed
from headwater.model.commands import Append, DeleteRecords, Durability
from headwater.model.holes import Run
from tests.engine import Bench

A, B = "town/a", "town/b"


class Follower:
    """Takes whatever there is at each wake, as a connection with room does."""

    def __init__(self, bench: Bench) -> None:
        self.feed = Feed(bench.group, bench.log.synced, lambda key: True)
        self.feed.wake = self.take
        self.seen: list[bytes] = []

    def take(self) -> None:
        for batch in self.feed.take():
            self.seen += batch.payloads


def town(durability: Durability | None = None) -> Bench:
    bench = Bench()
    for key in (A, B):
        bench.create(key, durability=durability)
    return bench


def test_streams_that_grow_in_one_pass_of_the_log_are_told_in_its_order() -> None:
    bench = town()
    follower = Follower(bench)
    for key, payload in ((A, b"1"), (B, b"2"), (A, b"3")):
        bench.post(payload, key)
    bench.sync()
    bench.turn()
    assert follower.seen == [b"1", b"2", b"3"]


def test_what_is_synced_and_not_told_of_yet_is_not_passed_over() -> None:
    bench = town()
    follower = Follower(bench)
    bench.post(b"1", A)
    bench.turn()
    bench.log.synced = bench.log.written = bench.log.tail
    bench.post(b"2", B)
    bench.post(b"3", A)
    # The writer's thread has synced all of it before the pass over the first has ended.
    following = bench.group.observers[-1].pass_ended
    bench.group.observers[-1].pass_ended = lambda: (  # type: ignore[method-assign]
        setattr(bench.log, "synced", bench.log.tail),
        setattr(bench.log, "written", bench.log.tail),
        following(),
    )
    bench.group.progress()
    assert follower.seen == [b"1"]
    bench.group.progress()
    bench.turn()
    assert follower.seen == [b"1", b"2", b"3"]


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK, Durability.MEMORY])
def test_every_record_is_told_once_and_in_order_whatever_the_moments_are(seed: int, durability: Durability) -> None:
    rng = random.Random(seed)
    bench = town(durability)
    follower = Follower(bench)
    sent: list[bytes] = []
    for number in range(60):
        act = rng.random()
        if act < 0.6:
            sent.append(b"%d" % number)
            bench.post(sent[-1], rng.choice((A, B)))
        elif act < 0.75:
            bench.turn()
        elif act < 0.9 and bench.log.synced < bench.log.tail:
            mark = rng.randrange(bench.log.synced, bench.log.tail + 1)
            bench.log.synced, bench.log.written = mark, max(mark, bench.log.written)
            if rng.random() < 0.7:
                bench.group.progress()
        else:
            bench.write()
    bench.sync()
    bench.turn()
    assert follower.seen == sent


@pytest.mark.parametrize("seed", range(20))
def test_records_of_ephemeral_streams_are_told_once_and_in_the_order_of_their_stream(seed: int) -> None:
    rng = random.Random(seed)
    bench = town(Durability.EPHEMERAL)
    bench.create("town/c")
    follower = Follower(bench)
    sent: dict[str, list[bytes]] = {A: [], B: [], "town/c": []}
    for number in range(60):
        if rng.random() < 0.7:
            key = rng.choice(list(sent))
            sent[key].append(b"%s%d" % (key[-1:].encode(), number))
            bench.post(sent[key][-1], key)
        elif rng.random() < 0.5:
            bench.turn()
        else:
            bench.sync()
    bench.sync()
    bench.turn()
    for key, payloads in sent.items():
        assert [one for one in follower.seen if one[:1] == key[-1:].encode()] == payloads


def test_deleted_records_are_not_told_and_those_of_one_append_stay_together() -> None:
    bench = town()
    feed = Feed(bench.group, bench.log.synced, lambda key: True)
    bench.submit(Append([b"1", b"2", b"3", b"4", b"5"]), A)
    bench.post(b"6", A)
    bench.sync()
    bench.submit(DeleteRecords([Run(1, 2, 1, 2), Run(3, 4, 3, 4), Run(5, 6, 5, 6)]), A)
    bench.sync()
    (batch,) = feed.take()
    assert (batch.payloads, batch.ends) == ([b"1", b"3", b"5"], [1, 3, 5])
    assert list(feed.take()) == []


def test_deleted_records_are_passed_over_and_an_event_stays_one_batch() -> None:
    bench = town()
    follower = Follower(bench)
    bench.submit(Append([b"1", b"2", b"3"], None), A)
    bench.post(b"4", B)
    bench.submit(DeleteRecords([Run(1, 2, 1, 2)]), A)
    bench.submit(DeleteRecords([Run(0, 1, 0, 1)]), B)
    bench.sync()
    bench.turn()
    assert follower.seen == [b"1", b"3"]
    assert follower.feed.position == bench.group.loaded.by_key[A].timeline.positions[0]
