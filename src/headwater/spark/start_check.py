"""Proof that a catalog and a log belong together: they are opened as a start of a node would open them.

Owns the call of `headwater lake contents`, in a process of its own: nothing here knows how a catalog or a log is read.
Never touches a directory that a node serves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from headwater.spark.backup_store import Contents
from headwater.spark.job_runs import JobRefused


class Proof(NamedTuple):
    contents: Contents
    files: list[str]
    blobs: list[str]


def prove(data: Path) -> Proof:
    """What a node would hold that starts on this directory. Raises JobRefused when it would not start."""
    command = [sys.executable, "-m", "headwater", "lake", "contents", "--data", str(data), "--json"]
    # Settings of the environment are for nodes that are served here, not for this copy.
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    done = subprocess.run(command, capture_output=True, env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise JobRefused(f"no node could start from this copy ({why[-1] if why else f'exit code {done.returncode}'})")
    found = json.loads(done.stdout)
    contents = Contents(**{name: found[name] for name in Contents.__struct_fields__})
    return Proof(contents, found["files"], found["blobs"])
