"""The feed and the planning call for chosen streams: always the same rows as the whole feed without the others, whoever
else reads them, whatever was deleted meanwhile. Rows are read with Arrow alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.doors.http.admin.feed_blocks import BLOCK
from tests.lake.on_a_node.surface import QUIET, append, create, flush, path_of
from tests.support.http import Response
from tests.support.node import Node

GROUP = "/__headwater/groups/0"
KEYS = ("feed/a", "feed/b", "other/a", "other/deep/er")
CHOICES: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({}, lambda key: True),
    ({"bucket": "feed"}, lambda key: key.startswith("feed/")),
    ({"pattern": "other/**"}, lambda key: key.startswith("other/")),
    ({"streams": ["feed/a", "other/deep/er", "not/there"]}, lambda key: key in ("feed/a", "other/deep/er")),
    ({"except": [{"bucket": "feed"}]}, lambda key: not key.startswith("feed/")),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=QUIET) as node:
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key)
        yield node


def write(node: Node, rounds: int, size: int = 10) -> None:
    with node.connect() as connection:
        for number in range(rounds):
            for key in KEYS:
                append(connection, key, f"{key} {number} ".encode().ljust(size, b"x"))


def state(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.request("GET", "/__headwater/groups").json()["groups"][0]
    return found


def rows(answer: Response) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    return pa.ipc.open_stream(answer.body).read_all().to_pylist()


def post(node: Node, call: str, body: Any) -> Response:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return node.request("POST", call, {"Content-Type": "application/json"}, sent)


def chosen(node: Node, **wanted: Any) -> list[dict[str, Any]]:
    """All of it, page by page."""
    found, at = [], wanted["from"]
    while True:
        answer = post(node, f"{GROUP}/feed", {**wanted, "from": at})
        found += rows(answer)
        reached = int(answer.header("headwater-position") or "")
        if reached <= at or reached >= min(wanted.get("to", 1 << 62), state(node)["position"]):
            return found
        at = reached


def plan(node: Node, choice: Any, **wish: Any) -> dict[str, Any]:
    answer = post(node, "/__headwater/plan", {"groups": {"0": {"files": True, **wish}}, "choice": choice})
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()["groups"][0]
    return found


def test_a_chosen_feed_is_the_whole_one_without_the_others_for_every_reader(node: Node) -> None:
    write(node, 12, size=3 * BLOCK // 32)  # several blocks of the log
    start, end = state(node)["lake_position"], state(node)["position"]
    assert end - start > 3 * BLOCK
    every = rows(node.request("GET", f"{GROUP}/feed?from={start}&max_bytes=67108864"))
    for choice, takes in CHOICES:
        expected = [row for row in every if takes(f"{row['bucket']}/{row['stream']}")]
        some = [{name: row[name] for name in ("payload", "seq")} for row in expected]
        for number in range(3):  # the second reader shares it, the third one is given what the second had encoded
            wide = chosen(node, choice=choice, **{"from": start})
            assert [{name: row[name] for name in every[0]} for row in wide] == expected
            after = every[number]["position"]
            late = [row["payload"] for row in expected if row["position"] > after]
            found = chosen(node, choice=choice, columns=["payload", "seq"], max_bytes=200_000, **{"from": after})
            assert [row["payload"] for row in found] == late
            assert [{name: row[name] for name in ("payload", "seq")} for row in found] == some[len(some) - len(late) :]


def test_what_readers_share_is_encoded_anew_once_records_of_it_are_gone(node: Node) -> None:
    write(node, 10, size=BLOCK // 8)
    start = state(node)["lake_position"]

    def read() -> list[dict[str, Any]]:
        # What was trimmed or deleted counts as settled where nothing older is left.
        after = max(start, state(node)["lake_position"])
        return chosen(node, choice={"bucket": "feed"}, columns=["stream", "seq"], **{"from": after})

    before = [read() for _ in range(3)][-1]
    assert {row["stream"] for row in before} == {"a", "b"}
    with node.connect() as connection:
        assert connection.request("DELETE", path_of("feed/b")).status == 204
        assert read() == [row for row in before if row["stream"] == "a"]
        create(connection, "feed/b")
        last = max(row["seq"] for row in before if row["stream"] == "a")
        offset = int(connection.request("HEAD", path_of("feed/a")).header("stream-next-offset") or "")
        text = {"Content-Type": "text/plain"}
        assert connection.request("PUT", f"/feed/a/snapshot/{offset:020d}", text, b"so far").status in (200, 201, 204)
        assert read() == []
        append(connection, "feed/a", b"one more")
        assert [row["seq"] for row in read()] == [last + 1]
        flush(node)
    lake = state(node)["lake_position"]
    assert post(node, f"{GROUP}/feed", {"from": start}).status == 410
    assert chosen(node, choice={"bucket": "feed"}, **{"from": lake}) == []


def test_a_plan_counts_what_is_chosen_in_memory_and_in_files(node: Node) -> None:
    flush(node)
    start = state(node)["position"]
    quiet = plan(node, {"bucket": "feed"}, **{"from": start})
    assert quiet["matched"]["rows"] == 0 and quiet["matched"]["oldest_ms"] is None and "files" not in quiet
    write(node, 3)
    for choice, takes in CHOICES:
        count = 3 * sum(takes(key) for key in KEYS)
        found = plan(node, choice, max_rows=2, **{"from": start})
        assert found["matched"]["rows"] == count and found["matched"]["oldest_ms"] > 0, choice
        assert start <= found["matched"]["from"] < found["matched"]["position"] <= found["position"]
        assert found["cut"]["rows"] == min(2, count)
        assert "files" not in found
    flush(node)
    for choice, takes in CHOICES:
        found = plan(node, choice, **{"from": start})
        (file,) = found["files"]
        assert file["matched_rows"] == 3 * sum(takes(key) for key in KEYS), choice
        assert found["matched"]["rows"] == 0 and found["files_from"] == start
    write(node, 1)
    flush(node)
    known = {"listed": found["lake_position"], "seen": found["seen"]}
    later = plan(node, {}, **{"from": start}, **known)
    assert [one["path"] for one in later["files"]] != [file["path"]] and later["files_from"] == known["listed"]
    with node.connect() as connection:
        assert connection.request("DELETE", path_of("other/a")).status == 204
        create(connection, "other/a")
    # What was listed may hold rows of a stream that is gone.
    afresh = plan(node, {}, **{"from": start}, **known)
    assert afresh["files_from"] == start and len(afresh["files"]) == 2
    assert [one["live_rows"] for one in afresh["files"]] == [9, 3]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "expected"),
        ({"from": -1}, "expected"),
        ({"from": 0, "choice": {"bucket": "a", "pattern": "b"}}, "one of streams"),
        ({"from": 0, "choice": {"colour": "b"}}, "colour"),
        ({"from": 0, "choice": {"streams": [""]}}, "choice of streams"),
        ({"from": 0, "columns": ["colour"]}, "columns are some of"),
        ({"from": 0, "columns": []}, "columns are some of"),
    ],
)
def test_what_the_feed_cannot_answer_is_refused_with_a_reason(node: Node, body: Any, why: str) -> None:
    answer = post(node, f"{GROUP}/feed", body)
    assert answer.status == 400 and why in answer.json()["error"]["message"], answer
    if isinstance(body, dict) and "choice" in body:
        wish = {"groups": {"0": {"from": 0}}, "choice": body["choice"]}
        assert post(node, "/__headwater/plan", wish).status == 400
