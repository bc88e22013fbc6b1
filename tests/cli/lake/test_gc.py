"""What leaves the lake, when, and what never does. The clock is the test's; the files are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.lake.cache import DiskCache
from headwater.lake.lake import DeltaLake
from headwater.model.row import Snapshot
from headwater.ports import Erasure, Pending, SystemRng
from tests.catalog import change, stream_row
from tests.cli.lake import GRACE_MS, Farm


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path)


def test_a_dead_file_leaves_the_table_at_once_and_the_store_after_the_grace_period(farm: Farm) -> None:
    file, _ = farm.settle(1, 2)
    farm.delete(1, 2)
    assert farm.sweep().files_left_table == 1
    assert farm.in_table() == set() and farm.in_store() == {file}
    farm.clock.ms += GRACE_MS - 1
    assert farm.sweep().files_deleted == 0
    assert farm.in_store() == {file}
    farm.clock.ms += 1
    swept = farm.sweep()
    assert (swept.files_deleted, swept.bytes_deleted > 0) == (1, True)
    assert farm.in_store() == set() and farm.lake_files.files() == {}


def test_a_file_that_is_dead_only_in_part_stays(farm: Farm) -> None:
    file, extents = farm.settle(1, 2)
    farm.delete(1)
    farm.clock.ms += 2 * GRACE_MS
    farm.sweep()
    assert farm.in_table() == farm.in_store() == {file}
    assert farm.lake.read(extents[1], 0, 10).payloads


def test_a_file_that_was_logged_but_not_checkpointed_stays(farm: Farm) -> None:
    file, _ = farm.settle(1, checkpointed=False)
    farm.clock.ms += 2 * GRACE_MS
    swept = farm.sweep(lambda: Pending({file}, set()))
    assert (swept.files_left_table, swept.orphans_deleted) == (0, 0)
    assert farm.in_table() == farm.in_store() == {file}


def test_a_file_that_settles_while_gc_looks_stays(farm: Farm) -> None:
    settled: list[str] = []

    def pending() -> Pending:
        farm.clock.ms += 2 * GRACE_MS
        settled.append(farm.settle(2)[0])
        return Pending(set(), set())

    farm.settle(1)
    farm.sweep(pending)
    assert settled[0] in farm.in_table() and settled[0] in farm.in_store()


def test_an_object_that_nothing_knows_goes_when_it_is_old_and_not_before(farm: Farm) -> None:
    farm.store.put("data/0/orphan.parquet", b"left by a crash")
    farm.store.put("elsewhere/kept", b"not ours to judge")
    assert farm.sweep().orphans_deleted == 0
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep().orphans_deleted == 1
    assert farm.in_store() == set() and farm.in_store("elsewhere") == {"elsewhere/kept"}


def test_a_file_that_was_committed_but_never_logged_leaves_table_and_store(farm: Farm) -> None:
    kept, _ = farm.settle(1)
    stray, _ = farm.settle(2, checkpointed=False)
    assert farm.sweep().files_left_table == 0
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep().files_left_table == 1
    # Whoever reads the table as it was may still open it: the grace period begins now.
    assert farm.in_table() == {kept} and farm.in_store() == {kept, stray}
    farm.clock.ms += GRACE_MS
    farm.sweep()
    assert farm.in_store() == {kept}


def test_what_interrupted_writes_left_behind_goes_when_it_is_old(farm: Farm, tmp_path: Path) -> None:
    farm.settle(1)
    left = tmp_path / "lake" / "_tmp" / "half"
    left.write_bytes(b"half")
    assert farm.sweep().leftovers_deleted == 0
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep().leftovers_deleted == 1
    assert not left.exists()


def test_only_snapshots_that_no_stream_refers_to_go(farm: Farm) -> None:
    meant, logged, superseded, foreign = "snapshots/1/a", "snapshots/2/b", "snapshots/1/c", "snapshots/readme"
    for key in (meant, logged, superseded, foreign, "snapshots/9/of-a-deleted-stream"):
        farm.store.put(key, b"blob")
    row = stream_row("_default/1", 1, snapshot=Snapshot(0, "text/plain", meant, 4))
    farm.catalog.write(change(rows=[row, stream_row("_default/2", 2)]))
    assert farm.sweep(lambda: Pending(set(), {logged})).snapshots_deleted == 0
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep(lambda: Pending(set(), {logged})).snapshots_deleted == 2
    assert farm.in_store("snapshots") == {meant, logged, foreign}


def test_a_superseded_snapshot_stays_while_a_fork_may_share_it(farm: Farm) -> None:
    shared = "snapshots/1/a"
    farm.store.put(shared, b"blob")
    source = stream_row("_default/1", 1, children=1, snapshot=Snapshot(5, "text/plain", "snapshots/1/newer", 4))
    fork = stream_row("_default/2", 2, snapshot=Snapshot(0, "text/plain", shared, 4))
    farm.catalog.write(change(rows=[source, fork]))
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep().snapshots_deleted == 0
    farm.catalog.write(change(rows=[msgspec.structs.replace(source, children=0)], gone=[("_default/2", 2)]))
    assert farm.sweep().snapshots_deleted == 1


class Crash(Exception):
    pass


@pytest.mark.parametrize("steps", range(7))
def test_a_crash_between_any_two_steps_leaves_work_for_the_next_run_and_nothing_dangling(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    farm.store.put("data/0/orphan.parquet", b"left by a crash")
    old, _ = farm.settle(1)
    farm.delete(1)
    farm.sweep()
    farm.clock.ms += GRACE_MS + 60_000
    farm.settle(2)
    farm.delete(2)
    kept, extents = farm.settle(3)
    left = [steps]

    def dying(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def act(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, act)

    for owner, name in (
        (farm.lake._opened(), "commit"),
        (farm.lake_files, "bury"),
        (farm.store, "delete"),
        (farm.lake_files, "forget"),
    ):
        dying(owner, name)
    try:
        farm.sweep()
        crashed = False
    except Crash:
        crashed = True
    assert crashed == (steps < 5)
    monkeypatch.undo()
    # Whatever the catalog still counts as living is there, and is in the table.
    assert kept in farm.in_table() and farm.lake.read(extents[0], 0, 10).payloads
    farm.sweep()
    farm.clock.ms += GRACE_MS + 60_000
    farm.sweep()
    farm.sweep()
    assert farm.in_table() == farm.in_store() == {kept}
    assert set(farm.lake_files.files()) == {kept}
    assert old != kept


def test_gc_of_an_empty_lake_makes_no_table(farm: Farm, tmp_path: Path) -> None:
    farm.sweep()
    assert not (tmp_path / "lake" / "_delta_log").exists()


def test_the_log_of_the_table_loses_what_an_erasure_asked_for_after_the_grace_period(farm: Farm) -> None:
    def names_it() -> bool:
        log = (bytes(farm.store.get(stored.key)) for stored in farm.store.list("_delta_log"))
        return any(b'stream\\":\\"777' in data for data in log)

    farm.settle(777)
    kept, _ = farm.settle(2)
    farm.delete(777)
    farm.sweep()
    asked = Erasure(farm.lake.end_past(), farm.clock.now_ms())
    farm.lake_files.ask_erasure(asked)
    farm.sweep()
    assert names_it() and farm.lake_files.erasure() == asked, "whoever planned on an older version has that long"
    farm.clock.ms += GRACE_MS + 1
    newer = Erasure(farm.lake.end_past(), farm.clock.now_ms())
    farm.sweep()
    assert not names_it() and farm.lake_files.erasure() is None
    assert farm.in_table() == {kept}
    farm.lake_files.ask_erasure(newer)
    farm.lake_files.end_erasure(asked)
    assert farm.lake_files.erasure() == newer, "one that was asked for meanwhile is not forgotten"


def test_parts_at_hand_of_files_that_are_gone_go_with_them(tmp_path: Path) -> None:
    farm = Farm(tmp_path)
    disk = DiskCache(tmp_path / "cache", 1 << 20)
    farm.lake = DeltaLake(farm.store, 1 << 20, farm.clock, SystemRng(), disk)
    (dead, _), (kept, _) = farm.settle(1), farm.settle(2)
    for file in (dead, kept):
        disk.get(file, 0, 4, lambda: b"PAR1")
    farm.delete(1)
    farm.sweep()
    farm.clock.ms += GRACE_MS + 1
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert farm.sweep().files_deleted == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1
    disk.get(dead, 0, 4, lambda: b"PAR1")  # a read that had begun before ends now
    farm.sweep()
    assert disk.get(kept, 0, 4, lambda: b"none") == b"PAR1" and disk.get(dead, 0, 4, lambda: b"none") == b"none"
