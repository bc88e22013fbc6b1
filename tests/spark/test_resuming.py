"""Queries that go on over a log that is not the one they left: restored, swapped, made anew. Nothing is silent.
The source is driven as Spark drives it, in this process (see `queries`); test_restored has a real one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.spark.node import DataLoss, NodeError
from tests.lake.on_a_node.surface import QUIET, TEXT, append, flush, path_of
from tests.spark.queries import Query
from tests.spark.reads import Row, bucketed, snapshot
from tests.support.node import Node

KEY = "orders/one"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path / "node", flags=QUIET) as running:
        running.listen = f"127.0.0.1:{running.port}"
        yield running


def write(node: Node, count: int, what: str, key: str = KEY) -> None:
    with node.connect() as connection:
        connection.request("PUT", path_of(key), TEXT)
        for number in range(count):
            append(connection, key, f"{what} {number}".encode())


def payloads(rows: list[Row]) -> list[str]:
    return [row["payload"].decode() for row in sorted(rows, key=lambda row: (row["position"], row["seq"]))]


def named(count: int, what: str) -> list[str]:
    return [f"{what} {number}" for number in range(count)]


def keep(node: Node, to: Path) -> None:
    node.terminate()
    shutil.copytree(node.data_directory, to)
    node.start()


def put_back(node: Node, kept: Path | None) -> None:
    """The directory as it was kept, or none at all, and a node on it at the same address."""
    node.kill()
    shutil.rmtree(node.data_directory)
    if kept is not None:
        shutil.copytree(kept, node.data_directory)
    node.start()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_query_over_a_log_that_was_set_back_is_told_and_can_go_on_where_both_agree(
    node: Node, tmp_path: Path, settled: bool, restarted: bool
) -> None:
    query = Query(node)
    write(node, 20, "kept")
    keep(node, tmp_path / "kept")
    write(node, 30, "lost")
    if restarted:
        node.restart()  # what was lost is of an incarnation that the copy never heard of
    write(node, 5, "lost too")
    assert len(query.run()) == 55
    put_back(node, tmp_path / "kept")
    with pytest.raises(DataLoss, match="restored from a backup or a copy") as told:
        query.run()
    assert "set failOnDataLoss to false" in str(told.value) and "another checkpoint" in str(told.value)
    assert "up to which both agree" in str(told.value)
    write(node, 70, "new")  # far beyond the position of the checkpoint
    if settled:
        flush(node)
    with pytest.raises(DataLoss):
        query.run()
    assert payloads(query.run(failOnDataLoss="false")) == named(70, "new")
    write(node, 3, "later")
    assert payloads(query.run()) == named(3, "later"), "and from there on it is an ordinary query again"


def test_what_a_query_had_not_read_when_the_copy_was_made_is_no_loss(node: Node, tmp_path: Path) -> None:
    query = Query(node)
    write(node, 10, "read")
    assert len(query.run()) == 10
    write(node, 5, "kept")
    keep(node, tmp_path / "kept")
    write(node, 30, "lost")
    put_back(node, tmp_path / "kept")
    write(node, 5, "new")
    assert payloads(query.run()) == [*named(5, "kept"), *named(5, "new")]


def test_another_node_at_the_same_address_is_told(node: Node, tmp_path: Path) -> None:
    query = Query(node)
    write(node, 10, "old")
    query.run()
    node.terminate()
    with Node.started(tmp_path / "other", flags=QUIET) as other:
        write(other, 40, "other")
        query.node = other
        with pytest.raises(DataLoss, match="another node answers here") as told:
            query.run()
        assert "with the earliest record of this log" in str(told.value)
        assert payloads(query.run(failOnDataLoss="false")) == named(40, "other")
        assert query.run() == []


def test_a_directory_made_anew_is_told_while_it_is_empty_and_when_it_has_outgrown_the_old_one(node: Node) -> None:
    query = Query(node)
    write(node, 10, "old")
    query.run()
    put_back(node, None)
    with pytest.raises(DataLoss, match="made anew"):
        query.run()
    write(node, 40, "new")
    with pytest.raises(DataLoss, match="made anew"):
        query.run()
    assert payloads(query.run(failOnDataLoss="false")) == named(40, "new")


def test_a_batch_that_was_planned_before_the_log_was_set_back_is_not_made_of_other_records(
    node: Node, tmp_path: Path
) -> None:
    query = Query(node)
    write(node, 10, "read")
    query.run()
    write(node, 5, "kept")
    keep(node, tmp_path / "kept")
    write(node, 30, "lost")
    reader = query.reader()
    assert query.plan(reader)
    put_back(node, tmp_path / "kept")
    write(node, 70, "new")
    with pytest.raises(DataLoss):
        query.run()
    assert payloads(query.run(failOnDataLoss="false")) == [*named(5, "kept"), *named(70, "new")]
    assert [len(batch) for batch in query.batches] == [10, 5, 70]


def test_a_node_that_is_exchanged_between_planning_and_reading_is_caught(node: Node, tmp_path: Path) -> None:
    query = Query(node)
    write(node, 10, "old")
    reader = query.reader()
    query.offsets.append(json.dumps(reader.initialOffset()))
    query.plan(reader)
    parts = query.parts(reader)
    put_back(node, None)
    write(node, 40, "new")
    with pytest.raises(DataLoss, match="made anew"):
        [list(reader.read(part)) for part in parts]


def test_a_checkpoint_from_before_logs_were_told_apart_is_read_and_upgraded(node: Node) -> None:
    query = Query(node)
    write(node, 10, "old")
    query.run()
    at = query.offset["0"]
    query.offsets[-1] = json.dumps({"0": at})
    assert query.run() == [] and query.offset["0"] == at and query.offset["logs"], "at once, also when nothing is new"
    query.offsets[-1] = json.dumps({"0": at})
    write(node, 5, "new")
    assert payloads(query.run()) == named(5, "new")
    query.offsets[-1] = json.dumps({"0": query.offset["0"] + 1_000})
    with pytest.raises(DataLoss, match="it is another node, was restored"):
        query.run()
    assert len(query.run(failOnDataLoss="false")) == 15
    assert query.run() == []


def test_a_position_that_is_given_with_its_log_is_held_against_it(node: Node) -> None:
    write(node, 10, "old")
    first = Query(node)
    first.run()
    write(node, 5, "new")
    given = json.dumps({name: first.offset[name] for name in ("0", "logs")})
    assert payloads(Query(node, startingOffsets=given).run()) == named(5, "new")
    put_back(node, None)
    write(node, 40, "other")
    with pytest.raises(DataLoss, match="startingOffsets, endingOffsets or asOfPosition names a position of that log"):
        Query(node, startingOffsets=given).run()


def test_restarts_of_the_node_are_no_change_and_make_no_batches(node: Node) -> None:
    query = Query(node)
    write(node, 10, "old")
    query.run()
    for _ in range(9):  # more than an offset names
        node.restart()
    before = list(query.offsets)
    assert query.run() == [] and query.offsets == before
    write(node, 5, "new")
    assert payloads(query.run()) == named(5, "new")


# ---- what was gone when a query began ------------------------------------------------------------------------------


def test_a_query_from_earliest_that_was_stopped_while_it_caught_up_goes_on(node: Node) -> None:
    bucketed(node, ["orders"])
    write(node, 10, "aa")  # four bytes each
    write(node, 10, "bb", key="orders/two")
    with node.connect() as connection:
        snapshot(connection, KEY, 8 * 4)
    flush(node)
    query = Query(node, maxOffsetsPerTrigger="3")
    assert len(query.run(batches_max=2)) <= 8
    query.run(batches_max=1)
    node.restart()
    query.run()
    rows = [row for batch in query.batches for row in batch]
    assert payloads([row for row in rows if row["stream"] == "one"]) == ["aa 8", "aa 9"]
    assert payloads([row for row in rows if row["stream"] == "two"]) == named(10, "bb")
    write(node, 1, "cc")
    assert payloads(query.run()) == ["cc 0"]
    assert "began" not in query.offset, "once it has caught up there is nothing to remember"


def test_what_goes_while_a_query_catches_up_is_a_loss_all_the_same(node: Node) -> None:
    bucketed(node, ["orders"])
    write(node, 10, "aa")
    write(node, 10, "bb", key="orders/two")
    with node.connect() as connection:
        snapshot(connection, KEY, 2 * 4)
        query = Query(node, maxOffsetsPerTrigger="3")
        query.run(batches_max=1)
        snapshot(connection, "orders/two", 8 * 4)
    with pytest.raises(NodeError, match="orders/two") as told:
        query.run()
    assert "orders/one" not in str(told.value)
