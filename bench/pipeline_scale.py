"""SCALE, jobs of the pipeline over ever more streams of a record or a few: what each costs, and how that grows.

Owns the streams, the figures, and the picture beside this file; Spark runs in this process, the node in one of its own.
`python -m bench.pipeline_scale --streams 10000,100000` for other numbers of streams.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bench import generator, peers, proc
from bench.generator import Failed
from bench.peers import FSYNC, Server
from bench.report import Result, record, show
from bench.rounds import Settings, tell

SCALES = (10_000, 100_000, 1_000_000)
SCALES_QUICK = (1_000, 10_000)
WARM_STREAMS = 1_000
ROUNDS = 4
"""Every stream gets a record in the first, every second one in the second, every third in the third…"""
ENTRIES_PER_REQUEST = 5_000
FLUSH_ROWS = 100_000
"""About so many records settle at once: a file."""
AIM_GROWTH = 15.0
"""From 100,000 streams to ten times as many; all of it in proportion would be 10."""
FLAGS = ("--flush-bytes", "64MiB", "--hot-bytes-max", "2GiB", "--flush-interval-ms", "86400000")
PICTURE = Path(__file__).with_suffix(".svg")

Job = Callable[[Any, Any, Server], dict[str, object]]


def run_scale(settings: Settings, scales: tuple[int, ...] | None = None) -> list[Result]:
    """All jobs at one number of streams after another, each time on a fresh node."""
    scales = scales or (SCALES_QUICK if settings.quick else SCALES)
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in JOBS}
    plain = peers.headwater(FSYNC)
    peer = replace(plain, command=lambda data: [*plain.command(data), *FLAGS])
    spark = _session()
    try:
        with peers.serving(peer) as server:
            _measure(spark, server, WARM_STREAMS)  # the JVM is slow at what it does for the first time
        for streams in scales:
            with peers.serving(peer) as server:
                for name, figures in _measure(spark, server, streams).items():
                    found[name][streams] = figures
    finally:
        spark.stop()
    draw({name: {n: figures["seconds"] for n, figures in by.items()} for name, by in found.items()}, PICTURE)
    return [_result(name, by) for name, by in found.items()]


def _result(name: str, by: dict[int, dict[str, Any]]) -> Result:
    streams = sorted(by)
    note = " ".join(f"{n}: {show(by[n]['seconds'])} s" for n in streams)
    details = {"seconds": {n: by[n]["seconds"] for n in streams}, "runs": {n: by[n] for n in streams}}
    if len(streams) < 2:
        return Result("SCALE", f"{name}_growth", None, note=note, details=details)
    last, before = streams[-1], streams[-2]
    growth = by[last]["seconds"] / by[before]["seconds"]
    # In proportion to the streams, with half as much again for noise and for what no longer fits into caches.
    aim = AIM_GROWTH * last / before / 10
    return Result("SCALE", f"{name}_growth", growth, aim, aim_is_ceiling=True, note=note, details=details)


def _measure(spark: Any, server: Server, streams: int) -> dict[str, dict[str, Any]]:
    from headwater.spark.node import Node

    node = Node(f"http://127.0.0.1:{server.port}")
    began_s = time.perf_counter()
    rows = _fill(node, streams)
    tell(f"{streams} streams: {rows} records in {time.perf_counter() - began_s:.1f} s")
    found = {}
    for name, job in JOBS.items():
        node_s, began_s = proc.cpu_seconds(server.pid), time.perf_counter()
        summary = job(spark, node, server)
        seconds = time.perf_counter() - began_s
        found[name] = {
            "seconds": round(seconds, 2),
            "node_cpu_s": round(proc.cpu_seconds(server.pid) - node_s, 2),
            "node_rss_mb": round(proc.rss_bytes(server.pid) / 1e6, 1),
            "rows": rows,
            "summary": {key: value for key, value in summary.items() if isinstance(value, int | float | bool)},
        }
        tell(f"{streams} streams: {name} {seconds:.1f} s, {found[name]['node_cpu_s']} s of the node's")
    return found


def _fill(node: Any, streams: int) -> int:
    """Returns the number of records; all of them are settled."""
    rows = 0
    for number in range(ROUNDS):
        chosen = range(0, streams, number + 1)
        rows += len(chosen)
        for at in range(0, len(chosen), ENTRIES_PER_REQUEST):
            entries = [
                {
                    "stream": f"bucket-{n % 7}/{n * 2654435761 % (1 << 32):08x}-{n:07d}",
                    "content_type": "application/json",
                    "create": True,
                    "binary": [b'{"id":"k%d","round":%d,"text":"what one of very many has to say"}' % (n % 10, number)],
                }
                for n in chosen[at : at + ENTRIES_PER_REQUEST]
            ]
            answer = node.call(
                "POST", "/__headwater/append", msgspec.msgpack.encode(entries), {"Content-Type": "application/msgpack"}
            )
            if b'"error"' in answer.body:
                raise Failed(f"an append was refused: {answer.body[:300]!r}")
            if at // FLUSH_ROWS != (at + ENTRIES_PER_REQUEST) // FLUSH_ROWS:
                node.flush()
        node.flush()
    return rows


# ---- the jobs ----------------------------------------------------------------------------------------------------


def _verify(spark: Any, node: Any, server: Server) -> dict[str, object]:
    from headwater.spark.jobs.verify import verify

    found = verify(spark, node)
    if found["findings_count"]:
        raise Failed(f"verify has findings: {found['findings']}")
    return found


def _usage(spark: Any, node: Any, server: Server) -> dict[str, object]:
    from headwater.spark.jobs.usage import usage

    return usage(spark, node)


def _compact(spark: Any, node: Any, server: Server) -> dict[str, object]:
    from headwater.spark.jobs.compact import compact

    done = compact(spark, node, min_files=2)
    if not done["swaps"]:
        raise Failed(f"there was nothing to compact: {done}")
    return done


def _deep(spark: Any, node: Any, server: Server) -> dict[str, object]:
    from headwater.spark.jobs.verify import verify

    found = verify(spark, node, deep=True)
    if found["findings_count"]:
        raise Failed(f"verify has findings: {found['findings']}")
    return found


def _backup(spark: Any, node: Any, server: Server) -> dict[str, object]:
    from headwater.spark.jobs.backup import backup

    return backup(spark, node, to=str(server.directory / "backup"))


def _fold(spark: Any, node: Any, server: Server) -> dict[str, object]:
    from headwater.spark.jobs.fold import fold

    return fold(spark, node, key=("/id",), min_records=ROUNDS)


JOBS: dict[str, Job] = {
    "verify": _verify,
    "usage": _usage,
    "compact": _compact,
    "verify_deep": _deep,
    "backup": _backup,
    "fold": _fold,
}
"""In this order: compaction finds the files as flushes left them, and what comes behind it finds its own."""


def _session() -> Any:
    from headwater.spark.session import SparkMissing, session

    try:
        return session("headwater bench", "local[2]", spark_driver_memory="3g", spark_sql_shuffle_partitions="4")
    except SparkMissing as missing:
        raise Failed(str(missing)) from missing


# ---- the picture -------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 30, 50
COLOURS = ("#2458a8", "#b3541e", "#2e7d4f", "#7a3e9d", "#8a6d00", "#555555")


def draw(lines: dict[str, dict[int, float]], path: Path) -> None:
    """Seconds over streams, both in powers of ten, a line for each job."""
    xs = sorted({n for by in lines.values() for n in by})
    ys = [seconds for by in lines.values() for seconds in by.values()]
    if len(xs) < 2:
        return
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    first, last = math.log10(xs[0]), math.log10(xs[-1])

    def x(streams: int) -> float:
        return LEFT + (math.log10(streams) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(seconds) - low) / max(high - low, 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">Seconds of a job over the number of streams (local[2])</text>',
    ]
    for power in range(low, high + 1):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:g} s</text>'
        )
    for streams in xs:
        parts.append(f'<text x="{x(streams):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{streams:,}</text>')
    ends = sorted((y(by[max(by)]), name) for name, by in lines.items() if by)
    at = 0.0
    for place, name in ends:
        colour = COLOURS[list(lines).index(name) % len(COLOURS)]
        by = lines[name]
        points = " ".join(f"{x(n):.1f},{y(by[n]):.1f}" for n in sorted(by))
        at = max(place, at + 15)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(by[n]):.1f}" r="3" fill="{colour}"/>' for n in sorted(by)]
        label = f"{name.replace('_', ' ')} {show(by[max(by)])} s"
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{at + 4:.1f}" fill="{colour}">{label}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_scale")
    parser.add_argument("--streams", default=",".join(map(str, SCALES)), help="numbers of streams, with commas between")
    scales = tuple(int(part) for part in parser.parse_args().streams.split(","))
    proc.raise_descriptor_limit()
    settings = Settings(rounds=1, seconds=0.0, warmup_s=0.0, quick=max(scales) < max(SCALES), only_peer=None)
    try:
        peers.claim_scratch()
        results = run_scale(settings, scales)
    except (generator.Failed, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1
    for result in results:
        print(result.line)
        record(result, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
