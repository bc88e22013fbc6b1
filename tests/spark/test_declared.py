"""Pipelines that a file declares: what is wrong with one is told before anything runs, and what is right goes on.
Tables are read with polars, streams over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from headwater.spark.declared import Pipeline, Source, Table, load
from headwater.spark.job_runs import JobRefused
from headwater.spark.node import Node as Calls
from tests.support.http import read_messages
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD = """
name = "agent-runs"

[source]
bucket = "runs"

[[table]]
name = "events"
schema = "kind STRING NOT NULL, tokens BIGINT"

[[table]]
name = "usage"
layer = "silver"
from = "events"
sql = "SELECT day, bucket, stream AS run, tokens, seq FROM events WHERE kind = 'tokens'"

[[table]]
name = "per_run"
layer = "gold"
from = "usage"
refresh = "day"
sql = "SELECT day, run, sum(tokens) AS tokens, count(*) AS events FROM usage GROUP BY day, run"

[[stream]]
name = "alerts"
from = "usage"
sql = '''
SELECT concat("alerts/", run) AS stream, to_json(struct(run, tokens)) AS payload, seq FROM usage WHERE tokens > 90
'''
order_by = ["seq"]

[[fold]]
mode = "last"
key = ["/kind"]
bucket = "runs"
min_records = 2
"""


def written(folder: Path, text: str, name: str = "pipeline.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- without Spark --------------------------------------------------------------------------------------------------


def test_a_good_file_is_read_and_its_tables_are_put_in_order(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, GOOD)).pipeline
    assert [table.name for table in pipeline.ordered()] == ["events", "usage", "per_run"]
    assert [table.how for table in pipeline.tables] == ["append", "append", "day"]
    assert pipeline.place(pipeline.table("usage"), tmp_path).url == str(tmp_path / "tables" / "silver" / "usage")
    assert pipeline.state("usage", tmp_path) == str(tmp_path / "tables" / "_state" / "usage")
    assert [table.name for table in pipeline.lineage("per_run")] == ["events", "usage", "per_run"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "agent-runs"', "", "pipeline: Object missing required field `name`"),
        ('name = "agent-runs"', 'name = "agent-runs"\ncolour = 1', "pipeline: .*unknown field `colour`"),
        ('bucket = "runs"\n\n[[table]]', 'bucket = "a/b"\n\n[[table]]', "source: bucket 'a/b' has a slash"),
        ('bucket = "runs"\n\n[[table]]', "options.maxRows = '1'\n[[table]]", "source: there is no option maxRows"),
        ('layer = "silver"', 'layr = "silver"', "table usage: .*unknown field `layr`"),
        ('refresh = "day"', 'refresh = "weekly"', "table per_run: refresh: .*weekly"),
        ('from = "events"', 'from = "evnts"', "table usage: from: there is no table evnts"),
        ('from = "events"', 'from = "per_run"', "table: from: the tables go in a circle"),
        ('name = "usage"', 'name = "Usage"', "table Usage: name: use small letters"),
        ('name = "usage"', 'name = "events"', "table events: name: there is more than one"),
        ('name = "events"', 'name = "source"', "table source: name: that is what the source is called"),
        (
            'schema = "kind',
            'sql = "SELECT 1"\nschema = "kind',
            "table events: sql: a table from the source has a schema",
        ),
        ('layer = "silver"', 'schema = "n INT"', "table usage: schema: only a table from the source has one"),
        ('from = "usage"\nsql', 'from = "per_run"\nsql', "stream alerts: from: the table per_run is computed anew"),
        ('order_by = ["seq"]', "order_by = 1", "stream alerts: order_by: Expected `array`"),
        ('key = ["/kind"]', "key = []", "fold number 1: the mode last, and no other, takes a key"),
        ("min_records = 2", "min_records = 0", "fold number 1: min_records"),
        ("[[fold]]", "[fold]", r"fold: write \[\[fold\]\]"),
        ("[source]", "[source", "is not TOML"),
        ('name = "agent-runs"', 'name = "a"\ntables_at = "s3://x/y"', "state_at: tables in an object store"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_the_part_and_the_key(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in GOOD
    with pytest.raises(JobRefused) as refused:
        load(written(tmp_path, GOOD.replace(old, new, 1)))
    assert re.search(complaint, refused.value.message), refused.value.message
    assert "pipeline.toml" in refused.value.message


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace('from = "events"', 'from = "nowhere"').replace("min_records = 2", "min_records = 0")
    with pytest.raises(JobRefused) as refused:
        load(written(tmp_path, text))
    assert refused.value.message.count("pipeline.toml: ") == 2


def test_a_python_file_declares_the_same_and_one_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    source = "from headwater.spark.declared import *\npipeline = Pipeline(name='p', tables=[Table(name='events')])\n"
    loaded = load(written(tmp_path, source, "declared.py"))
    assert loaded.pipeline == Pipeline(name="p", source=Source(), tables=[Table(name="events")])
    with pytest.raises(JobRefused, match="has no `pipeline`"):
        load(written(tmp_path, "x = 1\n", "declared.py"))
    with pytest.raises(JobRefused, match="cannot be run: NameError"):
        load(written(tmp_path, "pipeline = Pipeline()\n", "declared.py"))
    for name in ("nothing.toml", "nothing.py"):
        with pytest.raises(JobRefused, match="cannot be read"):
            load(tmp_path / name)


# --- with Spark -----------------------------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}


def append(node: Node, stream: str, *records: Any) -> None:
    node.request("PUT", f"/v1/stream/{stream}", JSON)
    assert node.request("POST", f"/v1/stream/{stream}", JSON, json.dumps(list(records)).encode()).status == 204


def tokens(*counts: int) -> list[dict[str, Any]]:
    return [{"kind": "tokens", "tokens": count} for count in counts]


def rows(place: Path, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(pl.read_delta(str(place)).select(columns).iter_rows(), key=repr)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_pipeline_brings_tables_streams_and_snapshots_up_to_date_and_then_goes_on(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    from headwater.spark.declared_run import run

    calls, loaded, at = Calls(node.url), load(written(tmp_path, GOOD)), tmp_path / "tables"
    append(node, "runs/a", *tokens(1, 95), {"kind": "end"})
    append(node, "runs/b", *tokens(7), {"tokens": 1})
    told: dict[str, Any] = run(spark, calls, loaded)

    assert {name: one["rows"] for name, one in told["tables"].items()} == {"events": 4, "usage": 3, "per_run": 2}
    assert rows(at / "gold" / "per_run", "run", "tokens", "events") == [("a", 96, 2), ("b", 7, 1)]
    assert pl.read_delta(str(at / "bronze" / "events_quarantine"))["reason"].to_list() == [
        "kind is required and missing"
    ]
    assert told["folds"][0]["published"] == 2
    assert node.request("HEAD", "/v1/stream/runs/a").header("stream-snapshot-offset") is not None

    # What was folded is gone from the streams; the tables have it, and new rows come to them.
    append(node, "runs/b", *tokens(93, 94))
    again: dict[str, Any] = run(spark, calls, loaded, continuous=True, interval_s=0.0, cycles_max=2)
    assert again["cycles"] == 2
    assert {name: one["rows"] for name, one in again["tables"].items()} == {"events": 2, "usage": 2, "per_run": 2}
    assert rows(at / "silver" / "usage", "run", "tokens") == [("a", 1), ("a", 95), ("b", 7), ("b", 93), ("b", 94)]
    assert rows(at / "gold" / "per_run", "run", "tokens", "events") == [("a", 96, 2), ("b", 194, 3)]
    with node.connect() as connection:
        assert read_messages(connection, "/v1/stream/alerts/a") == [{"run": "a", "tokens": 95}]
        assert read_messages(connection, "/v1/stream/alerts/b") == [
            {"run": "b", "tokens": 93},
            {"run": "b", "tokens": 94},
        ]
    versions = {name: one["version"] for name, one in again["tables"].items()}
    idle: dict[str, Any] = run(spark, calls, loaded)
    assert {name: one["version"] for name, one in idle["tables"].items()} == versions


PYTHON = """
from headwater.spark.declared import Pipeline, Source, Table

def doubled(events):
    return events.selectExpr("n * 2 AS twice")

pipeline = Pipeline(
    name="numbers",
    source=Source(subscribe="numbers/a"),
    tables=[
        Table(name="events"),
        Table(name="doubled", from_="events", transform=doubled),
        Table(name="total", from_=["doubled", "events"], refresh="full",
              sql="SELECT sum(twice) AS twice, (SELECT sum(n) FROM events) AS once FROM doubled"),
    ],
)
"""


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_python_pipeline_infers_its_schema_and_computes_a_full_table_anew(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    from headwater.spark.declared_run import run

    calls, loaded = Calls(node.url), load(written(tmp_path, PYTHON, "declared.py"))
    with pytest.raises(JobRefused, match=r"declared.py: table events: none of 0 records"):
        run(spark, calls, loaded)
    append(node, "numbers/a", {"n": 1}, {"n": 2})
    run(spark, calls, loaded)
    append(node, "numbers/a", {"n": 3})
    run(spark, calls, loaded)
    assert rows(tmp_path / "tables" / "bronze" / "doubled", "twice") == [(2,), (4,), (6,)]
    assert rows(tmp_path / "tables" / "bronze" / "total", "twice", "once") == [(12, 6)]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_wrong_sql_and_schemas_are_told_by_table_and_nothing_is_made(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    from headwater.spark.declared_run import run

    changes = [
        (
            "SELECT day, bucket, stream AS run",
            "SELECT nothing, day, bucket, stream AS run",
            "table usage: sql: .*nothing",
        ),
        ('refresh = "day"', "", r"table per_run: sql: it gathers rows \(aggregate\)"),
        ("SELECT day, run, sum", "SELECT run, sum", "table per_run: refresh: to compute days anew, per_run needs"),
        ("AS payload, seq", "AS body, seq", "stream alerts: sql: it gives no column payload"),
        ('order_by = ["seq"]', 'order_by = ["nope"]', "stream alerts: order_by: the sql gives no column nope"),
        ("tokens BIGINT", "tokens BIGNT", "table events: the schema cannot be read"),
        ("tokens BIGINT", "tokens INT, Kind STRING", "table events: the schema has the column kind twice"),
        ('mode = "last"\nkey = ["/kind"]', 'mode = "function"\nfunction = "nowhere:f"', "fold number 1: function: "),
    ]
    for old, new, complaint in changes:
        assert old in GOOD
        loaded = load(written(tmp_path, GOOD.replace(old, new, 1)))
        with pytest.raises(JobRefused) as refused:
            run(spark, Calls(node.url), loaded)
        assert re.search(complaint, refused.value.message), refused.value.message
    assert not (tmp_path / "tables").exists()
    checked = run(spark, Calls(node.url), load(written(tmp_path, GOOD)), check_only=True)
    assert checked == {"pipeline": "agent-runs", "checked": True, "tables": 3}
    assert not (tmp_path / "tables").exists()
