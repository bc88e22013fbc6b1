"""A node restored from a backup behind running pipelines, with a real Spark: a query, `derive`, `route` and a declared
pipeline are told, and go on when that is asked for. What arrives is held against what was written, record by record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.jobs.backup import backup
from headwater.spark.jobs.derive import derive
from headwater.spark.jobs.restore import restore
from headwater.spark.jobs.route import route
from headwater.spark.node import Node as Calls
from tests.lake.on_a_node.surface import JSON, append, path_of
from tests.spark.conftest import QUICK
from tests.spark.test_source_streaming import Followed
from tests.support.http import read_pages
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
KEY = "events/all"
TABLE = '[[table]]\nname = "events"\nschema = "n BIGINT"\n'
SQL = "SELECT 'copy/all' AS stream, to_json(struct(n)) AS payload FROM events"
STREAM = f'[[stream]]\nname = "out"\nfrom = "events"\nsql = "{SQL}"\n'


def write(node: Node, first: int, count: int) -> None:
    with node.connect() as connection:
        connection.request("PUT", path_of(KEY), JSON)
        append(connection, KEY, json.dumps([{"n": number} for number in range(first, first + count)]).encode(), JSON)


def numbers_on(node: Node, key: str) -> list[int]:
    with node.connect() as connection:
        return [one["n"] for page in read_pages(connection, path_of(key), "-1") for one in page.json()]


def table_numbers(spark: SparkSession, place: Path) -> list[int]:
    from headwater.spark.derived_tables import DerivedTable, Place, read

    return sorted(row["n"] for row in read(spark, DerivedTable(Place(str(place)))).select("n").collect())


def told(work: Any) -> str:
    with pytest.raises(Exception) as refused:  # Spark's own, around whatever was raised in Python, or a job's
        work()
    return str(refused.value)


def test_pipelines_over_a_restored_node_are_told_and_lose_nothing_when_they_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    from headwater.spark.declared import load
    from headwater.spark.declared_run import run as declared

    (tmp_path / "pipeline.toml").write_text(f'name = "p"\n[source]\nbucket = "events"\n{TABLE}{STREAM}')
    with Node.started(tmp_path / "node", flags=QUICK) as node:
        node.listen = f"127.0.0.1:{node.port}"
        calls = Calls(node.url)
        followed = Followed(spark, node, tmp_path / "checkpoint", bucket="events")

        def query(**options: str) -> None:
            followed.run(**options)

        def deriving(**options: str) -> dict[str, Any]:
            return derive(
                spark, calls, target=str(tmp_path / "table"), source={"bucket": "events", **options}, schema="n BIGINT"
            )

        def routing(**options: str) -> dict[str, Any]:
            source = {"bucket": "events", **options}
            return route(spark, calls, source=source, target="'routed/all'", checkpoint=str(tmp_path / "route"))

        def pipeline(allow: bool = False) -> dict[str, Any]:
            return declared(spark, calls, load(tmp_path / "pipeline.toml"), allow_data_loss=allow)

        write(node, 0, 100)
        backup(spark, calls, to=str(tmp_path / "backups"))
        write(node, 100, 300)
        query(), deriving(), routing(), pipeline()
        assert len(followed.rows) == 400
        node.kill()
        shutil.rmtree(node.data_directory)
        restore(spark, source=str(tmp_path / "backups"), data=node.data_directory)
        node.start()
        for round_ in ("behind where they were", "beyond it"):
            for work in (query, deriving, routing, pipeline):
                text = told(work)
                assert "restored from a backup" in text and "failOnDataLoss" in text, (round_, work.__name__)
                assert "up to which both agree" in text
            if round_ == "behind where they were":
                write(node, 1_000, 600)
        query(failOnDataLoss="false"), deriving(failOnDataLoss="false"), routing(failOnDataLoss="false"), pipeline(True)
        new = list(range(1_000, 1_600))
        found = [json.loads(row["payload"])["n"] for row in followed.rows]
        assert sorted(found) == [*range(400), *new]
        assert table_numbers(spark, tmp_path / "table") == [*range(400), *new]
        assert table_numbers(spark, tmp_path / "tables" / "bronze" / "events") == [*range(400), *new]
        # What was routed onto the node itself was set back with it, or not even there.
        for copy in ("routed/all", "copy/all"):
            assert numbers_on(node, copy) == new, copy
        query(), deriving(), routing(), pipeline()
        assert len(followed.rows) == 1_000 and len(table_numbers(spark, tmp_path / "table")) == 1_000


def test_a_fold_is_not_published_on_another_log_than_its_bound_is_of(spark: SparkSession, tmp_path: Path) -> None:
    from headwater.spark.group_states import ends_of, heads_of, offset_at
    from headwater.spark.jobs.fold import fold
    from headwater.spark.node import DataLoss

    with Node.started(tmp_path / "node", flags=QUICK) as node:
        assert node.request("PUT", "/events").status == 201
        write(node, 0, 200)
        seen = heads_of(Calls(node.url))
    with Node.started(tmp_path / "other", flags=QUICK) as other:
        assert other.request("PUT", "/events").status == 201
        write(other, 0, 500)
        with pytest.raises(DataLoss, match="another node answers"):
            fold(
                spark, Calls(other.url), mode="last", key=("/n",), bucket="events", until=offset_at(seen, ends_of(seen))
            )
        assert other.request("GET", f"/{KEY}/snapshot").status == 404
