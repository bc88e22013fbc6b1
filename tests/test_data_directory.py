"""A data directory: its lock, its number of groups, and the take-over of one from before there were groups."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.data_directory import DataDirectory, DirectoryInUse, DirectoryRefused


def test_one_process_at_a_time_has_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "deep" / "data")
    with directory.lock():
        assert directory.is_in_use()
        with pytest.raises(DirectoryInUse):
            DataDirectory(directory.path).lock()
    assert not directory.is_in_use()
    directory.lock().close()


def test_a_new_one_is_for_the_servers_user_alone_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    open_to_all = tmp_path / "there"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    for path, mode in ((tmp_path / "new", 0o700), (open_to_all, 0o755)):
        DataDirectory(path).lock().close()
        assert path.stat().st_mode & 0o777 == mode


def test_it_is_in_use_until_the_last_process_has_ended_that_the_lock_was_passed_to(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with directory.lock() as lock:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
    try:
        assert directory.is_in_use()
        with pytest.raises(DirectoryInUse):
            directory.lock()
    finally:
        child.communicate(timeout=60)
    assert not directory.is_in_use()


def test_the_number_of_groups_is_fixed_when_it_is_made(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert directory.groups() is None
    assert directory.prepare(None, 4) == 4
    assert DataDirectory(tmp_path).prepare(None, 1) == 4
    assert DataDirectory(tmp_path).prepare(4, 1) == 4
    with pytest.raises(DirectoryRefused, match="made with 4 groups, not 2"):
        directory.prepare(2, 1)


def test_a_directory_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory.json").write_text(json.dumps({"format": 99, "groups": 1}))
    with pytest.raises(DirectoryRefused, match="newer version"):
        DataDirectory(tmp_path).prepare(None, 1)


@pytest.mark.parametrize("text", ["", "{", '{"format": "x"}'])
def test_a_description_that_cannot_be_read_is_refused_and_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "directory.json").write_text(text)
    with pytest.raises(DirectoryRefused, match="cannot be read"):
        DataDirectory(tmp_path).prepare(None, 1)
    assert (tmp_path / "directory.json").read_text() == text


def test_the_catalog_of_the_first_format_becomes_that_of_group_0(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "catalog.db")
    db.execute("pragma journal_mode = wal")
    db.execute("create table t (x)")
    db.execute("insert into t values (7)")
    db.commit()
    # What a kill leaves: the last transactions are in the write-ahead file beside it.
    for suffix in ("", "-wal"):
        (tmp_path / f"kept{suffix}").write_bytes((tmp_path / f"catalog.db{suffix}").read_bytes())
    db.close()
    for suffix in ("", "-wal"):
        (tmp_path / f"kept{suffix}").rename(tmp_path / f"catalog.db{suffix}")
    directory = DataDirectory(tmp_path)
    for _ in range(2):
        assert directory.prepare(None, 3) == 1
        with sqlite3.connect(directory.catalog(0)) as found:
            assert found.execute("select x from t").fetchall() == [(7,)]
        assert not list(tmp_path.glob("catalog.db*"))
