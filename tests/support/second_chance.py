"""Which failures count at once, and a list of what failed for `tests.suite`, which runs the others again.
It owns the rule that docs/development.md tells; it runs nothing."""

from __future__ import annotations

import json
import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import NotInTime

LIST_VARIABLE = "FAILED_TESTS_FILE"
MESSAGE_CHARS_MAX = 2_000
PROMISES = (
    "tests/crash/*",
    "tests/cluster/chaos/*",
    "tests/engine/*",
    "tests/log/*",
    "tests/model/*",
    "*/test_*crash*.py",
    "*/test_*kill*.py",
    "*/test_*histories*.py",
    "*/test_durab*.py",
)
"""Tests of what was promised to clients: durability, order, fencing, nothing twice."""
PASSING = (NotInTime, TimeoutError, subprocess.TimeoutExpired, OSError)
"""What a busy machine can do to such a test: a wait that ran out, a process or a socket that was gone."""


def counts_at_once(path: str, why: BaseException) -> bool:
    """Whether a test that failed so gets no second chance: it proves a promise, and what failed is no wait."""
    if not any(fnmatch(path, pattern) for pattern in PROMISES):
        return False
    if isinstance(why, BaseExceptionGroup):
        return any(counts_at_once(path, one) for one in why.exceptions)
    # pytest-timeout ends a test by the same exception that pytest.fail raises.
    return not (isinstance(why, PASSING) or str(why).startswith("Timeout (>"))


class Marks:
    """A plugin for every process that runs tests: says in the report of a failure whether it counts at once."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if report.failed and call.excinfo is not None:
            report.counts_at_once = counts_at_once(item.nodeid.partition("::")[0], call.excinfo.value)
        return report


class FailedTests:
    """A plugin for the process that hears of all tests: writes the list where the session ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, dict[str, Any]] = {}
        self._collection_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # Without the mark it is the report of a worker that ended: nobody knows why.
            unknown = counts_at_once(report.nodeid.partition("::")[0], Exception())
            failed = self._failed.setdefault(report.nodeid, {"counts_at_once": False, "message": message_of(report)})
            failed["counts_at_once"] |= getattr(report, "counts_at_once", unknown)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._collection_failed |= report.failed

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps({"collection_failed": self._collection_failed, "failed": self._failed}))


def message_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else f"{crash.message}\n({Path(crash.path).name}:{crash.lineno})"
    return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[:MESSAGE_CHARS_MAX]} …"


def register(config: pytest.Config) -> None:
    config.pluginmanager.register(Marks(), "marks-of-failures")
    # Taken out: what tests themselves start writes no list.
    if file := os.environ.pop(LIST_VARIABLE, None):
        config.pluginmanager.register(FailedTests(Path(file)), "list-of-failures")
