"""`option("parse", "json")`: fields of records as columns, in batches, streaming queries and `read_lake`.
Rows are held against what HTTP shows, read with `json.loads`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark import typed_columns
from headwater.spark.native_read import read_lake
from headwater.spark.node import Node as Calls
from headwater.spark.options import BadOptions, parse
from headwater.spark.parsing import CORRUPT, check_typed, typed_stored
from tests.spark.conftest import QUICK
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON = {"Content-Type": "application/json"}
FULL = [pytest.mark.full, pytest.mark.timeout(300)]
URL = {"url": "http://127.0.0.1:4437"}


def append(node: Node, stream: str, *records: Any) -> None:
    node.request("PUT", f"/v1/stream/{stream}", JSON)
    assert node.request("POST", f"/v1/stream/{stream}", JSON, json.dumps(list(records)).encode()).status == 204


def put_schema(node: Node, bucket: str, required: list[str], **properties: Any) -> None:
    kinds = {name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in properties.items()}
    document = {"type": "object", "properties": kinds, "required": required}
    node.request("PUT", f"/{bucket}")
    path = f"/__headwater/buckets/{bucket}/schema"
    assert node.request("PUT", path, JSON, json.dumps(document).encode()).status == 200


def load(spark: SparkSession, node: Node, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("headwater").option("url", node.url).option("parse", "json").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=QUICK) as running:
        yield running


class TestColumns:
    def test_parse_is_json_and_its_mode_one_of_three(self) -> None:
        assert parse(URL).parse_mode is None
        assert parse({**URL, "parse": "JSON"}).parse_mode == "permissive"
        assert parse({**URL, "parse": "json", "parsemode": "FailFast"}).parse_mode == "failfast"
        for wrong in ({"parse": "avro"}, {"parse": "json", "parseMode": "lax"}, {"parseMode": "failfast"}):
            with pytest.raises(BadOptions, match="parse"):
                parse({**URL, **wrong})

    def test_only_what_is_wanted_is_read(self) -> None:
        from pyspark.sql.types import LongType, StructType

        facts = StructType().add("stream", "string")
        assert typed_stored(facts, "permissive") == ["stream"]
        assert typed_stored(facts.add("k", LongType()), "permissive") == ["stream", "payload", "content_type"]
        strict = typed_stored(StructType().add("k", LongType()), "failfast")
        assert set(strict) == {"payload", "content_type", "bucket", "stream", "seq"}

    @pytest.mark.parametrize(
        ("column", "told"),
        [
            (("k", "binary", True), "take string"),
            (("k", "timestamp_ntz", True), "take string"),
            (("seq", "integer", True), "seq is bigint"),
            (("k", "long", False), "NOT NULL"),
            ((CORRUPT, "long", True), "is string"),
        ],
    )
    def test_columns_that_rows_cannot_have_are_refused(self, column: tuple[str, str, bool], told: str) -> None:
        from pyspark.sql.types import StructType

        with pytest.raises(BadOptions, match=told):
            check_typed(StructType().add(*column), "permissive")
        with pytest.raises(BadOptions, match="case"):
            check_typed(StructType().add("k", "string").add("K", "string"), "permissive")


@pytest.mark.full
@pytest.mark.timeout(300)
class TestReads:
    def test_inferred_columns_are_what_http_shows(self, spark: SparkSession, node: Node) -> None:
        records = [
            {"run": f"r{n}", "k": n, "share": n / 3 if n % 2 else n, "in": {"tags": ["a", None], "ok": n % 2 == 0}}
            for n in range(50)
        ]
        append(node, "inferred/a", *records[:30], {"seq": "mine", "mixed": 5}, {"mixed": "text"})
        assert node.request("POST", "/__headwater/flush").status == 200
        append(node, "inferred/a", *records[30:])

        frames = [load(spark, node, bucket="inferred"), read_lake(spark, node.url, bucket="inferred", parse="json")]
        expected = node.request("GET", "/v1/stream/inferred/a?offset=-1").json()
        assert len(expected) == 52
        for frame in frames:
            kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
            assert "payload" not in kinds and kinds["stream"] == "string"
            assert [kinds[name] for name in ("k", "share", "mixed", "seq", "seq_", CORRUPT)] == [
                *("bigint", "double", "string", "bigint", "string", "string")
            ]
            found = sorted(frame.collect(), key=lambda row: row["seq"])
            for record, row in zip(expected, found, strict=True):
                shown = row.asDict(recursive=True)
                assert shown[CORRUPT] is None
                assert {name: shown[name] for name in ("run", "k")} == {name: record.get(name) for name in ("run", "k")}
                assert shown["share"] == record.get("share") and shown["in"] == record.get("in")
                mixed = record.get("mixed")
                assert shown["mixed"] == (mixed if mixed is None or isinstance(mixed, str) else json.dumps(mixed))
                assert shown["seq_"] == record.get("seq")
        assert rows(frames[0], "stream", "offset", "timestamp") == rows(frames[1], "stream", "offset", "timestamp")

    def test_a_record_that_does_not_fit_is_told_left_out_or_fails_the_read(
        self, spark: SparkSession, node: Node
    ) -> None:
        append(node, "unfit/a", {"k": 1, "at": "2026-01-31T12:00:00Z"}, {"k": "x"}, [2], {"k": None})
        node.request("PUT", "/v1/stream/unfit/text", {"Content-Type": "text/plain"}, b"hello")
        schema = f"k BIGINT, at TIMESTAMP, {CORRUPT} STRING"
        noon = datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None)
        everything = [(1, noon, None), *((None, None, text) for text in (None, "[2]", "hello", '{"k": "x"}'))]

        def both(schema: str, **options: str) -> list[DataFrame]:
            lake = read_lake(spark, node.url, schema=schema, bucket="unfit", parse="json", **options)
            return [load(spark, node, schema, bucket="unfit", **options), lake]

        for frame in both(schema):
            assert rows(frame, "k", "at", CORRUPT) == sorted(everything, key=repr)
        for frame in both("k BIGINT", parseMode="dropmalformed"):
            assert rows(frame, "k") == [(1,), (None,)]
        for frame in both("k BIGINT NOT NULL", parseMode="dropmalformed"):
            assert rows(frame, "k") == [(1,)]
        for frame in both("k BIGINT", parseMode="failfast"):
            with pytest.raises(Exception, match=r"of stream unfit/(a|text) does not fit"):
                frame.collect()
        for frame in both("seq BIGINT, payload STRING, k STRING"):
            assert rows(frame.where("seq = 1"), "payload", "k") == [('{"k": "x"}', "x")]

    def test_a_bucket_says_its_columns_and_a_query_goes_by_them(
        self, spark: SparkSession, node: Node, tmp_path: Path
    ) -> None:
        put_schema(node, "said", ["id"], id="integer", at={"type": "string", "format": "date-time"}, stream="string")
        append(node, "said/a", {"id": 1, "at": "2026-01-31T12:00:00Z", "stream": "mine"}, {"id": "x"}, {})
        frame = load(spark, node, subscribe="said/a")
        assert frame.schema["at"].dataType.simpleString() == "timestamp"
        assert rows(frame, "stream", "id", "stream_", CORRUPT) == [
            ("a", 1, "mine", None),
            ("a", None, None, '{"id": "x"}'),
            ("a", None, None, None),
        ]
        assert rows(load(spark, node, bucket="said", parseMode="dropmalformed"), "id") == [(1,)]

        reader = spark.readStream.format("headwater").option("url", node.url).option("parse", "json")
        reader = reader.option("bucket", "said").option("startingOffsets", "earliest")
        for _ in range(2):
            query = (
                reader.load()
                .select("id", CORRUPT)
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
            append(node, "said/a", {"id": 2})
        assert rows(spark.read.parquet(str(tmp_path / "out")), "id") == [(1,), (2,), (None,), (None,)]

    def test_a_query_without_columns_that_stay_is_refused(self, spark: SparkSession, node: Node) -> None:
        append(node, "unsaid/a", {"id": 1})
        reader = spark.readStream.format("headwater").option("url", node.url).option("parse", "json")
        for options in ({}, {"startingOffsets": "earliest"}, {"maxOffsetsPerTrigger": "5"}):
            with pytest.raises(Exception, match="not inferred"):
                started = reader.options(bucket="unsaid", **options).load().writeStream.format("noop").start()
                started.awaitTermination(60)
        with pytest.raises(Exception, match="JSON object with a field"):
            load(spark, node, bucket="nothing")

    def test_a_sample_has_an_end(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        append(node, "long/a", *({"k": n} for n in range(20)), {"late": 1})
        options = parse({"url": node.url, "bucket": "long", "parse": "json"})
        assert "late" in typed_columns.typed_schema(options)[0].fieldNames()
        monkeypatch.setattr(typed_columns, "SAMPLE_ROWS", 5)
        assert "late" not in typed_columns.typed_schema(options)[0].fieldNames()
        schema, is_inferred = typed_columns.typed_schema(options._replace(node=Calls(node.url)))
        assert is_inferred and "k" in schema.fieldNames()
