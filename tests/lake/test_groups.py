"""Two groups, each with a catalog of its own, on one lake: neither takes the other's files for its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.lake.info import read_table
from headwater.lake.lake import DeltaLake
from headwater.lake.layout import NewFile
from headwater.lake.local import LocalStore
from headwater.lake.names import data_key, epoch_of, epoch_token, snapshot_key, snapshot_owner
from headwater.lake.table import LakeTable, Owner, Superseded
from headwater.model.row import Snapshot
from headwater.ports import BlobsUnavailable, Pending, SystemClock, SystemRng, Writer
from tests.catalog import change, stream_row
from tests.lake.rows import run


class Later(SystemClock):
    """Hours ahead: whatever is there is old enough for gc."""

    def now_ms(self) -> int:
        return super().now_ms() + 10_000_000


def nothing_pending() -> Pending:
    return Pending(set(), set())


def test_gc_mending_and_unlisting_never_touch_files_of_another_group(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    lake = DeltaLake(store, 1 << 20, Later(), SystemRng())
    catalogs = [SqliteCatalog(tmp_path / f"{group}.db") for group in (0, 1)]
    kept: dict[int, str] = {}
    for group, catalog in enumerate(catalogs):
        file, extents = lake.settle([run("_default/s", 10 + group, [b"a", b"bb"])], Writer(group))
        blob = snapshot_key(group, 10 + group, 3, "token")
        store.put(blob, b"state")
        row = stream_row("_default/s", 10 + group, tail=3, count=2, snapshot=Snapshot(3, "text/plain", blob, 5))
        catalog.write(change(rows=[row], extents=extents, files=[file]))
        kept[group] = file
        lake.settle(
            [run("_default/t", 20 + group, [b"stray"])], Writer(group)
        )  # committed, and the catalog never heard of it
        store.put(snapshot_key(group, 99, 0, "stray"), b"x")
    for group, catalog in enumerate(catalogs):
        # Mending drops the stray file of its own group alone, then gc removes its object and blob.
        other = [name for name in lake.files() if not name.startswith(f"data/{group}/")]
        assert lake.reconcile(catalog.alive(), set(), Writer(group)) == 1
        assert [name for name in lake.files() if not name.startswith(f"data/{group}/")] == other
        files = LakeFiles(tmp_path / f"{group}.db")
        for _ in range(3):
            lake.sweep(Writer(group), files, nothing_pending, 1_000, lambda: None)
        files.close()
    assert sorted(lake.files()) == sorted(kept.values())
    assert sorted(stored.key for stored in store.list("data")) == sorted(kept.values())
    assert sorted(stored.key for stored in store.list("snapshots")) == [
        snapshot_key(0, 10, 3, "token"),
        snapshot_key(1, 11, 3, "token"),
    ]
    for catalog in catalogs:
        catalog.close()


def test_a_snapshot_tells_its_group_and_one_from_before_there_were_groups_is_of_group_0() -> None:
    assert snapshot_owner(snapshot_key(3, 17, 5, "t")) == (3, 17)
    assert snapshot_owner("snapshots/17/00000000000000000005-t") == (0, 17)
    for name in ("snapshots/readme", "snapshots/x/y", "data/0/x", "snapshots/1/2/3/4", "snapshots/-1/2/x"):
        assert snapshot_owner(name) is None


def new_file(path: str) -> NewFile:
    return NewFile(path, 10, 1, '{"numRecords": 1}')


def owner(epoch: int, log: str = "log") -> Writer:
    return Writer(0, epoch, log)


def test_an_owner_of_an_older_epoch_touches_nothing_that_a_later_one_wrote(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    lake = DeltaLake(store, 1 << 20, Later(), SystemRng())
    catalog = SqliteCatalog(tmp_path / "0.db")
    catalog.write(change())
    for epoch in (1, 2, 3):
        # The last one has not committed yet: the table does not refuse what the one before it commits.
        lake.settle([run("_default/s", 10 + epoch, [b"a"])], owner(epoch, "log" if epoch < 3 else "not yet"))
        store.put(snapshot_key(0, 10 + epoch, 3, epoch_token(epoch, "token")), b"x")
        store.put(data_key(0, 7, epoch_token(epoch, "orphan")), b"x")
    files = LakeFiles(tmp_path / "0.db")
    for _ in range(3):
        lake.reconcile(catalog.alive(), set(), owner(2))
        lake.sweep(owner(2), files, nothing_pending, 1_000, lambda: None)
    assert {epoch_of(name) for name in lake.files()} == {3}
    assert {epoch_of(stored.key) for folder in ("data", "snapshots") for stored in store.list(folder)} == {3}
    assert len(list(store.list("data"))) == 2
    files.close()
    catalog.close()


def test_the_table_takes_nothing_of_an_owner_once_a_later_one_has_looked_at_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    early, late = (DeltaLake(store, 1 << 20, Later(), SystemRng()) for _ in range(2))
    catalog = SqliteCatalog(tmp_path / "0.db")
    catalog.write(change())
    kept, _ = early.settle([run("_default/s", 10, [b"a"])], owner(1))
    # Committed after the later one claimed the log, and before it looked: it is found and taken out.
    early.settle([run("_default/t", 11, [b"stray"])], owner(1))
    assert late.reconcile({kept: True}, set(), owner(2)) == 1
    before = read_table(store)
    files = LakeFiles(tmp_path / "0.db")
    with pytest.raises(BlobsUnavailable, match="later owner"):
        early.settle([run("_default/t", 11, [b"late"])], owner(1))
    with pytest.raises(BlobsUnavailable, match="later owner"):
        early.reconcile({}, set(), owner(1))
    with pytest.raises(BlobsUnavailable, match="later owner"):
        early.sweep(owner(1), files, nothing_pending, 0, lambda: None)
    assert set(late.files()) == {kept} and read_table(store) == before
    # Owners of other groups, and of another log that goes on with this lake, are not concerned.
    early.settle([run("_default/u", 12, [b"u"])], Writer(1, 1, "log"))
    early.settle([run("_default/v", 13, [b"v"])], owner(1, "restored"))
    late.settle([run("_default/w", 14, [b"w"])], owner(2))
    assert len(late.files()) == 4
    files.close()
    catalog.close()


def test_an_owner_is_refused_after_the_commit_of_a_later_one_was_forgotten_behind_a_checkpoint(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    early, late = LakeTable(store, 2), LakeTable(store, 2)
    late.claim(Owner("group", 2))
    late.claim(Owner("group", 2))
    for number in range(5):
        late.commit([new_file(f"data/1/{number}.parquet")], [], 1)
    late.cut_log(late.version)
    with pytest.raises(Superseded):
        early.commit([new_file("data/0/late.parquet")], [], 1, owner=Owner("group", 1))
    with pytest.raises(Superseded):
        LakeTable(store, 2).claim(Owner("group", 1))
