"""B12, the cost of an append: server CPU (and instructions, where the machine counts them), and a profile.

Owns bench/profiles/; compares a run only with its own history, never with a peer.
"""

import functools
import io
import pstats
import re
import subprocess

from bench import append, peers
from bench.generator import Failed
from bench.peers import FSYNC, MEMORY, Server
from bench.report import Result, last_value, show
from bench.rounds import Settings, alternate, median, tell

PROFILES = peers.REPO / "bench" / "profiles"
PROFILE_ROWS = 40
MEASURE = "cpu_us_per_append"
# CPU per append repeats within a few per cent on a quiet machine; less than this is not a regression.
NOISE_SHARE = 0.05


def run_b12(settings: Settings) -> list[Result]:
    make = peers.BY_NAME[settings.only_peer or "headwater"]
    event = counted_event()
    details: dict = {"perf_event": event}
    for mode in (FSYNC, MEMORY):

        def measure(server: Server) -> dict:
            return append.run_load(append.load_spec(server, settings, perf_event=event))

        (rounds,) = alternate(settings, [make(mode)], measure).values()
        details[mode] = {
            "rounds": rounds,
            "medians": append.summary({"server": rounds})["server"],
            MEASURE: median(rounds, "server_cpu_us_per_append"),
            "instructions_per_append": median(rounds, "instructions_per_append"),
        }
    notes = [f"memory {show(details[MEMORY][MEASURE])}"]
    if caveat := append.caveats(details[FSYNC]["rounds"] + details[MEMORY]["rounds"]):
        notes.append(caveat)
    if settings.only_peer in (None, "headwater"):
        details["profiles"] = [keep_profile(mode, settings) for mode in (FSYNC, MEMORY)]
        notes += ["(no profile)"] if None in details["profiles"] else []
    last = last_value("B12", MEASURE, settings) if settings.only_peer is None else None
    aim = None if last is None else round(last * (1 + NOISE_SHARE), 2)
    value, note = details[FSYNC][MEASURE], " ".join(notes)
    return [Result("B12", MEASURE, value, aim, aim_is_ceiling=True, note=note, details=details)]


@functools.cache
def counted_event() -> str | None:
    """The perf event that counts instructions here, or None: virtual machines often have no counters."""
    for event in ("instructions", "instructions:u"):
        try:
            command = ["perf", "stat", "-x,", "-e", event, "true"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0 and re.match(r"\d", done.stderr):
            return event
    return None


def keep_profile(mode: str, settings: Settings) -> str | None:
    """Run the load on a server that profiles its event loop; the top rows by own time go to bench/profiles/.

    A profiled server is slower, so its rates are thrown away. None when there is no profile to keep; the
    figure does not depend on one.
    """
    # Not in the server's directory: the profile is written as the server ends, and that is wiped then.
    raw = peers.scratch_directory() / "append.pstats"
    try:
        with peers.serving(peers.headwater(mode), {"HEADWATER_PROFILE": str(raw)}) as server:
            append.run_load(append.load_spec(server, settings))
        if not raw.exists():
            raise Failed("the server wrote no profile")
        PROFILES.mkdir(exist_ok=True)
        kept = PROFILES / f"append-{mode}.txt"
        kept.write_text(as_text(pstats.Stats(str(raw), stream=(text := io.StringIO())), text))
    except Failed as failure:
        tell(f"profile {mode}: {failure}")
        return None
    finally:
        raw.unlink(missing_ok=True)
        raw.parent.rmdir()
    tell(f"profile {mode}: bench/profiles/{kept.name}")
    return kept.name


def as_text(stats: pstats.Stats, text: io.StringIO) -> str:
    """The table without the folders that the tree and the interpreter are installed in."""
    stats.sort_stats("tottime").print_stats(PROFILE_ROWS)
    rows = text.getvalue().splitlines()
    table = rows[next(n for n, row in enumerate(rows) if "function calls" in row) :]
    lean = [re.sub(r"(?<=\s)/\S*/(?:site-packages|src|python3\.\d+)/", "", row).rstrip() for row in table]
    return "\n".join(lean).replace(f"{peers.REPO}/", "").rstrip() + "\n"
