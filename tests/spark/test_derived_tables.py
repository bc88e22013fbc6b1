"""Derived tables: parts that executors wrote, committed once however often a batch comes, and read by others than us.
Rows are small and odd here: buckets of any name, days in any order, nested columns."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headwater.lake.store import StoreUnavailable
from headwater.spark.derived_tables import SMALL_COUNT_MAX, DerivedTable, arrow_schema, compact, output, read
from headwater.spark.job_runs import JobRefused
from headwater.spark.lake_place import Place
from headwater.spark.table_parts import Output, Part, folder, split, statistics, write_parts
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
BUCKETS = ["runs", "a b%/ü#?=:", "Ж"]
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("bucket", pa.string()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("more", pa.struct([("x", pa.string()), ("list", pa.list_(pa.int64()))])),
    ]
)
BY = ("day", "bucket")


def rows_of(count: int, first: int = 0) -> list[tuple[object, ...]]:
    start = datetime.date(2025, 6, 1)
    return [
        (
            start + datetime.timedelta(days=n % 3),
            BUCKETS[n % len(BUCKETS)],
            n,
            datetime.datetime(2025, 6, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(seconds=n),
            (f"x{n}", [n, n]),
        )
        for n in range(first, first + count)
    ]


def frame_of(spark: SparkSession, rows: list[tuple[object, ...]]) -> DataFrame:
    kinds = "day date, bucket string, n bigint, at timestamp, more struct<x: string, list: array<bigint>>"
    return spark.createDataFrame(rows, kinds).coalesce(1)


def numbers(table: DerivedTable) -> list[int]:
    return sorted(DeltaTable(table.place.store().uri).to_pyarrow_table()["n"].to_pylist())


# --- without Spark --------------------------------------------------------------------------------------------------


def test_rows_are_split_by_day_and_bucket_whatever_their_order() -> None:
    days = [datetime.date(2025, 6, 1 + n % 2) for n in range(6)]
    batch = pa.RecordBatch.from_pydict({"day": days, "bucket": ["a", "a", None, "b", "a", "a"], "n": list(range(6))})
    found = {tuple(values.items()): rows.column("n").to_pylist() for values, rows in split(batch, BY)}
    assert found == {
        (("day", "2025-06-01"), ("bucket", "a")): [0, 4],
        (("day", "2025-06-02"), ("bucket", "a")): [1, 5],
        (("day", "2025-06-01"), ("bucket", None)): [2],
        (("day", "2025-06-02"), ("bucket", "b")): [3],
    }
    assert [rows.num_rows for _, rows in split(batch, ())] == [6]


def test_a_folder_has_one_spelling_that_no_name_can_break_out_of() -> None:
    found = folder({"day": "2025-06-01", "bucket": "../ü%\\#"})
    assert found == "day=2025-06-01/bucket=..%2F%C3%BC%25%5C%23/"
    assert folder({"bucket": None}) == "bucket=__HIVE_DEFAULT_PARTITION__/"


def test_statistics_are_bounds_of_what_every_reader_orders_alike() -> None:
    table = pa.table(
        {
            "n": pa.array([3, None, 1]),
            "text": pa.array(["z", "a", "b"]),
            "at": pa.array([0, 1_500_000, None], pa.timestamp("us", "UTC")),
            "none": pa.array([None, None, None], pa.int64()),
        }
    )
    assert json.loads(statistics(table)) == {
        "numRecords": 3,
        "minValues": {"n": 1, "at": "1970-01-01T00:00:00.000000Z"},
        "maxValues": {"n": 3, "at": "1970-01-01T00:00:01.500000Z"},
        "nullCount": {"n": 1, "at": 1, "none": 3},
    }


def empty_part(table: DerivedTable, number: int) -> Part:
    """A part that is there as an object, with a row count of its own to be known by."""
    values: dict[str, str | None] = {"day": "2025-06-01", "bucket": "runs"}
    path = f"{folder(values)}part-{number}.parquet"
    table.place.store().put(path, b"PAR1")
    return Part(0, path, 4, number, json.dumps({"numRecords": number}), values)


def test_a_batch_is_committed_once_and_an_older_one_never_again(tmp_path: Path) -> None:
    table = DerivedTable(Place(str(tmp_path / "t")))
    table.ensure(SCHEMA, BY)
    assert table.append([empty_part(table, 1)], "query", 0)
    assert not table.append([empty_part(table, 2)], "query", 0)
    assert table.append([empty_part(table, 3)], "query", 4)
    assert not table.append([empty_part(table, 4)], "query", 3)
    assert table.append([empty_part(table, 5)], "another", 0)
    assert sorted(table.files()["num_records"].to_pylist()) == [1, 3, 5]
    assert (table.done("query"), table.done("another"), table.done("nobody")) == (4, 0, None)


def test_a_torn_newest_commit_is_taken_away_and_made_again(tmp_path: Path) -> None:
    table = DerivedTable(Place(str(tmp_path / "t")))
    table.ensure(SCHEMA, BY)
    table.append([empty_part(table, 1)], "query", 0)
    (tmp_path / "t" / "_delta_log" / f"{2:020d}.json").write_bytes(b'{"add": {"pa')
    again = DerivedTable(Place(str(tmp_path / "t")))
    assert again.append([empty_part(again, 2)], "query", 1)
    assert sorted(again.files()["num_records"].to_pylist()) == [1, 2]


def test_commits_beside_each_other_are_all_made_and_each_batch_once(tmp_path: Path) -> None:
    ours, theirs = (DerivedTable(Place(str(tmp_path))) for _ in range(2))

    def part(number: int) -> Part:
        return empty_part(ours, number)

    ours.ensure(SCHEMA, BY)
    assert theirs.exists()
    assert ours.append([part(1)], "ours", 0) and theirs.append([part(2)], "theirs", 0)
    assert ours.append([part(3)], "ours", 1) and not theirs.append([part(4)], "ours", 1)
    three = sorted(theirs.snapshot().paths)
    assert len(three) == 3
    ours.rewrite([part(6)], three)
    with pytest.raises(StoreUnavailable, match="2 files have left the table meanwhile"):
        theirs.rewrite([part(7)], three[:2])
    assert theirs.files()["num_records"].to_pylist() == [6]


def test_columns_are_added_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    table = DerivedTable(Place(str(tmp_path / "t")))
    table.ensure(SCHEMA, BY)
    table.ensure(SCHEMA.append(pa.field("later", pa.string())), BY)
    table.ensure(SCHEMA, BY)
    assert table.schema.names == [*SCHEMA.names, "later"]
    with pytest.raises(JobRefused, match="N is int64, not string"):
        table.ensure(pa.schema([("N", pa.string())]), BY)
    with pytest.raises(JobRefused, match="partitioned by day, bucket, not by day"):
        table.ensure(SCHEMA, ("day",))


def test_what_was_added_since_a_version_is_told_until_rows_are_taken_away(tmp_path: Path) -> None:
    table = DerivedTable(Place(str(tmp_path / "t")))
    table.ensure(SCHEMA, BY)
    parts = [empty_part(table, number) for number in range(4)]
    for number, part in enumerate(parts[:3]):
        table.append([part], "query", number)
    table.rewrite([parts[3]], [parts[0].path])
    added = table.added_since(1)
    assert added is not None
    assert (added.version, added.paths) == (4, [parts[1].path, parts[2].path])
    assert added.partitions[0] == {"day": "2025-06-01", "bucket": "runs"}
    table.replace_days([], ["2025-06-01"], "query", 9)
    assert table.added_since(4) is None
    assert table.snapshot() == (5, [])


# --- with Spark -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_rows_come_back_whoever_reads_them_and_days_are_replaced_in_one_step(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = DerivedTable(Place(str(tmp_path / "t")))
    frame = frame_of(spark, rows_of(60))
    assert arrow_schema(frame.schema) == SCHEMA
    table.ensure(SCHEMA, BY)
    parts = write_parts(frame, [output(table)])
    assert len(parts) == 3, "one for each day and bucket"
    assert table.append(parts, "query", 0)

    expected = sorted((row[2], row[0], row[1], row[4][0]) for row in rows_of(60))  # type: ignore[index]
    found = pl.read_delta(str(tmp_path / "t"))
    told = zip(found["n"], found["day"], found["bucket"], found["more"].struct.field("x"), strict=True)
    assert sorted(told) == expected
    rows = read(spark, table).collect()
    assert sorted((row.n, row.day, row.bucket, row.more.x) for row in rows) == expected
    assert numbers(table) == list(range(60))

    tables = write_parts(frame_of(spark, rows_of(3, first=100)), [output(table)])
    assert table.replace_days(tables, ["2025-06-02"], "days", 1)
    assert numbers(table) == sorted([n for n in range(60) if n % 3 != 1] + [100, 101, 102])
    narrow = pa.schema([("day", pa.date32()), ("bucket", pa.string()), ("n", pa.string())])
    few = frame_of(spark, rows_of(2)).selectExpr("day", "bucket", "cast(n as string) as n")
    assert table.replace(write_parts(few, [Output(table.place, narrow, BY)]), "query", 1, narrow, BY)
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["n"].to_pylist() in (["0", "1"], ["1", "0"])


@pytest.mark.full
def test_small_files_become_one_per_partition_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = DerivedTable(Place(str(tmp_path / "t")))
    table.ensure(SCHEMA, BY)
    kept = write_parts(frame_of(spark, rows_of(3)), [output(table)])
    for number in range(SMALL_COUNT_MAX):
        copies = []
        for part in kept:
            data = table.place.store().get(part.path)
            copy = part._replace(path=part.path.replace("part-", f"part-{number}-"))
            table.place.store().put(copy.path, data)
            copies.append(copy)
        table.append(copies, "query", number)
    before = table.version
    assert compact(spark, table) == 3 * SMALL_COUNT_MAX
    assert len(table.files()) == 3
    assert numbers(table) == sorted(list(range(3)) * SMALL_COUNT_MAX)
    assert compact(spark, table) == 0
    added = table.added_since(before)
    assert added is not None
    assert added.paths == [], "the same rows in other files are nothing new"


@pytest.mark.full
def test_a_table_in_an_object_store_is_written_and_read_without_jars(
    spark: SparkSession, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.make_bucket("tables")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
        # The workers of a session that runs already get their environment from here.
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    table = DerivedTable(Place("s3://tables/t", s3.endpoint, "us-east-1"))
    table.ensure(SCHEMA, BY)
    parts = write_parts(frame_of(spark, rows_of(12)), [output(table)])
    assert table.append(parts, "query", 0)
    assert not table.append(parts, "query", 0)
    found = read(spark, table).collect()
    expected = sorted((row[2], row[0], row[1]) for row in rows_of(12))  # type: ignore[type-var]
    assert sorted((row.n, row.day, row.bucket) for row in found) == expected
