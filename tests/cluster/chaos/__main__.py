"""A chaos run by hand: `python -m tests.cluster.chaos --seed 1 --minutes 5 --log jetstream`.

Owns the command line and the table that is printed. Ends with 0 when every promise held, with 1 when one did not, and
with 2 when the run could not be brought to its end. It makes network namespaces when it may, and else goes without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.cluster.chaos import network
from tests.cluster.chaos.faults import Fault
from tests.cluster.chaos.network import Network
from tests.cluster.chaos.planted import FAULTS
from tests.cluster.chaos.run import LEASE_S, QUIET_S_MAX, Plan, Report, Run

VIOLATIONS_SHOWN = 5
"""Of each kind."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--log", choices=("jetstream", "objects"), default="jetstream")
    parser.add_argument("--s3", action="store_true", help="the lake, and with it the log `objects`, in SeaweedFS")
    parser.add_argument("--minutes", type=float, default=0.0, help="for how long faults are injected")
    parser.add_argument("--faults", default="", help="kinds to draw from, by commas; all by default")
    parser.add_argument("--sequence", default="", help="these faults once, in this order, instead of --minutes")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--pause-ms", type=float, default=50.0, help="mean pause of a client between two requests")
    parser.add_argument("--between-s", type=float, default=3.0, help="longest calm between two faults")
    parser.add_argument("--retries-max", type=int, default=None, help="of one append; no bound by default")
    parser.add_argument("--lease-s", type=float, default=LEASE_S, help="by how much a plain read may be behind")
    parser.add_argument("--linearizable", type=float, default=0.3, help="share of reads that ask for it")
    parser.add_argument("--no-subscriptions", action="store_true")
    parser.add_argument("--loopback", action="store_true", help="no network namespaces: no partitions")
    parser.add_argument("--plant", choices=sorted(FAULTS), help="a fault in every node, which has to be found")
    parser.add_argument("--source", type=Path, help="the package that nodes run; this one by default")
    parser.add_argument("--quiet-s", type=float, default=QUIET_S_MAX, help="for how long the end is waited for")
    parser.add_argument("--older", help="a commit that `upgrade` goes down to and up from")
    parser.add_argument("--directory", type=Path, help="kept afterwards; a temporary one by default")
    parser.add_argument("--report", type=Path, help="where the figures go as JSON")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if not asked.loopback and not network.inside() and network.is_possible():
        command = network.command_inside([sys.executable, "-m", "tests.cluster.chaos", *sys.argv[1:]])
        os.execvp(command[0], command)
    with tempfile.TemporaryDirectory(prefix="headwater-chaos-") as temporary:
        directory = asked.directory or Path(temporary)
        report = run(asked, directory)
    print(table(report))
    if asked.report:
        asked.report.write_text(json.dumps(report.as_json()))
    return 2 if report.broken else 0 if report.good else 1


def run(asked: argparse.Namespace, directory: Path) -> Report:
    plan = Plan(
        seed=asked.seed,
        log=asked.log,
        s3=asked.s3,
        minutes=asked.minutes,
        sequence=_words(asked.sequence),
        kinds=_words(asked.faults),
        nodes=asked.nodes,
        groups=asked.groups,
        pause_s=asked.pause_ms / 1000,
        writers=asked.writers,
        retries_max=asked.retries_max,
        subscriptions=not asked.no_subscriptions,
        between_s=asked.between_s,
        lease_s=asked.lease_s,
        linearizable_share=asked.linearizable,
        fault=asked.plant,
        quiet_s_max=asked.quiet_s,
        source=asked.source,
        older_source=None if asked.older is None else older_source(asked.older, directory),
    )
    return Run(plan, directory / "cluster", Network() if network.inside() else None).run()


def older_source(commit: str, directory: Path) -> Path:
    """The package as it was at that commit."""
    place = directory / "older"
    place.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", commit, "src"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed, check=True)
    return place / "src"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def table(report: Report) -> str:
    lines = [f"seed {report.seed}: {len(report.faults)} faults"]
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in report.faults:
        by_kind[fault.kind].append(fault)
    if by_kind:
        lines.append(f"  {'fault':26} {'times':>5} {'longest pause':>14} {'median':>8} {'well after':>11}")
    for kind, faults in sorted(by_kind.items()):
        pauses = sorted(fault.pause_s for fault in faults)
        well_s = max(fault.well_s - fault.mended_s for fault in faults)
        shown = f"{pauses[-1]:>12.2f} s {pauses[len(pauses) // 2]:>6.2f} s {well_s:>9.2f} s"
        lines.append(f"  {kind:26} {len(faults):>5} {shown}")
    lines += [
        f"appends: {report.acknowledged} acknowledged, {report.refused} refused, {report.unknown} unknown, "
        f"{report.retried} after a retry; the longest took {report.append_s_max:.2f} s",
        f"what refused attempts were told: {report.codes}",
        f"reads: {report.reads}",
    ]
    if report.broken:
        lines.append(f"BROKEN: {report.broken}")
    counts: dict[str, int] = defaultdict(int)
    for violation in report.violations:
        counts[violation.kind] += 1
    lines.append(f"violations: {dict(counts) or 'none'}")
    for kind in counts:
        shown = [f"  {violation}" for violation in report.violations if violation.kind == kind]
        lines += shown[:VIOLATIONS_SHOWN]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
