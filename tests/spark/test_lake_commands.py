"""Commands that keep the lake, given wrongly: each says what to write instead, before Spark is even started.
Nothing here needs a node or Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.spark.session import SparkMissing

WRONG = {
    ("compact", "--target", "12"): "1MiB",
    ("compact", "--target", "much"): "not a size",
    ("compact", "--max", "1KiB"): "too low",
    ("compact", "--min-files", "1"): "--min-files",
    ("erase", "--delete"): "--stream",
    ("erase", "--receipt", "r.json"): "--stream",
    ("erase", "--stream", "nobucket"): "bucket/name",
    ("erase", "--stream", "a/b", "--dead-share", "0.5"): "--dead-share",
    ("erase", "--stream", "a/b", "--receipt", "/nowhere/at/all/r.json"): "/nowhere/at/all",
    ("erase", "--dead-share", "1.5"): "--dead-share",
    ("usage", "--output", "usage.xlsx"): ".csv",
    ("usage", "--output", "/nowhere/at/all/usage.csv"): "/nowhere/at/all",
    ("verify", "--deeep"): "--deep",
    ("compact", "--where", "tag = 'x'"): "bucket, stream, timestamp",
    ("compact", "--where", "bucket = 'a' OR stream = 'b'"): "joined with AND alone",
    ("compact", "--cluster-by", "tag"): "bucket, stream, timestamp",
    ("compact", "--cluster-by", ""): "bucket, stream, timestamp",
    ("verify", "--conf", "spark.executor.memory"): "NAME=VALUE",
    ("verify", "--conf", "executor.memory=4g"): "NAME=VALUE",
    ("usage", "--conf", "spark.master=local[2]"): "--master",
    ("usage", "--conf", "spark.a=1", "--conf", "spark.a=2"): "given twice",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_command_that_is_wrong_says_why(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["pipeline", "run", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    assert WRONG[arguments] in done.output


def test_settings_of_spark_reach_its_session_and_none_stays_for_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, str]] = []

    def stopped(*_: object, settings: Mapping[str, str], **__: object) -> None:
        asked.append(dict(settings))
        raise SparkMissing("no Spark today")

    monkeypatch.setattr("headwater.spark.session.session", stopped)
    monkeypatch.setattr("headwater.spark.node.Node.groups", lambda self: [0])
    given = ["--conf", "spark.hadoop.fs.s3a.secret.key=a=b,c", "--conf", "spark.executorEnv.MY_NAME="]
    for more in (given, []):
        done = CliRunner().invoke(app, ["pipeline", "run", "compact", *more])
        assert done.exit_code == 1 and "no Spark today" in done.output
    assert asked == [{"spark.hadoop.fs.s3a.secret.key": "a=b,c", "spark.executorEnv.MY_NAME": ""}, {}]


def test_a_setting_that_is_wrong_is_told_without_its_value() -> None:
    done = CliRunner().invoke(app, ["pipeline", "run", "compact", "--conf", "fs.secret=hush"], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and "hush" not in done.output


@pytest.mark.parametrize("job", ["compact", "erase", "verify", "usage"])
def test_an_address_where_nobody_is_is_told_at_once(job: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "run", job, "--url", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert "no node answers" in done.output


def test_a_place_without_backups_is_named_and_fails(tmp_path: Path) -> None:
    place = str(tmp_path / "none")
    done = CliRunner().invoke(app, ["pipeline", "run", "restore", "--from", place, "--list"])
    assert done.exit_code == 1 and f"there is no backup in {place}" in done.output.replace("\n", "")
