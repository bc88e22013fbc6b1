"""Installs a folder's exact npm packages once, and runs its node scripts.
It never leaves a script running and never changes what package.json says."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

INSTALL_TIMEOUT_S = 300
SCRIPT_TIMEOUT_S = 90


def installed(folder: Path) -> Path:
    """The folder, with the packages of its package.json in node_modules. Skips the test where there is no npm."""
    wanted = hashlib.sha256((folder / "package.json").read_bytes()).hexdigest()
    stamp = folder / "node_modules" / ".installed-for"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("the official clients need Node.js 20 or newer with npm")
    command = ["npm", "install", "--no-progress", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"npm install failed: {done.stderr[-4000:]}"
    stamp.write_text(wanted)
    return folder


class Script:
    """A node script under way. `facts` waits for its end."""

    def __init__(self, folder: Path, name: str, plan: dict[str, Any]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            ["node", "--unhandled-rejections=strict", str(folder / name), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )

    def wait_line(self) -> Any:
        """The next line that the script prints, as JSON: for scripts that say how far they are."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended early: {self._rest()}"
        return json.loads(line)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def facts(self) -> Any:
        """What the script printed last; it has ended with 0."""
        out, err = self.process.communicate(timeout=SCRIPT_TIMEOUT_S)
        assert self.process.returncode == 0, f"{self.name} ended with {self.process.returncode}\n{out}\n{err}"
        return json.loads(out.strip().splitlines()[-1])

    def _rest(self) -> str:
        out, err = self.process.communicate(timeout=10)
        return f"{self.process.returncode}\n{out}\n{err}"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def running(folder: Path, name: str, plan: dict[str, Any]) -> Iterator[Script]:
    script = Script(folder, name, plan)
    try:
        yield script
    finally:
        script.end()
