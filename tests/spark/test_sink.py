"""The sink on a local Spark: every row once, in order, also when a batch is repeated, and refusals that say what to do.
What was written is read back over HTTP from a real node."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import streams
from tests.support.node import HOST, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

STREAMS = 5
ROOM_BYTES = 8 << 20
BATCHES = 4
BATCH_ROWS = 60


def caller(node: Node) -> Any:
    from headwater.spark.node import Node as Caller

    return Caller(node.url)


def numbered(spark: SparkSession, rows: int, bucket: str = "sink") -> DataFrame:
    frame = spark.range(rows, numPartitions=3)
    return frame.selectExpr(
        f"concat('{bucket}/s', id % {STREAMS}) AS stream", "cast(id AS string) AS payload", "id AS n"
    )


def expected(rows: int) -> dict[str, list[int]]:
    return {f"s{s}": [n for n in range(rows) if n % STREAMS == s] for s in range(STREAMS)}


def found(node: Node, bucket: str = "sink") -> dict[str, list[int]]:
    return {name: streams.read_json(node, f"{bucket}/{name}") for name in streams.names(node, bucket)}


def files_of(directory: Path, batches: int = BATCHES, rows: int = BATCH_ROWS) -> Path:
    """A folder that a streaming read takes one file of per batch, oldest first."""
    directory.mkdir()
    for batch in range(batches):
        add_file(directory, batch, rows)
    return directory


def add_file(directory: Path, batch: int, rows: int = BATCH_ROWS) -> None:
    path = directory / f"{batch}.json"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(batch * rows, (batch + 1) * rows)))
    os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark takes them by their age


def reading(spark: SparkSession, directory: Path) -> DataFrame:
    source = spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", "1").json(str(directory))
    return source.selectExpr(f"concat('sink/s', n % {STREAMS}) AS stream", "cast(n AS string) AS payload", "n")


def start(frame: DataFrame, node: Node, folder: Path, **more: Any) -> StreamingQuery:
    from headwater.spark.sink import start_stream

    return start_stream(
        frame,
        caller(node),
        str(folder / "checkpoint"),
        content_type="application/json",
        order_by=["n"],
        trigger={"availableNow": True},
        report_file=str(folder / "report"),
        **more,
    )


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(120), "the query did not end"
    finally:
        query.stop()


def commits(folder: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in (folder / "report").read_text().splitlines()]


def test_a_frame_goes_onto_its_streams_in_order(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.sink import to_streams

    report = tmp_path / "report"
    to_streams(
        numbered(spark, 10_000),
        caller(node),
        order_by=["n"],
        content_type="application/json",
        report_file=str(report),
    )
    assert found(node) == expected(10_000)
    told = json.loads(report.read_text())
    assert (told["rows"], told["rows_known"], told["streams_count"]) == (10_000, 0, STREAMS)
    assert told["chunks"] == 2 * STREAMS


def test_a_frame_written_by_hand_goes_the_same_way(spark: SparkSession, node: Node) -> None:
    ready = numbered(spark, 500).repartition(2, "stream")
    writing = ready.write.format("headwater").mode("append").option("url", node.url)
    writing.option("contentType", "application/json").option("orderBy", "n").save()
    assert found(node) == expected(500)


def test_the_same_producer_and_epoch_write_once_and_the_next_epoch_again(spark: SparkSession, node: Node) -> None:
    from headwater.spark.sink import to_streams

    def write(epoch: int) -> None:
        to_streams(
            numbered(spark, 100),
            caller(node),
            order_by=["n"],
            content_type="application/json",
            producer_id="nightly",
            epoch_base=epoch,
        )

    write(7)
    write(7)
    assert found(node) == expected(100)
    write(8)
    assert found(node) == {name: numbers * 2 for name, numbers in expected(100).items()}
    with pytest.raises(Exception, match="another copy of the query runs"):
        write(7)


def test_without_a_producer_two_writes_are_two(spark: SparkSession, node: Node) -> None:
    from headwater.spark.sink import to_streams

    for _ in range(2):
        to_streams(numbered(spark, 20), caller(node), order_by=["n"], content_type="application/json")
    assert found(node) == {name: numbers * 2 for name, numbers in expected(20).items()}


def test_a_query_writes_every_batch_once(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    finish(start(reading(spark, files_of(tmp_path / "in")), node, tmp_path))
    assert found(node) == expected(BATCHES * BATCH_ROWS)
    assert [(told["batch"], told["rows"], told["rows_known"]) for told in commits(tmp_path)] == [
        (batch, BATCH_ROWS, 0) for batch in range(BATCHES)
    ]


def test_a_batch_that_was_written_but_not_committed_is_not_written_twice(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    directory = files_of(tmp_path / "in")
    finish(start(reading(spark, directory), node, tmp_path))
    newest = tmp_path / "checkpoint" / "commits" / str(BATCHES - 1)
    assert newest.exists()
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    add_file(directory, BATCHES)

    finish(start(reading(spark, directory), node, tmp_path))
    assert newest.exists()
    assert found(node) == expected((BATCHES + 1) * BATCH_ROWS)
    # The last batch came again, was known, and the new one was not.
    assert [(told["batch"], told["rows"], told["rows_known"]) for told in commits(tmp_path)[BATCHES:]] == [
        (BATCHES - 1, BATCH_ROWS, BATCH_ROWS),
        (BATCHES, BATCH_ROWS, 0),
    ]


def test_a_repeated_batch_may_run_on_other_partitions(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    directory = files_of(tmp_path / "in", batches=2, rows=3_000)
    finish(start(reading(spark, directory), node, tmp_path, partitions=2))
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    finish(start(reading(spark, directory).repartition(4), node, tmp_path, partitions=3))
    assert found(node) == expected(6_000)
    assert commits(tmp_path)[2]["rows_known"] == 3_000


def test_a_new_checkpoint_is_a_new_query_unless_it_takes_the_old_ones_name(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    directory = files_of(tmp_path / "in", batches=1)
    for folder, name in (("one", "tap"), ("two", "tap"), ("three", None)):
        (tmp_path / folder).mkdir()
        finish(start(reading(spark, directory), node, tmp_path / folder, producer_id=name, epoch_base=3))
    assert found(node) == {name: numbers * 2 for name, numbers in expected(BATCH_ROWS).items()}
    assert [commits(tmp_path / folder)[0]["rows_known"] for folder in ("one", "two", "three")] == [0, BATCH_ROWS, 0]


def test_a_stream_in_two_partitions_is_refused(spark: SparkSession, node: Node) -> None:
    ready = numbered(spark, 100).repartition(3)
    with pytest.raises(Exception, match=rf"rows of {STREAMS} streams came from more than one partition"):
        ready.write.format("headwater").mode("append").option("url", node.url).save()


def test_a_query_with_a_stream_in_two_partitions_is_refused(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    frame = reading(spark, files_of(tmp_path / "in", batches=1)).repartition(3)
    query = (
        frame.writeStream.format("headwater")
        .option("url", node.url)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="Write with to_streams or start_stream"):
        finish(query)
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()


def test_rows_without_an_order_stand_by_payload(spark: SparkSession, node: Node) -> None:
    from headwater.spark.sink import to_streams

    to_streams(spark.createDataFrame([("sink/a", p) for p in "hgfedcba"], "stream string, value string"), caller(node))
    assert streams.read(node, "sink/a") == b"abcdefgh"
    assert node.request("HEAD", "/v1/stream/sink/a").header("content-type") == "text/plain"


def test_bucket_and_content_type_may_stand_in_columns(spark: SparkSession, node: Node) -> None:
    rows = [("left", "a", "text/x-one", b"\x00\xff"), ("left", "b", "text/x-two", b"b"), ("right", "a", None, b"c")]
    frame = spark.createDataFrame(rows, "bucket string, stream string, content_type string, payload binary")
    frame.coalesce(1).write.format("headwater").mode("append").option("url", node.url).save()
    assert streams.read(node, "left/a") == b"\x00\xff"
    kinds = [
        node.request("HEAD", f"/v1/stream/{name}").header("content-type") for name in ("left/a", "left/b", "right/a")
    ]
    assert kinds == ["text/x-one", "text/x-two", "application/octet-stream"]


def test_columns_of_labels_become_what_records_carry(spark: SparkSession, node: Node) -> None:
    """And what was written so is read so, by this product's own source; a second time changes nothing."""
    from headwater.spark.sink import to_streams

    rows = [
        ("a", "1", "x", "n1", '{"t": 1}', "k1"),
        ("a", "2", None, None, None, None),
        ("b", "3", "y", None, None, None),
    ]
    kinds = "stream string, payload string, tag string, node string, meta string, key string"
    frame = spark.createDataFrame(rows, kinds).selectExpr(
        "concat('sink/', stream) AS stream", "payload", "tag", "node", "meta", "key"
    )
    for _ in range(2):
        to_streams(frame, caller(node), order_by=["payload"], producer_id="labels")
    found = [
        {name: one[name] for name in one.keys() - {"seq", "ts"}}
        for one in node.request("GET", "/v0/topics/sink%2Fa/diff").json()["records"]
    ]
    assert found == [{"data": "1", "tag": "x", "node": "n1", "meta": {"t": 1}, "key": "k1"}, {"data": "2"}]
    read = (
        spark.read.format("headwater").option("url", node.url).option("bucket", "sink").option("includeHeaders", "true")
    )
    columns = ["stream", "CAST(payload AS string) AS payload", "tag", "node", "meta"]
    again = read.load().selectExpr(*columns).orderBy("payload").collect()
    assert [tuple(row) for row in again] == [
        ("a", "1", "x", "n1", '{"t": 1}'),
        ("a", "2", None, None, None),
        ("b", "3", "y", None, None),
    ]


def test_without_expressions_the_functions_take_what_the_format_takes(spark: SparkSession, node: Node) -> None:
    from headwater.spark.sink import to_streams

    frame = spark.createDataFrame(
        [("left", "a", b"1"), ("right", "a", b"2")], "bucket string, stream string, payload binary"
    )
    to_streams(frame, caller(node))
    assert (streams.read(node, "left/a"), streams.read(node, "right/a")) == (b"1", b"2")


def test_a_function_of_batches_may_write_them_once_too(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.sink import to_streams

    directory = files_of(tmp_path / "in", batches=2)
    seen: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        seen.append(batch)
        kinds = {"order_by": ["n"], "content_type": "application/json"}
        to_streams(frame, caller(node), producer_id="batches", epoch_base=batch, **kinds)

    def run() -> None:
        writing = reading(spark, directory).writeStream.foreachBatch(write)
        finish(writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start())

    run()
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    run()
    assert seen == [0, 1, 1]
    assert found(node) == expected(2 * BATCH_ROWS)


def test_a_wrong_address_is_told_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    from headwater.spark.node import Node as Caller
    from headwater.spark.sink import to_streams

    with socket.socket() as unused:
        unused.bind((HOST, 0))
        nobody = Caller(f"http://{HOST}:{unused.getsockname()[1]}")
        with pytest.raises(Exception, match="no node answers at"):
            to_streams(numbered(spark, 1), nobody, retry_s=1.0)
        with pytest.raises(Exception, match="no node answers at"):
            start(reading(spark, files_of(tmp_path / "in", batches=1)), nobody, tmp_path)


def test_streams_are_not_made_when_that_is_not_wanted(spark: SparkSession, node: Node) -> None:
    from headwater.spark.sink import to_streams

    with pytest.raises(Exception, match=r"404 stream_not_found.*Create it, or let it be made"):
        to_streams(numbered(spark, 20), caller(node), create_streams=False)
    assert streams.names(node, "sink") == []


@pytest.mark.parametrize(
    ("select", "options", "told"),
    [
        (["'a' AS payload"], {}, "a column `stream` is missing"),
        (["'a' AS stream"], {}, "a column `payload` (or `value`) is missing"),
        (["'a/b' AS stream", "1 AS payload"], {}, "`payload` is binary or string, not int"),
        (["1 AS stream", "'a' AS payload"], {}, "`stream` is a string, not int"),
        (["'a/b' AS stream", "'a' AS value"], {"orderBy": "at"}, "orderBy names the column `at`, and there is none"),
        (["'a/b' AS stream", "'a' AS value", "array(1) AS at"], {"orderBy": "at"}, "type array<int> has no order"),
        (["'a/b' AS stream", "'a' AS value"], {"orderby2": "x"}, "there is no option orderby2 for writing"),
        (["'a/b' AS stream", "'a' AS value"], {"epochBase": "-1"}, "epochBase is a whole number from 0"),
        (["'a/b' AS stream", "'a' AS value"], {"createStreams": "yes"}, "createStreams is true or false"),
        (["'a/b' AS stream", "'a' AS value"], {"url": ""}, "the option url is missing"),
        (["cast(null AS string) AS stream", "'a' AS value"], {}, "`stream` is null in a row"),
        (["'a/b' AS stream", "cast(null AS string) AS value"], {}, "`value` is null in a row for 'a/b'"),
        (["'a/b' AS stream", "'' AS value"], {}, "`value` is empty in a row for 'a/b'"),
        (["'a/../b' AS stream", "'a' AS value"], {}, "400 bad_name"),
        (["'a/b' AS stream", "'a' AS value", "7 AS tag"], {}, "the column `tag` is a string, not int"),
        (["'a/b' AS stream", "'a' AS value", "struct(1 AS n) AS meta"], {}, "to_json"),
        (
            ["'a/b' AS stream", "'a' AS value", "'[1]' AS meta"],
            {},
            "records[0].meta: expected the text of a JSON object",
        ),
    ],
)
def test_what_cannot_be_written_is_told(
    spark: SparkSession, node: Node, select: list[str], options: dict[str, str], told: str
) -> None:
    writing = spark.range(1).selectExpr(*select).write.format("headwater").mode("append")
    with pytest.raises(Exception, match=re.escape(told)):
        writing.options(**{"url": node.url, **options}).save()


def test_overwriting_is_refused(spark: SparkSession, node: Node) -> None:
    writing = numbered(spark, 1).write.format("headwater").option("url", node.url)
    with pytest.raises(Exception, match="a stream is only ever appended to"):
        writing.mode("overwrite").save()


def test_a_spark_that_hides_its_batches_is_refused() -> None:
    from pyspark.sql.types import StringType, StructType

    from headwater.spark.sink import stream_writer

    schema = StructType().add("stream", StringType()).add("value", StringType())
    for wrong in ("0", "-1", "soon", "1e9", "nan"):
        with pytest.raises(Exception, match="retrySeconds is a number above 0, at most 86400"):
            stream_writer(schema, False, {"url": "http://127.0.0.1:1", "retrySeconds": wrong})
    with pytest.raises(Exception, match="does not tell its tasks which batch they write"):
        stream_writer(schema, False, {"url": "http://127.0.0.1:1"}).write(iter([]))


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Node]:
    """A node that comes back on the same port, and takes no more than ROOM_BYTES before some of it settles."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    node = Node(tmp_path / "lasting", listen=f"{HOST}:{port}", flags=("--hot-bytes-max", str(ROOM_BYTES)))
    try:
        node.start()
        yield node
    finally:
        node.kill()


def test_a_function_of_batches_waits_for_a_node_that_is_away_for_longer_than_a_moment(
    spark: SparkSession, lasting: Node, tmp_path: Path
) -> None:
    from headwater.spark.node import Node as Caller
    from headwater.spark.sink import REACH_S, to_streams

    url = lasting.url
    directory = files_of(tmp_path / "in", batches=3)
    coming = threading.Timer(REACH_S + 2.0, lasting.start)
    waited_s: list[float] = []

    def write(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            lasting.kill()
            coming.start()
        began_s = time.monotonic()
        kinds = {"order_by": ["n"], "content_type": "application/json"}
        node = Caller(url)  # its own patience is no matter here
        to_streams(frame, node, producer_id="batches", epoch_base=batch, retry_s=120.0, **kinds)
        waited_s.append(time.monotonic() - began_s)

    writing = reading(spark, directory).writeStream.foreachBatch(write)
    try:
        finish(writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start())
    finally:
        coming.join()
    assert len(waited_s) == 3 and waited_s[1] > REACH_S
    assert found(lasting) == expected(3 * BATCH_ROWS)


def test_a_node_that_is_killed_and_comes_back_has_every_row_once(spark: SparkSession, lasting: Node) -> None:
    from headwater.spark.sink import to_streams

    rows, pad = 6_000, 4_000
    frame = spark.range(rows, numPartitions=2).selectExpr(
        f"concat('sink/s', id % {STREAMS}) AS stream", f"concat(lpad(id, 10, '0'), repeat('x', {pad})) AS payload", "id"
    )
    failure: list[BaseException] = []

    def write() -> None:
        try:
            to_streams(frame, caller(lasting), order_by=["id"])
        except BaseException as error:
            failure.append(error)

    def written() -> int:
        return sum(streams.tail(lasting, f"sink/s{s}") for s in range(STREAMS))

    writing = threading.Thread(target=write)
    with lasting.full():  # so that the kill comes in the middle, however quick all is
        writing.start()
        deadline_s = time.monotonic() + 60
        while written() < ROOM_BYTES:
            assert time.monotonic() < deadline_s, failure
            time.sleep(0.02)
        lasting.kill()
        lasting.start()
        assert ROOM_BYTES <= written() < rows * (pad + 10)
    writing.join()
    assert not failure, failure
    for s in range(STREAMS):
        numbers = [int(text) for text in re.findall(rb"\d{10}", streams.read(lasting, f"sink/s{s}"))]
        assert numbers == expected(rows)[f"s{s}"]
