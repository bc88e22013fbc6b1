"""Compaction under everything that goes on beside it: streams read the same before, during and after, from fewer files.
What a cold read fetches is counted, not timed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.executor_tasks import shared
from headwater.spark.job_runs import JobRefused, silent
from headwater.spark.lake_listing import File, listed
from headwater.spark.node import Node as Calls
from headwater.spark.node import NodeError
from headwater.spark.rewrite import Changed, rewrite
from tests.lake.on_a_node.surface import append, flush, path_of
from tests.lake.on_a_node.test_crashes import CALLS
from tests.spark.lakes import (
    FLAGS,
    Model,
    assert_clean_when_stopped,
    assert_reads,
    delete,
    fetched_bytes,
    fill,
    keys,
    lake_files,
    row_groups,
    run_cli,
    table_files,
)
from tests.support.faults import killing
from tests.support.http import BadResponse, ConnectionEnded, read_bytes
from tests.support.node import Node, NotReady
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

full = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path, flags=FLAGS) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def compacted(spark: SparkSession, node: Node, **options: Any) -> dict[str, Any]:
    from headwater.spark.jobs.compact import compact

    return compact(spark, Calls(node.url), **options)


def verified(spark: SparkSession, node: Node) -> dict[str, Any]:
    from headwater.spark.jobs.verify import verify

    found: dict[str, Any] = verify(spark, Calls(node.url), deep=True)
    assert found["findings"] == []
    return found


# ---- which files ------------------------------------------------------------------------------------------------


def file(number: int, size: int, rows: int = 100) -> File:
    return File(f"data/0/{number}", size, rows, rows, number, number, 0)


def test_the_newest_small_files_are_chosen_as_far_as_the_bound_goes() -> None:
    from headwater.spark.jobs.compact import choose

    files = [file(number, 10) for number in range(10)] + [file(10, 400)]
    assert [one.position_max for one in choose(files, 900, 2, 1_000)] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert [one.position_max for one in choose(files, 900, 2, 45)] == [9, 8, 7, 6]


def test_too_few_small_files_are_left_alone() -> None:
    from headwater.spark.jobs.compact import choose

    files = [file(number, 10) for number in range(3)] + [file(3, 400)]
    assert choose(files, 900, 4, 1_000) == []
    assert len(choose(files, 900, 3, 1_000)) == 3
    assert choose(files[:1], 900, 1, 1_000) == []
    assert choose(files, 900, 3, 25) == []


def test_files_with_very_many_rows_are_not_small() -> None:
    from headwater.spark.jobs.compact import choose

    files = [file(number, 10, rows=900_000) for number in range(5)]
    assert choose(files, 1 << 27, 2, 1 << 30) == []


def test_every_file_is_in_one_share_and_shares_are_of_about_one_size() -> None:
    files = [file(number, 1 + number * 7 % 50) for number in range(40)]
    shares = shared(files, 4)
    assert sorted(one.path for share in shares for one in share) == sorted(one.path for one in files)
    sizes = [sum(one.bytes for one in share) for share in shares]
    assert len(sizes) == 4 and max(sizes) - min(sizes) <= 50
    assert len(shared(files[:2], 8)) == 2


# ---- what becomes of the lake -----------------------------------------------------------------------------------


class TestCompaction:
    pytestmark = full

    def test_streams_read_the_same_from_fewer_files_and_fewer_bytes(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        fill(node, model, keys(30), rounds=6)
        delete(node, model, "lake/stream-007")
        before = {name: (row_groups(node, name), fetched_bytes(node, name)) for name in model}
        told: list[tuple[str, int, int | None]] = []
        summary = compacted(spark, node, progress=lambda *step: told.append(step))
        assert told[0] == ("bytes", 0, summary["bytes_read"])
        assert summary["files_before"] == 6 and summary["files_after"] == 1 == len(table_files(node))
        assert summary["rows"] == 29 * 18 and summary["rows_dropped"] == 18
        for name, (groups, size) in before.items():
            assert len(groups) == 6 and len(row_groups(node, name)) == 1
            assert fetched_bytes(node, name) < size
        assert_reads(node, model)
        assert compacted(spark, node)["nothing_to_do"] is True
        assert verified(spark, node)["rows"] == 29 * 18
        node.restart()
        assert_reads(node, model)
        assert_clean_when_stopped(node)

    def test_a_stream_may_lie_in_two_of_the_new_files(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        fill(node, model, keys(3), rounds=4, records=60, size=400)
        listing = listed(Calls(node.url), 0)
        swapped = rewrite(
            spark, Calls(node.url), listing, listing.files, sum(one.bytes for one in listing.files) // 5, silent
        )
        assert len(swapped.added) == 5
        assert max(len({path for path, _ in row_groups(node, name)}) for name in model) > 1
        assert_reads(node, model)
        assert verified(spark, node)["files"] == 5

    def test_readers_and_writers_beside_it_notice_nothing(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        names = keys(12)
        fill(node, model, names, rounds=6, records=10)
        wrong: list[object] = []
        reads = 0
        over = threading.Event()

        def read() -> None:
            nonlocal reads
            with node.connect() as connection:
                while not over.is_set():
                    for name in names:
                        known = list(model[name])
                        try:
                            found = read_bytes(connection, path_of(name))
                        except (AssertionError, OSError, ConnectionEnded, BadResponse) as error:
                            wrong.append(error)
                            return
                        if not found.startswith(b"".join(known)):
                            wrong.append((name, len(known), found[-80:]))
                        reads += 1

        def write() -> None:
            with node.connect() as connection:
                while not over.is_set():
                    for name in names:
                        record = f"{name} {len(model[name]):05d} beside it\n".encode()
                        append(connection, name, record)
                        model[name].append(record)
                    node.request("POST", "/__headwater/flush")
                    over.wait(0.2)

        threads = [threading.Thread(target=read), threading.Thread(target=write)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                summary = compacted(spark, node, min_files=2)
                assert summary["files_read"] > summary["files_written"] > 0
                verified(spark, node)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert wrong == [] and reads > 100
        flush(node)
        assert_reads(node, model)
        assert_clean_when_stopped(node)

    def test_a_file_that_another_job_replaced_meanwhile_is_planned_anew(
        self, spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model: Model = {}
        fill(node, model, keys(5), rounds=4)
        swap, calls = Calls.swap, 0

        def beaten(self: Calls, group: int, remove: list[str], add: list[str]) -> dict[str, Any]:
            nonlocal calls
            calls += 1
            if calls == 1:
                assert compacted(spark, node)["swaps"] == 1
            return swap(self, group, remove, add)

        monkeypatch.setattr(Calls, "swap", beaten)
        summary = compacted(spark, node)
        assert (summary["conflicts"], summary["swaps"], summary["files_after"]) == (1, 0, 1)
        assert_reads(node, model)
        verified(spark, node)

    def test_it_gives_up_when_every_swap_is_beaten(
        self, spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model: Model = {}
        fill(node, model, keys(2), rounds=4)

        def beaten(*_: object) -> None:
            raise Changed("beaten again")

        monkeypatch.setattr("headwater.spark.rewrite.rewrite", beaten)
        with pytest.raises(JobRefused, match="changed 6 times"):
            compacted(spark, node)

    def test_rows_that_die_while_they_are_rewritten_stay_dead(
        self, spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model: Model = {}
        fill(node, model, keys(5), rounds=4)
        swap = Calls.swap

        def late(self: Calls, group: int, remove: list[str], add: list[str]) -> dict[str, Any]:
            delete(node, model, "lake/stream-002")
            return swap(self, group, remove, add)

        monkeypatch.setattr(Calls, "swap", late)
        assert compacted(spark, node)["swaps"] == 1
        (made,) = lake_files(node)
        assert (made["rows"], made["live_rows"]) == (60, 48)
        assert_reads(node, model)
        verified(spark, node)

    def test_a_damaged_file_is_never_replaced(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        fill(node, model, keys(5), rounds=4)
        victim = table_files(node)[0]
        content = bytearray(victim.read_bytes())
        at = content.index(b"lake/stream-001") if b"lake/stream-001" in content else len(content) // 3
        content[at] ^= 1
        victim.write_bytes(content)
        before = lake_files(node)
        with pytest.raises(JobRefused, match=victim.name):
            compacted(spark, node)
        assert lake_files(node) == before

    def test_a_node_without_a_lake_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        with Node.started(tmp_path / "memory", memory=True) as node, pytest.raises(JobRefused, match="no lake"):
            compacted(spark, node)

    def test_a_lake_that_is_not_here_is_refused(
        self, spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(node, {}, keys(1), rounds=1)
        facts = Calls(node.url).lake_files(0)
        facts["lake"]["url"] = "/nowhere/at/all"
        monkeypatch.setattr(Calls, "lake_files", lambda self, group: facts)
        with pytest.raises(JobRefused, match="is not here"):
            compacted(spark, node)


# ---- crashes ----------------------------------------------------------------------------------------------------

DRIVER = """
import os, signal, sys
from headwater.spark.jobs.compact import compact
from headwater.spark.node import Node
from pathlib import Path
from tests.support.spark import local_session

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3] == "before the swap":
    Node.swap = die
elif sys.argv[3] == "behind the swap":
    swap = Node.swap
    Node.swap = lambda *given: (swap(*given), die())
else:
    import threading, time
    lake = Path(sys.argv[2])
    before = set(lake.rglob("*.parquet"))
    def watch():
        while not set(lake.rglob("*.parquet")) - before:
            time.sleep(0.001)
        die()
    threading.Thread(target=watch, daemon=True).start()
compact(local_session(Path(sys.argv[4])), Node(sys.argv[1]))
"""


class TestCrashes:
    pytestmark = full

    @pytest.mark.parametrize("when", ["at the first new file", "before the swap", "behind the swap"])
    def test_a_driver_that_is_killed_leaves_a_lake_that_is_right(
        self, spark: SparkSession, node: Node, tmp_path: Path, when: str
    ) -> None:
        model: Model = {}
        fill(node, model, keys(20), rounds=4)
        lake = node.data_directory / "lake" / "data"
        command = [sys.executable, "-c", DRIVER, node.url, str(lake), when, str(tmp_path / "driver")]
        ended = subprocess.run(command, capture_output=True, timeout=200, check=False)
        assert ended.returncode == -9, ended.stderr.decode()[-2_000:]
        assert len(lake_files(node)) == (1 if when == "behind the swap" else 4)
        assert_reads(node, model)
        assert verified(spark, node)["objects_unused"] >= 1
        assert compacted(spark, node)["files_after"] == 1
        assert_reads(node, model)
        assert_clean_when_stopped(node)

    @pytest.mark.traced
    @pytest.mark.parametrize("kind", CALLS)
    def test_a_node_that_is_killed_in_a_swap_comes_back_with_the_old_files_or_the_new(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        model: Model = {}
        killed = 0
        planned: list[tuple[int, list[str], list[str]]] = []
        swap = Calls.swap

        def note(self: Calls, group: int, remove: list[str], add: list[str]) -> dict[str, Any]:
            planned.append((group, remove, add))
            return {}

        with Node.started(tmp_path, flags=FLAGS) as node:
            for when in (2, 5):
                fill(node, model, keys(4), rounds=3)
                monkeypatch.setattr(Calls, "swap", note)
                listing = listed(Calls(node.url), 0)
                rewrite(spark, Calls(node.url), listing, listing.files, 1 << 27, silent)
                monkeypatch.setattr(Calls, "swap", swap)
                assert node.terminate() == 0, node.output()
                node.wrapper = killing(CALLS[kind], when)
                with suppress(NodeError, NotReady):
                    node.start()
                    Calls(node.url, patience_s=0.1).swap(*planned[-1])
                killed += not node.running
                node.kill()
                node.wrapper = []
                node.start()
                assert_reads(node, model)
                verified(spark, node)
                # Whatever became of it: the same swap again succeeds.
                Calls(node.url).swap(*planned[-1])
                assert [one["path"] for one in lake_files(node)] == planned[-1][2]
                assert_reads(node, model)
                assert_clean_when_stopped(node)
        assert killed, "the kills came after the swap, so they proved nothing"


# ---- elsewhere --------------------------------------------------------------------------------------------------


CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class TestCommands:
    pytestmark = full

    def test_a_lake_on_s3_is_kept_too(self, s3: S3, tmp_path: Path) -> None:
        """Executors find credentials in their environment: a driver of its own has them there."""
        model: Model = {}
        place = ["--lake", "s3://lake/spark-kept", "--lake-endpoint", s3.endpoint, "--lake-region", "us-east-1"]
        with Node.started(tmp_path, env=CREDENTIALS, flags=[*FLAGS, *place]) as node:
            fill(node, model, keys(6), rounds=4)

            def job(*arguments: str) -> dict[str, Any]:
                return run_cli(
                    *("pipeline", "run", *arguments, "--url", node.url, "--master", "local[2]"), env=CREDENTIALS
                )

            assert job("compact")["files_after"] == 1
            receipt = job("erase", "--stream", "lake/stream-003", "--delete")
            model.pop("lake/stream-003")
            assert receipt["complete"] is True and receipt["rows_erased"] == 12
            assert job("verify", "--deep")["findings"] == []
            assert_reads(node, model)
            node.restart()
            assert_reads(node, model)

    def test_the_command_says_what_it_did_and_what_not(self, node: Node) -> None:
        model: Model = {}
        fill(node, model, keys(5), rounds=4)
        arguments = ("pipeline", "run", "compact", "--url", node.url, "--master", "local[2]")
        done = run_cli(*arguments, "--min-files", "3", "--target", "1MiB")
        assert (done["outcome"], done["files_before"], done["files_after"]) == ("done", 4, 1)
        assert run_cli(*arguments)["nothing_to_do"] is True
        assert_reads(node, model)
        runs = node.request("GET", path_of("_headwater/pipeline-runs")).json()
        assert [run["job"] for run in runs] == ["compact", "compact"]
