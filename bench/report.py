"""What a benchmark says at the end: its one line, and its entry in bench/history.jsonl.

Owns the format of both; decides nothing about what is measured.
"""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench import proc
from bench.generator import REPO
from bench.rounds import Settings

HISTORY = REPO / "bench" / "history.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `aim` is a floor, or a ceiling when `aim_is_ceiling`; None: it is for information."""

    name: str
    measure: str
    value: float | None
    aim: float | None = None
    aim_is_ceiling: bool = False
    note: str = ""
    details: dict = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.aim is None:
            return None
        if self.value is None:
            return False
        return self.value <= self.aim if self.aim_is_ceiling else self.value >= self.aim

    @property
    def line(self) -> str:
        words = [self.name, self.measure, show(self.value)]
        if self.aim is not None:
            words += ["aim", ("<=" if self.aim_is_ceiling else "") + show(self.aim)]
        if self.met is not None:
            words.append("ok" if self.met else "short")
        return " ".join([*words, self.note]).rstrip()


def show(value: float | None) -> str:
    """Whole above a thousand, else two decimals below ten and one above; trailing zeros dropped."""
    if value is None:
        return "none"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".")


def record(result: Result, settings: Settings) -> None:
    """Append the result, with everything needed to judge it later, to the history."""
    entry = {
        "benchmark": result.name,
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **commit(),
        "machine": machine(),
        "settings": asdict(settings),
        "measure": result.measure,
        "value": round(result.value, 4) if result.value is not None else None,
        "aim": result.aim,
        "met": result.met,
        "line": result.line,
        "details": result.details,
    }
    with HISTORY.open("a") as history:
        history.write(json.dumps(entry) + "\n")


def last_value(name: str, measure: str, settings: Settings) -> float | None:
    """The newest value of the same measure with the same settings on the same kind of machine."""
    if not HISTORY.exists():
        return None
    here = machine()
    for row in reversed(HISTORY.read_text().splitlines()):
        entry = json.loads(row)
        if (
            (entry["benchmark"], entry["measure"]) == (name, measure)
            and entry["value"] is not None
            and entry["settings"]["quick"] == settings.quick
            and all(entry["machine"][key] == here[key] for key in ("cores", "cpu"))
        ):
            return entry["value"]
    return None


def commit() -> dict:
    """The commit that was measured and whether the tree differed from it; history itself does not count."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(REPO), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--", ".", ":!bench/history.jsonl", ":!bench/profiles")
    return {"commit": git("rev-parse", "--verify", "HEAD") or None, "dirty": bool(changed)}


def machine() -> dict:
    has_node = shutil.which("node") is not None
    node = subprocess.run(["node", "--version"], capture_output=True, text=True) if has_node else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "node": node.stdout.strip().lstrip("v") if node else None,
        "filesystem": proc.filesystem_of(REPO),
    }


def _cpu_model() -> str:
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            return row.partition(":")[2].strip()
    return platform.processor() or "unknown"
