"""`route` between streams of a real node: filtered, changed, fanned out, in order and each record once, run after run.
Streams are filled and read back over HTTP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import streams
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

JSON = {"Content-Type": "application/json"}
KIND = "get_json_object(value, '$.kind')"


def fill(node: Node, name: str, messages: list[Any]) -> None:
    node.request("PUT", f"/v1/stream/{name}", JSON)
    for message in messages:
        assert node.request("POST", f"/v1/stream/{name}", JSON, json.dumps(message).encode()).status == 204


def route(spark: SparkSession, node: Node, checkpoint: Path, **more: Any) -> dict[str, Any]:
    from headwater.spark.jobs.route import route as job
    from headwater.spark.node import Node as Caller

    given = {"source": {"bucket": "orders"}, "target": f"concat('by-kind/', {KIND})", "checkpoint": str(checkpoint)}
    return job(spark, Caller(node.url), **{**given, **more})


def test_records_go_to_the_streams_that_they_name_in_the_order_they_came(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    fill(node, "orders/a", [{"kind": "new", "n": n} for n in range(0, 20, 2)])
    fill(node, "orders/b", [{"kind": "paid" if n % 3 else "new", "n": n} for n in range(1, 20, 2)])
    fill(node, "other/c", [{"kind": "new", "n": 100}])
    done = route(spark, node, tmp_path / "cp")
    assert (done["rows_read"], done["rows_written"], done["rows_known"]) == (20, 20, 0)
    assert [one["n"] for one in streams.read_json(node, "by-kind/new")] == [*range(0, 20, 2), 3, 9, 15]
    assert [one["n"] for one in streams.read_json(node, "by-kind/paid")] == [1, 5, 7, 11, 13, 17, 19]

    again = route(spark, node, tmp_path / "cp")
    assert (again["rows_read"], again["rows_written"]) == (0, 0)
    fill(node, "orders/a", [{"kind": "paid", "n": 50}])
    assert route(spark, node, tmp_path / "cp")["rows_written"] == 1
    assert [one["n"] for one in streams.read_json(node, "by-kind/paid")] == [1, 5, 7, 11, 13, 17, 19, 50]


def forget(path: Path) -> None:
    """Takes a file out of a checkpoint, and what Spark keeps to check it by."""
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink()


def test_small_batches_settled_and_fresh_records_and_a_lost_commit_make_no_difference(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    fill(node, "orders/a", [{"kind": "new", "n": n} for n in range(30)])
    assert node.request("POST", "/__headwater/flush").status == 200
    fill(node, "orders/a", [{"kind": "new", "n": n} for n in range(30, 60)])
    source = {"bucket": "orders", "maxOffsetsPerTrigger": "10"}
    done = route(spark, node, tmp_path / "cp", source=source)
    assert done["batches"] == 6
    # What was hot for the lost batch is in the lake when it comes again.
    assert node.request("POST", "/__headwater/flush").status == 200
    commits = tmp_path / "cp" / "commits"
    # The query's log ends after its last record: a batch without records may have followed.
    for number in range(done["batches"], len(list(commits.glob("[0-9]*")))):
        forget(commits / str(number))
        forget(tmp_path / "cp" / "offsets" / str(number))
    forget(commits / str(done["batches"] - 1))
    again = route(spark, node, tmp_path / "cp", source=source)
    assert (again["rows_written"], again["rows_known"]) == (0, 10)
    assert [one["n"] for one in streams.read_json(node, "by-kind/new")] == list(range(60))


def test_where_payload_and_null_targets_say_what_goes(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    fill(node, "orders/a", [{"kind": "new" if n % 2 else None, "n": n} for n in range(10)])
    done = route(
        spark,
        node,
        tmp_path / "cp",
        where="get_json_object(value, '$.n') > 2",
        payload="concat(name, ' ', get_json_object(value, '$.n'), ';')",
        content_type="text/plain",
    )
    assert done["rows_written"] == 4
    assert streams.read(node, "by-kind/new") == b"orders/a 3;orders/a 5;orders/a 7;orders/a 9;"


def test_a_target_that_is_an_array_goes_to_each(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    fill(node, "orders/a", [1, 2, 3])
    target = "CASE WHEN value = '2' THEN array('all/x', 'all/x', 'even/x') ELSE array('all/x') END"
    assert route(spark, node, tmp_path / "cp", target=target)["rows_written"] == 4
    assert streams.read_json(node, "all/x") == [1, 2, 3]
    assert streams.read_json(node, "even/x") == [2]


def test_a_function_may_change_the_frame(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    def doubled(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("cast(value * 2 AS bigint) AS twice", "position", "seq").selectExpr(
            "*", "cast(twice AS string) AS payload"
        )

    fill(node, "orders/a", [5, 1, 3])
    route(
        spark, node, tmp_path / "cp", transform=doubled, target="concat('twice/', twice % 4)", content_type="text/plain"
    )
    assert streams.read(node, "twice/2") == b"1026"


def test_a_new_checkpoint_is_a_new_route_unless_it_is_named(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    fill(node, "orders/a", [1, 2, 3])
    for name, copies in ((None, 1), (None, 2), ("copy", 3), ("copy", 3)):
        shutil.rmtree(tmp_path / "cp", ignore_errors=True)
        route(spark, node, tmp_path / "cp", target="'all/x'", producer_id=name)
        assert streams.read_json(node, "all/x") == [1, 2, 3] * copies


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"source": {}}, "it is not said which streams to read"),
        ({"source": {"bucket": "orders", "subscribe": "x"}}, "both say which streams"),
        ({"target": "concat("}, "PARSE_SYNTAX_ERROR"),
        ({"target": "nothing"}, "UNRESOLVED_COLUMN"),
        ({"where": "amount > 1"}, "UNRESOLVED_COLUMN"),
        ({"target": "uuid()"}, "give another result each time"),
        ({"where": "rand() > 0.5"}, "give another result each time"),
    ],
)
def test_what_cannot_be_routed_is_refused(
    spark: SparkSession, node: Node, tmp_path: Path, more: dict[str, Any], told: str
) -> None:
    from headwater.spark.job_runs import JobRefused

    with pytest.raises(JobRefused, match=told) as refused:
        route(spark, node, tmp_path / "cp", **more)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"bucket": "orders"}, "'orders/copy'"),
        ({"subscribe": "orders/a"}, "'orders/a'"),
        ({"subscribePattern": "orders/*"}, "'orders/b'"),
    ],
)
def test_a_route_into_what_it_reads_is_refused(
    spark: SparkSession, node: Node, tmp_path: Path, source: dict[str, str], target: str
) -> None:
    from headwater.spark.sending import SinkFailed

    fill(node, "orders/a", [1])
    with pytest.raises(SinkFailed, match="is among the streams that are read"):
        route(spark, node, tmp_path / "cp", source=source, target=target)
    assert streams.read_json(node, "orders/a") == [1]
    assert streams.names(node, "orders") == ["a"]


def test_what_the_node_refuses_fails_the_route_in_one_line(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.sending import SinkFailed

    fill(node, "orders/a", [1])
    node.request("PUT", "/v1/stream/taken/x", {"Content-Type": "text/plain"})
    with pytest.raises(SinkFailed, match="409 content_type_mismatch") as failure:
        route(spark, node, tmp_path / "cp", target="'taken/x'")
    assert "\n" not in str(failure.value)
