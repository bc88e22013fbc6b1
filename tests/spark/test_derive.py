"""`derive`: typed tables from JSON streams, each record once, whatever is repeated or dies on the way.
Tables are read with polars, which knows nothing of how they were made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from headwater.spark import typed_rows
from headwater.spark.derived_tables import DerivedTable
from headwater.spark.job_runs import JobRefused
from headwater.spark.jobs.derive import derive
from headwater.spark.node import Node as Calls
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
JSON = {"Content-Type": "application/json"}
SCHEMA = "run STRING NOT NULL, tokens BIGINT, at TIMESTAMP, tags ARRAY<STRING>"


def append(node: Node, stream: str, *records: Any) -> None:
    """One append of several messages; the stream is made if need be."""
    node.request("PUT", f"/v1/stream/{stream}", JSON)
    assert node.request("POST", f"/v1/stream/{stream}", JSON, json.dumps(list(records)).encode()).status == 204


def rows(place: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = pl.read_delta(str(place))
    return sorted(found.select(columns).iter_rows(), key=repr)


def replay_newest_batch(place: Path) -> None:
    """As after a crash between the batch's work and Spark's own note of it."""
    checkpoint = Path(json.loads((place / "_headwater" / "owner.json").read_text())["checkpoint"])
    newest = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()


def test_records_become_typed_rows_and_those_that_do_not_fit_are_set_aside_with_the_reason(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    append(node, "runs/a", {"run": "a", "tokens": 1, "at": "2025-06-01T12:00:00Z", "tags": ["x"], "unknown": 1})
    append(node, "runs/b/deep", {"run": "b"}, {"run": "c", "tokens": "many"}, {"tokens": 2}, [1])
    assert node.request("POST", "/__headwater/flush").status == 200
    append(node, "runs/a", {"run": "hot", "tokens": 9_007_199_254_740_993})
    append(node, "other/a", {"run": "elsewhere"})
    node.request("PUT", "/v1/stream/runs/bytes", {"Content-Type": "application/octet-stream"}, b"\xff\x00")
    place = tmp_path / "events"

    told = derive(spark, Calls(node.url), target=str(place), source={"bucket": "runs"}, schema=SCHEMA)

    assert (told["rows"], told["quarantined"], told["batches"]) == (3, 3, 1)
    assert rows(place, "run", "tokens", "bucket", "stream", "seq", "offset") == [
        ("a", 1, "runs", "a", 0, 0),
        ("b", None, "runs", "b/deep", 0, 0),
        ("hot", 9_007_199_254_740_993, "runs", "a", 1, 84),
    ]
    assert {str(at) for at in pl.read_delta(str(place))["at"].drop_nulls()} == {"2025-06-01 12:00:00+00:00"}
    aside = tmp_path / "events_quarantine"
    assert rows(aside, "stream", "seq", "reason", "payload") == [
        ("b/deep", 1, 'tokens should be long and is a string "many"', b'{"run": "c", "tokens": "many"}'),
        ("b/deep", 2, "run is required and missing", b'{"tokens": 2}'),
        ("b/deep", 3, "not a JSON object but an array", b"[1]"),
    ]
    found = pl.read_delta(str(place))
    assert [str(day) for day in found["day"]] == [str(at.date()) for at in found["appended_at"]]
    assert DerivedTable(_place(place)).partition_by == ("day", "bucket")


def test_a_batch_that_comes_again_changes_nothing_and_a_death_between_the_two_tables_neither(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, calls = tmp_path / "events", Calls(node.url)

    def run(**more: Any) -> dict[str, object]:
        source = {"bucket": "runs", "maxOffsetsPerTrigger": "2"}
        return derive(spark, calls, target=str(place), source=source, schema="n BIGINT", **more)

    append(node, "runs/a", {"n": 0}, {"n": 1})
    append(node, "runs/a", {"n": "bad"})
    assert run()["rows"] == 2
    replay_newest_batch(place)
    append(node, "runs/a", {"n": 2})
    again = run()
    assert (again["rows"], again["quarantined"]) == (1, 0)

    append(node, "runs/a", {"n": 3}, {"n": "worse"})
    whole = DerivedTable.append

    def dying(table: DerivedTable, *given: Any) -> bool:
        if table.place.url.endswith("_quarantine"):
            raise OSError("the machine dies")
        return whole(table, *given)

    with monkeypatch.context() as patched:
        patched.setattr(DerivedTable, "append", dying)
        with pytest.raises(JobRefused, match="the machine dies"):
            run()
    assert run()["quarantined"] == 1
    assert rows(place, "n") == [(0,), (1,), (2,), (3,)]
    assert rows(tmp_path / "events_quarantine", "payload") == [(b'{"n": "bad"}',), (b'{"n": "worse"}',)]

    shutil.rmtree(Path(json.loads((place / "_headwater" / "owner.json").read_text())["checkpoint"]))
    with pytest.raises(JobRefused, match=r"checkpoint .* is gone"):
        run()


def test_an_inferred_schema_stays_and_a_declared_one_may_add_columns_but_not_change_them(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    place, calls = tmp_path / "events", Calls(node.url)

    def run(**more: Any) -> dict[str, object]:
        return derive(spark, calls, target=str(place), source={"subscribe": "runs/a"}, **more)

    with pytest.raises(JobRefused, match="no schema to be inferred"):
        run()
    append(node, "runs/a", {"run": "a", "tokens": 1, "day": "monday"})
    assert run()["schema_inferred"]
    append(node, "runs/a", {"run": "b", "tokens": 2, "cost": 0.5}, {"run": "c", "tokens": "many"})
    second = run()
    assert (second["rows"], second["quarantined"], second["schema_inferred"]) == (1, 1, True)
    assert rows(place, "run", "tokens", "day_") == [("a", 1, "monday"), ("b", 2, None)]

    for wrong, complaint in (
        ("tokens STRING", "tokens is bigint in the table and string in the schema"),
        ("nonsense", "cannot be read"),
    ):
        with pytest.raises(JobRefused, match=complaint):
            run(schema=wrong)
    append(node, "runs/a", {"run": "d", "cost": 1.5})
    run(schema="run STRING, tokens BIGINT, cost DOUBLE")
    assert rows(place, "run", "cost") == [("a", None), ("b", None), ("d", 1.5)]
    assert run()["schema_inferred"] is False

    anew = run(schema="tokens STRING", overwrite=True)
    assert (anew["rows"], anew["quarantined"]) == (4, 0)
    assert rows(place, "tokens") == [("1",), ("2",), ("many",), (None,)]
    assert pl.read_delta(str(tmp_path / "events_quarantine")).is_empty()
    with pytest.raises(JobRefused, match="from batch to batch"):
        run(batch=True)


def test_a_table_is_computed_in_one_go_with_days_from_a_column_of_its_own(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    place, calls = tmp_path / "events", Calls(node.url)

    def run(**more: Any) -> dict[str, object]:
        return derive(spark, calls, target=str(place), source={"bucket": "runs"}, schema="at TIMESTAMP, n INT", **more)

    append(node, "runs/a", {"at": "2024-02-29T23:59:59-01:00", "n": 1}, {"n": 2})
    with pytest.raises(JobRefused, match="day cannot come from n"):
        run(batch=True, day_from="n")
    run(batch=True, day_from="at")
    append(node, "runs/a", {"at": "2024-02-29T01:00:00Z", "n": 3})
    told = run(batch=True, day_from="at")
    assert told["rows"] == 3
    late = [row for row in rows(place, "n", "day") if row[0] != 2]
    assert [(n, str(day)) for n, day in late] == [(1, "2024-03-01"), (3, "2024-02-29")]
    with pytest.raises(JobRefused, match="in one go"):
        run()
    with pytest.raises(JobRefused, match="derived from bucket runs, not subscribe runs/a"):
        derive(spark, calls, target=str(place), source={"subscribe": "runs/a"}, schema="n INT")
    with pytest.raises(JobRefused, match="is not the quarantine of"):
        derive(spark, calls, target=str(tmp_path / "x"), schema="n INT", quarantine=str(tmp_path / "events_quarantine"))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"{", "not JSON: "),
        (b"\xff", "not JSON: "),
        (b"7", "not a JSON object but a number"),
        (b'{"n": true, "need": 1}', "n should be integer and is a boolean true"),
        (b'{"n": 4294967296, "need": 1}', "n should be integer and is a number 4294967296"),
        (b'{"inner": [1], "need": 1}', "inner should be struct and is an array [1]"),
        (b'{"need": null}', "need is required and missing"),
        (b'{"at": "nonsense", "need": 1}', "a value does not fit the type of its column"),
    ],
)
def test_a_reason_names_the_culprit_where_it_can(payload: bytes, reason: str) -> None:
    from pyspark.sql import types as T

    schema = T.StructType(
        [
            T.StructField("n", T.IntegerType()),
            T.StructField("inner", T.StructType([T.StructField("x", T.LongType())])),
            T.StructField("at", T.TimestampType()),
            T.StructField("need", T.LongType(), nullable=False),
        ]
    )
    assert typed_rows.Router(schema, typed_rows.FACTS).reason(payload).startswith(reason)


def _place(path: Path) -> Any:
    from headwater.spark.lake_place import Place

    return Place(str(path))


def put_schema(node: Node, bucket: str, **kinds: Any) -> None:
    document = {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}}
    node.request("PUT", f"/{bucket}")
    path = f"/__headwater/buckets/{bucket}/schema"
    assert node.request("PUT", path, JSON, json.dumps(document).encode()).status == 200


def test_a_table_goes_by_the_schema_of_its_bucket_and_gets_the_columns_that_are_added_there(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    place = tmp_path / "events"

    def run(**more: Any) -> dict[str, Any]:
        return derive(spark, Calls(node.url), target=str(place), source={"bucket": "said"}, **more)

    put_schema(node, "said", id="integer")
    append(node, "said/a", {"id": 1, "cost": 0.5})
    first = run()
    assert (first["schema"], first["schema_from"], first["schema_version"]) == ("id bigint", "bucket", 1)

    put_schema(node, "said", id="integer", cost="number")
    append(node, "said/a", {"id": 2, "cost": 1.5})
    second = run()
    assert (second["schema_version"], second["columns_added"]) == (2, ["cost"])
    assert rows(place, "id", "cost") == [(1, None), (2, 1.5)]

    put_schema(node, "said", id="string", cost="number")
    append(node, "said/a", {"id": 3})
    with pytest.raises(
        JobRefused, match=r"column id is bigint in the table and string in the schema of bucket said \(v"
    ):
        run()
    assert run(schema="id BIGINT")["rows"] == 1
    assert run()["schema_from"] == "declared", "what a table was declared with stays"


def test_a_table_gets_what_is_new_in_its_records_when_asked_and_says_why_not(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    place = tmp_path / "events"

    def run(**more: Any) -> dict[str, Any]:
        return derive(spark, Calls(node.url), target=str(place), source={"bucket": "runs"}, **more)

    with pytest.raises(JobRefused, match="is to be inferred"):
        run(infer=True, schema="id BIGINT")
    append(node, "runs/a", {"id": 1})
    first = run(infer=True)
    assert (first["schema"], first["json_schema"]["properties"]) == ("id bigint", {"id": {"type": "integer"}})
    append(node, "runs/a", {"id": 2, "cost": 0.5})
    assert run()["schema"] == "id bigint"
    assert node.request("POST", "/__headwater/flush").status == 200
    append(node, "runs/a", {"id": 3, "cost": 1})
    evolved = run(infer=True)
    assert (evolved["schema"], evolved["columns_added"]) == ("id bigint, cost double", ["cost"])
    assert rows(place, "id", "cost") == [(1, None), (2, None), (3, 1.0)]
    moments = sorted(pl.read_delta(str(place))["appended_at"], reverse=True)
    table = DerivedTable(_place(place))
    assert [table.newest_since("appended_at", count) for count in (1, 2, 3, 4)] == [*moments, None]

    append(node, "runs/a", {"id": 4.5})
    told = "column id is bigint in the table and double in the records: record 3 of stream runs/a has id 4.5"
    with pytest.raises(JobRefused, match=told):
        run(infer=True)
    assert run()["quarantined"] == 1
    anew = run(infer=True, overwrite=True)
    assert (anew["schema"], anew["rows"]) == ("cost double, id double", 4)
