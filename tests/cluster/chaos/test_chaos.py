"""Bounded chaos on real clusters of three nodes: what was promised to clients holds through every kind of fault.
It owns which faults follow each other; longer runs with faults by chance are started by hand (see `__main__`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.chaos.runs import chaos, needs_namespaces
from tests.cluster.chaos.world import REPOSITORY

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

RUNS_MAX = 3


@needs_namespaces
@pytest.mark.parametrize(
    ("log", "sequence"),
    [
        ("objects", "zombie,isolate_node_inward,kill_all_nodes"),
        ("jetstream", "kill_node,isolate_node_outward,kill_log_leader"),
        ("jetstream", "cut_from_servers,clock_step,kill_most_nats"),
    ],
)
def test_what_was_promised_holds_through_faults(log: str, sequence: str, tmp_path: Path) -> None:
    report = chaos(tmp_path, "--log", log, "--sequence", sequence, "--seed", "8", "--between-s", "1")
    assert report["violations"] == []
    assert report["acknowledged"] > 0


@needs_namespaces
def test_the_log_in_an_object_store_that_is_killed_and_paused_holds_what_was_promised(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--log", "objects", "--s3", "--sequence", "kill_s3,pause_s3", "--seed", "9")
    assert report["violations"] == []


def test_nodes_of_the_commit_before_are_replaced_one_by_one_and_nothing_is_lost(tmp_path: Path) -> None:
    before = ["git", "cat-file", "-e", "HEAD~1:src/headwater/cluster_groups.py"]
    if subprocess.run(before, cwd=REPOSITORY, capture_output=True, check=False).returncode:
        pytest.skip("the commit before is not here, or knows no cluster")
    report = chaos(
        tmp_path, "--log", "objects", "--loopback", "--older", "HEAD~1", "--sequence", "upgrade", "--seed", "11"
    )
    assert report["violations"] == []


@pytest.mark.parametrize("log", ["objects", "jetstream"])
def test_a_client_that_retries_once_meets_no_failure_while_nodes_drain_and_restart(log: str, tmp_path: Path) -> None:
    """Of what it sent as a producer. A plain append that went down with its connection is not sent again.

    A node waits three seconds for a group's next owner. On a machine that is too busy for a hand-over in that time the
    client is refused, and rightly: such a run says nothing about hand-overs, so one of a few has to be without.
    """
    options = ("--loopback", "--no-subscriptions", "--retries-max", "1", "--lease-s", "0", "--seed", "10")
    failed = []
    for run in range(RUNS_MAX):
        report = chaos(tmp_path / str(run), "--log", log, "--sequence", "drain,rolling_restart", *options)
        assert report["violations"] == []
        assert report["acknowledged"] > 0
        failed.append((report["failed_producers"], report["refused"]))
        if failed[-1] == ([], 0):
            return
    raise AssertionError(f"each run had failures: {failed}")
