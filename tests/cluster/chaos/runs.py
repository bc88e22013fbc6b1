"""Chaos runs as tests start them: as a process of their own, in networks of their own, with a bound on everything.
Owns that process; what it found is read from its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.chaos import network
from tests.cluster.chaos.world import REPOSITORY

RUN_S_MAX = 280.0
needs_namespaces = pytest.mark.skipif(
    not network.is_possible(), reason="network namespaces cannot be made here: that takes root, and iproute2"
)


def chaos(directory: Path, *arguments: str) -> dict[str, Any]:
    """The report of a run. A run that could not be brought to its end fails the test, with what it printed."""
    report = directory / "report.json"
    command = [sys.executable, "-m", "tests.cluster.chaos", "--report", str(report), *arguments]
    # A session of its own: whatever it started ends with it.
    process = subprocess.Popen(
        [*command, "--directory", str(directory / "run")],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=RUN_S_MAX)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    print(output)
    assert report.exists(), output
    found: dict[str, Any] = json.loads(report.read_text())
    assert not found["broken"], found["broken"]
    return found


def kinds(report: dict[str, Any]) -> set[str]:
    return {violation["kind"] for violation in report["violations"]}
