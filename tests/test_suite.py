"""What becomes of tests that fail: which get a second chance, and what is said of those that pass then."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import suite
from tests.support.second_chance import LIST_VARIABLE, MESSAGE_CHARS_MAX

REPOSITORY = Path(__file__).parent.parent
FAILING = """
import pytest
from tests.support.waiting import NotInTime, until

def test_passes(): pass
def test_waits_in_vain(): until(lambda: False, "the leader", within_s=0)
def test_is_wrong(): assert 1 + 1 == 3
def test_misses_a_file(): open("/nowhere/at/all")
def test_does_not_raise():
    with pytest.raises(ValueError):
        pass
def test_fails_in_both():
    raise ExceptionGroup("both", [NotInTime("late"), AssertionError("lost")])
@pytest.mark.timeout(0.05)
def test_takes_too_long():
    import time
    time.sleep(60)
@pytest.fixture
def broken(): raise KeyError("no such thing")
def test_has_no_fixture(broken): pass
def test_ends_its_process(): pass
def test_says_much(): raise ValueError("x" * 10_000)
"""
HARMLESS = {"test_waits_in_vain", "test_misses_a_file", "test_takes_too_long"}


def failures(folder: Path, *options: str) -> dict[str, Any]:
    """The list that a run of pytest in the folder leaves."""
    (folder / "conftest.py").write_text(
        "from tests.support.second_chance import register\ndef pytest_configure(config): register(config)\n"
    )
    env = {**os.environ, LIST_VARIABLE: str(folder / "list"), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "--rootdir", ".", *options]
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, timeout=100, check=False)
    listed: dict[str, Any] = json.loads((folder / "list").read_text())
    return listed


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "in a worker"])
def test_only_tests_of_promises_count_at_once_and_only_by_what_is_no_wait(
    tmp_path: Path, options: Sequence[str]
) -> None:
    for path in ("tests/crash/test_a.py", "tests/doors/test_a.py", "tests/doors/test_sigkill.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(FAILING)
    listed = failures(tmp_path, *options)
    assert not listed["collection_failed"]
    by_file: dict[str, dict[str, bool]] = {}
    for test, failed in listed["failed"].items():
        path, _, name = test.partition("::")
        by_file.setdefault(path, {})[name] = failed["counts_at_once"]
        assert len(failed["message"]) <= MESSAGE_CHARS_MAX + 2
    assert not any(by_file["tests/doors/test_a.py"].values())
    for path in ("tests/crash/test_a.py", "tests/doors/test_sigkill.py"):
        assert {name for name, at_once in by_file[path].items() if not at_once} == HARMLESS
        assert {"test_is_wrong", "test_does_not_raise", "test_fails_in_both"} <= by_file[path].keys()
    message = listed["failed"]["tests/crash/test_a.py::test_waits_in_vain"]["message"]
    assert "not within 0 s: the leader" in message


def test_a_file_that_cannot_be_read_and_a_worker_that_ends_are_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "tests/log").mkdir(parents=True)
    (tmp_path / "tests/log/test_a.py").write_text("import os\ndef test_ends(): os._exit(7)\n")
    (tmp_path / "test_b.py").write_text("import nothing_of_that_name\n")
    assert failures(tmp_path, "test_b.py")["collection_failed"]
    listed = failures(tmp_path, "-n", "1", "tests/log")
    assert {test: failed["counts_at_once"] for test, failed in listed["failed"].items()} == {
        "tests/log/test_a.py::test_ends": True
    }


# --- the second chance ----------------------------------------------------------------------------------------


class Runs:
    """Plays pytest: the first run fails so; later ones end with these codes, and with 0 after them."""

    def __init__(self, failed: dict[str, bool], code: int = 1, collection_failed: bool = False) -> None:
        self.found = {
            "collection_failed": collection_failed,
            "failed": {test: {"counts_at_once": at_once, "message": "why\nso"} for test, at_once in failed.items()},
        }
        self.code = code
        self.again: list[int] = []
        self.asked: list[Sequence[str]] = []

    def __call__(self, options: Sequence[str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(options)
        if len(self.asked) == 1:
            return self.code, self.found
        return (self.again.pop(0) if self.again else 0), {}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outcome(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(suite, "run", runs)
    suite.BUILD.mkdir(exist_ok=True)
    return suite.judged(["-n", "3"])


def test_a_suite_that_passes_is_run_once_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs({}, code=0)
    assert outcome(runs, monkeypatch) == 0
    assert runs.asked == [["-n", "3"]]
    assert not suite.TOLD.exists()


def test_up_to_three_failures_are_run_again_three_times_each_alone_and_told_as_unsteady(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tests = ["tests/a.py::test_one[x y]", "tests/b.py::test_two", "tests/c.py::test_three"]
    runs = Runs(dict.fromkeys(tests, False))
    assert outcome(runs, monkeypatch) == 0
    assert runs.asked[1:] == [["-q", "-p", "no:xdist", test] for test in tests for _ in range(3)]
    told = suite.TOLD.read_text()
    for test in tests:
        assert f"UNSTEADY {test}\n    why\n    so\n" in told


@pytest.mark.parametrize("again", [[1], [0, 1], [0, 0, 0, 0, 0, 5]])
def test_one_that_fails_again_fails_the_suite(again: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs({"tests/a.py::test_one": False, "tests/b.py::test_two": False})
    runs.again = list(again)
    assert outcome(runs, monkeypatch) == again[-1]
    assert not suite.TOLD.exists()


@pytest.mark.parametrize(
    "runs",
    [
        Runs({f"tests/a.py::test_{n}": False for n in range(4)}),
        Runs({"tests/a.py::test_one": False, "tests/crash/a.py::test_two": True}),
        Runs({"tests/a.py::test_one": False}, collection_failed=True),
        Runs({"tests/a.py::test_one": False}, code=2),
        Runs({}),
    ],
    ids=["four", "a promise", "a file that cannot be read", "interrupted", "none that is known"],
)
def test_other_failures_get_no_second_chance(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(runs, monkeypatch) == runs.code
    assert len(runs.asked) == 1
    assert not suite.TOLD.exists()


def test_every_file_that_is_begun_first_is_there() -> None:
    longest = importlib.import_module("tests.conftest").LONGEST_FIRST
    assert [file for file in longest if not (REPOSITORY / file).is_file()] == []
    assert len(set(longest)) == len(longest)
