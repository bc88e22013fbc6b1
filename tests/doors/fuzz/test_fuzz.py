"""A bounded run of the coverage-guided fuzzer, where atheris is installed; longer ones are started by hand.
It owns the bounds of that run, and finds nothing out by itself: the fuzzer's exit code does."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNS_COUNT = 40_000
KEPT_MIN = 20


@pytest.mark.full
@pytest.mark.timeout(600)
def test_no_input_that_the_fuzzer_finds_splits_the_parser_from_its_model(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    command = [sys.executable, "-m", "tests.doors.fuzz.s3p_wire", f"-runs={RUNS_COUNT}", "-max_len=400", "-seed=1"]
    done = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/", str(corpus)], capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    # New inputs are kept only for code they reach first: without them the parser was not watched at all.
    assert len(list(corpus.iterdir())) > KEPT_MIN, done.stderr[-2_000:]
