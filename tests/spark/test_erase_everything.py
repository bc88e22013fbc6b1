"""After an erasure on a quiet node: every file below the data directory, the lake and later backups is searched for the
stream's name and its payloads. And what an erasure does not reach is found and named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.spark.job_runs import RUNS_STREAM, JobRefused, last_runs
from headwater.spark.node import Node as Calls
from tests.doors.http.extensions.surface import token
from tests.lake.on_a_node.surface import JSON, TEXT, append, create, flush, path_of
from tests.lake.on_a_node.test_erasure import collect_garbage, traces
from tests.spark.lakes import run_cli
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

KEY = "people/miss-quillfeather"
NAME = b"miss-quillfeather"
PAYLOAD = b"her-unmistakable-payload"
QUIET = ["--flush-interval-ms", "86400000", "--checkpoint-interval-ms", "3600000", "--lake-gc-interval-ms", "86400000"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.started(tmp_path / "node", flags=QUIET) as running:
        yield running
        assert "Traceback" not in running.stderr(), running.output()


def erase_stream(spark: SparkSession, node: Node, **options: Any) -> dict[str, Any]:
    from headwater.spark.jobs.erase import erase_stream

    return erase_stream(spark, Calls(node.url), KEY, **options)


def find(spark: SparkSession, node: Node, **options: Any) -> dict[str, Any]:
    from headwater.spark.finding import find_stream

    return find_stream(spark, Calls(node.url), KEY, **options)


def fill(node: Node) -> dict[str, bytes]:
    """Files in which it is the first, the last or the only stream, and records of it in memory alone."""
    rounds = (
        ("people/aaron", KEY, "people/zoe"),
        (KEY, "people/zoe"),
        ("people/aaron", KEY),
        (KEY,),
        ("people/zoe",),
    )
    kept: dict[str, bytes] = {}
    with node.connect() as connection:
        for key in rounds[0]:
            create(connection, key)
        for number, keys in enumerate(rounds):
            for key in keys:
                body = b'{"text": "%s %d"}\n' % (PAYLOAD if key == KEY else key.encode(), number)
                append(connection, key, body)
                kept[key] = kept.get(key, b"") + body
            flush(node)
        answer = node.request("PUT", f"/{KEY}/snapshot/{token(len(kept[KEY]))}", TEXT, b"snapshot of " + PAYLOAD)
        assert answer.status == 204, answer
        append(connection, KEY, PAYLOAD + b" in memory alone\n")
    del kept[KEY]
    return kept


def assert_kept(node: Node, kept: dict[str, bytes]) -> None:
    for key, body in kept.items():
        assert node.request("GET", path_of(key)).body == body
    assert node.request("GET", path_of(KEY)).status == 404


def test_nothing_is_left_in_any_file_nor_in_a_later_backup(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.jobs.backup import backup

    kept = fill(node)
    # An attempt that failed, as earlier versions recorded it, and one of now.
    body = json.dumps([{"job": "erase", "outcome": "failed", "error": f"the stream {KEY} exists"}]).encode()
    assert node.request("PUT", path_of(RUNS_STREAM), JSON).status == 201
    assert node.request("POST", path_of(RUNS_STREAM), JSON, body).status == 204
    flush(node)
    with pytest.raises(JobRefused, match="exists"):
        erase_stream(spark, node)

    receipt = erase_stream(spark, node, delete=True)
    assert receipt["complete"] is True and receipt["runs_rewritten"] is True
    text = json.dumps(receipt)
    assert NAME.decode() not in text
    own = [path for path in traces(node.data_directory, NAME, PAYLOAD) if not path.startswith("lake/")]
    assert own == [], "payloads and name leave log and catalog at once"
    runs = last_runs(Calls(node.url))
    assert [run["outcome"] for run in runs] == ["failed", "failed", "done"]
    assert receipt["stream_hash"] in runs[0]["error"] and NAME.decode() not in json.dumps(runs)

    backup(spark, Calls(node.url), to=str(tmp_path / "backups"))
    assert traces(tmp_path / "backups", NAME, PAYLOAD) == []
    assert_kept(node, kept)
    assert node.terminate() == 0
    collect_garbage(node)
    assert traces(node.data_directory, NAME, PAYLOAD) == []
    node.start()
    assert_kept(node, kept)
    assert find(spark, node, backups=[str(tmp_path / "backups")])["findings"] == []


def test_a_backup_under_way_makes_it_incomplete(spark: SparkSession, node: Node) -> None:
    fill(node)
    held = node.request("POST", "/__headwater/groups/0/backup", JSON, b'{"hold_ms": 600000}').json()
    receipt = erase_stream(spark, node, delete=True)
    assert receipt["complete"] is False and receipt["backups_under_way"] == 1
    assert "Backups under way (1)" in receipt["statement"]
    assert node.request("DELETE", f"/__headwater/groups/0/backup/{held['id']}").status == 204
    assert erase_stream(spark, node)["complete"] is True


def test_what_an_erasure_does_not_reach_is_found_and_named(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    from headwater.spark.jobs.backup import backup
    from headwater.spark.jobs.derive import derive
    from headwater.spark.jobs.route import route

    calls = Calls(node.url)
    with node.connect() as connection:
        for key, body in ((KEY, b'{"a": 1}'), (KEY, b'{"a": "wrong"}'), ("people/zoe", b'{"a": 2}')):
            connection.request("PUT", path_of(key), JSON)
            append(connection, key, body, JSON)
    source = {"bucket": "people"}
    table = str(tmp_path / "tables" / "people")
    derive(spark, calls, target=table, source=source, schema="a BIGINT")
    copied = {"target": "'copies/all'", "checkpoint": str(tmp_path / "checkpoint")}
    route(spark, calls, source=source, **copied)
    elsewhere = {"target": "'copies/zoe'", "checkpoint": str(tmp_path / "other")}
    route(spark, calls, source={"subscribe": "people/zoe"}, **elsewhere)
    backup(spark, calls, to=str(tmp_path / "backups"))
    assert node.request("PUT", path_of("people/fork"), {**JSON, "Stream-Forked-From": path_of(KEY)}).status == 201
    body = json.dumps({"type": "pull-wake", "wake_stream": "wakes/one", "streams": [KEY]}).encode()
    assert node.request("PUT", "/v1/stream/__ds/subscriptions/one", JSON, body).status in (200, 201)
    erase_stream(spark, node, delete=True)

    found = find(spark, node, tables=[str(tmp_path / "nowhere")])
    kinds = [(one["kind"], one["where"]) for one in found["findings"]]
    assert ("stream", node.url) in kinds and ("fork", "people/fork") in kinds and ("subscription", "one") in kinds
    assert ("table", table) in kinds and ("quarantine", f"{table}_quarantine") in kinds
    assert [kind for kind, _ in kinds].count("backup") == 1
    routes = [one["what"] for one in found["findings"] if one["kind"] == "route"]
    assert routes == ["a run of route may have copied records of it onto 'copies/all'"]
    assert found["not_looked_at"] == [] and NAME.decode() not in json.dumps(found)


def test_the_command_exits_with_1_when_something_holds_it(node: Node) -> None:
    fill(node)
    flush(node)
    arguments = ("pipeline", "run", "erase", "--url", node.url, "--master", "local[2]", "--stream", KEY, "--find")
    done = run_cli(*arguments, exit_code=1)
    assert {one["kind"] for one in done["findings"]} == {"stream", "lake"}
