"""The sink's output modes `complete` and `update`: each row is its stream's newest state, for who follows the stream
and for who starts from its snapshot, also when a batch is repeated. And what Spark itself refuses a source or sink in
Python, in the words that users get."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.test_sink import add_file, caller, files_of, finish
from tests.support import streams
from tests.support.http import Response
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
STREAMS, BATCH_ROWS = 3, 60
PAYLOAD = "to_json(struct(k, rows, total))"


def totals(spark: SparkSession, directory: Path) -> DataFrame:
    """One row for each key: how many numbers came, and their sum."""
    source = spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", "1").json(str(directory))
    keyed = source.groupBy((source.n % STREAMS).alias("k"))
    return keyed.agg({"n": "sum", "*": "count"}).selectExpr("k", "`count(1)` AS rows", "`sum(n)` AS total")


def expected(batches: int) -> dict[str, Any]:
    numbers = range(batches * BATCH_ROWS)
    held = {k: [n for n in numbers if n % STREAMS == k] for k in range(STREAMS)}
    return {f"k{k}": {"k": k, "rows": len(found), "total": sum(found)} for k, found in held.items()}


def start(frame: DataFrame, node: Node, folder: Path, mode: str, **more: Any) -> StreamingQuery:
    from headwater.spark.sink import start_stream

    return start_stream(
        frame,
        caller(node),
        str(folder / "checkpoint"),
        stream="concat('totals/k', k)",
        payload=PAYLOAD,
        content_type="application/json",
        trigger={"availableNow": True},
        output_mode=mode,
        **more,
    )


def snapshot(node: Node, name: str) -> Response:
    found = node.request("GET", f"/totals/{name}/snapshot")
    assert found.status == 307, found
    return node.request("GET", found.header("location") or "")


def states(node: Node) -> dict[str, Any]:
    """What the snapshots are; each lies where its stream ends."""
    found = {}
    for name in streams.names(node, "totals"):
        answer = snapshot(node, name)
        assert answer.status == 200 and answer.header("stream-up-to-date") == "true", answer
        assert answer.header("content-type") == "application/json"
        found[name] = answer.json()
    return found


def tails(node: Node) -> dict[str, str | None]:
    heads = {name: node.request("HEAD", f"/v1/stream/totals/{name}") for name in streams.names(node, "totals")}
    return {name: head.header("stream-next-offset") for name, head in heads.items()}


def take_commit_back(folder: Path) -> None:
    """As if the driver had died right before Spark noted that the newest batch is done."""
    done = folder / "checkpoint" / "commits"
    newest = max(done.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (done / f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_each_row_is_the_newest_state_of_its_stream_also_when_a_batch_is_repeated(
    spark: SparkSession, node: Node, tmp_path: Path, mode: str
) -> None:
    rows = totals(spark, files_of(tmp_path / "in", 2, BATCH_ROWS))
    finish(start(rows, node, tmp_path, mode))
    assert states(node) == expected(2)
    before = tails(node)
    take_commit_back(tmp_path)
    finish(start(rows, node, tmp_path, mode))
    assert states(node) == expected(2)
    assert tails(node) == before, "a batch that was repeated was appended a second time"
    add_file(tmp_path / "in", 2, BATCH_ROWS)
    finish(start(rows, node, tmp_path, mode))
    assert states(node) == expected(3)
    # Who follows a stream was told of every state: each is a record, of which the last one's end is the snapshot's.
    for name, tail in tails(node).items():
        earliest = node.request("HEAD", f"/v1/stream/totals/{name}").header("stream-earliest-offset")
        assert earliest == tail and tail != before[name]


def test_the_format_itself_takes_a_complete_result_and_what_is_no_part_of_it_any_more_stays(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    ready = totals(spark, files_of(tmp_path / "in", 1, BATCH_ROWS)).selectExpr(
        "concat('totals/k', k) AS stream", f"{PAYLOAD} AS payload", "k"
    )
    for kept in (ready, ready.where("k > 0")):
        write = kept.drop("k").writeStream.format("headwater").outputMode("complete").option("url", node.url)
        write = write.option("contentType", "application/json")
        place = str(tmp_path / f"checkpoint-{kept is ready}")
        finish(write.option("checkpointLocation", place).trigger(availableNow=True).start())
        assert states(node) == expected(1)


def test_an_older_batch_never_takes_the_place_of_a_newer_state(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    rows = totals(spark, files_of(tmp_path / "in", 2, BATCH_ROWS))
    finish(start(rows, node, tmp_path, "update", producer_id="totals", epoch_base=10))
    with pytest.raises(Exception, match="stale_epoch"):
        finish(start(rows, node, tmp_path / "another", "update", producer_id="totals", epoch_base=5))
    assert states(node) == expected(2)


def test_what_cannot_be_a_state_is_told(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.sending import SinkFailed
    from headwater.spark.sink import start_stream

    rows = totals(spark, files_of(tmp_path / "in", 1, BATCH_ROWS))
    with pytest.raises(Exception, match="several rows of a batch are for 'totals/all'"):
        finish(
            start_stream(
                rows,
                caller(node),
                str(tmp_path / "one"),
                stream="'totals/all'",
                payload=PAYLOAD,
                output_mode="complete",
                trigger={"availableNow": True},
            )
        )
    with pytest.raises(SinkFailed, match="output_mode is one of append, complete, update"):
        start(rows, node, tmp_path, "newest")


def following(spark: SparkSession, node: Node) -> DataFrame:
    return spark.readStream.format("headwater").option("url", node.url).option("startingOffsets", "earliest").load()


@pytest.mark.parametrize(
    ("trigger", "mode", "said"),
    [
        ({"availableNow": True}, "update", "headwater does not support Update mode"),
        ({"continuous": "1 second"}, "append", "Data source headwater does not support continuous processing"),
        ({"realTime": "5 seconds"}, "update", "is not in the sink allowlist for Real-Time Mode"),
    ],
)
def test_what_spark_refuses_of_a_sink_in_python(
    spark: SparkSession, node: Node, tmp_path: Path, trigger: dict[str, Any], mode: str, said: str
) -> None:
    write = following(spark, node).selectExpr("concat('copies/', stream) AS stream", "payload").writeStream
    write = write.format("headwater").option("url", node.url).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=said):
        finish(write.outputMode(mode).trigger(**trigger).start())


@pytest.mark.parametrize(
    ("trigger", "mode", "said"),
    [
        ({"continuous": "1 second"}, "append", "Data source headwater does not support continuous processing"),
        (
            {"realTime": "5 seconds"},
            "update",
            r"PythonMicroBatchStream\S* is not supported in Real-time",
        ),
    ],
)
def test_what_spark_refuses_of_a_source_in_python(
    spark: SparkSession, node: Node, tmp_path: Path, trigger: dict[str, Any], mode: str, said: str
) -> None:
    write = following(spark, node).writeStream.format("console").outputMode(mode)
    with pytest.raises(Exception, match=said):
        finish(write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start())


def test_the_page_says_what_spark_refuses_in_its_words() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark.md").read_text()
    for said in (
        "headwater does not support Update mode",
        "Data source headwater does not support continuous processing",
        "is not supported in Real-time Mode",
        "is not in the sink allowlist for Real-Time Mode",
    ):
        assert said in page
