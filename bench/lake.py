"""The benchmarks of the lake: B5 (catch-up reads, hot and cold), B8 (very many streams), B9 (appends beside cold work).

Owns their workloads and figures, and `python -m bench.lake B8 --streams N`; the loads themselves are `lake_load`.
"""

import argparse
import io
import json
import os
import pstats
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench import cost, generator, peers, proc
from bench.filler import CONTENT_TYPE, create_request
from bench.peers import FSYNC, Peer, Server
from bench.report import Result, record, show
from bench.rounds import BUSY_CPU, Settings, median, ratio, tell
from bench.wire import Exchange, request

READ_BYTES = 4 << 20
STREAM_BYTES, STREAM_BYTES_QUICK = 256 << 20, 32 << 20
RECORD_BYTES = 16 << 10
AIM_HOT, AIM_COLD = 0.8, 0.5
STREAMS, STREAMS_QUICK = 300_000, 10_000
LOADED_MAX = 1_000
AIM_RSS_BYTES, AIM_READY_S = 100.0, 3.0
AIM_P99 = 1.5
COLD_BYTES = 64 << 20
SETTLE_S_MAX = 600.0
# Far less of the lake fits into memory than is read, and nothing is read twice: every read of it is a cold one.
COLD_FLAGS = ("--flush-bytes", "1GiB", "--flush-interval-ms", "86400000", "--lake-cache-bytes", "32MiB")


def _load(work: str, server: Server, timeout_s: float = 300, **spec: object) -> dict:
    everything = {"work": work, "port": server.port, "server_pid": server.pid, **spec}
    return generator.run("bench.lake_load", everything, timeout_s)


def with_flags(*flags: str) -> Peer:
    plain = peers.headwater(FSYNC)
    return replace(plain, command=lambda data: [*plain.command(data), *flags])


def _send(server: Server, method: str, path: str, timeout_s: float = 30) -> bytes:
    with Exchange(server.port, timeout_s) as exchange:
        answer = exchange.send(request(method, path, server.port, body=b"" if method == "POST" else None))
    if answer.status != 200:
        raise generator.Failed(f"{method} {path} answered {answer.status} {answer.body[:300]!r}")
    return answer.body


def _metric(server: Server, name: str) -> int:
    return json.loads(_send(server, "GET", "/__headwater/metrics"))[name]


def flush(server: Server, timeout_s: float = 30) -> None:
    """Until nothing is left to settle; `timeout_s` is for one pass."""
    while json.loads(_send(server, "POST", "/__headwater/flush", timeout_s))["flushed_bytes"]:
        pass


def checkpoint(server: Server, timeout_s: float = 30) -> None:
    """Until the catalog knows what the log knows; for a node with one group."""
    _send(server, "POST", "/__headwater/groups/0/snapshot", timeout_s)


def _busy(rounds: list[dict]) -> str:
    return "(machine busy)" if any(one.get("others_cpu", 0) > BUSY_CPU for one in rounds) else ""


# ---- B5 ----------------------------------------------------------------------------------------------------------


def run_b5(settings: Settings) -> list[Result]:
    """One long stream, in memory and then in the lake, beside a plain file behind the same event loop."""
    size = STREAM_BYTES_QUICK if settings.quick else STREAM_BYTES
    found: dict[str, list[dict]] = {"file": [], "hot": [], "cold": []}
    peer = with_flags(*COLD_FLAGS)
    for number in range(settings.rounds):
        with _plain_file(size) as plain, peers.serving(peer) as server:
            _load("fill", server, stream="bench/long", bytes=size, record_bytes=RECORD_BYTES)
            found["hot"].append(_load("catch_up", server, stream="bench/long", bytes=size))
            found["file"].append(_load("catch_up", plain, path="/file", bytes=size))
            flush(server)
            found["cold"].append(_load("catch_up", server, stream="bench/long", bytes=size))
            found["file"].append(_load("catch_up", plain, path="/file", bytes=size))
        for name, rounds in found.items():
            tell(f"round {number + 1} {name}: {rounds[-1]}")
    rates = {name: median(rounds, "mb_per_s") for name, rounds in found.items()}
    hot, cold = ratio(rates["hot"], rates["file"]), ratio(rates["cold"], rates["hot"])
    firsts = {name: median(rounds, "first_byte_ms") for name, rounds in found.items()}
    note = f"cold_ratio {show(cold)} aim {show(AIM_COLD)} {'ok' if cold and cold >= AIM_COLD else 'short'}"
    note += "".join(f" {name}_mb_per_s {show(rates[name])} first_byte_ms {show(firsts[name])}" for name in found)
    note = f"{note} {_busy([one for rounds in found.values() for one in rounds])}".rstrip()
    details = {"bytes": size, "record_bytes": RECORD_BYTES, "rounds": found, "cold_ratio": cold, "mb_per_s": rates}
    if not settings.quick:
        _keep_cold_profile(size)
    return [Result("B5", "hot_ratio", hot, AIM_HOT, note=note, details=details)]


def _keep_cold_profile(size: int) -> None:
    """The event loop's share of a cold read: a node that finds everything settled, profiled while it is read once."""
    raw = peers.scratch_directory() / "cold.pstats"
    try:
        with standing(COLD_FLAGS) as start:
            server = start()
            _load("fill", server, stream="bench/long", bytes=size, record_bytes=RECORD_BYTES)
            flush(server)
            server = start({"HEADWATER_PROFILE": str(raw)})
            _load("catch_up", server, stream="bench/long", bytes=size)
        kept = cost.PROFILES / "cold-read.txt"
        kept.write_text(cost.as_text(pstats.Stats(str(raw), stream=(text := io.StringIO())), text))
        tell(f"profile: bench/profiles/{kept.name}")
    finally:
        raw.unlink(missing_ok=True)
        raw.parent.rmdir()


@contextmanager
def _plain_file(size: int) -> Iterator[Server]:
    def command(data: Path) -> list[str]:
        with (data / "file").open("wb") as file:
            for _ in range(size >> 20):
                file.write(b"x" * (1 << 20))
        return [sys.executable, "-m", "bench.plain_file", str(data / "file"), "--read-bytes", str(READ_BYTES)]

    with peers.serving(Peer("file", "plain", command)) as server:
        yield server


# ---- B8 ----------------------------------------------------------------------------------------------------------


def run_b8(settings: Settings) -> list[Result]:
    return [many(STREAMS_QUICK if settings.quick else STREAMS)]


def many(streams: int) -> Result:
    """Streams are created, one in a hundred is written to, all fall idle; then the node is killed and started again."""
    flags = ("--streams-loaded-max", str(LOADED_MAX), "--checkpoint-interval-ms", "1000", "--flush-bytes", "1MiB")
    with standing(flags) as start:
        server = start()
        # The first third fills the node's caches and takes what a burst of creations needs: that is there only once.
        warm = streams // 3
        _fill_streams(server, 0, warm)
        _touch(server, 0, warm)
        _await_idle(server)
        before = proc.rss_bytes(server.pid)
        fill = _fill_streams(server, warm, streams)
        _touch(server, warm, streams)
        tell(f"{streams - warm} more streams in {fill['seconds']} s")
        waited_s = _await_idle(server)
        after = proc.rss_bytes(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        began_s = time.perf_counter()
        server = start()
        ready_s = time.perf_counter() - began_s
        restarted = proc.rss_bytes(server.pid)
    per_stream = (after - before) / (streams - warm)
    details = {
        "streams": streams,
        "active_share": 0.01,
        "warm_streams": warm,
        "rss_before_bytes": before,
        "rss_after_bytes": after,
        "rss_restarted_bytes": restarted,
        "fill_s": fill["seconds"],
        "idle_after_s": waited_s,
        "ready_s": ready_s,
    }
    note = f"ready_s {show(ready_s)} aim {show(AIM_READY_S)} {'ok' if ready_s <= AIM_READY_S else 'short'}"
    note += f" streams {streams} restarted_rss_mb {show(restarted / 1e6)}"
    return Result("B8", "rss_bytes_per_stream", per_stream, AIM_RSS_BYTES, True, note, details)


def _fill_streams(server: Server, first: int, until: int) -> dict:
    spec = {"port": server.port, "bucket": "many", "first": first, "count": until - first}
    if first == 0:
        with Exchange(server.port) as exchange:
            exchange.send(request("PUT", "/ds/many", server.port, body=b""))
    spec |= {"connections": 64, "depth": 64}
    return generator.run("bench.filler", spec, timeout_s=60 + spec["count"] / 500)


def _touch(server: Server, first: int, until: int) -> None:
    """One stream in a hundred gets a record."""
    with Exchange(server.port) as exchange:
        for number in range(first, until, 100):
            name = create_request(server.port, "many", number).split(b" ")[1].decode()
            answer = exchange.send(request("POST", name, server.port, [("Content-Type", CONTENT_TYPE)], b"x" * 1_000))
            if answer.status // 100 != 2:
                raise generator.Failed(f"an append answered {answer.status} {answer.body[:200]!r}")


def _await_idle(server: Server) -> float:
    """Until everything has settled and no more streams are loaded than may be."""
    began_s = time.monotonic()
    flush(server)
    while (loaded := _metric(server, "streams_loaded")) > LOADED_MAX:
        if time.monotonic() - began_s > SETTLE_S_MAX:
            raise generator.Failed(f"{loaded} streams are still loaded after {SETTLE_S_MAX:.0f} s")
        time.sleep(0.25)
    return round(time.monotonic() - began_s, 1)


@contextmanager
def standing(flags: tuple[str, ...]) -> Iterator[Callable[..., Server]]:
    """A node that can be started several times on the same directory, each time with variables of its own."""
    directory = peers.scratch_directory()
    peer = with_flags(*flags)
    running: list[subprocess.Popen[bytes]] = []

    def start(variables: dict[str, str] | None = None) -> Server:
        for process in running:
            generator.end(process)
        said = directory / f"said-{len(running)}.txt"
        with said.open("wb") as sink:
            process = subprocess.Popen(
                peer.command(directory / "data"),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=generator.environment(variables),
                start_new_session=True,
                preexec_fn=generator.die_with_parent,
            )
        running.append(process)
        return Server(peer, peers.await_ready(peer, process, said), process.pid, directory)

    try:
        yield start
    finally:
        for process in running:
            generator.end(process)
        shutil.rmtree(directory, ignore_errors=True)


# ---- B9 ----------------------------------------------------------------------------------------------------------


def run_b9(settings: Settings) -> list[Result]:
    """Appends at a steady pace, alone and beside cold reads and flushes.

    `elsewhere` is for comparison: the same bytes are read from another process's file. What appends lose there they
    lose to the processors, which two generators and a reader share with the node.
    """
    window_s = max(settings.seconds, 3.0) * 2
    quiet = with_flags("--flush-bytes", "1GiB", "--lake-cache-bytes", "1MiB")
    # 3,200 appends of 1 kB a second: a flush every 0.3 s.
    mixed = with_flags("--flush-bytes", "1MiB", "--lake-cache-bytes", "1MiB")
    found: dict[str, list[dict]] = {"alone": [], "elsewhere": [], "beside": []}
    for number in range(settings.rounds):
        for name, peer in (("alone", quiet), ("elsewhere", quiet), ("beside", mixed)):
            with _plain_file(COLD_BYTES) as plain, peers.serving(peer) as server:
                neighbour = {"alone": None, "elsewhere": (plain, "/file"), "beside": (server, None)}[name]
                found[name].append(_paced(server, neighbour, window_s))
            tell(f"round {number + 1} {name}: {found[name][-1]}")
    alone, elsewhere, beside = (median(found[name], "p99_ms") for name in found)
    note = f"p99_ms alone {show(alone)} reads_elsewhere {show(elsewhere)} beside {show(beside)}"
    note = f"{note} {_busy(found['alone'])}".rstrip()
    details = {
        "rounds": found,
        "p999_ratio": ratio(median(found["beside"], "p999_ms"), median(found["alone"], "p999_ms")),
    }
    return [Result("B9", "p99_ratio", ratio(beside, alone), AIM_P99, True, note, details)]


def _paced(server: Server, neighbour: tuple[Server, str | None] | None, window_s: float) -> dict:
    """`neighbour` is whom the reader reads from, and which path if not the stream."""
    reader = None
    _load("fill", server, stream="bench/cold", bytes=COLD_BYTES, record_bytes=RECORD_BYTES)
    flush(server)
    if neighbour is not None:
        spec = {"work": "read_for_ever", "port": neighbour[0].port, "stream": "bench/cold", "bytes": COLD_BYTES}
        spec |= {"path": neighbour[1], "window_s": window_s + 2, "pause_s": 0.05}
        reader = generator.start("bench.lake_load", spec)
    flushes = _metric(server, "flushes")
    try:
        result = _load(
            "paced",
            server,
            connections=64,
            interval_s=0.02,
            body_bytes=1_000,
            window_s=window_s,
            timeout_s=60 + window_s,
        )
        result["flushes"] = _metric(server, "flushes") - flushes
        if reader is not None:
            result["cold_mb"] = json.loads(reader.communicate(timeout=60)[0])["mb"]
    finally:
        if reader is not None:
            generator.end(reader)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lake", description="B8 with any number of streams.")
    parser.add_argument("name", choices=("B8",))
    parser.add_argument("--streams", type=int, default=STREAMS)
    given = parser.parse_args()
    peers.claim_scratch()
    result = many(given.streams)
    record(result, Settings(rounds=1, seconds=0, warmup_s=0, quick=False, only_peer=None))
    print(result.line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
