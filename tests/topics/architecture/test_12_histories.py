"""Random histories of writes, evictions, deletions and kills beside a slow model: every cursor, count and door.
A seed makes a history repeatable: HEADWATER_HISTORY_SEED=7 runs that one."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.doors.http.topics.surface import new_topic, told
from tests.doors.s3p.client import Client, Error
from tests.support.node import Node
from tests.topics.architecture.looks import at_every_door, gap, seqs, settle, whole

SEEDS = [int(os.environ["HEADWATER_HISTORY_SEED"])] if "HEADWATER_HISTORY_SEED" in os.environ else [1, 2]
STEPS = 30
TAGS = (None, "a", "ab", "abc", "b")
EACH = 25


@dataclass
class Model:
    """A topic as a plain list. What a cap takes of records that have settled is the server's choice within bounds, so
    the floor is learnt, and everything else follows from it."""

    cap: int | None = None
    records: list[tuple[str, str | None]] = field(default_factory=list)
    """The text of each value, and its tag."""
    dead: set[int] = field(default_factory=set)
    floor: int = 1
    settled: bool = False

    @property
    def head(self) -> int:
        return len(self.records)

    @property
    def live(self) -> list[int]:
        return [seq for seq in range(1, self.head + 1) if seq not in self.dead]

    @property
    def earliest(self) -> int:
        return next(iter(self.live), self.head + 1)

    def evicted_up_to(self, floor: int) -> None:
        """The server says that everything before `floor` is lost. It may only lose what exceeds the cap."""
        if floor == self.floor:
            assert self.settled or self.cap is None or len(self.live) <= self.cap
            return
        before = self.live
        assert floor > self.floor and floor - 1 in before, "the floor stands behind the last live record that was lost"
        gone = [seq for seq in before if seq < floor]
        assert self.cap is not None
        assert len(before) - len(gone) >= self.cap, "more went than the cap says"
        assert self.settled or len(before) - len(gone) == self.cap, "what is in memory is cut exactly"
        self.floor = floor
        self.dead.update(gone)

    def deleted(self, how: str | None, text: str, before_seq: int | None) -> int:
        found = []
        for seq in self.live:
            tag = self.records[seq - 1][1]
            hit = how is None or (tag is not None and (tag == text if how == "Eq" else tag.startswith(text)))
            if hit and (before_seq is None or seq < before_seq):
                found.append(seq)
        self.dead.update(found)
        return len(found)


class History:
    def __init__(self, node: Node, seed: int, kills: bool) -> None:
        self.rng = random.Random(seed)
        self.node = node
        self.model = Model(cap=self.rng.choice([None, 4, 9]))
        config = {} if self.model.cap is None else {"cap_records": self.model.cap}
        self.topic = new_topic(node, **config)
        self.kinds = ["write"] * 4 + ["match", "match", "prefix", "settle", "cap"] + ["kill"] * kills

    def run(self) -> None:
        kills = 2
        for _ in range(STEPS):
            kind = self.rng.choice(self.kinds)
            if kind == "kill":
                kills -= 1
                if kills < 0:
                    continue
            getattr(self, f"_{kind}")()
            self.learn()
            self.look(self.rng.randint(0, self.model.head))
        for cursor in range(self.model.head + 1):
            self.look(cursor)
        live = [self.model.records[seq - 1][0] for seq in self.model.live]
        assert [str(value) for value in at_every_door(self.topic)] == live

    def _write(self) -> None:
        values = [str(self.rng.randint(0, 10 ** self.rng.randint(1, 6))) for _ in range(self.rng.randint(1, 5))]
        door = self.rng.choice(["topics", "topics", "streams", "s3p"])
        tags = [self.rng.choice(TAGS) if door == "topics" else None for _ in values]
        if door == "topics":
            records = [{"data": int(value), "tag": tag} for value, tag in zip(values, tags, strict=True)]
            answer = told(self.topic.post(records))
            assert answer["seqs"] == list(range(self.model.head + 1, self.model.head + len(values) + 1))
        elif door == "streams":
            body = f"[{','.join(values)}]".encode()
            headers = {"Content-Type": "application/json"}
            assert self.node.request("POST", f"/v1/stream/{self.topic.name}", headers, body).status == 204
        else:
            with Client.of(self.node) as s3p:
                reply = s3p.append(self.topic.name.encode(), *[value.encode() for value in values])
                assert not isinstance(reply, Error), reply
        self.model.records += zip(values, tags, strict=True)

    def _match(self) -> None:
        how, text = self.rng.choice([("Eq", "a"), ("Eq", "ab"), ("Glob", "ab"), ("Glob", "a"), ("Glob", "")])
        before_seq = self.rng.choice([None, self.rng.randint(0, self.model.head + 2)])
        wish: dict[str, Any] = {"match": ["tag", how, text if how == "Eq" else f"{text}*"]}
        if before_seq is not None:
            wish["before_seq"] = before_seq
        self._deleted(wish, self.model.deleted(how, text, before_seq))

    def _prefix(self) -> None:
        before_seq = self.rng.randint(0, self.model.head // 2 + 1)
        self._deleted({"before_seq": before_seq}, self.model.deleted(None, "", before_seq))

    def _deleted(self, wish: dict[str, Any], count: int) -> None:
        answer = told(self.topic.delete(**wish))
        assert answer == {"deleted": count, "earliest_seq": self.model.earliest, "head_seq": self.model.head}

    def _settle(self) -> None:
        self.model.settled = True
        settle(self.node)

    def _cap(self) -> None:
        self.model.cap = self.rng.choice([None, 3, 6, 12])
        told(self.topic.request("PATCH", body={"cap_records": self.model.cap}))

    def _kill(self) -> None:
        self.node.restart()

    def learn(self) -> None:
        """A read applies the cap in parts, first to what has settled: what it took is known when no more goes."""
        floor = 0
        while (found := self.topic.diff(limit=1)["evict_floor"]) != floor:
            floor = found
        self.model.evicted_up_to(floor)
        model, state = self.model, self.topic.state()
        size = sum(len(model.records[seq - 1][0]) for seq in model.live)
        expected = (model.head, model.earliest, model.floor, len(model.live), size)
        names = ("head_seq", "earliest_seq", "evict_floor", "count", "bytes")
        assert tuple(state[name] for name in names) == expected

    def look(self, cursor: int) -> None:
        model, found = self.model, whole(self.topic, cursor)
        records = [(one["seq"], str(one["data"]), one.get("tag")) for one in found["records"]]
        assert records == [(seq, *model.records[seq - 1]) for seq in model.live if seq > cursor]
        assert gap(found) == ((cursor + 1, model.floor - 1) if cursor + 1 < model.floor else None)
        assert found["next_seq"] == model.head


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_equals_a_slow_model(node: Node, seed: int) -> None:
    """Issue 13, must show 3, for §1 to §5: writes, evictions, deletions, settling and configuration in any order."""
    print(f"seed {seed}")
    History(node, seed, kills=False).run()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_random_history_with_kills_equals_a_slow_model(node: Node) -> None:
    """The same with SIGKILL in between (§4)."""
    seed = SEEDS[0] + 100
    print(f"seed {seed}")
    History(node, seed, kills=True).run()


def test_one_stream_written_through_three_doors_at_once_equals_one_model(node: Node) -> None:
    """Issue 13, must show 6: /v0, Durable Streams and S3P write, one follows, one deletes what it sees; in the end all
    doors, the follower and a list agree."""
    topic = new_topic(node)
    path, name = f"/v1/stream/{topic.name}", topic.name.encode()
    deleted: list[int] = []

    def by_topics() -> None:
        for n in range(EACH):
            assert len(topic.write(f"v0-{n}", tag="odd" if n % 2 else "even")) == 1
            if n % 10 == 9:
                deleted.append(told(topic.delete(match=["tag", "Eq", "odd"]))["deleted"])

    def by_streams() -> None:
        with node.connect() as connection:
            for n in range(EACH):
                body = b'["streams-%d"]' % n
                headers = {"Content-Type": "application/json"}
                assert connection.request("POST", path, headers, body).status == 204

    def by_s3p() -> None:
        with Client.of(node) as s3p:
            for n in range(EACH):
                assert not isinstance(s3p.append(name, b'"s3p-%d"' % n), Error)

    followed: dict[int, Any] = {}

    def follow() -> None:
        with topic.tail("?from_seq=0") as tail:
            ready.set()
            while not followed or max(followed) < 3 * EACH:
                followed.update((one["seq"], one["data"]) for one in tail.next()["records"])

    ready = threading.Event()
    threads = [threading.Thread(target=target) for target in (follow, by_topics, by_streams, by_s3p)]
    threads[0].start()
    assert ready.wait(60)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()

    found = whole(topic)
    model = {one["seq"]: one["data"] for one in found["records"]}
    assert at_every_door(topic) == list(model.values())
    # Every record has a number of its own, and those that are missing are the ones that were deleted.
    assert found["head_seq"] == 3 * EACH and 3 * EACH - len(model) == sum(deleted) == EACH // 10 * 5
    for door in ("streams", "s3p"):
        assert [value for value in model.values() if value.startswith(door)] == [f"{door}-{n}" for n in range(EACH)]
    kept = [n for n in range(EACH) if n % 2 == 0 or n >= EACH // 10 * 10]
    assert [value for value in model.values() if value.startswith("v0")] == [f"v0-{n}" for n in kept]
    # Who followed got all that is left, and nothing else than what was written.
    assert model.items() <= followed.items()
    assert all(value.startswith("v0-") for seq, value in followed.items() if seq not in model)
    assert seqs(found) == sorted(model)
