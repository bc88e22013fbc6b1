"""Schedules on a real node: who may write their state, and a server with a real Spark session, from start to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.spark.job_runs import last_runs
from headwater.spark.node import Node as Calls
from headwater.spark.node import NodeError
from headwater.spark.schedules.ledger import FOLDER, Fenced, Ledger, last_states
from headwater.spark.schedules.state import Job
from tests.spark.conftest import QUICK
from tests.support.node import Node
from tests.support.spark import JAVA_QUICK
from tests.support.waiting import until

LEASE_MS = 120_000


def test_of_two_ledgers_the_later_claim_counts_and_the_earlier_one_is_fenced(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        calls = Calls(node.url)
        assert last_states(calls) == {}
        first, second = Ledger(calls, "s"), Ledger(calls, "s")
        assert not first.read() and first.claim(LEASE_MS, 1)
        first.write({"a": Job("15m", 7)}, 2)
        first.renew(3)
        assert second.read() and second.state == first.state
        assert not second.read()
        first.renew(4)
        assert second.read()
        assert second.claim(LEASE_MS, 5) and second.state is not None
        assert second.state.jobs == {"a": Job("15m", 7)}
        for late in (lambda: first.renew(6), lambda: first.write({}, 6)):
            with pytest.raises(Fenced):
                late()
        second.write({"a": Job("15m", 8)}, 7, released=True)
        other = Ledger(calls, "other")
        assert other.claim(LEASE_MS, 8)
        found = last_states(calls)
        assert set(found) == {"s", "other"} and found["s"].jobs["a"].since_ms == 8 and found["s"].released
        assert first.read() and first.state == second.state
        assert node.request("DELETE", f"/v1/stream/_headwater/{FOLDER}/s").status == 204
        with pytest.raises(Fenced):
            second.renew(9)
        assert second.claim(LEASE_MS, 10) and second.state is not None and second.state.jobs["a"].since_ms == 8
        # The stream is another one, and shorter than what `first` had read of the old one.
        assert first.read() and first.state == second.state


def test_an_append_without_an_answer_is_sent_again_before_the_next_one(tmp_path: Path) -> None:
    class Cut(Calls):
        cut = False

        def call(self, method: str, *arguments: Any, **named: Any) -> Any:
            answer = super().call(method, *arguments, **named)
            if method == "POST" and self.cut:
                self.cut = False
                raise NodeError("the answer was lost")
            return answer

    with Node.started(tmp_path, memory=True) as node:
        calls = Cut(node.url)
        ledger = Ledger(calls, "s")
        assert ledger.claim(LEASE_MS, 1)
        calls.cut = True
        with pytest.raises(NodeError, match="lost"):
            ledger.write({"a": Job("x", 1)}, 2)
        ledger.write({"a": Job("x", 2)}, 3)
        ledger.renew(4)
        records = json.loads(node.request("GET", f"/v1/stream/_headwater/{FOLDER}/s").body)
        assert [record["at_ms"] for record in records] == [1, 2, 3, 4]
        assert last_states(calls)["s"].jobs["a"].since_ms == 2


STUCK = """
import time
from pathlib import Path

def stuck(before, records):
    Path({marker!r}).touch()
    while True:
        time.sleep(0.05)
"""
SCHEDULE = """
[spark]
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = "2"
[[job]]
name = "small"
job = "compact"
every = "366d"
[[job]]
name = "events"
job = "derive"
every = "366d"
only_after = ["small"]
options = { table = "tables/events", bucket = "runs", schema = "n INT" }
[[job]]
name = "broken"
job = "derive"
every = "366d"
retries = 0
options = { table = "tables/other", bucket = "nobody", require-match = true }
[[job]]
name = "vault"
job = "backup"
every = "366d"
options = { to = "backups", keep = 1 }
[[job]]
name = "stuck"
job = "fold"
every = "366d"
only_after = ["vault"]
options = { mode = "function", function = "waits:stuck", bucket = "runs", min-records = 1 }
"""


@contextmanager
def served(folder: Path, node: Node) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "headwater", "pipeline", "serve", "all.toml", "--url", node.url]
    with (folder / "said").open("w") as said, (folder / "summaries").open("w") as summaries:
        server = subprocess.Popen(
            [*command, "--master", "local[2]"],
            cwd=folder,
            env={**os.environ, "JAVA_TOOL_OPTIONS": JAVA_QUICK},
            stdin=subprocess.DEVNULL,
            stdout=summaries,
            stderr=said,
            text=True,
        )
    try:
        yield server
    finally:
        server.kill()
        server.wait()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_server_runs_what_was_missed_on_one_session_and_ends_well_in_the_middle_of_a_job(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "all.toml").write_text(SCHEDULE)
    (tmp_path / "waits.py").write_text(STUCK.format(marker=str(marker)))
    with Node.started(tmp_path / "node", flags=QUICK) as node:
        calls = Calls(node.url)
        body = json.dumps([{"n": n} for n in range(20)]).encode()
        assert node.request("PUT", "/v1/stream/runs/a", {"Content-Type": "application/json"}, body).status == 201
        before = Ledger(calls, "all")  # of a server that ran long ago
        assert before.claim(LEASE_MS, 1)
        names = ("small", "events", "broken", "vault", "stuck")
        before.write({name: Job("366d UTC", 1) for name in names}, 1, released=True)
        with served(tmp_path, node) as server:
            until(lambda: marker.exists() or server.poll() is not None, (tmp_path / "said").read_text, within_s=480)
            server.send_signal(signal.SIGTERM)
            assert server.wait(240) == 0, (tmp_path / "said").read_text()
        state = last_states(calls)["all"]
        assert state.released and state.epoch == 2
        assert {name: [run.outcome for run in state.jobs[name].runs] for name in names} == {
            "small": ["done"],
            "events": ["done"],
            "broken": ["failed"],
            "vault": ["done"],
            "stuck": ["stopped"],
        }
        assert state.jobs["stuck"].due_ms is not None, "the next server runs it again"
        assert "no stream" in state.jobs["broken"].runs[0].error
        assert [run["job"] for run in last_runs(calls)] == ["compact", "derive", "derive", "backup", "fold"]
        told = [json.loads(line) for line in (tmp_path / "summaries").read_text().splitlines()]
        assert [line["job"] for line in told] == ["compact", "derive", "backup"]
        assert told[1]["rows"] == 20 and told[2]["pruned"]["backups_dropped"] == []
        shown = subprocess.run(
            [sys.executable, "-m", "headwater", "pipeline", "status", "--url", node.url],
            capture_output=True,
            text=True,
            timeout=240,
        )
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        assert [line["name"] for line in lines if "schedule" in line] == list(names), shown.stderr
