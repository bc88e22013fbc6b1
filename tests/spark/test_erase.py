"""Erasure: what was deleted is in no file of the table any more, whatever else rewrites files, and the receipt says so.
Files are looked into with a library that is not ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.job_runs import JobRefused, silent
from headwater.spark.lake_listing import listed
from headwater.spark.node import Node as Calls
from headwater.spark.node import NodeRefused
from headwater.spark.rewrite import rewrite
from tests.lake.on_a_node.surface import TEXT, append, flush, path_of
from tests.spark.lakes import (
    FLAGS,
    Model,
    assert_clean_when_stopped,
    assert_reads,
    delete,
    fill,
    holders,
    keys,
    lake_files,
    run_cli,
    snapshot,
    table_files,
)
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SECRET = "lake/stream-002"
TEXT_OF_IT = b"lake/stream-002 0"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def erased(spark: SparkSession, node: Node, **options: Any) -> dict[str, Any]:
    from headwater.spark.jobs.erase import erase

    return erase(spark, Calls(node.url), **options)


def erased_stream(spark: SparkSession, node: Node, name: str = SECRET, **options: Any) -> dict[str, Any]:
    from headwater.spark.jobs.erase import erase_stream

    return erase_stream(spark, Calls(node.url), name, **options)


def test_dead_rows_leave_their_files_and_live_ones_stay(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(5), rounds=3)
    delete(node, model, SECRET)
    assert len(holders(table_files(node), TEXT_OF_IT)) == 3
    summary = erased(spark, node)
    assert (summary["files_read"], summary["rows_dropped"], summary["rows_dead"]) == (3, 9, 0)
    assert holders(table_files(node), TEXT_OF_IT) == []
    assert_reads(node, model)
    assert erased(spark, node)["nothing_to_do"] is True
    assert_clean_when_stopped(node)


def test_files_with_few_dead_rows_may_be_left_alone(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(10), rounds=1)
    fill(node, model, keys(2), rounds=1)
    delete(node, model, keys(1)[0])
    assert [one["live_rows"] / one["rows"] for one in lake_files(node)] == [0.9, 0.5]
    summary = erased(spark, node, dead_share=0.2)
    assert (summary["files_read"], summary["rows_dropped"], summary["rows_dead"]) == (1, 3, 3)
    assert_reads(node, model)
    with pytest.raises(JobRefused, match="no share"):
        erased(spark, node, dead_share=1.0)


def test_ranges_that_were_trimmed_leave_their_files(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(5), rounds=3)
    snapshot(node, SECRET, sum(map(len, model[SECRET][:6])))
    assert erased(spark, node)["rows_dropped"] == 6
    assert len(holders(table_files(node), TEXT_OF_IT)) == 1
    assert holders(table_files(node), b"stream-002 00005") == []
    assert len(holders(table_files(node), b"stream-002 00006")) == 1


def test_a_stream_is_erased_with_a_receipt(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(5), rounds=3)
    fill(node, model, [SECRET], rounds=1)  # a file of its own
    with node.connect() as connection:
        append(connection, SECRET, TEXT_OF_IT + b" is in memory alone\n")
    with pytest.raises(JobRefused, match="exists"):
        erased_stream(spark, node)
    assert len(holders(table_files(node), TEXT_OF_IT)) == 4, "refused after something was changed"
    receipt = erased_stream(spark, node, delete=True)
    model.pop(SECRET)
    assert receipt["complete"] is True and receipt["deleted"] is True and "stream-002" not in json.dumps(receipt)
    assert (receipt["rows_erased"], receipt["files_rewritten"]) == (9, 3)
    # One file held nothing else: no stream has records in it, and gc takes it as it is.
    assert receipt["rows_waiting_for_gc"] == 12 and len(receipt["objects_waiting_for_gc"]) == 4
    assert holders(table_files(node), TEXT_OF_IT) == []
    assert node.request("GET", path_of(SECRET)).status == 404
    assert_reads(node, model)
    assert json.loads(json.dumps(receipt)) == receipt
    again = erased_stream(spark, node)
    assert again["rows_erased"] == 0 and again["swaps"] == [] and again["complete"] is True
    assert again["objects_waiting_for_gc"] == receipt["objects_waiting_for_gc"]

    assert node.terminate() == 0
    run_cli("lake", "gc", "--data", str(node.data_directory), "--grace-ms", "0", "--json")
    run_cli("lake", "gc", "--data", str(node.data_directory), "--grace-ms", "0", "--json")
    assert holders((node.data_directory / "lake" / "data").rglob("*.parquet"), TEXT_OF_IT) == []
    node.start()
    assert erased_stream(spark, node)["objects_waiting_for_gc"] == []
    assert_reads(node, model)
    assert_clean_when_stopped(node)


def test_earlier_streams_of_the_name_are_erased_too(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    for _ in range(2):
        fill(node, model, keys(3), rounds=1)
        delete(node, model, SECRET)
    fill(node, model, keys(3), rounds=1)
    receipt = erased_stream(spark, node, delete=True)
    model.pop(SECRET)
    assert len(receipt["incarnations"]) == 3 and receipt["rows_erased"] == 9
    assert holders(table_files(node), TEXT_OF_IT) == []
    assert_reads(node, model)


def test_what_forks_share_is_kept_and_named(spark: SparkSession, node: Node) -> None:
    model: Model = {}
    fill(node, model, keys(4), rounds=2)
    fork = {"Stream-Forked-From": f"/v1/stream/{SECRET}"}
    answer = node.request("PUT", path_of("lake/fork"), {**TEXT, **fork})
    assert answer.status == 201, answer
    receipt = erased_stream(spark, node, delete=True)
    kept = model.pop(SECRET)
    assert receipt["complete"] is False and receipt["rows_kept_for_forks"] == 6
    model["lake/fork"] = kept
    assert_reads(node, model)
    delete(node, model, "lake/fork")
    receipt = erased_stream(spark, node)
    assert receipt["complete"] is True and receipt["rows_erased"] == 6
    assert holders(table_files(node), TEXT_OF_IT) == []
    assert_reads(node, model)


# ---- beside a compaction ----------------------------------------------------------------------------------------


def compaction_before_its_swap(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str], list[str]]:
    """It has read and written everything, the stream's rows among it, and not swapped yet."""
    planned: list[tuple[int, list[str], list[str]]] = []
    with monkeypatch.context() as patched:
        patched.setattr(Calls, "swap", lambda self, *given: planned.append(given))
        listing = listed(Calls(node.url), 0)
        rewrite(spark, Calls(node.url), listing, listing.files, 1 << 27, silent)
    return planned[0]


def test_a_compaction_that_ends_later_cannot_bring_rows_back(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = {}
    fill(node, model, keys(5), rounds=3)
    late = compaction_before_its_swap(spark, node, monkeypatch)
    assert erased_stream(spark, node, delete=True)["complete"] is True
    model.pop(SECRET)
    with pytest.raises(NodeRefused, match="409"):
        Calls(node.url).swap(*late)
    assert holders(table_files(node), TEXT_OF_IT) == []
    assert_reads(node, model)
    assert_clean_when_stopped(node)


def test_a_compaction_that_ends_in_the_middle_is_found_and_rewritten(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = {}
    fill(node, model, keys(5), rounds=3)
    late = compaction_before_its_swap(spark, node, monkeypatch)
    swap, calls = Calls.swap, 0

    def beaten(self: Calls, group: int, remove: list[str], add: list[str]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert swap(self, *late)["dropped_rows"] == 9, "its new file holds the rows that died meanwhile"
        return swap(self, group, remove, add)

    monkeypatch.setattr(Calls, "swap", beaten)
    receipt = erased_stream(spark, node, delete=True)
    model.pop(SECRET)
    assert (receipt["conflicts"], receipt["files_rewritten"], receipt["rows_erased"]) == (1, 1, 9)
    assert holders(table_files(node), TEXT_OF_IT) == []
    assert_reads(node, model)
    assert_clean_when_stopped(node)


# ---- the command ------------------------------------------------------------------------------------------------


def test_a_name_that_is_none_is_refused_before_anything_is_done(spark: SparkSession, node: Node) -> None:
    for name in ("", "nothing", "/x", "x/"):
        with pytest.raises(JobRefused, match="names no stream"):
            erased_stream(spark, node, name, delete=True)


def test_the_command_writes_the_receipt(node: Node, tmp_path: Path) -> None:
    model: Model = {}
    fill(node, model, keys(3), rounds=2)
    flush(node)
    place = tmp_path / "receipt.json"
    arguments = ("--url", node.url, "--master", "local[2]", "--stream", SECRET, "--delete", "--receipt", str(place))
    done = run_cli("pipeline", "run", "erase", *arguments)
    assert json.loads(place.read_text())["stream_hash"] == done["stream_hash"]
    assert "stream-002" not in place.read_text() + json.dumps(done)
    assert [line.partition(" ")[0] for line in done["not_reached"]] == [
        "tables",
        "streams",
        "checkpoints",
        "backups",
        "older",
        "files",
        "what",
    ]
    check = ("pipeline", "run", "erase", "--url", node.url, "--check", str(place), "--stream")
    assert run_cli(*check, SECRET) == {"matches": True}
    assert run_cli(*check, "lake/stream-001", exit_code=1) == {"matches": False}
    assert "stream-002" not in node.request("GET", path_of("_headwater/pipeline-runs")).body.decode()
    assert done["rows_erased"] == 6
    # The grace of FLAGS, and twice their interval: once to notice, once to find that the time is over.
    assert done["gone_by_ms"] - done["erased_ms"] == 60_000 + 2 * 600_000
    moment = datetime.fromtimestamp(done["gone_by_ms"] / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    assert f"deletes them by {moment}" in done["statement"]
    assert holders(table_files(node), TEXT_OF_IT) == []
