"""Sums of what buckets hold: against the same sums made the slow way, over the rows that a library not ours reads.
That payloads are not read is counted in bytes."""

from __future__ import annotations

import csv
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.lake.listing import encode_extents
from headwater.lake.local import LocalStore
from headwater.lake.names import data_key
from headwater.lake.store import Data
from headwater.lake.writer import build
from headwater.model.deletions import Part
from headwater.spark.job_runs import JobRefused
from headwater.spark.lake_listing import File
from headwater.spark.lake_place import Place
from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import append, table_rows
from tests.lake.rows import MS, run
from tests.spark.lakes import FLAGS, Model, delete, fill, keys, snapshot
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

full = [pytest.mark.full, pytest.mark.timeout(300)]
DAY_MS = 86_400_000
COUNTS = ("records", "bytes", "reads", "read_bytes")


# ---- one file ---------------------------------------------------------------------------------------------------


class Counting(LocalStore):
    fetched = 0

    def get_range(self, key: str, start: int, length: int) -> Data:
        Counting.fetched += length
        return super().get_range(key, start, length)

    def get_tail(self, key: str, length: int) -> tuple[Data, int]:
        tail, size = super().get_tail(key, length)
        Counting.fetched += len(tail)
        return tail, size


class CountedPlace(Place):
    def store(self) -> Counting:
        return Counting(self.url)


def test_a_file_is_added_up_by_day_without_its_payloads_and_dead_rows(tmp_path: Path) -> None:
    from headwater.spark.jobs.usage import _file_days

    randbytes = random.Random(5).randbytes
    runs = [
        run(f"bucket-{number % 2}/{number:02d}", number, [randbytes(5_000) for _ in range(50)]) for number in range(8)
    ]
    for one in runs[:4]:
        for index in range(25):
            one.ms[index] -= DAY_MS
    built = build(runs, 0, "t", rows_per_group=70)
    LocalStore(tmp_path).put(built.file.path, built.data)
    alive = [extent for extent in built.extents if extent.sid != 3]

    class Answers(Calls):
        def lake_extents(self, group: int, files: list[str]) -> bytes:
            return encode_extents(Part(extent, False) for extent in alive)

    file = File(built.file.path, built.file.size_bytes, 400, 350, 0, 0, 0)
    batches = list(_file_days(Answers("http://127.0.0.1:9"), CountedPlace(str(tmp_path)), [file]))
    found: Counter[tuple[str, str, str]] = Counter()
    for row in pa.Table.from_batches(batches).to_pylist():
        for name in ("records", "bytes"):
            found[row["bucket"], row["day"].isoformat(), name] += row[name]
    today = datetime.fromtimestamp(MS / 1_000, UTC).date().isoformat()
    before = datetime.fromtimestamp((MS - DAY_MS) / 1_000, UTC).date().isoformat()
    assert found == {
        ("bucket-0", before, "records"): 50,
        ("bucket-0", before, "bytes"): 250_000,
        ("bucket-0", today, "records"): 150,
        ("bucket-0", today, "bytes"): 750_000,
        ("bucket-1", before, "records"): 25,
        ("bucket-1", before, "bytes"): 125_000,
        ("bucket-1", today, "records"): 125,
        ("bucket-1", today, "bytes"): 625_000,
    }
    assert Counting.fetched < built.file.size_bytes / 4
    assert built.file.path == data_key(0, max(extent.position for extent in built.extents), "t")


# ---- a lake -----------------------------------------------------------------------------------------------------


class TestLakes:
    pytestmark = full

    @pytest.fixture
    def node(self, tmp_path: Path) -> Iterator[Node]:
        with Node.started(tmp_path, flags=FLAGS) as running:
            yield running
            assert "Traceback" not in running.stderr(), running.output()

    def usage(self, spark: SparkSession, node: Node, **options: Any) -> dict[str, Any]:
        from headwater.spark.jobs.usage import usage

        return usage(spark, Calls(node.url), **options)

    def slowly(self, node: Node, names: Model) -> list[dict[str, Any]]:
        sums: dict[tuple[str, str], Counter[str]] = {}
        for row in table_rows(node.data_directory / "lake"):
            if f"{row['bucket']}/{row['stream']}" in names:
                day = datetime.fromtimestamp(row["ts_ms"] / 1_000, UTC).date().isoformat()
                one = sums.setdefault((row["bucket"], day), Counter())
                one["records"] += 1
                one["bytes"] += len(row["payload"])
                one["reads"] = one["read_bytes"] = 0
        return [{"bucket": bucket, "day": day, **one} for (bucket, day), one in sorted(sums.items())]

    def test_sums_are_those_of_the_rows(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        fill(node, model, [*keys(5), *keys(3, "other"), *keys(2, "third")], rounds=3)
        delete(node, model, "lake/stream-002")
        delete(node, model, "third/stream-000")
        with node.connect() as connection:
            append(connection, "other/stream-000", b"in memory alone")
        found = self.usage(spark, node)
        assert found["days"] == self.slowly(node, model)
        assert found["streams"] == 8 and found["hot_bytes"] == 15
        assert found["settled_records"] == 8 * 9
        assert {one["bucket"]: (one["streams"], one["records"]) for one in found["buckets"]} == {
            "lake": (4, 36),
            "other": (3, 28),
            "third": (1, 9),
        }

    def test_what_was_let_go_of_does_not_count(self, spark: SparkSession, node: Node) -> None:
        model: Model = {}
        fill(node, model, keys(2), rounds=2)
        snapshot(node, keys(1)[0], sum(map(len, model[keys(1)[0]][:3])))
        found = self.usage(spark, node)
        assert found["settled_records"] == 9 and found["buckets"][0]["records"] == 9

    def test_the_table_goes_to_a_file_of_either_kind(self, spark: SparkSession, node: Node, tmp_path: Path) -> None:
        model: Model = {}
        fill(node, model, [*keys(2), *keys(2, "other")], rounds=1)
        expected = self.usage(spark, node)["days"]
        for suffix in (".json", ".csv", ".parquet"):
            place = tmp_path / f"usage{suffix}"
            summary = self.usage(spark, node, output=str(place))
            assert summary["lines"] == len(expected) and "days" not in summary
        assert [json.loads(line) for line in (tmp_path / "usage.json").read_text().splitlines()] == expected
        with (tmp_path / "usage.csv").open() as file:
            rows = [{**row, **{name: int(row[name]) for name in COUNTS}} for row in csv.DictReader(file)]
        assert rows == expected
        table = pq.read_table(tmp_path / "usage.parquet").to_pylist()
        assert [{**row, "day": row["day"].isoformat()} for row in table] == expected
        with pytest.raises(JobRefused, match="no known kind"):
            self.usage(spark, node, output="usage.xlsx")

    def test_reads_stand_beside_what_was_written_and_alone_where_nothing_was(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        with Node.started(tmp_path, flags=(*FLAGS, "--checkpoint-interval-ms", "50")) as node:
            model: Model = {}
            fill(node, model, keys(2), rounds=1)
            with node.connect() as connection:
                connection.request("PUT", "/v1/stream/hot/alone", {"Content-Type": "text/plain"}, b"in memory")
            for key in ("lake/stream-000", "lake/stream-000", "hot/alone"):
                node.request("GET", f"/v1/stream/{key}?offset=-1")
            size = 2 * sum(map(len, model["lake/stream-000"]))
            until_s = time.monotonic() + 20
            while sum(line["reads"] for line in Calls(node.url).reads()) < 3:
                assert time.monotonic() < until_s
            found = self.usage(spark, node)
            assert (found["reads"], found["read_bytes"]) == (3, size + 9)
            days = {line["bucket"]: {name: line[name] for name in COUNTS} for line in found["days"]}
            written = sum(len(record) for records in model.values() for record in records)
            assert days == {
                "lake": {"records": 6, "bytes": written, "reads": 2, "read_bytes": size},
                "hot": {"records": 0, "bytes": 0, "reads": 1, "read_bytes": 9},
            }

    def test_an_empty_lake_has_nothing(self, spark: SparkSession, node: Node) -> None:
        found = self.usage(spark, node)
        assert (found["days"], found["buckets"], found["streams"], found["settled_bytes"]) == ([], [], 0, 0)
