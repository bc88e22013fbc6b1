"""What is recorded of a run: how it went, what it was given, and never a secret. No Spark: a job is a function here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.spark.job_runs import FINDINGS, JobRefused, last_runs, recorded
from headwater.spark.jobs import (
    backfill,
    backup,
    check_backups,
    compact,
    derive,
    erase,
    fold,
    prune,
    restore,
    route,
    usage,
    verify,
)
from headwater.spark.lake_place import Place
from headwater.spark.node import Node as Calls
from headwater.spark.quarantine import Allowed
from tests.support.node import Node


@recorded("made-up", omit=("stream",), loaded=len)
def job(
    spark: Any,
    node: Calls,
    *,
    target: Place | str = "here",
    source: dict[str, str] | None = None,
    stream: str = "users/4711",
    loaded: tuple[int, ...] = (1, 2),
    call: Any = None,
    found: int = 0,
    fail: bool = False,
) -> dict[str, object]:
    if fail:
        raise JobRefused("it cannot be")
    return {"rows": 3, **({"outcome": FINDINGS} if found else {})}


@recorded("outer")
def outer(spark: Any, node: Calls) -> dict[str, object]:
    inner = job(spark, node)
    assert inner == {"rows": 3}, "a part of another job, and no run of its own"
    return {"inner": inner}


def test_a_run_from_python_is_recorded_with_what_it_was_given_and_without_secrets(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        calls = Calls(node.url, "hush-token")
        told = job(
            None,
            calls,
            target=Place("s3://name:hush-word@bucket/x", "http://s3"),
            source={"bucket": "orders", "token": "hush", "fs.s3a.secret.key": "hush", "maxBytesPerTrigger": "7"},
            call=test_a_run_from_python_is_recorded_with_what_it_was_given_and_without_secrets,
        )
        job(None, calls, found=1)
        with pytest.raises(JobRefused):
            job(None, calls, fail=True)
        outer(None, calls)
        runs = last_runs(calls)
        recorded_bytes = node.request("GET", "/v1/stream/_headwater/pipeline-runs").body
    assert told["rows"] == 3 and told["outcome"] == "done" and isinstance(told["seconds"], float)
    assert [(run["job"], run["outcome"]) for run in runs] == [
        ("made-up", "done"),
        ("made-up", "findings"),
        ("made-up", "failed"),
        ("outer", "done"),
    ]
    assert runs[0]["inputs"] == told["inputs"]
    assert runs[0]["inputs"] == {
        "url": node.url,
        "target": "s3://bucket/x",
        "source": {"bucket": "orders", "maxBytesPerTrigger": "7"},
        "loaded": 2,
        "call": f"{__name__}:test_a_run_from_python_is_recorded_with_what_it_was_given_and_without_secrets",
        "found": 0,
        "fail": False,
    }
    assert "it cannot be" in runs[2]["error"]
    assert b"hush" not in recorded_bytes and b"4711" not in recorded_bytes


def test_every_job_is_one_that_is_recorded() -> None:
    from headwater.spark.declared_run import _run

    jobs = [
        *(backfill.backfill, backup.backup, compact.compact, derive.derive, erase.erase, erase.erase_stream, fold.fold),
        *(check_backups.check_backups, prune.prune, restore.restore, route.route, usage.usage, verify.verify, _run),
    ]
    assert all(hasattr(one, "__wrapped__") for one in jobs)


@pytest.mark.parametrize(
    ("given", "rows", "quarantined", "exceeded"),
    [
        (0, 10, 0, False),
        (0, 10, 1, True),
        (5, 0, 5, False),
        ("5", 0, 6, True),
        ("2%", 98, 2, False),
        ("2%", 97, 3, True),
        ("100%", 0, 9, False),
        ("0%", 9, 0, False),
    ],
)
def test_so_many_records_may_be_set_aside(given: int | str, rows: int, quarantined: int, exceeded: bool) -> None:
    assert Allowed.of(given).exceeded({"rows": rows, "quarantined": quarantined}) is exceeded


@pytest.mark.parametrize("given", ["", "x", "-1", "%", "-1%", "101%", "nan%", "1.5"])
def test_what_is_no_number_of_records_is_refused(given: str) -> None:
    with pytest.raises(JobRefused):
        Allowed.of(given)
