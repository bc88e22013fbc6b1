"""Topics architecture §2: the log is the durability boundary; what each class of durability promises, and costs.
Promises about power loss are held on a log whose writes and syncs a test moves by hand; kills are real."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headwater.engine.read_plan import shown_count
from headwater.engine.recovery import recover
from headwater.model.commands import Append, Create, Durability
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic, refused, told
from tests.engine import KEY, Bench, HandLog
from tests.support.node import Node
from tests.topics.architecture.looks import everything

CLASSES = ("ephemeral", "memory", "disk", "fsync")

# ---- on a log that a test moves --------------------------------------------------------------------------------


def bench_of(durability: Durability) -> Bench:
    bench = Bench()
    bench.submit(Create(KEY, "text/plain", [], durability=durability))
    bench.sync()
    if durability == Durability.EPHEMERAL:
        bench.post(b"-")  # the first append alone reserves numbers, which has to be synced
        bench.sync()
    return bench


@pytest.mark.parametrize(
    ("durability", "answered"),
    [
        (Durability.EPHEMERAL, "at once"),
        (Durability.MEMORY, "at once"),
        (Durability.DISK, "written"),
        (Durability.FSYNC, "synced"),
    ],
)
def test_each_class_is_answered_when_its_promise_is_kept(durability: Durability, answered: str) -> None:
    """§2.3, the table of classes: ephemeral and memory wait for nothing, disk is "acked on frame enqueue (not
    fsync-gated)", fsync is "acked only after fdatasync() returns"."""
    bench = bench_of(durability)
    inbox = bench.post(b"x")
    bench.turn()
    assert inbox.waits == (answered != "at once")
    bench.write()
    assert inbox.waits == (answered == "synced")
    bench.sync()
    assert not inbox.waits


def test_a_record_is_visible_only_after_its_class_is_satisfied() -> None:
    """§2.2: "the record is only visible to readers and acked to the writer after its commit class is satisfied"."""
    bench = bench_of(Durability.FSYNC)
    inbox = bench.post(b"x")
    bench.write()
    assert inbox.waits and bench.read() == b"" and shown_count(bench.group.find(KEY, False)) == 0
    bench.sync()
    assert not inbox.waits and bench.read() == b"x" and shown_count(bench.group.find(KEY, False)) == 1


def test_pending_writes_share_one_commit() -> None:
    """§2.3: the writer "coalesces all pending durable frames in a small window into one write() + one fdatasync(),
    then acks them all". Our log gathers by itself what comes during a sync: see the decision about differences."""
    bench = bench_of(Durability.FSYNC)
    commits = bench.log.commits_count
    inboxes = [bench.post(b"%d" % n) for n in range(100)]
    bench.turn()
    assert bench.log.commits_count == commits + 1
    bench.sync()
    assert not any(inbox.waits for inbox in inboxes)


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
def test_after_a_lost_tail_the_head_is_never_above_what_was_acked(durability: Durability) -> None:
    """§2.3: "on a lost tail head_seq may regress - but never above the acked head"; §4: only data "not yet fsynced ...
    can be lost on power loss"."""
    bench = bench_of(durability)
    bench.post(b"a")
    bench.sync()
    kept = len(bench.log.events)
    bench.post(b"b")
    bench.write()
    # Power is lost: what was synced is there, the rest is not.
    after = Bench(HandLog(bench.log.events[:kept]))
    recover(after.group)
    assert after.read() == b"a" and after.group.find(KEY, False).count == 1


def test_a_batch_is_one_event_in_the_log() -> None:
    """§2.1: "multi-record writes produce many frames committed as one batch": here one frame, so all or nothing."""
    bench = bench_of(Durability.FSYNC)
    logged = len(bench.log.events)
    bench.submit(Append([b"a", b"b", b"c"], "text/plain"))
    assert len(bench.log.events) == logged + 1


# ---- on a node -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_every_class_is_fully_queryable_and_only_fsync_and_disk_wait_for_the_log(new: New, durability: str) -> None:
    """§2.3: ephemeral "fully queryable while the process is running", "Never fsync-gated (fsync_ms 0)"; the same of
    memory."""
    topic = new(durability=durability)
    answer = topic.post([{"data": 1, "tag": "a"}, {"data": 2}])
    assert answer.json()["seqs"] == [1, 2]
    if durability in ("ephemeral", "memory"):
        assert answer.json()["performance"]["fsync_ms"] == 0
    assert topic.data() == [1, 2]
    assert told(topic.delete(match=["tag", "Eq", "a"]))["deleted"] == 1
    assert topic.data() == [2] and topic.config()["durability"] == durability


def test_durable_is_an_alias_and_memory_needs_its_own_word(new: New) -> None:
    """§2.3: "durable:true => fsync, durable:false => disk; memory is reachable only by setting durability:"memory"
    explicitly", ephemeral too."""
    assert new(durable=True).config()["durability"] == "fsync"
    assert new(durable=False).config()["durability"] == "disk"
    assert new().config()["durability"] not in ("memory", "ephemeral")


def test_a_rejected_write_never_has_a_number(new: New) -> None:
    """§2.2: seqs are assigned "after a discard:"reject" cap check"."""
    topic = new(cap_records=2, discard="reject")
    assert topic.write(1, 2) == [1, 2]
    assert refused(topic.post([{"data": 3}])) == (422, "topic_full")
    assert topic.state()["head_seq"] == 2
    topic.delete(before_seq=2)
    assert topic.write(3) == [3]


# ---- a kill ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(node: Node) -> dict[str, Any]:
    """Topics of every class, and one with a history of writes, deletions and configuration; then SIGKILL."""
    topics = {durability: new_topic(node, durability=durability, priority=7) for durability in CLASSES}
    for topic in topics.values():
        topic.write(*range(5), tag="t")
    mixed = new_topic(node, cap_records=6)
    mixed.write(1, 2, 3, tag="a")
    mixed.delete(match=["tag", "Eq", "a"], before_seq=3)
    mixed.request("PATCH", body={"cap_records": 4, "priority": 9})
    mixed.write(4, 5, 6, 7, tag="b")
    mixed.write(8, tag="a")
    before = {name: everything(topic) for name, topic in {**topics, "mixed": mixed}.items()}
    node.restart()
    return {"before": before, **topics, "mixed": mixed}


@pytest.mark.full
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_acked_write_is_in_the_log(killed: dict[str, Any], durability: str) -> None:
    """§2.2: "if a write was acked, it is in the WAL". A kill takes nothing from what was written."""
    assert everything(killed[durability]) == killed["before"][durability]


@pytest.mark.full
def test_a_memory_topic_may_lose_records_and_keeps_its_configuration(killed: dict[str, Any]) -> None:
    """§2.3, memory: "after a restart its records may survive or be lost"; "never above the acked head"."""
    topic, before = killed["memory"], killed["before"]["memory"]
    assert topic.config() == before["config"]
    state = topic.state()
    assert state["head_seq"] <= before["state"]["head_seq"] and state["epoch"] == before["state"]["epoch"]
    assert topic.diff()["records"] == before["diff"]["records"][: state["head_seq"]]
    assert topic.write("next") == [state["head_seq"] + 1]


@pytest.mark.full
def test_an_ephemeral_topic_loses_its_records_and_keeps_its_configuration(killed: dict[str, Any]) -> None:
    """§2.3, ephemeral: "intentionally lost on restart; the topic config still persists"; seqs are not given
    out again, and the loss is told (principle 1)."""
    topic, before = killed["ephemeral"], killed["before"]["ephemeral"]
    assert topic.config() == before["config"]
    state, found = topic.state(), topic.diff()
    assert (found["records"], state["count"]) == ([], 0)
    assert state["evict_floor"] == state["earliest_seq"] == state["head_seq"] + 1 >= 6
    assert found.get("tombstone") == ({"gap_from": 1, "gap_to": state["head_seq"]} if state["head_seq"] else None)
    assert topic.write("next") == [state["head_seq"] + 1]


@pytest.mark.full
def test_writes_deletions_and_configuration_are_one_ordered_timeline(killed: dict[str, Any]) -> None:
    """§2.1: "config, deletes, and data live on one ordered, crash-consistent timeline"."""
    assert everything(killed["mixed"]) == killed["before"]["mixed"]
    assert killed["mixed"].config()["cap_records"] == 4
    assert [one["data"] for one in killed["mixed"].diff()["records"]] == [5, 6, 7, 8]


@pytest.mark.full
def test_a_torn_tail_is_cut_off_and_never_taken_for_data(tmp_path: Path) -> None:
    """§2.1 and §4: "A mismatch => torn/partial frame => logical end of log (truncate)"; "never interpreted as data"."""
    with Node.started(tmp_path) as node:
        topic = new_topic(node)
        for n in range(20):
            topic.write(n, tag="t")
        before = everything(topic)
        node.kill()
        file = max((node.data_directory / "wal").rglob("*.wal"))
        used = len(file.read_bytes().rstrip(b"\0"))
        with file.open("r+b") as log:
            log.seek(used - 200)
            frame = log.read(200)
            log.seek(used + 8)
            log.write(frame[:150])  # a piece of a frame, whose beginning was never written
            os.fsync(log.fileno())
        node.start()
        assert everything(topic) == before
        assert topic.write(20) == [21] and topic.data() == list(range(21))


def test_topics_do_not_wait_for_each_others_numbers(node: Node) -> None:
    """§2.2: per-topic order holds on one shared log: interleaved writes are numbered by topic."""
    topics: list[Topic] = [new_topic(node) for _ in range(3)]
    for n in range(5):
        for topic in topics:
            assert topic.write(n) == [n + 1]
