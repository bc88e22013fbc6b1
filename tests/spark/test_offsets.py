"""Spark's offset as its checkpoint has it: by group, and as versions before there were groups wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.model.lineage import Incarnation
from headwater.spark.node import Node, Seen
from headwater.spark.offsets import Log, Offset, Past, offset_of

LOGS = {0: Log("aa", (Incarnation("aa", 0), Incarnation("ab", 50))), 1: Log("ba", (Incarnation("ba", 0),))}


def test_an_offset_comes_back_as_it_was_written() -> None:
    offset = Offset(
        {0: 70, 1: 90}, LOGS, {1: 40}, {0: 100}, {"bucket": "orders"}, Past({"subscribe": "a/1"}, {0: 7, 1: 0})
    )
    document = json.loads(json.dumps(offset.json()))
    assert document["0"] == 70 and document["1"] == 90
    assert offset_of(document) == offset
    assert offset.seen == {0: Seen("aa", "ab", 70), 1: Seen("ba", "ba", 90)}


def test_what_is_not_so_is_not_written_down() -> None:
    assert Offset({1: 5, 0: 3}).json() == {"0": 3, "1": 5}


def test_an_offset_of_a_version_that_knew_one_group_is_read_on() -> None:
    old = {
        "0": 81_236,
        "log": "5b0c",
        "incarnations": [["5b0c", 0], ["9d1e", 70_112]],
        "after": 70_112,
        "began": 91_004,
        "selection": {"bucket": "orders"},
        "past": {"of": {"subscribe": "a/1"}, "until": 70},
    }
    found = offset_of(old)
    assert found.positions == {0: 81_236} and found.seen == {0: Seen("5b0c", "9d1e", 81_236)}
    assert (found.after, found.began) == ({0: 70_112}, {0: 91_004})
    assert found.past == Past({"subscribe": "a/1"}, {0: 70})
    assert offset_of({"0": 12}) == Offset({0: 12}), "the oldest say nothing of a log"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"logs": {}},
        {"0": -1},
        {"0": True},
        {"x": 1},
        {"0": 1, "logs": []},
        {"0": 1, "logs": {"0": {"log": "a", "incarnations": []}}},
        {"0": 1, "logs": {"0": {"log": 5, "incarnations": [["a", 0]]}}},
        {"0": 1, "after": {"0": "7"}},
        {"0": 1, "past": {"of": {}, "until": {"a": 1}}},
    ],
)
def test_what_is_no_offset_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        offset_of(document)


def test_a_call_says_what_is_expected_of_the_group_that_it_is_about_and_others_of_all() -> None:
    node = Node("http://127.0.0.1:1").expecting({1: Seen("ba", "bb", 9), 0: Seen("aa", "ab", 70)})
    assert node._headers("/__headwater/groups/1/cut", None)["Headwater-Expected-Log"] == "ba/bb/9"
    assert node._headers("/__headwater/groups", None)["Headwater-Expected-Log"] == "0:aa/ab/70,1:ba/bb/9"
    assert "Headwater-Expected-Log" not in node._headers("/__headwater/groups/2/cut", None)
    assert "Headwater-Expected-Log" not in Node("http://127.0.0.1:1")._headers("/__headwater/groups", None)
