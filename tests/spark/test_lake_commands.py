"""Commands that keep the lake, given wrongly: each says what to write instead, before Spark is even started.
Nothing here needs a node or Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app

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
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_command_that_is_wrong_says_why(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["pipeline", "run", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    assert WRONG[arguments] in done.output


@pytest.mark.parametrize("job", ["compact", "erase", "verify", "usage"])
def test_an_address_where_nobody_is_is_told_at_once(job: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "run", job, "--url", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert "no node answers" in done.output


def test_a_place_without_backups_is_named_and_fails(tmp_path: Path) -> None:
    place = str(tmp_path / "none")
    done = CliRunner().invoke(app, ["pipeline", "run", "restore", "--from", place, "--list"])
    assert done.exit_code == 1 and f"there is no backup in {place}" in done.output.replace("\n", "")
