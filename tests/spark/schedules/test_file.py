"""A schedule file: everything that is wrong with it is told at once, and a job's options are those of its command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli.main import app
from headwater.cli.pipeline import run_app
from headwater.cli.pipeline.scheduled_jobs import JOBS, complaints
from headwater.spark.job_runs import JobRefused
from headwater.spark.schedules import file
from headwater.spark.schedules.file import LEASE_MS, Schedule, load

COMMANDS = typer.main.get_command(run_app).commands  # type: ignore[attr-defined]
GOOD = """
timezone = "Europe/Berlin"
lease = "1m"
[spark]
"spark.executor.memory" = "4g"

[[job]]
name = "small-files"
job = "compact"
every = "15m"
on_missed = "skip"
[job.options]
target = "256MiB"
min_files = 8

[[job]]
name = "events"
job = "derive"
at = "5 * * * *"
options = { table = "./tables/events", stream = ["runs/1", "runs/2"] }

[[job]]
name = "boards"
job = "fold"
at = "0 3 * * sun"
timezone = "UTC"
timeout = "2h"
retries = 5
backoff = "30s"
only_after = ["events"]
options = { mode = "last", key = "/id", flush = false }

[[job]]
name = "vault"
job = "backup"
at = "30 2 * * *"
options = { to = "s3://vault/nightly", keep-daily = 7, keep-weekly = 4 }
"""


def loaded(text: str, folder: Path) -> Schedule:
    path = folder / "nightly.toml"
    path.write_text(text)
    return load(path, lambda job, options: complaints(COMMANDS, job, options))


def refused(text: str, folder: Path) -> list[str]:
    with pytest.raises(JobRefused) as why:
        loaded(text, folder)
    return why.value.message.split("; nightly.toml: ")


def test_a_schedule_is_read_with_all_that_it_says(tmp_path: Path) -> None:
    found = loaded(GOOD, tmp_path)
    assert (found.name, found.lease_ms, found.spark) == ("nightly", 60_000, {"spark.executor.memory": "4g"})
    small, events, boards, vault = found.entries
    assert (small.when, small.run_missed, small.options) == (
        "15m Europe/Berlin",
        False,
        {"target": "256MiB", "min_files": 8},
    )
    assert (boards.when, boards.only_after, boards.timeout_ms, boards.retries, boards.backoff_ms) == (
        *("0 3 * * sun UTC", ("events",), 7_200_000, 5, 30_000),
    )
    assert events.run_missed and vault.retries == 2
    assert loaded('name = "other"\n' + GOOD, tmp_path).name == "other"
    assert loaded(GOOD.replace('lease = "1m"', ""), tmp_path).lease_ms == LEASE_MS


def test_all_that_is_wrong_is_told_at_once_by_file_entry_and_key(tmp_path: Path) -> None:
    told = refused(
        """
        lease = "1s"
        colour = "red"
        [spark]
        memory.executor = 4
        [[job]]
        name = "One"
        job = "compact"
        at = "61 * * * *"
        timeout = "soon"
        retries = 99
        on_missed = "cry"
        options = { min-files = 1, target = "big", master = "local", nothing = 1 }
        [[job]]
        job = "restore"
        at = "0 3 * * *"
        every = "1h"
        [[job]]
        name = "two"
        job = "derive"
        every = "90s"
        backoff = 5
        only_after = ["gone", "three"]
        options = { bucket = "runs", continuous = true }
        [[job]]
        name = "three"
        job = "derive"
        at = "0 3 * * *"
        timezone = "Moon/Base"
        options = { table = "t" }
        """,
        tmp_path,
    )
    told[0] = told[0].removeprefix("nightly.toml: ")
    for expected in (
        "schedule: colour: there is no such key; there are name, url,",
        "schedule: lease: 1s is not from 10s to 3600s",
        "spark: memory: write the value as a text",
        "job One: name: write one of a-z",
        "job One: at: minute: '61' is not 0 to 59",
        "job One: timeout: 'soon' is not a time such as 30s",
        "job One: retries: 99 is not 0 to 20",
        "job One: on_missed: 'cry' is neither run nor skip",
        "job One: options: min-files: Input should be greater than or equal to 2",
        "job One: options: target: 'big' is not a size",
        "job One: options: master: it is one for all jobs",
        "job One: options: nothing: compact has no such option",
        "job number 2: name: write one of a-z",
        "job number 2: at: say when: either at",
        "job number 2: job: 'restore' is none of backup, compact",
        "job two: backoff: write a text",
        "job two: every: '90s' is not a number of minutes",
        "job two: options: table: it is missing",
        "job two: options: continuous: at and every say how often it runs",
        "job three: timezone: 'Moon/Base' is no time zone",
        "job three: options: say which streams to read",
    ):
        assert any(one.startswith(expected) for one in told), (expected, told)
    assert len(told) == 21


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('["events"]', '["nobody"]', "job boards: only_after: there is no job nobody"),
        ('["events"]', '["boards"]', "job boards: only_after: the jobs wait for each other in a circle"),
        ('name = "boards"', 'name = "events"', "job events: name: there is more than one"),
        ("flush = false", 'flush = "no"', "job boards: options: flush: write true or false"),
        ('mode = "last"', 'mode = ["last"]', "job boards: options: mode: write one text or number"),
        ("stream = [", "stream = [{}, ", "job events: options: stream: write a text, or a list of texts"),
        ("[spark]", "[sparks]", "schedule: sparks: there is no such key"),
        ('"5 * * * *"', "5", "job events: at: write a text"),
        ("= 5\n", "= true\n", "job boards: retries: write a whole number"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, why: str, tmp_path: Path) -> None:
    assert any(why in one for one in refused(GOOD.replace(old, new), tmp_path))


def test_a_file_that_is_no_schedule_is_refused(tmp_path: Path) -> None:
    assert "is not TOML" in refused("[[job", tmp_path)[0]
    assert "it does nothing" in refused("", tmp_path)[0]
    assert "more than 100" in "".join(refused('[[job]]\nname = "x"\n' * 101, tmp_path))
    with pytest.raises(JobRefused, match="cannot be read"):
        load(tmp_path / "gone.toml", lambda job, options: [])


def test_the_schedule_in_the_guide_is_one(tmp_path: Path) -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "spark.md").read_text()
    (text,) = [block for block in re.findall(r"(?ms)^```toml\n(.*?)^```$", guide) if "[[job]]" in block]
    assert [entry.job for entry in loaded(text, tmp_path).entries] == ["compact", "derive", "fold", "backup"]
    keys = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"(?m)^\| (`.*?) \|", guide.partition("| key of a job |")[2])))
    )
    assert set(file._JOB) - {"name", "job"} <= keys


def test_every_job_that_a_schedule_may_have_is_a_command() -> None:
    assert set(JOBS) <= set(COMMANDS)
    assert "job: 'restore' is none of" in next(iter(complaints(COMMANDS, "restore", {})))
    assert list(complaints(COMMANDS, "erase", {"dead-share": 0.2})) == []
    assert "of one stream it is done once" in next(iter(complaints(COMMANDS, "erase", {"stream": "users/4711"})))


def test_a_check_says_when_each_job_is_due_and_needs_neither_node_nor_spark(tmp_path: Path) -> None:
    path = tmp_path / "nightly.toml"
    path.write_text(GOOD)

    def serve(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["pipeline", "serve", str(path), *arguments], env={"HEADWATER_URL": ""})

    done = serve("--check", "--url", "http://127.0.0.1:1")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["name"], line["job"]) for line in lines] == [
        *(("small-files", "compact"), ("events", "derive"), ("boards", "fold"), ("vault", "backup")),
    ]
    assert all(len(line["next"]) == 3 and line["next"] == sorted(set(line["next"])) for line in lines)
    path.write_text(GOOD.replace('"5 * * * *"', '"* *"'))
    done = serve()
    assert done.exit_code == 1
    assert "error: nightly.toml: job events: at: '* *' has 2 fields" in done.stderr
    assert "nothing has been run" in done.stderr
