"""A bounded run of the coverage-guided fuzzer, where atheris is installed; longer ones are started by hand.
It owns the seeds and the bounds of that run, and finds nothing out by itself: the fuzzer's exit code does."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.s3p import request

RUNS_COUNT = 100_000
SEEDS = [
    request(b"CREATE", b"orders", []),
    request(b"APPEND", b"orders", [b"ID", b"7"], [b"one", b"two"]),
    request(b"APPEND", b"s", [], [b"r" * 8] * 12),
    request(b"READ", b"s", [b"COUNT", b"5", b"BLOCK", b"10", b"MIN_ID", b"1-0"]),
    request(b"TRIM", b"s", [b"MIN_ID", b"2-1"]) + request(b"DELETE", b"s", []),
]


@pytest.mark.full
def test_no_input_that_the_fuzzer_finds_splits_the_parser_from_its_model(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS):
        (corpus / str(number)).write_bytes(b"\x05\x11\x20\x30" + seed)
    command = [sys.executable, "-m", "tests.fuzz.s3p_wire", f"-runs={RUNS_COUNT}", "-max_len=400", "-seed=1"]
    done = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/", str(corpus)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    # New inputs are kept only for code they reach first: without them the parser was not watched at all.
    assert len(list(corpus.iterdir())) > 2 * len(SEEDS), done.stderr[-2_000:]
