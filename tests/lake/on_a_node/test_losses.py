"""What streams let go of, as the pipeline hears of it: each loss by the log position of the newest record that went.
The positions are held against the rows themselves, as the feed and the lake tell them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake.on_a_node.surface import QUIET, TEXT, append, create, flush, path_of, table_rows
from tests.lake.on_a_node.swaps import assert_verified, listing, merged, paths, swapped
from tests.support.node import Node

EDGE = 4
"""Every record has so many bytes: record n begins at n * EDGE."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=QUIET) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()


def fill(node: Node, *keys: str, count: int = 6, headers: dict[str, str] | None = None) -> None:
    with node.connect() as connection:
        for key in keys:
            if connection.request("HEAD", path_of(key)).status == 404:
                create(connection, key, {**TEXT, **(headers or {})})
            for _ in range(count):
                append(connection, key, b"x" * EDGE)


def positions(node: Node, key: str) -> list[int]:
    """Of each record of the stream, wherever it is. Rows that nobody can read any more may be among them."""
    feed = node.request("GET", f"/__headwater/groups/0/feed?from={lake_position(node)}")
    assert feed.status == 200, feed
    rows = pa.ipc.open_stream(feed.body).read_all().to_pylist()
    place = node.data_directory / "lake"
    rows += table_rows(place) if (place / "_delta_log").exists() else []
    found = {row["seq"]: row["position"] for row in rows if f"{row['bucket']}/{row['stream']}" == key}
    return [found[seq] for seq in sorted(found)]


def lake_position(node: Node) -> int:
    found: int = node.request("GET", "/__headwater/groups").json()["groups"][0]["lake_position"]
    return found


def forget_before(node: Node, key: str, record: int) -> None:
    """By a snapshot: what lies before it goes."""
    path = f"/{key}/snapshot/{record * EDGE:020d}"
    answer = node.request("PUT", path, TEXT, b"so far")
    assert answer.status in (200, 201, 204), answer


def losses(node: Node, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    """All of them, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        query = f"after={after}" + ("" if limit is None else f"&limit={limit}")
        answer = node.request("GET", f"/__headwater/groups/0/losses?{query}")
        assert answer.status == 200, answer
        page = answer.json()
        assert limit is None or len(page["losses"]) <= limit
        found += page["losses"]
        if not page["more"]:
            return found
        after = page["losses"][-1]["position"]


def assert_lost(node: Node, key: str, record: int, position: int) -> None:
    (found,) = [one for one in losses(node) if f"{one['bucket']}/{one['stream']}" == key]
    assert (found["position"], found["earliest"]) == (position, f"{record * EDGE:020d}")
    assert not [one for one in losses(node, after=position) if f"{one['bucket']}/{one['stream']}" == key]


def through_restarts(node: Node) -> Iterator[str]:
    """As it is; from the log alone; from the catalog."""
    yield "as it is"
    node.kill()
    node.start()
    yield "after a crash"
    listing(node)  # takes a checkpoint
    yield "after a checkpoint"
    node.restart()
    yield "after a restart"


def test_a_loss_of_records_in_memory_is_told_by_the_position_of_the_last(node: Node) -> None:
    fill(node, "loss/a", "loss/b")
    known = positions(node, "loss/a")
    assert losses(node) == []
    forget_before(node, "loss/a", 4)
    for _ in through_restarts(node):
        assert_lost(node, "loss/a", 4, known[3])
        assert len(losses(node)) == 1


@pytest.mark.full
@pytest.mark.parametrize("record", [2, 3, 6], ids=["inside an extent", "at an extent's end", "at the end of all"])
@pytest.mark.parametrize("compacted", [False, True], ids=["as settled", "as swapped"])
def test_a_loss_of_settled_records_is_exact_wherever_it_ends(node: Node, record: int, compacted: bool) -> None:
    for _ in range(2):
        fill(node, "loss/a", "loss/b", count=3)
        flush(node)
    known = positions(node, "loss/a")
    if compacted:
        old = paths(node)
        swapped(node, old, [merged(node, node.data_directory / "lake", old, "new")])
    forget_before(node, "loss/a", record)
    for _ in through_restarts(node):
        assert_lost(node, "loss/a", record, known[record - 1])
    assert_verified(node)


def test_a_later_loss_of_more_takes_the_place_of_the_first(node: Node) -> None:
    fill(node, "loss/a")
    known = positions(node, "loss/a")
    forget_before(node, "loss/a", 2)
    listing(node)
    forget_before(node, "loss/a", 5)
    assert_lost(node, "loss/a", 5, known[4])
    forget_before(node, "loss/a", 5)  # another snapshot at the same place loses nothing more
    assert_lost(node, "loss/a", 5, known[4])


def test_a_policy_that_lets_go_is_told_like_a_trim(node: Node) -> None:
    fill(node, "loss/a", headers={"Stream-Retention-Records": "2"})
    known = positions(node, "loss/a")
    until_s = time.monotonic() + 30
    while not losses(node):
        assert time.monotonic() < until_s
    found = losses(node)[0]
    record = int(found["earliest"]) // EDGE
    assert 0 < record <= 4 and found["position"] == known[record - 1]


def test_a_policy_that_lets_go_of_settled_records_is_told_too(node: Node) -> None:
    fill(node, "loss/a", count=2, headers={"Stream-Retention-Records": "2"})
    flush(node)
    known = positions(node, "loss/a")
    fill(node, "loss/a", count=2)
    for _ in range(500):
        if losses(node):
            break
    assert_lost(node, "loss/a", 2, known[1])


def test_a_deleted_stream_is_no_loss(node: Node) -> None:
    fill(node, "loss/a", "loss/b")
    forget_before(node, "loss/a", 3)
    listing(node)
    forget_before(node, "loss/b", 3)
    assert len(losses(node)) == 2
    with node.connect() as connection:
        connection.request("DELETE", path_of("loss/a"))
        connection.request("DELETE", path_of("loss/b"))
    for _ in through_restarts(node):
        assert losses(node) == []


def test_what_a_fork_lets_go_of_is_a_loss_only_where_it_is_its_own(node: Node) -> None:
    fill(node, "loss/a")
    with node.connect() as connection:
        answer = connection.request("PUT", path_of("loss/fork"), {**TEXT, "Stream-Forked-From": path_of("loss/a")})
        assert answer.status == 201, answer
    fill(node, "loss/fork", count=3)
    known = positions(node, "loss/fork")
    forget_before(node, "loss/fork", 4)
    assert losses(node) == []
    forget_before(node, "loss/fork", 8)
    for _ in through_restarts(node):
        assert_lost(node, "loss/fork", 8, known[1])


def test_losses_come_in_pages_whether_memory_or_catalog_knows_them(node: Node) -> None:
    keys = [f"loss/{number}" for number in range(10)]
    fill(node, *keys, count=3)
    for key in keys[:6]:
        forget_before(node, key, 1)
    listing(node)
    for key in (*keys[4:8], keys[0]):
        forget_before(node, key, 2)
    whole = losses(node)
    assert sorted(f"{one['bucket']}/{one['stream']}" for one in whole) == keys[:8]
    assert [one["position"] for one in whole] == sorted(one["position"] for one in whole)
    for limit in (1, 2, 3, 7):
        assert losses(node, limit=limit) == whole
    assert losses(node, after=whole[4]["position"]) == whole[5:]
