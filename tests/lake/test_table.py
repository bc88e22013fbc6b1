"""The Delta table: what is committed is there for every reader, once, whatever the store or another committer does.
Readers that are not ours (deltalake, Polars, plain Parquet) are asked wherever rows matter."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from headwater.lake.delta_log import CommitConflict
from headwater.lake.layout import NewFile
from headwater.lake.local import LocalStore
from headwater.lake.store import ObjectStore, StoreRefused, StoreUnavailable
from headwater.lake.table import LakeTable
from headwater.lake.writer import build
from tests.lake.conftest import s3_store
from tests.lake.rows import in_order, rows_of, some_runs
from tests.support.s3 import READER_KEY, READER_SECRET, S3, Fault, FaultProxy

NOW_MS = 1_794_700_000_000


def fake(name: str, group: int = 0, position: int = 7) -> NewFile:
    """A file that nobody will open."""
    only = f'{{"bucket":"b","stream":"s","incarnation":1,"group":{group},"position":{position}}}'
    known = f'{{"numRecords":1,"minValues":{only},"maxValues":{only},"nullCount":{{}}}}'
    return NewFile(f"data/{group}/{name}.parquet", 10, 1, known)


def stored(store: ObjectStore, token: str, group: int = 3, **shape: int) -> tuple[NewFile, list[dict]]:
    runs = some_runs(**shape)
    built = build(runs, group, token)
    store.put(built.file.path, built.data)
    return built.file, rows_of(runs, group)


def opened(store: ObjectStore, **options: str) -> DeltaTable:
    return DeltaTable(store.uri, storage_options=store.storage_options | options)


def writes_count(store: ObjectStore, s3: S3) -> int:
    """How many commits others see. Asked around the proxy: `history` keeps the GIL, which the proxy needs to answer."""
    return sum(entry["operation"] == "WRITE" for entry in opened(store, aws_endpoint=s3.endpoint).history())


@pytest.fixture(params=["local", "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    if request.param == "local":
        return LakeTable(LocalStore(tmp_path / "lake"))
    return LakeTable(s3_store(request.getfixturevalue("s3").endpoint))


# ---- the contract of a table ------------------------------------------------------------------------------------


def test_committed_files_are_in_the_table_with_what_is_known_of_them(table: LakeTable) -> None:
    assert table.files() == {}
    first = table.commit([fake("a", 2, 50), fake("b", 3, 60)], [], NOW_MS)
    assert table.commit([fake("c")], [], NOW_MS) > first
    files = table.files()
    assert set(files) == {"data/2/a.parquet", "data/3/b.parquet", "data/0/c.parquet"}
    info = files["data/2/a.parquet"]
    assert (info.size_bytes, info.modified_ms, info.row_count) == (10, NOW_MS, 1)
    assert (info.group, info.position_min, info.position_max) == (2, 50, 50)
    assert table.contains(["data/2/a.parquet", "data/2/x.parquet"]) == {"data/2/a.parquet"}
    assert table.contains([]) == set()


def test_files_are_swapped_in_one_commit(table: LakeTable) -> None:
    table.commit([fake("a"), fake("b")], [], NOW_MS)
    table.commit([fake("ab")], ["data/0/a.parquet", "data/0/b.parquet"], NOW_MS, data_change=False)
    assert set(table.files()) == {"data/0/ab.parquet"}


def test_the_same_commit_twice_is_one_commit(table: LakeTable) -> None:
    table.commit([fake("a")], [], NOW_MS)
    version = table.commit([fake("b")], ["data/0/a.parquet"], NOW_MS)
    assert table.commit([fake("b")], ["data/0/a.parquet"], NOW_MS) == version
    assert table.commit([], ["data/0/a.parquet"], NOW_MS) == version
    assert set(table.files()) == {"data/0/b.parquet"}


def test_removing_what_is_gone_is_a_conflict_and_changes_nothing(table: LakeTable) -> None:
    table.commit([fake("a"), fake("b")], [], NOW_MS)
    table.commit([], ["data/0/a.parquet"], NOW_MS)
    with pytest.raises(CommitConflict) as raised:
        table.commit([fake("c")], ["data/0/a.parquet", "data/0/b.parquet"], NOW_MS)
    assert raised.value.paths == ["data/0/a.parquet"]
    assert set(table.files()) == {"data/0/b.parquet"}


# ---- other readers ----------------------------------------------------------------------------------------------


def test_other_readers_return_exactly_the_rows(lasting_store: ObjectStore) -> None:
    store = lasting_store
    table = LakeTable(store)
    expected = []
    for number in range(3):
        file, rows = stored(store, f"t{number}", records=10 + number, position=10_000 * number, first=5 * number)
        table.commit([file], [], NOW_MS)
        expected += rows
    expected = in_order(expected)

    delta = opened(store)
    assert in_order(pa.table(delta.to_pyarrow_table()).to_pylist()) == expected
    access = {name: value for name, value in store.storage_options.items() if name.startswith("aws_")}
    assert in_order(polars.scan_delta(store.uri, storage_options=access or None).collect().to_dicts()) == expected
    if isinstance(store, LocalStore):
        plain = ds.dataset([f"{store.uri}/{path}" for path in table.files()], format="parquet").to_table()
        assert in_order(plain.to_pylist()) == expected
        pruned = polars.scan_delta(store.uri).filter(polars.col("stream") == "stream/2").collect().to_dicts()
        assert in_order(pruned) == [row for row in expected if row["stream"] == "stream/2"]
    assert delta.protocol().min_reader_version == 1
    assert not delta.protocol().reader_features
    assert delta.metadata().configuration["delta.enableDeletionVectors"] == "false"


def test_rows_of_removed_files_are_gone_for_other_readers(lasting_store: ObjectStore) -> None:
    table = LakeTable(lasting_store)
    old, _ = stored(lasting_store, "old", streams=2)
    kept, rows = stored(lasting_store, "kept", streams=3, position=5_000, first=2)
    table.commit([old, kept], [], NOW_MS)
    table.commit([], [old.path], NOW_MS)
    assert in_order(pa.table(opened(lasting_store).to_pyarrow_table()).to_pylist()) == rows


# ---- several committers -----------------------------------------------------------------------------------------


def test_three_concurrent_committers_lose_nothing(lasting_store: ObjectStore) -> None:
    tables = [LakeTable(lasting_store, checkpoint_every_count=4) for _ in range(3)]
    count = 6

    def work(number: int) -> list[int]:
        return [tables[number].commit([fake(f"{number}-{turn}")], [], NOW_MS) for turn in range(count)]

    with ThreadPoolExecutor(3) as pool:
        versions = [version for some in pool.map(work, range(3)) for version in some]
    expected = {f"data/0/{number}-{turn}.parquet" for number in range(3) for turn in range(count)}
    assert len(set(versions)) == 3 * count, "two commits were told the same version"
    for table in tables:
        assert set(table.files()) == expected
    history = opened(lasting_store).history()
    assert sum(entry["operation"] == "WRITE" for entry in history) == 3 * count, "a commit was made twice"


def test_of_two_compactions_of_one_file_the_second_is_told(lasting_store: ObjectStore) -> None:
    ours, theirs = LakeTable(lasting_store), LakeTable(lasting_store)
    ours.commit([fake("small")], [], NOW_MS)
    gate = threading.Barrier(2)

    def swap(table: LakeTable, name: str) -> bool:
        gate.wait()
        try:
            table.commit([fake(name)], ["data/0/small.parquet"], NOW_MS, data_change=False)
        except CommitConflict:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(swap, (ours, theirs), ("one", "two")))
    assert sorted(won) == [False, True]
    assert set(ours.files()) == {f"data/0/{'one' if won[0] else 'two'}.parquet"}


def test_an_append_goes_through_beside_a_compaction_by_another_writer(lasting_store: ObjectStore) -> None:
    ours, theirs = LakeTable(lasting_store), LakeTable(lasting_store)
    ours.commit([fake("small")], [], NOW_MS)
    theirs.commit([fake("large")], ["data/0/small.parquet"], NOW_MS, data_change=False)
    ours.commit([fake("new")], [], NOW_MS)
    assert set(theirs.files()) == {"data/0/large.parquet", "data/0/new.parquet"}


def test_many_tables_opened_at_once_create_one(lasting_store: ObjectStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: LakeTable(lasting_store), range(4)))
    tables[0].commit([fake("a")], [], NOW_MS)
    assert all(set(table.files()) == {"data/0/a.parquet"} for table in tables)


# ---- answers that get lost --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, None], ids=["500", "503", "cut"])
@pytest.mark.parametrize("removes", [[], ["data/0/old.parquet"]], ids=["adds", "swap"])
def test_a_commit_whose_answer_was_lost_is_made_exactly_once(
    proxy: FaultProxy, s3: S3, status: int | None, removes: list[str]
) -> None:
    store = s3_store(proxy.endpoint)
    table = LakeTable(store)
    table.commit([fake("old")], [], NOW_MS)
    proxy.faults.append(Fault("PUT", "_delta_log/", status=status, after_forwarding=True))
    table.commit([fake("new")], removes, NOW_MS)
    assert proxy.faults[0].times == 0, "the fault was never met"
    assert set(table.files()) == {"data/0/new.parquet", *(() if removes else ("data/0/old.parquet",))}
    assert writes_count(store, s3) == 2


def test_a_failure_right_after_the_commit_was_stored_is_no_failure(proxy: FaultProxy, s3: S3) -> None:
    store = s3_store(proxy.endpoint)
    table = LakeTable(store)
    proxy.faults.append(Fault("GET", "00000000000000000001.json", times=2))
    assert table.commit([fake("new")], [], NOW_MS) == 1
    assert proxy.faults[0].times == 0
    assert set(table.files()) == {"data/0/new.parquet"}
    assert writes_count(store, s3) == 1


def test_an_outage_is_reported_and_the_commit_can_be_repeated_when_it_is_over(proxy: FaultProxy, s3: S3) -> None:
    store = s3_store(proxy.endpoint)
    table = LakeTable(store, sleep=lambda seconds: None)
    outage = Fault("PUT", "_delta_log/", times=100, after_forwarding=True)
    proxy.faults.append(outage)
    proxy.faults.append(blind := Fault("GET", "/lake", times=100))
    with pytest.raises(StoreUnavailable):
        table.commit([fake("new")], [], NOW_MS)
    outage.times = blind.times = 0
    table.commit([fake("new")], [], NOW_MS)
    assert set(table.files()) == {"data/0/new.parquet"}
    assert writes_count(store, s3) == 1


def test_credentials_that_may_only_read_are_refused_at_the_first_commit(s3: S3) -> None:
    LakeTable(s3_store(s3.endpoint, "read-only-table"))
    reader = s3_store(s3.endpoint, "read-only-table", access_key_id=READER_KEY, secret_access_key=READER_SECRET)
    with pytest.raises(StoreRefused, match="s3:PutObject"):
        LakeTable(reader).commit([fake("a")], [], NOW_MS)


def test_a_store_that_is_away_is_unavailable_not_refused() -> None:
    with pytest.raises(StoreUnavailable):
        LakeTable(s3_store("http://127.0.0.1:1"), sleep=lambda seconds: None)
