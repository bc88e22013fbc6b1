"""How a benchmark and its load generator talk: a JSON spec on the child's stdin, a JSON result on its stdout.

Owns the life of generator processes; measures nothing itself.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import proc

REPO = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """A peer or a generator did not do its part; the message says which and what it printed."""


def die_with_parent() -> None:
    """Runs in a child before exec: if the harness is killed outright, its children get a SIGTERM."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The harness's environment with this tree's sources first: what is measured is what is checked out."""
    paths = [str(REPO), str(REPO / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **(extra or {})}


def start(module: str, spec: dict, stderr: int | None = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start `python -m module` in its own session (Ctrl-C reaches the harness alone) and hand it its spec."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment(),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    process.stdin.write(json.dumps(spec) + "\n")
    process.stdin.flush()
    return process


def end(process: subprocess.Popen, patience_s: float = 10.0) -> None:
    """On return the process is gone: asked first, killed when it does not listen."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def run(module: str, spec: dict, timeout_s: float) -> dict:
    """Run one generator to its end and return its result. Raises Failed with what it printed."""
    process = start(module, spec)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"{module} gave no result within {timeout_s:.0f} s") from None
    finally:
        end(process)
    if process.returncode != 0:
        raise Failed(f"{module} failed: {err.strip()[-2000:]}")
    return json.loads(out)


def rates(latencies_ns: list[int], cpu: proc.CpuWindow) -> dict:
    """What a closed window says of so many answered appends."""
    latencies_ns = sorted(latencies_ns)
    appends = len(latencies_ns)

    def per_append(spent_s: float) -> float | None:
        return round(spent_s * 1e6 / appends, 2) if appends else None

    found = {
        "appends": appends,
        "appends_per_s": round(appends / cpu.elapsed_s, 1),
        "p50_ms": percentile_ms(latencies_ns, 0.50),
        "p99_ms": percentile_ms(latencies_ns, 0.99),
        "server_cpu_us_per_append": per_append(cpu.server_s),
    }
    if cpu.part_s:
        found["cpu_us_per_append"] = {name: per_append(spent_s) for name, spent_s in cpu.part_s.items()}
    return found


def answer(work: Callable[[dict], dict]) -> None:
    """The child's side: read the spec, work, print the result."""
    spec = json.loads(sys.stdin.readline())
    print(json.dumps(work(spec)), flush=True)


def percentile_ms(ordered_ns: Sequence[int], share: float) -> float | None:
    """The value below which `share` of the ordered samples lie, in milliseconds; None without samples."""
    if not ordered_ns:
        return None
    return round(ordered_ns[min(len(ordered_ns) - 1, int(len(ordered_ns) * share))] / 1e6, 3)
