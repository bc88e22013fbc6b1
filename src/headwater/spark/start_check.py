"""Proof that a catalog and a log belong together: they are opened as a start of a node would open them.

Owns the calls of `headwater lake`, in a process of its own: nothing here knows how a catalog or a log is read. Never
touches a directory that a node serves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from headwater.spark.backup_store import Contents
from headwater.spark.job_runs import JobRefused


class Proof(NamedTuple):
    contents: Contents
    files: list[str]
    blobs: list[str]


def prove(data: Path) -> Proof:
    """What a node would hold that starts on this directory. Raises JobRefused when it would not start."""
    found = _lake("contents", data, "no node could start from this copy")
    contents = Contents(**{name: found[name] for name in Contents.__struct_fields__})
    return Proof(contents, found["files"], found["blobs"])


def place_forks(data: Path) -> dict[str, int]:
    """Makes groups that were cut at different times agree about forks; returns what that changed. Raises JobRefused."""
    found: dict[str, int] = _lake("place-forks", data, "its groups could not be made to agree about forks")
    return found


def _lake(command: str, data: Path, failed: str) -> Any:
    line = [sys.executable, "-m", "headwater", "lake", command, "--data", str(data), "--json"]
    # Settings of the environment are for nodes that are served here, not for this copy.
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    done = subprocess.run(line, capture_output=True, env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise JobRefused(f"{failed} ({why[-1] if why else f'exit code {done.returncode}'})")
    return json.loads(done.stdout)
