"""The table's own log: short, durable before it is promised, mended after a power loss, refused when it is not ours.
Rows are not looked at here; `test_table` does that."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headwater.lake.delta_log import LOG
from headwater.lake.layout import SCHEMA
from headwater.lake.local import LocalStore
from headwater.lake.store import LakeDamaged, ObjectStore, StoreRefused, StoreUnavailable
from headwater.lake.table import LakeTable
from tests.lake.conftest import s3_store
from tests.lake.test_table import NOW_MS, fake
from tests.support.s3 import Fault, FaultProxy


def commit_many(table: LakeTable, count: int, prefix: str = "f") -> set[str]:
    for number in range(count):
        table.commit([fake(f"{prefix}{number}")], [], NOW_MS)
    return {f"data/0/{prefix}{number}.parquet" for number in range(count)}


def log_names(store: ObjectStore) -> list[str]:
    return sorted(found.key.removeprefix(f"{LOG}/") for found in store.list(LOG))


# ---- short --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_every_so_many_commits_and_old_log_files_go(lasting_store: ObjectStore) -> None:
    table = LakeTable(lasting_store, checkpoint_every_count=4, log_kept_hours=0)
    expected = commit_many(table, 13)
    names = log_names(lasting_store)
    assert "_last_checkpoint" in names
    assert f"{12:020d}.checkpoint.parquet" in names
    assert sum(name.endswith(".json") for name in names) <= 5
    assert table.tidy_failure is None
    assert set(table.files()) == expected
    assert set(LakeTable(lasting_store).files()) == expected


def test_log_files_are_kept_for_their_time(lasting_store: ObjectStore) -> None:
    table = LakeTable(lasting_store, checkpoint_every_count=4)
    commit_many(table, 9)
    assert sum(name.endswith(".json") for name in log_names(lasting_store)) == 10


def test_what_is_older_than_a_version_leaves_the_log_when_asked_and_the_table_stays_as_it_is(
    lasting_store: ObjectStore,
) -> None:
    table, sleeper = LakeTable(lasting_store, checkpoint_every_count=4), LakeTable(lasting_store)
    expected = commit_many(table, 6)
    table.commit([], ["data/0/f2.parquet"], NOW_MS)
    version = table.version
    late = commit_many(table, 2, "late")
    table.cut_log(version)
    names = [name for name in log_names(lasting_store) if name[0].isdigit()]
    assert min(names) == f"{version:020d}.json" and f"{version + 2:020d}.checkpoint.parquet" in names
    table.cut_log(version)
    assert [name for name in log_names(lasting_store) if name[0].isdigit()] == names, "there is nothing more to cut"
    sleeper.commit([fake("woke")], [], NOW_MS)
    expected = (expected | late | {"data/0/woke.parquet"}) - {"data/0/f2.parquet"}
    for one in (table, sleeper, LakeTable(lasting_store)):
        assert set(one.files()) == expected


def test_checkpoints_leave_the_interpreter_free_while_they_wait_for_the_store(proxy: FaultProxy) -> None:
    """The proxy is Python in this very process: a call that kept the GIL while it waits would never be answered."""
    table = LakeTable(s3_store(proxy.endpoint, request_ms_max=3_000), checkpoint_every_count=2, log_kept_hours=0)
    expected = commit_many(table, 2)
    assert table.tidy_failure is None
    assert any(method == "PUT" and path.endswith("2.checkpoint.parquet") for method, path in proxy.seen)
    assert ("POST", "/lake?delete") in proxy.seen, "no log file was cleaned up"
    assert set(table.files()) == expected


def test_a_checkpoint_that_fails_does_not_fail_the_commit_it_followed(proxy: FaultProxy) -> None:
    table = LakeTable(s3_store(proxy.endpoint), checkpoint_every_count=2)
    proxy.faults.append(Fault("PUT", "checkpoint.parquet", times=10))
    assert table.commit([fake("a")], [], NOW_MS) == 1
    assert table.commit([fake("b")], [], NOW_MS) == 2
    assert table.tidy_failure is not None
    proxy.faults.clear()
    commit_many(table, 2)
    assert table.tidy_failure is None
    assert set(table.files()) == {f"data/0/{name}.parquet" for name in ("a", "b", "f0", "f1")}


def test_a_table_that_slept_while_others_cleaned_the_log_wakes_up(lasting_store: ObjectStore) -> None:
    sleeper, reader = LakeTable(lasting_store, log_kept_hours=0), LakeTable(lasting_store)
    sleeper.commit([fake("early")], [], NOW_MS)
    expected = commit_many(LakeTable(lasting_store, checkpoint_every_count=4), 9)
    assert f"{2:020d}.json" not in log_names(lasting_store), "nothing was cleaned, so nothing is tested"
    sleeper.commit([fake("late")], [], NOW_MS)
    assert set(sleeper.files()) == expected | {"data/0/early.parquet", "data/0/late.parquet"}
    assert reader.contains(["data/0/late.parquet"]) == {"data/0/late.parquet"}
    reader.commit([], ["data/0/early.parquet"], NOW_MS)
    assert set(sleeper.files()) == expected | {"data/0/late.parquet"}


def test_tidying_on_request_writes_a_checkpoint_now(lasting_store: ObjectStore) -> None:
    table = LakeTable(lasting_store)
    commit_many(table, 2)
    table.tidy()
    assert f"{2:020d}.checkpoint.parquet" in log_names(lasting_store)


# ---- durable ------------------------------------------------------------------------------------------------------


class Recording(LocalStore):
    """Writes down what was synced, and may fail at it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.synced: list[str] = []
        self.failures_left = 0

    def sync(self, keys: Iterable[str]) -> None:
        names = list(keys)
        if self.failures_left:
            self.failures_left -= 1
            raise StoreUnavailable("the disk does not sync")
        super().sync(names)
        self.synced += names


def test_a_local_commit_is_synced_before_it_is_promised(tmp_path: Path) -> None:
    store = Recording(tmp_path)
    table = LakeTable(store, checkpoint_every_count=3)
    assert f"{LOG}/{0:020d}.json" in store.synced
    for version in range(1, 4):
        store.synced.clear()
        assert table.commit([fake(f"{version}")], [], NOW_MS) == version
        assert store.synced[0] == f"{LOG}/{version:020d}.json"
    assert store.synced[1:] == [f"{LOG}/{3:020d}.checkpoint.parquet", f"{LOG}/_last_checkpoint"]


def test_commits_of_others_below_ours_are_synced_with_ours(tmp_path: Path) -> None:
    store = Recording(tmp_path)
    table = LakeTable(store)
    commit_many(LakeTable(LocalStore(tmp_path)), 3, "theirs")
    store.synced.clear()
    assert table.commit([fake("ours")], [], NOW_MS) == 4
    assert store.synced == [f"{LOG}/{version:020d}.json" for version in range(1, 5)]


def test_a_commit_that_could_not_be_synced_is_not_promised_and_not_made_twice(tmp_path: Path) -> None:
    store = Recording(tmp_path)
    table = LakeTable(store, sleep=lambda seconds: None)
    store.failures_left = 100
    with pytest.raises(StoreUnavailable, match="does not sync"):
        table.commit([fake("a")], [], NOW_MS)
    store.failures_left = 0
    assert table.commit([fake("a")], [], NOW_MS) == 1
    assert f"{LOG}/{1:020d}.json" in store.synced
    assert len(DeltaTable(store.uri).history()) == 2


# ---- mended -------------------------------------------------------------------------------------------------------


TORN = {"empty": b"", "zeros": bytes(300), "cut": b'{"commitInfo":{}}\n{"add":{"path":"dat'}


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_commit_torn_by_a_power_loss_is_taken_away(tmp_path: Path, torn: bytes) -> None:
    store = LocalStore(tmp_path)
    expected = commit_many(LakeTable(store), 2)
    for version in (3, 4):
        (tmp_path / LOG / f"{version:020d}.json").write_bytes(torn)
    table = LakeTable(store)
    assert set(table.files()) == expected
    assert table.commit([fake("after")], [], NOW_MS) == 3
    assert set(DeltaTable(store.uri).file_uris()) == {f"{tmp_path}/{path}" for path in table.files()}


@pytest.mark.parametrize("content", [b"", bytes(5_000), b"PAR1 and then nothing"])
def test_a_checkpoint_torn_by_a_power_loss_is_taken_away(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    table = LakeTable(store, checkpoint_every_count=2)
    expected = commit_many(table, 5)
    (tmp_path / LOG / f"{4:020d}.checkpoint.parquet").write_bytes(content)
    assert set(LakeTable(store).files()) == expected


def test_damage_in_the_middle_of_the_log_is_reported_not_mended(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    commit_many(LakeTable(store), 3)
    (tmp_path / LOG / f"{2:020d}.json").write_bytes(b'{"add":{"pa')
    with pytest.raises(LakeDamaged):
        LakeTable(store)
    assert (tmp_path / LOG / f"{2:020d}.json").exists()


def test_what_the_library_leaves_behind_is_listed_as_a_leftover(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    commit_many(LakeTable(store), 1)
    (tmp_path / LOG / f"{2:020d}.json#1").write_bytes(b"half")
    assert f"{LOG}/{2:020d}.json#1" not in [found.key for found in store.list()]
    assert [found.key for found in store.leftovers()] == [f"{LOG}/{2:020d}.json#1"]
    store.delete(f"{LOG}/{2:020d}.json#1")
    assert list(store.leftovers()) == []


# ---- refused ------------------------------------------------------------------------------------------------------


def test_a_table_with_other_columns_is_refused_by_name(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), pa.schema([("bucket", pa.string()), ("payload", pa.string())]))
    with pytest.raises(StoreRefused, match=r"not a lake.*stream.*payload"):
        LakeTable(LocalStore(tmp_path))


def test_a_partitioned_table_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA, partition_by=["bucket"])
    with pytest.raises(StoreRefused, match="partitioned"):
        LakeTable(LocalStore(tmp_path))


def test_a_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(StoreRefused, match="deletionVectors"):
        LakeTable(LocalStore(tmp_path))


def test_a_file_where_the_lake_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreRefused, match="file is not a directory"):
        LakeTable(LocalStore(tmp_path / "file"))
