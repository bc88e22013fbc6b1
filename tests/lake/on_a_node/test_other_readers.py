"""The lake read by libraries that are not ours: each returns exactly the records that HTTP returns.
Nothing here uses the product's own reader; the node is stopped or running, the readers do not care."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake.on_a_node.surface import JSON, SMALL, append, assert_rows_are_http, create, flush, path_of
from tests.support.node import Node

KEYS = ("read/text", "read/json", "other/nested/name", "other/ünï")
Rows = list[dict[str, Any]]


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")


def by_deltalake(place: Path) -> Rows:
    rows: Rows = DeltaTable(place).to_pyarrow_table().to_pylist()
    return rows


def by_arrow_files(place: Path) -> Rows:
    dataset = module("pyarrow.dataset")
    rows: Rows = dataset.dataset(DeltaTable(place).file_uris(), format="parquet").to_table().to_pylist()
    return rows


def by_polars(place: Path) -> Rows:
    rows: Rows = module("polars").scan_delta(str(place)).collect().to_dicts()
    return rows


def by_duckdb(place: Path) -> Rows:
    with module("duckdb").connect() as connection:
        found = connection.execute("select * from read_parquet($files)", {"files": DeltaTable(place).file_uris()})
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


READERS: list[Callable[[Path], Rows]] = [by_deltalake, by_arrow_files, by_polars, by_duckdb]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with several files, a deleted stream and one of a second life, everything settled."""
    with Node.started(tmp_path_factory.mktemp("node"), flags=SMALL) as node:
        with node.connect() as connection:
            for key in KEYS:
                create(connection, key, JSON if key == "read/json" else {"Content-Type": "text/plain"})
            for number in range(150):
                for key in KEYS:
                    if key == "read/json":
                        batch = [{"n": number, "part": part, "text": "ß" * part} for part in range(3)]
                        append(connection, key, json.dumps(batch).encode(), JSON)
                    else:
                        append(connection, key, f"{key} {number} ".encode() + bytes([number]) * number)
            for life in range(2):
                create(connection, "read/twice")
                append(connection, "read/twice", b"life %d" % life)
                flush(node)
                if life == 0:
                    assert connection.request("DELETE", path_of("read/twice")).status == 204
        yield node


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__.removeprefix("by_"))
def test_another_reader_returns_exactly_the_records_that_http_returns(
    node: Node, reader: Callable[[Path], Rows]
) -> None:
    place = node.data_directory / "lake"
    rows = reader(place)
    assert_rows_are_http(node, (*KEYS, "read/twice"), rows)
    assert len(DeltaTable(place).file_uris()) > 2, "everything came to lie in one file, so little was proved"
    # Nothing beyond these streams either, but for the first life of the one that was deleted.
    names = {f"{row['bucket']}/{row['stream']}" for row in rows}
    assert names == {*KEYS, "read/twice"}
    kinds = {row["content_type"] for row in rows if row["stream"] == "json"}
    assert kinds == {"application/json"}


def test_every_reader_sees_the_same_columns_and_values(node: Node) -> None:
    def canonical(rows: Rows) -> list[tuple[tuple[str, Any], ...]]:
        return sorted((tuple(sorted(row.items())) for row in rows), key=repr)

    expected = canonical(by_deltalake(node.data_directory / "lake"))
    for reader in READERS[1:]:
        assert canonical(reader(node.data_directory / "lake")) == expected, reader.__name__


def test_records_of_one_log_position_can_be_pruned_by_statistics(node: Node) -> None:
    """What Spark skips files by is there, and true: a filter finds what a scan finds."""
    place = node.data_directory / "lake"
    rows = by_deltalake(place)
    middle = sorted(row["position"] for row in rows)[len(rows) // 2]
    polars = module("polars")
    found = polars.scan_delta(str(place)).filter(polars.col("position") == middle).collect().to_dicts()
    assert sorted(row["seq"] for row in found) == sorted(row["seq"] for row in rows if row["position"] == middle)
