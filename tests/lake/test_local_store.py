"""The local directory as a store: what a crash, a full disk or a foreign file leaves is never taken for an object.
The contract that all stores share is tested in `test_store`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headwater.lake.local import LocalStore
from headwater.lake.store import StoreRefused, StoreUnavailable, probe
from tests.support.faults import failing, killing, recording

OLD, NEW = b"old " * 50_000, b"new " * 60_000
SCRIPT = """
import sys
sys.path[:0] = sys.argv.pop().split(":")
from headwater.lake.local import LocalStore
store = LocalStore(sys.argv[1])
content = b"new " * 60_000
if sys.argv[2] == "put":
    store.put("data/3/object", content)
else:
    sys.exit(0 if store.put_if_absent("data/3/object", content) else 9)
"""
CALLS = {
    "put": ("mkdir", "write", "fsync", "rename"),
    "put_if_absent": ("mkdir", "write", "fsync", "link", "unlink"),
}


def writing(wrapper: list[str], folder: Path, how: str) -> subprocess.CompletedProcess[bytes]:
    command = [*wrapper, sys.executable, "-I", "-S", "-c", SCRIPT]
    paths = ":".join(path for path in sys.path if path)
    return subprocess.run([*command, str(folder), how, paths], capture_output=True, timeout=60, check=False)


@pytest.mark.traced
@pytest.mark.parametrize(("how", "call"), [(how, call) for how, calls in CALLS.items() for call in calls])
def test_a_kill_at_any_step_leaves_the_whole_object_or_none(tmp_path: Path, how: str, call: str) -> None:
    """Each kind of call is cut off at every one of its times, until it is not made any more."""
    for when in range(1, 12):
        folder = tmp_path / f"{call}-{when}"
        store = LocalStore(folder)
        if how == "put":
            store.put("data/3/object", OLD)
        killed = writing(killing([call], when), folder, how).returncode < 0
        found = {one.key: store.get(one.key) for one in store.list()}
        allowed = [OLD, NEW] if how == "put" else [None, NEW]
        assert set(found) <= {"data/3/object"}
        assert found.get("data/3/object") in allowed
        for left in list(store.leftovers()):
            assert left.key.startswith("_tmp/")
            store.delete(left.key)
        assert list(store.leftovers()) == []
        store.put("data/3/object", b"again")
        assert store.get("data/3/object") == b"again"
        if not killed:
            assert when > 1, "nothing was cut off"
            return
    raise AssertionError("there was always one more call to cut off")


@pytest.mark.traced
def test_bytes_then_name_then_folder_are_synced_in_this_order(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert writing(recording(["fsync", "rename"], trace), tmp_path / "lake", "put").returncode == 0
    steps = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines() if str(tmp_path) in line]
    named = next(number for number, step in enumerate(steps) if step.startswith("rename("))
    assert "_tmp/" in steps[named - 1] and steps[named - 1].startswith("fsync(")
    assert steps[named + 1].startswith("fsync(") and steps[named + 1].split(">")[0].endswith("/lake/data/3")
    folders = [step.partition("<")[2].partition(">")[0] for step in steps[: named - 1]]
    above = [tmp_path, tmp_path / "lake", tmp_path / "lake" / "data", tmp_path / "lake"]
    assert folders == [str(folder) for folder in above], "a folder was made without syncing the one above it"


@pytest.mark.traced
@pytest.mark.parametrize(("call", "error"), [("fsync", "EIO"), ("write", "ENOSPC"), ("rename", "EACCES")])
def test_a_failing_disk_is_reported_and_leaves_the_old_object(tmp_path: Path, call: str, error: str) -> None:
    store = LocalStore(tmp_path / "lake")
    store.put("data/3/object", OLD)
    when = "1" if call != "fsync" else "1+"
    result = writing(failing([call], error, when), tmp_path / "lake", "put")
    told = {"EIO": b"Input/output error", "ENOSPC": b"the disk is full", "EACCES": b"permission denied"}[error]
    assert result.returncode == 1
    assert told in result.stderr
    assert (b"StoreRefused" if error == "EACCES" else b"StoreUnavailable") in result.stderr
    assert store.get("data/3/object") == OLD
    assert [one.key for one in store.list()] == ["data/3/object"]


def test_a_full_disk_is_unavailable_with_advice(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    store = LocalStore(tmp_path)
    descriptor = os.open(full, os.O_WRONLY)
    try:
        with pytest.raises(OSError) as raised:
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    explained = store.explain(raised.value)
    assert isinstance(explained, StoreUnavailable)
    assert "free some space" in explained.reason


def test_a_file_in_the_way_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    for put in (LocalStore(tmp_path).put, LocalStore(tmp_path).put_if_absent):
        with pytest.raises(StoreRefused):
            put("data/3/object", b"x")
    with pytest.raises(StoreRefused):
        probe(LocalStore(tmp_path / "data" / "lake"), "abc")


def test_a_directory_without_permission_is_refused_with_advice(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        store = LocalStore(tmp_path)
        explained = store.explain(PermissionError(13, "Permission denied"))
        assert isinstance(explained, StoreRefused)
        assert "let the server's user" in explained.reason
        return
    tmp_path.chmod(0o500)
    with pytest.raises(StoreRefused, match="let the server's user"):
        probe(LocalStore(tmp_path / "lake"), "abc")


def test_links_and_folders_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("data/a", b"1")
    (tmp_path / "data" / "link").symlink_to("a")
    (tmp_path / "data" / "folder").mkdir()
    assert [found.key for found in store.list()] == ["data/a"]


def test_a_listing_goes_on_while_objects_come_and_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number in range(50):
        store.put(f"data/stays-{number}", b"1")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            store.put("data/passing", b"2")
            store.delete("data/passing")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            keys = {found.key for found in store.list()}
            assert keys - {"data/passing"} == {f"data/stays-{number}" for number in range(50)}
    finally:
        stop.set()
        thread.join()
