"""`--dry-run` on every job of the command line: it says what it would do, and nothing has changed afterwards, on the
node, in the lake, in tables, checkpoints and backups; not even a run is recorded. What it said a run then does.

The commands run in this process, on the session that all tests share."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.cli.pipeline import run_app
from headwater.spark.job_runs import JobRefused, dry_runs, last_runs, recorded
from headwater.spark.node import Node as Calls
from headwater.spark.node import OnlyLooked
from tests.lake.on_a_node.surface import JSON, path_of
from tests.spark.lakes import FLAGS, Model, delete, fill, keys
from tests.support.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

full = [pytest.mark.full, pytest.mark.timeout(600)]
SCHEMA = "id BIGINT, n BIGINT"
QUIET = [*FLAGS, "--checkpoint-interval-ms", "600000"]
"""No checkpoint that was not asked for, and no mark behind the last record of a log that is idle."""


# ---- the mechanism --------------------------------------------------------------------------------------------------


def test_a_node_that_is_only_looked_at_is_never_asked_to_change_anything() -> None:
    calls = Calls("http://127.0.0.1:9", patience_s=0.0).looking_only()
    for one in (calls, pickle.loads(pickle.dumps(calls)), calls.expecting({})):
        for act in (
            one.flush,
            lambda one=one: one.swap(0, ["a"], ["b"]),
            lambda one=one: one.erase("a/b"),
            lambda one=one: one.put_stream("a/b", "text/plain"),
            lambda one=one: one.call("POST", "/__headwater/groups/0/backup", b"{}"),
            lambda one=one: one.call("DELETE", "/v1/stream/a/b"),
            lambda one=one: one.call("POST", "/v1/stream/a/b", b"x"),
        ):
            with pytest.raises(OnlyLooked, match="changes nothing"):
                act()
        with pytest.raises(Exception, match="no node answers"):
            one.groups()


@recorded("able")
def able(node: Any, *, dry_run: bool = False) -> dict[str, object]:
    return {"looks_only": node.looks_only, "was_dry": dry_run}


@recorded("unable")
def unable() -> dict[str, object]:
    raise AssertionError("it ran")


def test_a_job_is_given_a_node_to_look_at_and_one_that_knows_no_dry_run_is_refused() -> None:
    node = Calls("http://127.0.0.1:9")
    with dry_runs(True):
        told = able(node)
        with pytest.raises(JobRefused, match="unable cannot say what it would do"):
            unable()
    assert (told["dry_run"], told["looks_only"], told["was_dry"]) == (True, True, True)
    assert "dry_run" not in told["inputs"]  # type: ignore[operator]
    assert able(node.looking_only())["was_dry"] is True
    assert able(node, dry_run=True)["looks_only"] is True and node.looks_only is False


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["erase", "--stream", "a/b", "--find", "--dry-run"], "change nothing anyway"),
        (["erase", "--stream", "a/b", "--check", "r.json", "--dry-run"], "change nothing anyway"),
        (["erase", "--stream", "a/b", "--receipt", "r.json", "--dry-run"], "when something was erased"),
        (["declared", "p.toml", "--check", "--dry-run"], "changes nothing anyway"),
        (["restore", "--from", "/nowhere", "--check", "--dry-run"], "changes nothing anyway"),
    ],
)
def test_a_dry_run_of_what_changes_nothing_is_refused(arguments: list[str], why: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "run", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and why in done.output


# ---- every job of the command line ----------------------------------------------------------------------------------


class Place(NamedTuple):
    node: Node
    folder: Path


def commands(place: Place) -> dict[str, list[list[str]]]:
    """Of each job some runs that would change something."""
    at = place.folder
    route = ["--checkpoint", "--target"]
    return {
        "compact": [[], ["--cluster-by", "timestamp", "--where", "bucket = 'lake'"]],
        "erase": [[], ["--stream", "lake/stream-001"], ["--stream", "lake/stream-002", "--delete"]],
        "verify": [["--deep"]],
        "usage": [["--output", str(at / "usage.csv")]],
        "derive": [
            [str(at / "new"), "--bucket", "runs", "--schema", SCHEMA],
            [str(at / "inferred"), "--bucket", "runs"],
            [str(at / "table"), "--bucket", "runs"],
            [str(at / "table"), "--bucket", "runs", "--batch", "--overwrite"],
        ],
        "fold": [["last", "--key", "/id", "--min-records", "1", "--bucket", "runs"]],
        "declared": [[str(at / "pipeline.toml")]],
        "route": [
            ["--bucket", "runs", route[0], str(at / "new-route"), route[1], "'copies/all'"],
            ["--bucket", "runs", route[0], str(at / "route"), route[1], "'copies/all'"],
        ],
        "backfill": [
            [str(at / "events.csv"), "--format", "csv", "--option", "header=true", "--stream", "'loaded/all'"]
        ],
        "backup": [["--to", str(at / "new-backups")], ["--to", str(at / "backups")]],
        "restore": [["--from", str(at / "backups"), "--data", str(at / "restored")]],
    }


def command(place: Place, job: str, arguments: list[str]) -> dict[str, Any]:
    where = [] if job == "restore" else ["--url", place.node.url]
    done = CliRunner().invoke(app, ["pipeline", "run", job, *arguments, *where])
    assert done.exit_code == 0, (job, arguments, done.output)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A node with files, dead rows and records that have not settled, and what runs of jobs have left beside it."""

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    for module in ("common", "backup_jobs"):
        monkeypatch.setattr(f"headwater.cli.pipeline.{module}.sparked", shared)
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "events.csv").write_text("id,n\n1,2\n3,4\n")
    (folder / "pipeline.toml").write_text(
        'name = "p"\ntables_at = "declared"\n[source]\nbucket = "runs"\n'
        f'[[table]]\nname = "events"\nlayer = "bronze"\nschema = "{SCHEMA}"\n'
    )
    with Node.started(tmp_path / "node", flags=QUIET) as node:
        made = Place(node, folder)
        model: Model = {}
        fill(node, model, keys(4), rounds=5)
        delete(node, model, "lake/stream-001")
        events(node, 0, 6)
        command(made, "derive", [str(folder / "table"), "--bucket", "runs", "--schema", SCHEMA])
        command(made, "route", commands(made)["route"][1])
        command(made, "backup", ["--to", str(folder / "backups")])
        events(node, 6, 10)
        yield made
        assert "Traceback" not in node.stderr(), node.output()


def events(node: Node, first: int, end: int) -> None:
    """Records of a stream of JSON, some of the newest in memory alone."""
    for n in range(first, end):
        body = json.dumps([{"id": n % 3, "n": n}]).encode()
        answer = node.request("POST" if n else "PUT", path_of("runs/a"), JSON, body)
        assert answer.status in (200, 201, 204), answer
        if n == end - 2:
            node.request("POST", "/__headwater/flush")


def state(place: Place) -> dict[str, Any]:
    """Every file beside the node and in its lake, by content, and what the node says of itself.

    No stream is read for it: reads are counted.
    """
    calls = Calls(place.node.url).looking_only()
    listed = calls.lake_files(0)
    log = [(path.name, path.stat().st_size) for path in sorted((place.node.data_directory / "wal").rglob("*.wal"))]
    files = [*place.folder.rglob("*"), *(place.node.data_directory / "lake").rglob("*")]
    return {
        "files": {str(path): hashlib.md5(path.read_bytes()).hexdigest() for path in files if path.is_file()},
        "folders": sorted(str(path) for path in files if path.is_dir()),
        "groups": [(one["group"], one["position"], one["lake_position"]) for one in calls.plan({})],
        "listed": listed["files"],
        "log": log,
        "streams": [pa.ipc.open_stream(page).read_all().to_pylist() for page in calls.lake_streams()],
    }


class TestEveryJob:
    pytestmark = full

    def test_nothing_has_changed_after_a_dry_run(self, place: Place) -> None:
        jobs = commands(place)
        named = {one.name or (one.callback and one.callback.__name__) for one in run_app.registered_commands}
        assert named == set(jobs), "a job without a dry run here"
        Calls(place.node.url).lake_files(0)  # a checkpoint: none is needed from here on
        before = state(place)
        for job, some in jobs.items():
            for arguments in some:
                told = command(place, job, [*arguments, "--dry-run"])
                assert (told["job"], told["outcome"], told["dry_run"]) == (job, "done", True), told
                assert state(place) == before, (job, arguments)
        assert [run["job"] for run in last_runs(Calls(place.node.url))] == ["derive", "route", "backup"]

    def test_what_a_dry_run_says_a_run_then_does(self, place: Place) -> None:
        def both(job: str, number: int, *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
            arguments = commands(place)[job][number]
            planned = command(place, job, [*arguments, "--dry-run"])
            done = command(place, job, arguments)
            assert [planned[name] for name in names] == [done[name] for name in names], (job, planned, done)
            return planned, done

        planned, done = both("derive", 2, "table", "schema_inferred")
        assert planned["records"] == done["rows"] + done["quarantined"] == 4 and planned["anew"] is False
        planned, done = both("derive", 0, "table")
        assert planned["records"] == done["rows"] == 10 and planned["anew"] is True
        both("route", 1, "rows_read", "rows_written")
        assert both("route", 0, "rows_read", "rows_written")[0]["streams"] == 1
        planned, done = both("backfill", 0, "files", "bytes", "streams", "producer_id")
        assert planned["rows"] == done["rows_written"] == 2
        place.node.request("POST", "/__headwater/flush")  # a backup begins with one, and a dry run does not
        planned, done = both("backup", 1, "objects", "objects_copied")
        assert planned["objects_copied"] < planned["objects"]
        both("restore", 0, "backup", "objects", "bytes", "table_files", "records")
        planned, done = both("fold", 0, "due", "records")
        assert (planned["due"], planned["records"]) == (1, 10)
        planned, done = both("erase", 1, "rows_erased", "rows_kept_for_forks", "files_rewritten")
        assert planned["rows_erased"] == 15 and planned["would_delete"] is False
        planned, done = both("erase", 2, "rows_erased", "files_rewritten")
        assert planned["rows_erased"] == 15 and planned["would_delete"] is True
        names = ("files_before", "files_read", "files_written", "bytes_read", "rows", "rows_dropped", "swaps")
        both("compact", 0, *names, "files_after")
        both("erase", 0, "files_read", "rows", "rows_dropped", "files")

    def test_a_dry_run_refuses_what_a_run_would_refuse(self, place: Place) -> None:
        refused: list[tuple[list[str], str]] = [
            (["derive", str(place.folder / "table"), "--bucket", "other"], "is derived from bucket runs"),
            (["derive", str(place.folder / "table"), "--bucket", "runs", "--batch"], "from batch to batch"),
            (["erase", "--stream", "lake/stream-002"], "the stream exists"),
            (["route", "--bucket", "runs", "--checkpoint", "x", "--target", "rand()"], "another result each time"),
            (["backup", "--to", str(place.node.data_directory / "lake" / "in")], "in one place"),
        ]
        for arguments, why in refused:
            done = CliRunner().invoke(app, ["pipeline", "run", *arguments, "--url", place.node.url, "--dry-run"])
            assert done.exit_code == 1 and why in done.output, (arguments, done.output)
