"""The programs that judge the files below deploy/: found beside the tests' Python or on PATH, or the test is skipped.
Never installs anything: `make setup` and `make system-packages` do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN_TIMEOUT_S = 100.0


def program(name: str, how: str) -> str:
    """Where it is. Skips the test, and says how to have it, when it is nowhere."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed: {how}")
    return found


def ran(*command: object, timeout_s: float = RUN_TIMEOUT_S, **more: object) -> subprocess.CompletedProcess[str]:
    """Both outputs in one, because tools differ in where they put their findings."""
    return subprocess.run(
        [*map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        **more,  # type: ignore[call-overload]
    )
