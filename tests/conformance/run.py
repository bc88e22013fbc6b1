"""Runs the official Durable Streams suite against a node of its own, against a cluster of its own with --cluster, or
against any server with --url.

Owns the nodes it starts, the choice of groups to leave out, and the closing line `N passed, M failed`. It
never retries a test and never counts a skipped one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
VITEST = HERE / "node_modules" / "vitest" / "vitest.mjs"

SUBSCRIPTIONS = "Reserved subscription APIs"
"""Title of the suite's group that has a switch of its own."""
LONG_POLL_TIMEOUT_MS = 500
READY_WITHIN_S = 30
STOPPED_WITHIN_S = 60
SUITE_WITHIN_S = 900
SETTINGS = {
    "HEADWATER_LONG_POLL_TIMEOUT_MS": str(LONG_POLL_TIMEOUT_MS),
    # The suite's webhook receivers listen on this machine.
    "HEADWATER_WEBHOOK_ALLOW_LOCAL": "true",
}
SPREADING_LINE = re.compile(r"spreading on (http://\S+)")
READY_LINE = re.compile(r"^headwater ready on (http://\S+)(?: with \d+ workers)?$", re.MULTILINE)


class CannotRun(Exception):
    """The suite gave no verdict; the message says why and what was seen."""


@dataclass(frozen=True, slots=True)
class Failure:
    title: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    passed_count: int
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Node:
    url: str
    process: subprocess.Popen[bytes]
    output: Path


def main(argv: list[str]) -> int:
    options = parse(argv)
    skipped = () if options.all else tuple(options.skip_groups)
    try:
        if options.url:
            verdict = run_suite(options.url.rstrip("/"), skipped)
        elif options.cluster:
            verdict = run_on_cluster(options.cluster, skipped)
        else:
            with a_node(["--workers", options.workers, "--groups", options.groups]) as node:
                verdict = run_suite(node.url, skipped)
                if node.process.poll() is not None:
                    end = Failure(f"the node ended with {node.process.returncode}", tail_of(node.output))
                    verdict = Verdict(verdict.passed_count, (*verdict.failures, end))
    except CannotRun as reason:
        verdict = Verdict(0, (Failure("the suite could not run", str(reason)),))
    for failure in verdict.failures:
        print(f"FAILED {failure.title}\n{indented(failure.message)}\n")
    print(f"{verdict.passed_count} passed, {len(verdict.failures)} failed", flush=True)
    return 1 if verdict.failures else 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a server that is already running, instead of a node of our own")
    parser.add_argument(
        "--skip-groups",
        nargs="*",
        metavar="TITLE",
        default=[],
        help="leave out the groups whose title begins so (default: none)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="leave out nothing, which is the default",
    )
    parser.add_argument("--workers", default="1", help="how many workers the node has (default: 1)")
    parser.add_argument(
        "--cluster",
        choices=("jetstream", "objects"),
        help="three nodes with that log, and each request to another one of them in turn",
    )
    parser.add_argument("--groups", default="auto", help="how many groups its directory is made with")
    return parser.parse_args(argv)


def run_on_cluster(log: Literal["jetstream", "objects"], skipped: tuple[str, ...]) -> Verdict:
    """Three nodes, their log's servers and an S3 server; requests are spread over the nodes."""
    # Imported here: a single node needs none of it.
    from headwater.cluster_dev.child import CannotRun as CannotStart
    from headwater.cluster_dev.local_cluster import LocalCluster

    with tempfile.TemporaryDirectory(prefix="headwater-conformance-") as name:
        try:
            with LocalCluster(Path(name), log=log, environment=SETTINGS) as cluster:
                with spread_over([node.url for node in cluster.nodes]) as url:
                    verdict = run_suite(url, skipped)
                ended = [node for node in cluster.nodes if not node.running]
                tails = tuple(Failure(f"{node.name} {node.state}", node.tail()) for node in ended)
                cluster.stop()
        except CannotStart as reason:
            raise CannotRun(str(reason)) from None
    return Verdict(verdict.passed_count, (*verdict.failures, *tails))


@contextmanager
def spread_over(urls: list[str]) -> Iterator[str]:
    """The URL of a proxy that sends each request to another one of `urls`."""
    with subprocess.Popen(["node", str(HERE / "spread.mjs"), *urls], stdout=subprocess.PIPE, text=True) as proxy:
        try:
            found = SPREADING_LINE.match(proxy.stdout.readline() if proxy.stdout else "")
            if found is None:
                raise CannotRun("the proxy in front of the nodes did not start")
            yield found[1]
        finally:
            proxy.kill()


@contextmanager
def a_node(flags: list[str]) -> Iterator[Node]:
    """A fresh node that is ready, started with `flags`; it has ended, and its data is gone, when the block is left."""
    with tempfile.TemporaryDirectory(prefix="headwater-conformance-") as name:
        folder = Path(name)
        output = folder / "output"
        command = [sys.executable, "-m", "headwater", "serve", "--listen", "127.0.0.1:0", "--s3p", "off"]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [*command, *flags, "--data", str(folder / "data")],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=os.environ | SETTINGS,
                cwd=folder,
            )
        try:
            yield Node(base_url_when_ready(process, output), process, output)
        finally:
            stop(process)


def base_url_when_ready(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s:
        if found := READY_LINE.search(output.read_text(errors="replace")):
            return found[1]
        if process.poll() is not None:
            raise CannotRun(f"the node ended with {process.returncode} at its start\n{tail_of(output)}")
        time.sleep(0.05)
    raise CannotRun(f"the node was not ready within {READY_WITHIN_S} s\n{tail_of(output)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            print(f"the node did not end within {STOPPED_WITHIN_S} s of SIGTERM and was killed", flush=True)
            process.kill()
            process.wait()


def run_suite(url: str, skipped: tuple[str, ...]) -> Verdict:
    """One pass of the suite over `url`. Raises CannotRun when vitest leaves no report."""
    if not VITEST.exists():
        raise CannotRun("vitest is not installed: run `make node-modules`")
    with tempfile.TemporaryDirectory(prefix="headwater-vitest-") as folder:
        report = Path(folder) / "report.json"
        command = ["node", str(VITEST), "run", "--reporter=json", f"--outputFile={report}"]
        if skipped:
            command.append("--testNamePattern=" + names_outside(skipped))
        environment = os.environ | {
            "CONFORMANCE_TEST_URL": url,
            "CONFORMANCE_LONG_POLL_TIMEOUT_MS": str(LONG_POLL_TIMEOUT_MS),
            "CONFORMANCE_SUBSCRIPTIONS": "0" if SUBSCRIPTIONS in skipped else "1",
        }
        try:
            done = subprocess.run(
                command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=SUITE_WITHIN_S
            )
        except subprocess.TimeoutExpired as late:
            raise CannotRun(f"the suite did not end within {SUITE_WITHIN_S} s") from late
        said = done.stdout + done.stderr
        if not report.exists():
            raise CannotRun(f"vitest ended with {done.returncode} and left no report\n{said[-4000:]}")
        return verdict_of(json.loads(report.read_text()), done.returncode, said)


def names_outside(skipped: tuple[str, ...]) -> str:
    """A JavaScript pattern for the full test names that begin with none of the titles in `skipped`."""
    return "^(?!" + "|".join(re.sub(r"[^\w\s]", r"\\\g<0>", title) for title in skipped) + ")"


def verdict_of(report: dict, exit_code: int, said: str) -> Verdict:
    """Counts a vitest JSON report. An error outside any test is one failure: it must not pass unseen."""
    passed_count = 0
    failures: list[Failure] = []
    for file in report["testResults"]:
        for test in file["assertionResults"]:
            if test["status"] == "passed":
                passed_count += 1
            elif test["status"] == "failed":
                failures.append(Failure(test["fullName"], "\n".join(test["failureMessages"])))
        if file["status"] == "failed" and not file["assertionResults"]:
            failures.append(Failure("the suite could not be loaded", file.get("message", "")))
    if exit_code != 0 and not failures:
        failures.append(Failure("an error outside any test", said[-4000:]))
    if not passed_count and not failures:
        failures.append(Failure("no test ran", said[-4000:]))
    return Verdict(passed_count, tuple(failures))


def tail_of(output: Path) -> str:
    return output.read_text(errors="replace")[-4000:]


def indented(message: str) -> str:
    """The message with only the stack frames inside the suite: the others say nothing of the server."""
    lines = message.splitlines()
    kept = [line for line in lines if not line.startswith("    at ") or "server-conformance-tests" in line]
    return "\n".join("    " + line for line in kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
