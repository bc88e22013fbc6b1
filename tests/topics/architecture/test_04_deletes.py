"""Topics architecture §1.3 and §3.5: deletion is logically immediate, found by an index, and physically lazy.
Each docstring quotes the sentence that the test holds."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.engine import topic_deletes
from headwater.engine.marks import Marks
from headwater.engine.topic_deletes import RecordsGone, TopicDeletes
from headwater.model.commands import Append
from headwater.model.labels import Labels
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, told
from tests.engine import KEY
from tests.engine.shore import Shore, asked
from tests.topics.architecture.looks import at_every_door, floors, gap, hold_floors, seqs, settle, whole
from tests.topics.architecture.test_03_eviction import contents

TAGS = ("order-1", "order-2", "order", "other", "order-1")


@pytest.fixture(params=[False, True], ids=["memory", "lake"])
def tagged(request: pytest.FixtureRequest, topic: Topic) -> Topic:
    topic.post([{"data": n, "tag": tag} for n, tag in enumerate(TAGS, 1)])
    topic.write(6)
    if request.param:
        settle(topic.node)
    return topic


@pytest.mark.parametrize(
    ("wish", "left"),
    [
        ({"match": ["tag", "Eq", "order-1"]}, [2, 3, 4, 6]),
        ({"match": ["tag", "Glob", "order-*"]}, [3, 4, 6]),
        ({"match": ["tag", "Glob", "order*"]}, [4, 6]),
        ({"match": ["tag", "Glob", "*"]}, [6]),
        ({"match": ["tag", "Eq", "orde"]}, [1, 2, 3, 4, 5, 6]),
        ({"match": ["tag", "Eq", "order-1"], "before_seq": 5}, [2, 3, 4, 5, 6]),
        ({"before_seq": 4}, [4, 5, 6]),
        ({"before_seq": 1_000}, []),
    ],
    ids=str,
)
def test_a_match_deletes_by_equality_or_beginning_and_a_bound_by_number(
    tagged: Topic, wish: dict[str, Any], left: list[int]
) -> None:
    """§1.3: "Eq -> point lookup", "Glob -> range scan over keys in ["X", next-key)", "for a combined before_seq, only
    the seqs < before_seq"; a bound alone is a snapshot delete."""
    answer = told(tagged.delete(**wish))
    earliest = left[0] if left else 7
    assert answer == {"deleted": 6 - len(left), "earliest_seq": earliest, "head_seq": 6}
    assert seqs(whole(tagged)) == left
    assert floors(tagged) == (1, earliest) and tagged.state()["count"] == len(left)
    hold_floors(tagged)


def test_a_deletion_is_seen_at_every_door_at_once(tagged: Topic) -> None:
    """§3.5: "Reads see the effect at once", "so no tombstone results"."""
    before = tagged.state()["bytes"]
    assert told(tagged.delete(match=["tag", "Glob", "order-*"]))["deleted"] == 3
    assert at_every_door(tagged) == [3, 4, 6]
    assert gap(tagged.diff()) is None and tagged.state()["bytes"] == before - 3


def test_deleting_again_finds_nothing_more(tagged: Topic) -> None:
    """§1.3: "when a record is deleted ..., its seq is removed from tag_index[tag]"."""
    wish = {"match": ["tag", "Eq", "order-1"]}
    assert [told(tagged.delete(**wish))["deleted"] for _ in range(2)] == [2, 0]
    tagged.write(7, tag="order-1")
    assert told(tagged.delete(**wish)) == {"deleted": 1, "earliest_seq": 2, "head_seq": 7}


def test_deletions_are_not_standing_state(tagged: Topic) -> None:
    """§5: "Deletes are not standing state": what is written later with the same tag stays."""
    tagged.delete(match=["tag", "Glob", "order*"])
    tagged.delete(before_seq=5)
    tagged.write("later", tag="order-1")
    assert seqs(whole(tagged)) == [6, 7]


def test_a_storage_file_is_not_touched_by_a_deletion(tagged: Topic) -> None:
    """§3.5: "Until a segment is rewritten/dropped, deleted records still occupy disk but are invisible to every
    read"."""
    settle(tagged.node)
    lake = tagged.node.data_directory / "lake" / "data"
    before = contents(lake)
    tagged.delete(match=["tag", "Eq", "order-1"])
    after = contents(lake)
    assert {name: data for name, data in after.items() if name in before} == {
        name: data for name, data in before.items() if name in after
    }
    assert seqs(whole(tagged)) == [2, 3, 4, 6]


def test_an_evicted_record_leaves_the_index(new: New) -> None:
    """§1.3: "(or its front slot is popped), its seq is removed from tag_index[tag]"."""
    topic = new(cap_records=2)
    topic.write(1, 2, 3, 4, tag="a")
    topic.diff()
    assert told(topic.delete(match=["tag", "Eq", "a"])) == {"deleted": 2, "earliest_seq": 5, "head_seq": 4}
    assert floors(topic) == (3, 5)
    hold_floors(topic)


# ---- what a deletion costs -------------------------------------------------------------------------------------


class Asking:
    def __init__(self, shore: Shore, tags: list[str | None]) -> None:
        shore.create()
        shore.submit(Append([b"x"] * len(tags), labels=[None if tag is None else Labels(tag) for tag in tags]))
        shore.sync()
        self.shore = shore
        self.deletes = TopicDeletes(shore.group, Marks(shore.group), shore.by_number)
        self.told: list[Any] = []

    def ask(self, match: tuple[str, str] | None, before_seq: int | None) -> tuple[Any, int]:
        """The answer, and how many events the log got."""
        logged = len(self.shore.log.events)
        self.deletes.delete(KEY, match, before_seq, self.told.append)
        while not self.told:
            self.shore.turn()
            self.shore.sync()
        return self.told.pop(), len(self.shore.log.events) - logged


@pytest.mark.parametrize("count", [2, 5_000])
def test_a_bound_alone_is_one_event_whatever_it_deletes(count: int) -> None:
    """§1.3: "A before_seq-only (snapshot/prefix) delete is O(1)"."""

    async def play(shore: Shore) -> None:
        asking = Asking(shore, [None] * count)
        assert asking.ask(None, count) == (RecordsGone(count - 1, count, count), 1)

    asked(play)


def test_a_match_is_answered_when_it_is_durable_and_not_before() -> None:
    """§3.5: "Write the Delete control frame and ack"."""

    async def play(shore: Shore) -> None:
        asking = Asking(shore, ["a", "b", "a"])
        asking.deletes.delete(KEY, ("Eq", "a"), None, asking.told.append)
        shore.turn()
        assert asking.told == []
        shore.sync()
        assert asking.told == [RecordsGone(2, 2, 3)]

    asked(play)


def test_a_match_looks_at_what_matches_and_not_at_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.3: "A match delete MUST be efficient over many records - it must not scan the whole log". A look of more than
    `LOOK_COUNT` records would take another turn: three among 20,000 are found without a pause, once those that memory
    holds have been put into their index, which takes turns of its own."""
    monkeypatch.setattr(topic_deletes, "LOOK_COUNT", 5)

    async def play(shore: Shore) -> None:
        tags: list[str | None] = ["common"] * 20_000
        tags[10] = tags[15_000] = tags[19_999] = "rare"
        asking = Asking(shore, tags)
        assert asking.ask(("Eq", "of nobody"), None)[0].deleted == 0
        asking.deletes.delete(KEY, ("Eq", "rare"), None, asking.told.append)
        shore.sync()
        assert asking.told == [RecordsGone(3, 1, 20_000)]

    asked(play)
