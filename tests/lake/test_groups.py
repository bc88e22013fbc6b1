"""Two groups, each with a catalog of its own, on one lake: neither takes the other's files for its own."""

from __future__ import annotations

from pathlib import Path

from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.sqlite import SqliteCatalog
from headwater.lake.lake import DeltaLake
from headwater.lake.local import LocalStore
from headwater.lake.names import data_key, epoch_of, epoch_token, snapshot_key, snapshot_owner
from headwater.model.row import Snapshot
from headwater.ports import Pending, SystemClock, SystemRng
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
        file, extents = lake.settle([run("_default/s", 10 + group, [b"a", b"bb"])], group)
        blob = snapshot_key(group, 10 + group, 3, "token")
        store.put(blob, b"state")
        row = stream_row("_default/s", 10 + group, tail=3, count=2, snapshot=Snapshot(3, "text/plain", blob, 5))
        catalog.write(change(rows=[row], extents=extents, files=[file]))
        kept[group] = file
        lake.settle([run("_default/t", 20 + group, [b"stray"])], group)  # committed, and the catalog never heard of it
        store.put(snapshot_key(group, 99, 0, "stray"), b"x")
    for group, catalog in enumerate(catalogs):
        # Mending drops the stray file of its own group alone, then gc removes its object and blob.
        other = [name for name in lake.files() if not name.startswith(f"data/{group}/")]
        assert lake.reconcile(catalog.alive(), set(), group) == 1
        assert [name for name in lake.files() if not name.startswith(f"data/{group}/")] == other
        files = LakeFiles(tmp_path / f"{group}.db")
        for _ in range(3):
            lake.sweep(group, files, nothing_pending, 1_000, lambda: None)
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


def test_an_owner_of_an_older_epoch_touches_nothing_that_a_later_one_wrote(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    lake = DeltaLake(store, 1 << 20, Later(), SystemRng())
    catalog = SqliteCatalog(tmp_path / "0.db")
    catalog.write(change())
    for epoch in (1, 2, 3):
        lake.settle([run("_default/s", 10 + epoch, [b"a"])], 0, epoch)
        store.put(snapshot_key(0, 10 + epoch, 3, epoch_token(epoch, "token")), b"x")
        store.put(data_key(0, 7, epoch_token(epoch, "orphan")), b"x")
    files = LakeFiles(tmp_path / "0.db")
    for _ in range(3):
        lake.reconcile(catalog.alive(), set(), 0, 2)
        lake.sweep(0, files, lambda: Pending(set(), set(), 2), 1_000, lambda: None)
    assert {epoch_of(name) for name in lake.files()} == {3}
    assert {epoch_of(stored.key) for folder in ("data", "snapshots") for stored in store.list(folder)} == {3}
    assert len(list(store.list("data"))) == 2
    files.close()
    catalog.close()
