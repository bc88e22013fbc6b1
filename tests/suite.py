"""The whole suite, with a second chance for at most three tests: `python -m tests.suite [options of pytest]`.

It owns what becomes of failures: at most `FAILED_MAX` tests are run again, each alone and `AGAIN_COUNT` times in a row.
When all pass, the suite has passed, and a block that names each of them as UNSTEADY is left in `TOLD` for the end of
`make test`. Which failures get no second chance is in `tests.support.second_chance`; why, in docs/development.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.second_chance import LIST_VARIABLE

FAILED_MAX = 3
AGAIN_COUNT = 3
BUILD = Path("build")
TOLD = BUILD / "unsteady-tests.txt"
_LIST = BUILD / "failed-tests.json"
_SOME_FAILED = 1
"""How pytest ends when tests ran to their end and some failed."""


def main(options: Sequence[str]) -> int:
    """The exit code: 0 when every test passed, at the latest in its second chance."""
    BUILD.mkdir(exist_ok=True)
    TOLD.unlink(missing_ok=True)
    # Beside the first tests. JVMs that start before it is there go without.
    archiving = subprocess.Popen(
        [sys.executable, "-m", "tests.support.class_archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return judged(options)
    finally:
        archiving.wait()


def judged(options: Sequence[str]) -> int:
    code, found = run(options)
    if code != _SOME_FAILED:
        return code
    failed: dict[str, dict[str, Any]] = found["failed"]
    if found["collection_failed"] or not failed:
        return code
    if len(failed) > FAILED_MAX:
        say(f"{len(failed)} tests failed: with more than {FAILED_MAX}, none gets a second chance.")
        return code
    if promises := [test for test, one in failed.items() if one["counts_at_once"]]:
        say("No second chance for a failed test of what is promised to clients:", *promises)
        return code
    say(f"{len(failed)} failed. Each is run again, alone and {AGAIN_COUNT} times in a row:", *failed)
    for test in failed:
        for turn in range(1, AGAIN_COUNT + 1):
            code, _ = run(["-q", "-p", "no:xdist", test])
            if code:
                say(f"It failed again, in turn {turn} of {AGAIN_COUNT}: {test}")
                return code
    TOLD.write_text(told(failed))
    return 0


def run(options: Sequence[str]) -> tuple[int, dict[str, Any]]:
    _LIST.unlink(missing_ok=True)
    env = {**os.environ, LIST_VARIABLE: str(_LIST.resolve())}
    code = subprocess.run([sys.executable, "-m", "pytest", *options], env=env, check=False).returncode
    found = json.loads(_LIST.read_text()) if _LIST.exists() else {"collection_failed": True, "failed": {}}
    return code, found


def told(failed: dict[str, dict[str, Any]]) -> str:
    line = "=" * 100
    parts = [
        line,
        f"UNSTEADY: {len(failed)} failed once and then passed {AGAIN_COUNT} times alone.",
        "An unsteady test is mended before anything else.",
    ]
    for test, one in failed.items():
        parts += ["", f"UNSTEADY {test}", *(f"    {row}" for row in one["message"].splitlines())]
    return "\n".join([*parts, line, ""])


def say(text: str, *rows: str) -> None:
    print("\n".join(["", text, *(f"    {row}" for row in rows), ""]), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
