"""The lake read by Spark's own Parquet reader: on the table's files alone, and as `read_lake`.
Both are held against HTTP and against `format("headwater")`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from headwater.lake.store import StoreRefused
from headwater.model import glob
from headwater.spark.lake_place import Place
from headwater.spark.lake_table import table_files
from headwater.spark.native_read import expression, read_lake
from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import assert_rows_are_http, flush, path_of
from tests.spark.reads import COLUMNS, assert_shown, bucketed, fill, in_order, load, position, rows_of, snapshot
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = ("orders/text", "orders/json", "other/nested/name", "other/ünï")


def native_files(frame: object) -> int:
    """How many files Spark's own reader would open for this frame."""
    return len([name for name in frame.inputFiles() if name.endswith(".parquet")])  # type: ignore[attr-defined]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_sparks_own_reader_returns_exactly_the_records_that_http_returns(spark: SparkSession, node: Node) -> None:
    with node.connect() as connection:
        for first in range(0, 40, 10):
            fill(connection, KEYS, 10, first=first)
            flush(node)
        fill(connection, ["read/twice"], 2)
        flush(node)
        assert connection.request("DELETE", path_of("read/twice")).status == 204
        fill(connection, ["read/twice"], 3)
        flush(node)
    files = DeltaTable(str(node.data_directory / "lake")).file_uris()
    assert len(files) > 2, "everything came to lie in one file, so little was proved"
    rows = rows_of(spark.read.parquet(*files))
    assert_rows_are_http(node, (*KEYS, "read/twice"), rows)
    assert {f"{row['bucket']}/{row['stream']}" for row in rows} == {*KEYS, "read/twice"}


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_native_read_is_the_same_rows_as_the_source(spark: SparkSession, node: Node) -> None:
    bucketed(node, ["orders", "other"])
    with node.connect() as connection:
        fill(connection, KEYS, 10)
        flush(node)
        fill(connection, KEYS, 10, first=10)
        low = position(node)
        flush(node)
        fill(connection, ["orders/gone"], 5)
        fill(connection, KEYS, 5, first=20)
        flush(node)
        high = position(node)
        fill(connection, KEYS, 5, first=25)
        everything = read_lake(spark, node.url)
        assert everything.columns == COLUMNS
        assert native_files(everything) == 3
        assert_shown(node, (*KEYS, "orders/gone"), rows_of(everything))
        span = {"startingOffsets": f'{{"0": {low - 500}}}', "endingOffsets": f'{{"0": {high - 500}}}'}
        choices = [{}, span, {"bucket": "orders"}, {"subscribe": "orders/json,other/ünï"}, {"subscribePattern": "*/*"}]
        for options in choices:
            found = in_order(rows_of(read_lake(spark, Calls(node.url), **options)))
            assert found == in_order(rows_of(load(spark, node, **options))), options
        # A file with rows that no longer count goes through Python, and a trim in the middle of a file counts too.
        assert connection.request("DELETE", path_of("orders/gone")).status == 204
        cut = next(row for row in rows_of(load(spark, node, subscribe="orders/text")) if row["seq"] == 12)
        snapshot(connection, "orders/text", cut["offset"])
        less = read_lake(spark, node.url, includeHeaders="true")
        assert 0 < native_files(less) < 3
        assert_shown(node, KEYS, rows_of(less))
        assert {*COLUMNS, "tag", "node", "meta"} == set(less.columns)
        assert rows_of(read_lake(spark, node.url, bucket="nobody")) == []


@pytest.mark.parametrize("pattern", ["*", "**", "a/*", "a/**", "**/b", "*/b/**", "a.c/x*", "%2A/b", "a/**/b"])
def test_a_pattern_is_the_same_as_a_regular_expression(pattern: str) -> None:
    paths = ["a", "b", "a/b", "a/b/c", "a/x/b", "abc/x*", "a.c/x*", "a.c/x", "*/b", "x/b/y/z", "a//b"]
    for path in paths:
        assert (re.fullmatch(expression(pattern), "/" + path) is not None) == glob.matches(pattern, path), path


def test_a_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    from headwater.lake.layout import SCHEMA

    DeltaTable.create(
        str(tmp_path / "lake"), pa.schema(list(SCHEMA)), configuration={"delta.enableDeletionVectors": "true"}
    )
    with pytest.raises(StoreRefused, match="deletionVectors"):
        table_files(Place(str(tmp_path / "lake")))
