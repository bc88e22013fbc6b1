"""A bucket of very many streams, through the benchmark that measures it: small here, a million by hand.
It asserts what was created is listed and counted; how fast is the benchmark's to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[4]


def run(tmp_path: Path, streams: int, timeout_s: int) -> dict[str, object]:
    """In a copy of the harness's folder: a test's figures do not belong in the history."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from bench import many_streams, peers, report\n"
        "report.HISTORY = Path(sys.argv.pop()) / 'history.jsonl'\n"
        "peers.SCRATCH = report.HISTORY.parent / 'scratch'\n"
        # Whether it lies on a real disk matters to a figure, not to a count.
        "peers.proc.filesystem_of = lambda path: 'any'\n"
        "sys.exit(many_streams.main())\n"
    )
    command = [sys.executable, "-c", script, "--streams", str(streams), str(tmp_path)]
    # The harness waits for checkpoints, and its patience is for large buckets.
    environment = os.environ | {"HEADWATER_CHECKPOINT_INTERVAL_MS": "200"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    kept = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [(entry["benchmark"], entry["measure"]) for entry in kept] == [("MANY", "page_ms"), ("MANY", "create_ratio")]
    return json.loads(done.stdout)


def test_five_thousand_streams_are_listed_and_counted_each_once(tmp_path: Path) -> None:
    facts = run(tmp_path, 5_000, 100)
    assert facts["streams"] == 5_000
    large = facts["large"]
    assert isinstance(large, dict) and large["streams"] >= 5_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_streams_are_listed_and_counted_each_once(tmp_path: Path) -> None:
    facts = run(tmp_path, 1_000_000, 3000)
    assert facts["streams"] == 1_000_000
    assert facts["met"] is True, facts
