"""Topics architecture §4: after a crash everything is rebuilt from the log, and only what is not in it is lost.
One node is killed once with topics of many histories; each test looks at one of them. The last one kills in a loop."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.topics.surface import Topic, new_topic, refused, told
from tests.support.http import BadResponse, ConnectionEnded
from tests.support.node import Node
from tests.topics.architecture.looks import at_every_door, everything, floors, gap, hold_floors, seqs, settle, whole

pytestmark = pytest.mark.full

KILLS = 3
BATCH = 7
HOUR_MS = 3_600_000
WITHIN_S = 60.0


def histories(node: Node) -> dict[str, Topic]:
    topics = {name: new_topic(node) for name in ("hot", "settled", "both", "deleted", "prefix", "gone", "lost")}
    topics["capped"] = new_topic(node, cap_records=4, priority=-5, auto_priority=True)
    topics["both"].write(*range(5), tag="a", meta={"m": 1})
    topics["settled"].write(*range(5), tag="a", node="n")
    topics["deleted"].post([{"data": n, "tag": "ab"[n % 2]} for n in range(10)])
    topics["prefix"].write(*range(10))
    topics["gone"].write(1)
    topics["lost"].write(1)
    topics["evicted"] = new_topic(node, cap_records=3)
    topics["evicted"].write(*range(5), tag="a")
    settle(node)
    topics["hot"].write(*range(5), tag="a", key="k")
    topics["both"].write(*range(5, 9), tag="b")
    topics["capped"].write(*range(9), tag="a")
    topics["capped"].diff()
    topics["capped"].delete(match=["tag", "Eq", "a"], before_seq=8)
    topics["deleted"].delete(match=["tag", "Eq", "b"])
    topics["deleted"].write(10, tag="b")
    topics["prefix"].delete(before_seq=7)
    topics["gone"].request("DELETE")
    topics["gone"].put()
    topics["gone"].write("again")
    topics["lost"].request("DELETE")
    topics["evicted"].write(*range(5), tag="b")
    topics["evicted"].diff()
    topics["evicted"].delete(match=["tag", "Eq", "b"], before_seq=9)
    topics["configured"] = new_topic(node, cap_records=3)
    topics["configured"].write(*range(5))
    topics["configured"].diff()
    told(topics["configured"].request("PATCH", body={"cap_records": 5, "priority": 500, "queue": {"lease_ms": 5}}))
    topics["configured"].write(*range(5, 8))
    told(topics["configured"].request("PATCH", body={"priority": -20, "ttl_ms": HOUR_MS}))
    return topics


class Survived:
    def __init__(self, topics: dict[str, Topic], before: dict[str, Any]) -> None:
        self.topics = topics
        self.before = before


@pytest.fixture(scope="module")
def survived(node: Node) -> Survived:
    topics = histories(node)
    before = {name: everything(topic) for name, topic in topics.items() if name != "lost"}
    node.restart()
    return Survived(topics, before)


@pytest.mark.parametrize("name", ["hot", "settled", "both", "deleted", "prefix", "gone", "capped", "evicted"])
def test_all_state_is_rebuilt(survived: Survived, name: str) -> None:
    """§4, goal: "rebuild all in-memory state, lose only data not yet in the WAL": configuration, floors, epochs,
    records and what they carry."""
    assert everything(survived.topics[name]) == survived.before[name]
    hold_floors(survived.topics[name])


def test_deletions_are_replayed_and_do_not_become_losses(survived: Survived) -> None:
    """§4.3: "Delete -> re-apply ...: advance earliest_seq (NOT evict_floor)"."""
    assert seqs(whole(survived.topics["deleted"])) == [1, 3, 5, 7, 9, 11]
    assert floors(survived.topics["prefix"]) == (1, 7) and gap(survived.topics["prefix"].diff()) is None
    assert floors(survived.topics["capped"]) == (6, 8)
    assert at_every_door(survived.topics["deleted"]) == [0, 2, 4, 6, 8, 10]


def test_numbers_go_on_behind_the_head(survived: Survived) -> None:
    """§4.2: "head_seq from the highest segment seq"; no number is given out twice."""
    for name in ("hot", "settled", "prefix"):
        topic = survived.topics[name]
        assert topic.write("next") == [survived.before[name]["state"]["head_seq"] + 1]


@pytest.mark.parametrize("name", ["hot", "settled", "both"])
def test_the_index_of_tags_is_rebuilt(survived: Survived, name: str) -> None:
    """§4.2: "Rebuild the tag index from the surviving tagged records": of the log and of storage."""
    topic = survived.topics[name]
    assert told(topic.delete(match=["tag", "Eq", "a"]))["deleted"] == 5
    assert told(topic.delete(match=["tag", "Eq", "a"]))["deleted"] == 0


def test_a_deleted_topic_stays_deleted_and_its_successor_is_another(survived: Survived) -> None:
    """§4.3 "other Control frames", §5 "epochs": what was deleted before the crash does not come back."""
    topic = survived.topics["gone"]
    assert topic.data() == ["again"]
    epoch = survived.before["gone"]["state"]["epoch"]
    assert topic.state()["epoch"] == epoch
    assert refused(survived.topics["lost"].request("GET")) == (404, "topic_not_found")


def test_floors_survive(survived: Survived) -> None:
    """§3.3: the watermark is persisted, "so eviction and the tombstone boundary survive restart"."""
    topic = survived.topics["evicted"]
    state = survived.before["evicted"]["state"]
    assert floors(topic) == (state["evict_floor"], 9) and 1 < state["evict_floor"] < 9
    assert gap(topic.diff()) == (1, state["evict_floor"] - 1)


def test_configuration_survives_relative_to_data(survived: Survived) -> None:
    """§5: "config and data are restored consistently relative to each other": the last configuration, and what the
    earlier ones have done."""
    topic = survived.topics["configured"]
    config = topic.config()
    assert config == survived.before["configured"]["config"]
    assert (config["cap_records"], config["priority"], config["queue"]["lease_ms"]) == (5, -20, 5)
    assert seqs(whole(topic)) == [4, 5, 6, 7, 8] and floors(topic) == (4, 4)


class Writer(threading.Thread):
    """Writes batches until the node is gone; `acked` is the last number that was answered, `reached` after `enough`."""

    def __init__(self, topic: Topic, enough: int) -> None:
        super().__init__()
        self.topic = topic
        self.acked = self.sent = topic.state()["head_seq"]
        self.wanted = self.acked + BATCH * enough
        self.reached = threading.Event()

    def run(self) -> None:
        try:
            with self.topic.node.connect() as connection:
                while True:
                    records = ",".join(f'{{"data":{self.sent + n},"tag":"t{n}"}}' for n in range(1, BATCH + 1))
                    self.sent += BATCH
                    body = f'{{"records":[{records}]}}'.encode()
                    answer = connection.request("POST", f"{self.topic.path}/records", (), body)
                    assert answer.status == 200, answer
                    self.acked = answer.json()["head_seq"]
                    if self.acked >= self.wanted:
                        self.reached.set()
        except (OSError, BadResponse, ConnectionEnded):
            return


@pytest.mark.timeout(300)
def test_a_crash_at_any_instant_loses_no_acked_write_and_splits_no_batch(tmp_path: Path) -> None:
    """§4: "tolerate a crash at any instant"; "an acked durable write is always a complete checksum-valid frame => never
    lost"; a batch is there as a whole or not at all."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Node.started(tmp_path, flags=("--checkpoint-interval-ms", "20")) as node:
        topics = [new_topic(node) for _ in range(2)]
        for _ in range(KILLS):
            writers = [Writer(topic, rng.randint(1, 30)) for topic in topics]
            for writer in writers:
                writer.start()
            assert writers[0].reached.wait(WITHIN_S)
            node.kill()
            for writer in writers:
                writer.join()
            node.start()
            for writer in writers:
                found = whole(writer.topic)
                head = found["head_seq"]
                assert writer.acked <= head <= writer.sent and head % BATCH == 0
                assert [(one["seq"], one["data"]) for one in found["records"]] == [(n, n) for n in range(1, head + 1)]
                assert floors(writer.topic) == (1, 1)
                assert told(writer.topic.delete(match=["tag", "Eq", "none"]))["deleted"] == 0


@pytest.mark.parametrize("settled", [False, True], ids=["between-checkpoints", "after-a-checkpoint"])
def test_a_reader_of_an_ephemeral_topic_misses_nothing_in_silence_after_a_kill(tmp_path: Path, settled: bool) -> None:
    """§2.3: checkpoints preserve the head "so post-checkpoint writes do not reuse seqs". Ours also not what was written
    after the last one: a cursor of before the kill is told of the gap, and gets everything that was written since."""
    rng = random.Random(settled)
    interval_ms = "50" if settled else "600000"
    with Node.started(tmp_path, flags=["--checkpoint-interval-ms", interval_ms]) as node:
        topic = new_topic(node, durability="ephemeral")
        epoch, cursor, tail = topic.state()["epoch"], 0, "-1"
        for _ in range(KILLS):
            for _ in range(rng.randrange(1, 20)):
                (cursor,) = topic.write(cursor)
            tail = node.request("HEAD", f"/v1/stream/{topic.name}").header("stream-next-offset") or ""
            node.restart()
            state = topic.state()
            assert state["head_seq"] >= cursor and (state["count"], state["epoch"]) == (0, epoch)
            written = topic.write(*range(rng.randrange(1, 20)))
            assert written[0] > cursor
            found = whole(topic, cursor)
            assert gap(found) == (None if written[0] == cursor + 1 else (cursor + 1, written[0] - 1))
            assert seqs(found) == written
            refusal = node.request("GET", f"/v1/stream/{topic.name}?offset={tail}")
            assert refusal.status == 410 or refusal.json() == list(range(len(written)))
            hold_nothing_twice = topic.diff(from_seq=written[-1])
            assert hold_nothing_twice["up_to_date"] and "tombstone" not in hold_nothing_twice
            cursor = written[-1]
