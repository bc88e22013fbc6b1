"""Conditions that are told with a read: the rows are those for which they are true, wherever they lie, and no other
query's are lost. A slow model judges single rows; the reads run without Spark, but for the last test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.lake.layout import SCHEMA
from headwater.spark.node import Node as Calls
from headwater.spark.options import BadOptions, parse
from headwater.spark.row_filters import BadCondition, row_filter
from headwater.spark.selection import Selection
from tests.lake.on_a_node.surface import flush
from tests.spark.queries import Query
from tests.spark.reads import fill, in_order, load, rows_of
from tests.spark.test_from_kafka import batch
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = ("orders/a", "orders/b", "other/x")
ZERO = datetime(1970, 1, 1, tzinfo=UTC)
texts, counts = st.sampled_from(["a", "ab", "b", "x'y", ""]), st.integers(-2, 5)
SIGNS = ["=", "<>", "<", "<=", ">", ">="]


@st.composite
def conditions(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(["bucket", "stream", "tag", "seq", "position", "group", "timestamp"]))
    if column in ("seq", "position", "group"):
        spelled: list[str] = [str(value) for value in draw(st.lists(counts, min_size=1, max_size=3))]
    elif column == "timestamp":
        moments = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        spelled = [f"'{(ZERO + timedelta(milliseconds=value)).isoformat()}'" for value in moments]
    else:
        spelled = ["'" + value.replace("'", "''") + "'" for value in draw(st.lists(texts, min_size=1, max_size=3))]
        if draw(st.booleans()):
            return draw(st.sampled_from([f"{column} IS NULL", f"{column} is not null", f"{column} LIKE 'a%'"]))
    if draw(st.booleans()):
        return f"{column} in ({', '.join(spelled)})"
    return f"`{column}` {draw(st.sampled_from(SIGNS))} {spelled[0]}"


rows = st.lists(st.tuples(texts, texts, st.none() | texts, counts, counts, st.integers(0, 2), st.integers(0, 6)))


def true(condition: Any, row: dict[str, Any]) -> bool:
    value = row["ts_ms"] * 1_000 if condition.column == "timestamp" else row[condition.column]
    if condition.sign in ("null", "not null"):
        return (value is None) == (condition.sign == "null")
    if value is None:
        return False
    first = condition.values[0]
    judged = {
        "=": value == first, "<>": value != first, "in": value in condition.values,
        "prefix": isinstance(value, str) and value.startswith(first),
    }  # fmt: skip
    if condition.sign in judged:
        return bool(judged[condition.sign])
    return bool({"<": value < first, "<=": value <= first, ">": value > first, ">=": value >= first}[condition.sign])


@settings(max_examples=150, deadline=None)
@given(st.lists(conditions(), min_size=1, max_size=3), rows)
def test_a_row_comes_through_when_every_condition_is_true(told: list[str], drawn: list[tuple[Any, ...]]) -> None:
    found = row_filter(" AND ".join(told))
    names = ("bucket", "stream", "tag", "seq", "position", "group", "ts_ms")
    listed = [dict(zip(names, row, strict=True)) for row in drawn]
    table = pa.Table.from_pylist(listed, pa.schema([SCHEMA.field(name) for name in names]))
    expected = [all(true(one, row) for one in found.conditions) for row in listed]
    assert found.mask(table).to_pylist() == expected

    def bounds(name: str) -> tuple[Any, Any] | None:
        values = [row[name] for row in listed if row[name] is not None]
        return (min(values), max(values)) if values else None

    assert not (any(expected) and found.rules_out(bounds))
    earliest_ms = found.earliest_ms()
    assert all(row["ts_ms"] >= (earliest_ms or 0) for row, come in zip(listed, expected, strict=True) if come)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it ends"),
        ("payload = 'a'", "expected a column"),
        ("seq = 'a'", "is not compared with"),
        ("seq = 1 OR seq = 2", "joined with AND alone"),
        ("stream LIKE '%a'", "a beginning with %"),
        ("seq IN 1", r"IN \(…\)"),
        ("seq IN (1", "it ends"),
        ("seq ~ 1", "cannot be read"),
        ("seq IS 1", "IS NULL"),
        ("seq", "it ends"),
        ("timestamp > 'yesterday'", "expected a date"),
        (" AND ".join(["seq = 1"] * 65), "at most 64"),
    ],
)
def test_what_is_no_condition_is_told(text: str, why: str) -> None:
    with pytest.raises(BadCondition, match=why):
        row_filter(text)
    if text:
        with pytest.raises(BadOptions, match="where: "):
            parse({"url": "http://127.0.0.1:1", "where": text})


def test_names_in_conditions_narrow_the_choice_of_streams() -> None:
    def chosen(**given: str) -> Selection:
        return parse({"url": "http://127.0.0.1:1", **given}).selection

    assert chosen(where="bucket = 'orders' AND seq > 1") == Selection(bucket="orders")
    one = Selection(streams=frozenset({("orders", "a")}))
    assert chosen(where="bucket = 'orders' AND stream = 'a'") == one
    assert chosen(bucket="orders", where="stream = 'a' AND bucket = 'orders'") == one
    assert chosen(bucket="other", where="bucket = 'orders'") == Selection(bucket="other")
    assert chosen(where="bucket = '_headwater'") == Selection() == chosen(where="stream = 'a'")


@pytest.fixture
def written(tmp_path: Path) -> Any:
    flags = ["--flush-interval-ms", "600000", "--checkpoint-interval-ms", "500"]
    with Node.started(tmp_path, flags=flags) as node, node.connect() as connection:
        fill(connection, KEYS, 5)
        flush(node)
        fill(connection, KEYS, 4, first=5)
        yield node


def cases(whole: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    middle = sorted(row["position"] for row in whole)[len(whole) // 2]
    moment = whole[len(whole) // 2]["timestamp"]
    return [
        ("bucket = 'orders'", lambda row: row["bucket"] == "orders"),
        ("bucket = 'orders' AND stream IN ('b', 'none')", lambda row: row["stream"] == "b"),
        ("stream = 'x' AND seq >= 4", lambda row: row["stream"] == "x" and row["seq"] >= 4),
        (
            f"position > {middle} AND bucket <> 'other'",
            lambda row: row["position"] > middle and row["bucket"] != "other",
        ),
        (f"timestamp >= '{moment.isoformat()}'", lambda row: row["timestamp"] >= moment),
        ("tag IS NOT NULL", lambda row: False),
        ("`group` = 0 AND stream LIKE 'a%'", lambda row: row["stream"] == "a"),
    ]


def test_a_read_with_conditions_is_the_whole_without_the_other_rows(written: Node) -> None:
    whole = in_order(batch(written))
    for text, keeps in cases(whole):
        expected = [row for row in whole if keeps(row)]
        assert in_order(batch(written, where=text)) == expected, text
        assert in_order(Query(written, where=text, maxOffsetsPerTrigger="7").run()) == expected, text


@pytest.mark.full
@pytest.mark.timeout(900)
def test_frames_with_conditions_do_not_get_in_each_others_way(spark: SparkSession, written: Node) -> None:
    from headwater.spark.native_read import read_lake, read_where

    whole = in_order(rows_of(load(spark, written)))
    calls = Calls(written.url)
    for text, keeps in cases(whole)[1:6:2]:  # names, a position, a label that no row has
        expected = [row for row in whole if keeps(row)]
        assert in_order(rows_of(read_lake(spark, calls, where=text))) == expected, text
    frame = read_where(spark, calls, "bucket = 'orders'")
    both = frame.where("stream = 'a'").union(frame.where("stream <> 'a'"))
    assert in_order(rows_of(both)) == [row for row in whole if row["bucket"] == "orders"]
    some = read_where(spark, calls, "bucket = 'orders' AND seq = 3", ["stream", "seq"])
    assert sorted(map(tuple, some.collect())) == [("a", 3), ("b", 3)] and some.columns == ["stream", "seq"]
