"""Faults that are planted in the nodes of a real cluster, and that the checker has to find.
It owns for each a fault from outside that brings it to light; without the planted one the same run is good."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.chaos.runs import chaos, kinds

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
SHORT = ("--loopback", "--no-subscriptions", "--quiet-s", "3", "--seed", "4")


@pytest.mark.parametrize(
    ("planted", "log", "sequence"),
    [
        ("ack_before_quorum", "objects", "kill_node"),
        ("fencing_skipped", "objects", "zombie"),
        ("standby_serves_early", "objects", "kill_node"),
        ("unknown_as_success", "jetstream", "hang_and_kill_nats"),
    ],
)
def test_a_planted_fault_is_found(planted: str, log: str, sequence: str, tmp_path: Path) -> None:
    report = chaos(tmp_path, *SHORT, "--log", log, "--sequence", sequence, "--plant", planted)
    assert "lost" in kinds(report), report["violations"][:5]
