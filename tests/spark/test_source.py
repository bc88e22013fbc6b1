"""Batch reads of `format("headwater")`, held against HTTP: the same records, across the boundary of memory and lake,
while others write and settle, and after everything moved. Data is small; nothing is timed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import append, create, flush, path_of
from tests.spark.reads import (
    COLUMNS,
    Row,
    assert_contiguous,
    assert_shown,
    bucketed,
    fill,
    in_order,
    load,
    position,
    rows_of,
    snapshot,
)
from tests.support.guarded import guarded
from tests.support.node import Node
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
KEYS = ("orders/text", "orders/json", "other/nested/name", "other/ünï", "plain")
FULL_KEYS = ("orders/text", "orders/json", "other/nested/name", "other/ünï", "_default/plain")


def refusal(read: Any) -> str:
    with pytest.raises(Exception) as refused:  # Spark's own, around whatever was raised in Python
        read()
    return str(refused.value)


def test_a_read_is_exactly_what_http_shows_across_the_lakes_boundary(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 10)
        assert_shown(node, FULL_KEYS, rows_of(load(spark, node)))  # all of it in memory
        flush(node)
        assert_shown(node, FULL_KEYS, rows_of(load(spark, node)))  # all of it in the lake
        fill(connection, KEYS, 5, first=10)
        flush(node)
        fill(connection, KEYS, 5, first=15)
        frame = load(spark, node)
        assert frame.columns == COLUMNS
        assert_shown(node, FULL_KEYS, rows_of(frame))
        # Planned before and run after: what was in memory then is read from the lake.
        count = frame.count()
        flush(node)
        assert frame.count() == count
        assert_shown(node, FULL_KEYS, rows_of(frame))


def test_reads_miss_nothing_and_repeat_nothing_while_others_write_and_settle(spark: SparkSession, node: Node) -> None:
    keys = [f"busy/{number}" for number in range(4)]
    acknowledged = dict.fromkeys(keys, 0)
    stop = threading.Event()

    def write() -> None:
        number = 0
        with node.connect() as connection:
            while not stop.is_set():
                fill(connection, keys, 1, first=number)
                number += 1
                for key in keys:
                    acknowledged[key] = number
                if number % 40 == 0:
                    node.request("POST", "/__headwater/flush")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            before = dict(acknowledged)
            rows = in_order(rows_of(load(spark, node)))
            for key in keys:
                mine = [row for row in rows if f"{row['bucket']}/{row['stream']}" == key]
                assert_contiguous(mine)
                assert len(mine) >= before[key], "a record that was acknowledged before the read began is missing"
                assert all(row["payload"].startswith(f"{key} {row['seq']} ".encode()) for row in mine)
    finally:
        stop.set()
        writer.join()


def test_what_streams_no_longer_have_is_not_read(spark: SparkSession, node: Node) -> None:
    bucketed(node, ["orders"])
    with node.connect() as connection:
        fill(connection, ("orders/kept", "orders/gone", "orders/again", "orders/cut"), 20)
        flush(node)
        fill(connection, ("orders/kept", "orders/gone", "orders/again", "orders/cut"), 5, first=20)
        for key in ("orders/gone", "orders/again"):
            assert connection.request("DELETE", path_of(key)).status == 204
        create(connection, "orders/again")
        append(connection, "orders/again", b"second life")
        cut = next(row for row in rows_of(load(spark, node, subscribe="orders/cut")) if row["seq"] == 7)
        snapshot(connection, "orders/cut", cut["offset"])  # in the middle of what settled together
        live = ("orders/kept", "orders/again", "orders/cut")
        for _ in range(2):
            rows = rows_of(load(spark, node))
            assert_shown(node, live, rows)
            assert min(row["seq"] for row in rows if row["stream"] == "cut") == 7
            flush(node)
        last = next(row for row in rows if row["stream"] == "cut" and row["seq"] == 22)
        snapshot(connection, "orders/cut", last["offset"])
        assert_shown(node, live, rows_of(load(spark, node)))


def test_a_range_is_the_same_rows_in_memory_in_the_lake_and_after_compaction(spark: SparkSession, node: Node) -> None:
    from headwater.spark.jobs.compact import compact

    with node.connect() as connection:
        fill(connection, KEYS, 4)
        low = position(node)
        flush(node)
        fill(connection, KEYS, 4, first=4)
        flush(node)
        fill(connection, KEYS, 4, first=8)
        high = position(node)
        fill(connection, KEYS, 4, first=12)
    span = {"startingOffsets": f'{{"0": {low}}}', "endingOffsets": f'{{"0": {high}}}'}
    expected = in_order(rows_of(load(spark, node, **span)))
    assert len(expected) == 8 * (len(KEYS) - 1) + sum(number % 3 + 1 for number in range(4, 12))
    assert all(low < row["position"] <= high for row in expected)
    flush(node)
    assert in_order(rows_of(load(spark, node, **span))) == expected
    done = compact(spark, Calls(node.url), min_files=2)
    assert done["files_after"] < done["files_before"], done
    assert in_order(rows_of(load(spark, node, **span))) == expected
    assert in_order(rows_of(load(spark, node, minPartitions="3", **span))) == expected
    whole = in_order(rows_of(load(spark, node)))
    assert [row for row in whole if low < row["position"] <= high] == expected


def test_streams_are_chosen_by_name_pattern_or_bucket(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 3)
        flush(node)
        fill(connection, KEYS, 3, first=3)
        create(connection, "_headwater/pipeline-runs")
        append(connection, "_headwater/pipeline-runs", b"a run")

    def streams(**options: str) -> set[str]:
        found = rows_of(load(spark, node, **options).select("bucket", "stream").distinct())
        return {f"{row['bucket']}/{row['stream']}" for row in found}

    assert streams() == set(FULL_KEYS)
    assert streams(subscribe="orders/text, plain") == {"orders/text", "_default/plain"}
    assert streams(subscribePattern="*/*") == {"orders/text", "orders/json", "other/ünï"}
    assert streams(subscribePattern="other/**") == {"other/nested/name", "other/ünï"}
    assert streams(bucket="orders") == {"orders/text", "orders/json"}
    assert streams(bucket="_headwater") == {"_headwater/pipeline-runs"}
    assert_shown(node, ["orders/json"], rows_of(load(spark, node, subscribe="orders/json")))


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_of_one_frame_do_not_get_in_each_others_way(spark: SparkSession, node: Node, pushed: str) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 6)
        flush(node)
        fill(connection, KEYS, 6, first=6)
        flush(node)
        fill(connection, KEYS, 3, first=12)
    everything = in_order(rows_of(load(spark, node)))
    middle = sorted(row["position"] for row in everything)[len(everything) // 2]
    filters: list[tuple[str, Any]] = [
        ("stream = 'json'", lambda row: row["stream"] == "json"),
        (f"position > {middle}", lambda row: row["position"] > middle),
        (f"position = {middle} and `group` = 0", lambda row: row["position"] == middle),
        ("stream like 'n%' or seq = 3", lambda row: row["stream"].startswith("n") or row["seq"] == 3),
        ("bucket is null", lambda row: False),
    ]
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = load(spark, node)
        for text, keeps in filters:
            assert in_order(rows_of(frame.where(text))) == [row for row in everything if keeps(row)], text
        assert in_order(rows_of(frame)) == everything
        both = frame.where("bucket = 'orders'").union(frame.where("bucket <> 'orders'"))
        assert in_order(rows_of(both)) == everything
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", before)


def test_sql_reads_a_view_and_says_that_there_are_no_tables(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        fill(connection, ["orders/text"], 4)
    spark.sql(f"CREATE TEMPORARY VIEW seen USING headwater OPTIONS (url '{node.url}', includeHeaders 'true')")
    try:
        counted = "SELECT stream, count(*) AS rows, max(tag) AS tag FROM seen GROUP BY stream"
        assert spark.sql(counted).collect() == [("text", 4, None)]
        flush(node)
        assert spark.sql(counted).collect() == [("text", 4, None)]
    finally:
        spark.sql("DROP VIEW seen")
    table = f"CREATE TABLE kept USING headwater OPTIONS (url '{node.url}')"
    assert "CREATE TEMPORARY VIEW" in refusal(lambda: spark.sql(table))


def test_a_schema_of_the_users_is_honoured(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        fill(connection, ["orders/json"], 3)
        flush(node)
        fill(connection, ["orders/json"], 3, first=3)
        append(connection, "orders/json", b'["\xf0\x9f\x8c\x8a"]', {"Content-Type": "application/json"})
    reader = spark.read.format("headwater").option("url", node.url)
    whole = in_order(rows_of(load(spark, node)))
    some = reader.schema("Payload string, timestamp timestamp, seq bigint, tag string").load().collect()
    some = sorted(some, key=lambda row: row.seq)
    assert [row.Payload for row in some] == [row["payload"].decode() for row in whole]
    assert [row.timestamp for row in some] == [row["timestamp"] for row in whole]
    assert "no column colour" in refusal(lambda: reader.schema("colour string").load().collect())
    assert "column seq is bigint, not string" in refusal(lambda: reader.schema("seq string").load().collect())


def test_bad_options_are_told_by_name(spark: SparkSession, node: Node) -> None:
    assert "no option maxrows for reading" in refusal(lambda: load(spark, node, maxRows="3"))
    assert "both say which streams" in refusal(lambda: load(spark, node, subscribe="a/b", bucket="a"))
    assert "is for streaming reads" in refusal(lambda: load(spark, node, maxOffsetsPerTrigger="3").collect())
    beyond = load(spark, node, startingOffsets='{"0": 999999999}')
    assert "is it another node's?" in refusal(beyond.collect)
    nobody = spark.read.format("headwater").load
    assert "nothing says where to read" in refusal(nobody)


def test_a_read_can_begin_at_a_moment(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 5)
        flush(node)
        fill(connection, KEYS, 5, first=5)
        flush(node)
        fill(connection, KEYS, 5, first=10)
    whole = in_order(rows_of(load(spark, node)))

    def ms(row: Row) -> int:
        return round(row["timestamp"].timestamp() * 1000)

    moments = sorted({ms(row) for row in whole})
    for moment in (0, moments[len(moments) // 3], moments[-1], moments[-1] + 1):
        late = [row["position"] for row in whole if ms(row) >= moment]
        first = min(late) if late else position(node) + 1
        found = in_order(rows_of(load(spark, node, startingTimestamp=str(moment))))
        assert found == [row for row in whole if row["position"] >= first], moment


def test_a_batch_from_a_position_says_what_was_lost_behind_it(spark: SparkSession, node: Node) -> None:
    bucketed(node, ["orders"])
    with node.connect() as connection:
        fill(connection, ("orders/cut", "orders/whole"), 5)
        start = position(node)
        fill(connection, ("orders/cut", "orders/whole"), 5, first=5)
        flush(node)
        cut = next(row for row in rows_of(load(spark, node, subscribe="orders/cut")) if row["seq"] == 8)
        snapshot(connection, "orders/cut", cut["offset"])
    begin = {"startingOffsets": f'{{"0": {start}}}'}
    told = refusal(load(spark, node, **begin).collect)
    lost = cut["position"]
    assert "DataLoss" in told and "orders/cut" in told and f"positions ({start}, " in told and str(lost) not in told
    assert f"its earliest offset left is {cut['offset']:020d}" in told and "orders/whole" not in told
    rows = in_order(rows_of(load(spark, node, failOnDataLoss="false", **begin)))
    assert [(row["stream"], row["seq"]) for row in rows] == [
        *(("cut", seq) for seq in range(8, 10)),
        *(("whole", seq) for seq in range(5, 10)),
    ]
    # What is not asked for is no loss, and neither is what was gone before a read from the beginning.
    assert len(rows_of(load(spark, node, subscribe="orders/whole", **begin))) == 5
    assert_shown(node, ("orders/cut", "orders/whole"), rows_of(load(spark, node)))


def test_a_lake_is_read_without_its_node(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        fill(connection, KEYS, 5)
        flush(node)
        settled = in_order(rows_of(load(spark, node)))
        fill(connection, KEYS, 5, first=5)
    node.kill()
    lake = node.data_directory / "lake"
    reader = spark.read.format("headwater").option("lake", str(lake))
    assert in_order(rows_of(reader.load())) == settled
    assert in_order(rows_of(reader.option("bucket", "orders").load().where("position > 0"))) == [
        row for row in settled if row["bucket"] == "orders"
    ]
    nowhere = spark.read.format("headwater").option("lake", str(node.directory / "nowhere")).load
    assert "is it the place of a lake?" in refusal(lambda: nowhere().collect())


def test_a_node_that_keeps_nothing_is_read_too(spark: SparkSession, tmp_path: Any) -> None:
    with Node.started(tmp_path, memory=True) as node, node.connect() as connection:
        fill(connection, KEYS, 5)
        assert_shown(node, FULL_KEYS, rows_of(load(spark, node)))


def test_the_audit_log_is_read_like_any_stream(spark: SparkSession, tmp_path: Path) -> None:
    with guarded(tmp_path, memory=False) as node:
        reader, narrow = node.key("read:*"), node.key("read:_headwater/audit")
        http = "/v1/stream/_headwater/audit?offset=-1"
        until(lambda: node.ask(narrow, "GET", http).body.count(b'"key.make"') == 3)
        node.call("POST", "/__headwater/flush")
        node.call("PUT", "/later")
        until(lambda: b'"later"' in node.ask(narrow, "GET", http).body)
        load = spark.read.format("headwater").option("url", node.node.url).option("subscribe", "_headwater/audit")
        rows = load.option("token", reader).load().orderBy("seq").collect()
        told = [json.loads(bytes(row["payload"])) for row in rows]
        assert told == json.loads(node.ask(narrow, "GET", http).body)[: len(told)]
        assert [one["action"] for one in told][:3] == ["key.make"] * 3
        assert {"flush", "bucket.make"} <= {one["action"] for one in told}
