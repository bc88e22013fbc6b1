"""`python -m bench [NAME ...]`: run benchmarks and print one line for each figure.

Owns the command line; progress goes to stderr, the lines to stdout at the end and to bench/history.jsonl.
"""

import argparse
import signal
import sys

from bench import peers, proc
from bench.generator import Failed
from bench.registry import BENCHMARKS
from bench.report import Result, record
from bench.rounds import Settings, tell
from bench.wire import Malformed


def parse(arguments: list[str]) -> tuple[list[str], Settings]:
    listing = "\n".join(f"  {one.name:8} {one.what}" for one in BENCHMARKS.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench", epilog=listing, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run; default: B1 to B13")
    parser.add_argument("--rounds", type=int, help="rounds per peer (default 3)")
    parser.add_argument("--seconds", type=float, help="seconds of each timed window (default 5)")
    parser.add_argument("--quick", action="store_true", help="one round of 2 s: a smoke test, not a figure")
    parser.add_argument(
        "--only-peer",
        choices=("headwater", "reference", "sketch"),
        help="measure this server alone; nothing is compared or kept",
    )
    given = parser.parse_args(arguments)
    names = [name.upper() for name in given.names] or [b.name for b in BENCHMARKS.values() if b.by_default]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    rounds, seconds, warmup_s = (1, 2.0, 0.5) if given.quick else (3, 5.0, 1.0)
    settings = Settings(
        rounds=given.rounds or rounds,
        seconds=given.seconds or seconds,
        warmup_s=warmup_s,
        quick=given.quick,
        only_peer=given.only_peer,
    )
    return names, settings


def main() -> int:
    names, settings = parse(sys.argv[1:])
    proc.raise_descriptor_limit()
    # Both unwind through every `finally` that ends a child, also where a shell started us with INT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    lines: list[str] = []
    code = 0
    try:
        peers.claim_scratch()
        for name in names:
            tell(f"{name}: {BENCHMARKS[name].what}")
            try:
                results = BENCHMARKS[name].run(settings)
            except (Failed, Malformed, OSError) as failure:
                results, code = [], 1
                lines.append(f"{name} failed: {failure}")
                tell(lines[-1])
            for result in results:
                lines.append(result.line)
                tell(result.line)
                keep(result, settings)
    except Failed as failure:
        print(failure, file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    for line in lines:
        print(line, flush=True)
    return code


def keep(result: Result, settings: Settings) -> None:
    if settings.only_peer is None:
        record(result, settings)


if __name__ == "__main__":
    sys.exit(main())
