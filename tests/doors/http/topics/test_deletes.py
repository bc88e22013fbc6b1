"""Deleting records. Topics architecture §3.5 (deletion is logically immediate), §1.4 (by tag, never a scan), §5.1 (a
deleted gap reads silently: earliest_seq moves, evict_floor never does)."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.doors.http.topics.deletes import match_of
from headwater.errors import BadBody
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, refused, told
from tests.support.node import Node

TAGS = ["a", "ab", "b", None, "a", "abc", "é", "a*"]


@pytest.fixture
def tagged(new: New) -> Topic:
    """Records 1 to 8, with TAGS."""
    topic = new()
    assert topic.post([{"data": n, "tag": tag} for n, tag in enumerate(TAGS, 1)]).status == 200
    return topic


def seqs(topic: Topic, **query: Any) -> list[int]:
    return [one["seq"] for one in topic.diff(**query)["records"]]


@pytest.mark.parametrize(
    ("wish", "left"),
    [
        ({"before_seq": 0}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"before_seq": 1}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"before_seq": 4}, [4, 5, 6, 7, 8]),
        ({"before_seq": 9}, []),
        ({"before_seq": (1 << 53) - 1}, []),
        ({"match": ["tag", "Eq", "a"]}, [2, 3, 4, 6, 7, 8]),
        ({"match": ["tag", "Eq", "nobody"]}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"match": ["tag", "Eq", "é"]}, [1, 2, 3, 4, 5, 6, 8]),
        ({"match": ["tag", "Eq", "a*"]}, [1, 2, 3, 4, 5, 6, 7]),
        ({"match": ["tag", "Glob", "ab*"]}, [1, 3, 4, 5, 7, 8]),
        ({"match": ["tag", "Glob", "ab"]}, [1, 3, 4, 5, 6, 7, 8]),
        ({"match": ["tag", "Glob", "*"]}, [4]),
        ({"match": ["tag", "Glob", "a*"], "before_seq": 5}, [3, 4, 5, 6, 7, 8]),
        ({"match": None, "before_seq": 2}, [2, 3, 4, 5, 6, 7, 8]),
    ],
    ids=str,
)
@pytest.mark.parametrize("settled", [False, True], ids=["memory", "lake"])
def test_what_matches_is_gone_for_every_reader_at_once(
    tagged: Topic, wish: dict[str, Any], left: list[int], settled: bool
) -> None:
    if settled:
        assert tagged.node.request("POST", "/__headwater/flush").status == 200
    earliest = left[0] if left else 9
    deleted = {"deleted": 8 - len(left), "earliest_seq": earliest, "head_seq": 8}
    assert told(tagged.delete(**wish)) == deleted
    found = tagged.diff()
    assert [one["seq"] for one in found["records"]] == left
    assert (found["earliest_seq"], found["evict_floor"], "tombstone" in found) == (earliest, 1, False)
    assert tagged.state()["count"] == len(left)
    body = tagged.node.request("GET", f"/v1/stream/{tagged.name}?offset=now")
    assert body.status == 200
    assert told(tagged.delete(**wish))["deleted"] == 0
    assert tagged.write(9) == [9] and seqs(tagged, from_seq=8) == [9]


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"before_seq": None},
        {"before_seq": -1},
        {"before_seq": "5"},
        {"before_seq": 1.5},
        {"before_seq": True},
        {"before_seq": 1 << 53},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["tag", "Eq", "a", "b"]},
        {"match": ["node", "Eq", "a"]},
        {"match": ["tag", "eq", "a"]},
        {"match": ["tag", "Like", "a"]},
        {"match": ["tag", "Eq", 5]},
        {"match": ["tag", "Eq", None]},
        {"match": ["tag", "Eq", ""]},
        {"match": ["tag", "Eq", "x" * 1_025]},
        {"match": ["tag", "Glob", "a*b"]},
        {"match": ["tag", "Glob", "**"]},
        {"match": {"tag": "a"}},
        {"match": "tag"},
        {"seq": 5},
        {"before_seq": 5, "all": True},
    ],
    ids=lambda wish: str(wish)[:50],
)
def test_a_wish_that_cannot_be_understood_deletes_nothing(tagged: Topic, wish: dict[str, Any]) -> None:
    assert refused(tagged.delete(**wish)) == (400, "bad_request")
    assert len(seqs(tagged)) == 8


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"before_seq":', b"\xff", b'{"before_seq":5}x'])
def test_a_body_that_is_no_wish_deletes_nothing(tagged: Topic, body: bytes) -> None:
    assert refused(tagged.request("POST", "/delete", body)) == (400, "bad_request")
    assert len(seqs(tagged)) == 8


def test_what_is_deleted_makes_room_where_a_full_topic_rejects(new: New) -> None:
    topic = new(cap_records=2, discard="reject")
    topic.write(1, 2)
    assert refused(topic.post([{"data": 3}])) == (422, "topic_full")
    assert told(topic.delete(before_seq=2))["deleted"] == 1
    assert topic.write(3) == [3]


def test_deletes_behind_writes_on_one_connection_see_them(tagged: Topic, node: Node) -> None:
    with node.connect() as connection:
        for n in range(20):
            body = b'{"records":[{"data":1,"tag":"fresh"}]}'
            assert connection.request("POST", f"{tagged.path}/records", (), body).status == 200
            answer = connection.request("POST", f"{tagged.path}/delete", (), b'{"match":["tag","Eq","fresh"]}')
            assert told(answer) == {"deleted": 1, "earliest_seq": 1, "head_seq": 9 + n}


@pytest.mark.parametrize(
    ("how", "value", "match"),
    [
        ("Eq", "a*", ("Eq", "a*")),
        ("Glob", "a*", ("Glob", "a")),
        ("Glob", "a", ("Eq", "a")),
        ("Glob", "*", ("Glob", "")),
    ],
)
def test_a_star_counts_at_the_end_of_a_glob_only(how: str, value: str, match: tuple[str, str]) -> None:
    assert match_of(how, value) == match


def test_a_star_elsewhere_is_refused() -> None:
    with pytest.raises(BadBody, match="last character"):
        match_of("Glob", "a*b*")
