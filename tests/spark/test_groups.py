"""Reads over several groups of a real node: one offset, one call for each micro-batch, losses told by group.
The source is driven as Spark drives it, in this process (see `queries`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.client.connection import Answer
from headwater.spark.node import DataLoss
from headwater.spark.node import Node as Calls
from headwater.spark.options import BadOptions
from tests.lake.on_a_node.surface import JSON, QUIET, append, create, flush
from tests.spark.queries import Query
from tests.spark.reads import Row, assert_shown, bucketed, in_order, load, rows_of, snapshot
from tests.spark.test_fold import bootstrap
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 2
KEYS = [f"orders/{number}" for number in range(12)]
"""Enough that every group has some."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path / "node", flags=[*QUIET, "--groups", str(GROUPS)]) as running:
        running.listen = f"127.0.0.1:{running.port}"
        bucketed(running, ["orders"])
        with running.connect() as connection:
            for key in KEYS:
                create(connection, key)
        yield running


def write(node: Node, rounds: int, what: str = "record") -> None:
    with node.connect() as connection:
        for number in range(rounds):
            for key in KEYS:
                append(connection, key, f"{what} {number};".encode())


def groups_of(rows: list[Row]) -> set[int]:
    return {row["group"] for row in rows}


def test_a_query_reads_every_record_of_every_group_once_from_memory_and_from_files(node: Node) -> None:
    query = Query(node)
    write(node, 5)
    rows = query.run()
    flush(node)
    write(node, 3, "later")
    rows += query.run()
    assert groups_of(rows) == set(range(GROUPS)) and len(rows) == 8 * len(KEYS)
    assert_shown(node, KEYS, rows)
    assert {name for name in query.offset if name.isdigit()} == {"0", "1"} == set(query.offset["logs"])
    assert query.run() == []
    again = Query(node)
    flush(node)
    assert_shown(node, KEYS, again.run())


def test_a_micro_batch_is_planned_with_one_call(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(node, maxOffsetsPerTrigger="1000")
    write(node, 2)
    query.run()
    calls: list[str] = []
    call = Calls.call

    def noted(self: Calls, method: str, path: str, *given: Any, **more: Any) -> Answer:
        calls.append(path)
        return call(self, method, path, *given, **more)

    reader = query.reader()
    query.plan(reader)  # the first of a run also looks whether there are such streams, and how far the node is
    for settled in (False, True):
        write(node, 2)
        if settled:
            flush(node)
        with monkeypatch.context() as patch:
            patch.setattr(Calls, "call", noted)
            assert query.plan(reader)
            reader.reportLatestOffset()
            parts = query.parts(reader)
        assert calls == ["/__headwater/plan"]
        assert len(parts) == 1, "little is one task, whichever groups it is of"
        calls.clear()
        assert len(query.read(reader)) == 2 * len(KEYS)
        query.committed += 1


@pytest.mark.parametrize("settled", [False, True])
def test_limits_are_shared_out_over_groups_and_no_record_is_lost_or_doubled(node: Node, settled: bool) -> None:
    write(node, 10)
    if settled:
        flush(node)
    query = Query(node, maxOffsetsPerTrigger="7")
    rows = query.run()
    assert_shown(node, KEYS, rows)
    assert len(rows) == 10 * len(KEYS)
    if not settled:
        assert max(map(len, query.batches)) <= 7
    assert any(len(groups_of(batch)) == GROUPS for batch in query.batches), "no group waits for the other"


def test_a_loss_is_told_with_its_group_and_others_are_read_on(node: Node) -> None:
    query = Query(node)
    write(node, 1)
    query.run()
    write(node, 3)
    with node.connect() as connection:
        snapshot(connection, KEYS[0], 2 * len("record 0;"))
    with pytest.raises(DataLoss, match=r"1 streams have let go .* of group [01]") as told:
        query.run()
    assert KEYS[0] in str(told.value) and KEYS[1] not in str(told.value)
    rows = query.run(failOnDataLoss="false")
    assert {row["stream"] for row in rows} >= {key.partition("/")[2] for key in KEYS[1:]}


def test_logs_that_were_set_back_are_told_and_each_goes_on_where_both_agree(node: Node, tmp_path: Path) -> None:
    query = Query(node)
    write(node, 2, "kept")
    node.terminate()
    shutil.copytree(node.data_directory, tmp_path / "kept")
    node.start()
    write(node, 3, "lost")
    assert len(query.run()) == 5 * len(KEYS)
    node.kill()
    shutil.rmtree(node.data_directory)
    shutil.copytree(tmp_path / "kept", node.data_directory)
    node.start()
    with pytest.raises(DataLoss, match="restored from a backup or a copy") as told:
        query.run()
    assert "of group 0" in str(told.value) and "of group 1" in str(told.value)
    write(node, 4, "new")
    rows = query.run(failOnDataLoss="false")
    assert len(rows) == 4 * len(KEYS) and all(b"new" in row["payload"] for row in rows)
    write(node, 1, "later")
    assert len(query.run()) == len(KEYS)


def test_a_checkpoint_of_a_node_with_another_number_of_groups_is_told(node: Node, tmp_path: Path) -> None:
    with Node.started(tmp_path / "other", flags=QUIET) as other:
        query = Query(other)
        with other.connect() as connection:
            create(connection, "orders/0")
            append(connection, "orders/0", b"elsewhere")
        assert len(query.run()) == 1
    write(node, 2)
    query.node = node
    with pytest.raises(DataLoss, match="knows nothing of group 1"):
        query.run()
    rows = query.run(failOnDataLoss="false")
    assert_shown(node, KEYS, rows)
    query.offsets[-1] = json.dumps({"0": query.offset["0"]})  # as the first versions wrote it
    with pytest.raises(DataLoss, match="knows nothing of group 1"):
        query.run()


def test_positions_are_given_for_every_group(node: Node) -> None:
    write(node, 2)
    first = Query(node)
    first.run()
    write(node, 1, "new")
    given = json.dumps({name: first.offset[name] for name in ("0", "1", "logs")})
    assert len(Query(node, startingOffsets=given).run()) == len(KEYS)
    with pytest.raises(BadOptions, match="name one of each"):
        Query(node, startingOffsets='{"0": 1}').run()


# ---- with Spark ----------------------------------------------------------------------------------------------------


def test_batch_reads_and_jobs_work_on_every_group(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.jobs.backup import backup
    from headwater.spark.jobs.compact import compact
    from headwater.spark.jobs.erase import erase, erase_stream
    from headwater.spark.jobs.restore import restore
    from headwater.spark.jobs.usage import usage
    from headwater.spark.jobs.verify import verify
    from headwater.spark.native_read import read_lake

    calls = Calls(node.url)
    for number in range(3):
        write(node, 2, f"settled {number}")
        flush(node)
    write(node, 1, "fresh")
    for frame in (load(spark, node, bucket="orders"), read_lake(spark, calls, bucket="orders")):
        assert_shown(node, KEYS, rows_of(frame))

    assert {file["group"] for file in listed(calls)} == set(range(GROUPS))
    compacted = compact(spark, calls, min_files=2)
    assert (compacted["swaps"], compacted["files_after"]) == (GROUPS, GROUPS), compacted
    assert usage(spark, calls)["settled_records"] >= 6 * len(KEYS)
    assert verify(spark, calls)["findings_count"] == 0

    receipt = erase_stream(spark, calls, KEYS[0], delete=True)
    assert receipt["complete"] is True and receipt["rows_erased"] >= 6
    assert node.request("DELETE", f"/v1/stream/{KEYS[1]}").status == 204
    assert erase(spark, calls)["rows_dropped"] == 7
    left = KEYS[2:]
    assert verify(spark, calls)["findings_count"] == 0

    made = backup(spark, calls, to=str(tmp_path / "backups"))
    assert set(made["positions"]) == {"0", "1"}  # type: ignore[call-overload]
    expected = rows_of(load(spark, node, bucket="orders"))
    again = tmp_path / "again"
    again.mkdir()
    restored = restore(spark, source=str(tmp_path / "backups"), data=again / "data")
    assert restored["groups"] == GROUPS and restored["positions"] == made["positions"]
    node.kill()
    with Node.started(again, flags=QUIET) as other:
        assert in_order(rows_of(load(spark, other, bucket="orders"))) == in_order(expected)
        assert_shown(other, left, expected)
        assert verify(spark, Calls(other.url))["findings_count"] == 0


def test_a_fold_publishes_for_streams_of_every_group(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.fold import fold

    bucketed(node, ["boards"])
    boards = [f"boards/{number}" for number in range(8)]
    with node.connect() as connection:
        for key in boards:
            create(connection, key, JSON)
            append(connection, key, b'[{"id": 1, "n": 1}, {"id": 1, "n": 2}]', JSON)
    told = fold(spark, Calls(node.url), mode="last", key=("/id",), bucket="boards", min_records=1)
    assert (told["published"], told["failed"]) == (len(boards), 0), told
    for key in boards:
        body, rest, _ = bootstrap(node, key)
        assert (json.loads(body), rest) == ([{"id": 1, "n": 2}], [])


def test_a_route_writes_into_streams_of_every_group_once(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.jobs.route import route

    write(node, 3)
    given = {"bucket": "orders", "startingOffsets": "earliest"}
    target = "concat('copies/', stream)"
    for _ in range(2):
        route(spark, Calls(node.url), source=given, target=target, checkpoint=str(tmp_path / "checkpoint"))
    rows = rows_of(load(spark, node, bucket="copies"))
    assert len(rows) == 3 * len(KEYS) and groups_of(rows) == set(range(GROUPS))


def listed(calls: Calls) -> list[dict[str, Any]]:
    return [{**file, "group": group} for group in calls.groups() for file in calls.lake_files(group)["files"]]
