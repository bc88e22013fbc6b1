"""Earlier versions of the table: each is found by its moment and by its positions, for as long as its files are there;
nothing from before an erasure is. What the log tells is held against Delta's own reading of each version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.lake import table as table_module
from headwater.lake.layout import NewFile
from headwater.lake.past import Past, missing_files, read_past
from headwater.lake.store import ObjectMissing, ObjectStore
from headwater.lake.table import LakeTable

NOW_MS = 1_700_000_000_000


def path(group: int, position: int, token: str = "a") -> str:
    return f"data/{group}/{position:020d}-{token}.parquet"


def file(group: int, position: int, token: str = "a") -> NewFile:
    return NewFile(path(group, position, token), 10, 1, '{"numRecords": 1}')


def grown(store: ObjectStore) -> LakeTable:
    """Versions 1 to 5: three flushes of group 0, one of group 1, and a swap."""
    table = LakeTable(store, checkpoint_every_count=1_000)
    table.commit([file(0, 10)], [], NOW_MS)
    table.commit([file(0, 20)], [], NOW_MS)
    table.commit([file(1, 7)], [], NOW_MS)
    table.commit([file(0, 20, "swapped")], [path(0, 10), path(0, 20)], NOW_MS, data_change=False)
    table.commit([file(0, 30)], [], NOW_MS)
    return table


def listed(store: ObjectStore, version: int) -> set[str]:
    table = DeltaTable(store.uri, version=version, storage_options=store.storage_options or None)
    return set(table.get_add_actions().column("path").to_pylist()) if version else set()


def assert_as_delta_reads_it(store: ObjectStore, past: Past) -> None:
    for at, commit in enumerate(past.commits):
        assert past.files_at(at) == listed(store, commit.version)


def test_each_version_is_found_by_its_moment_and_its_positions(lasting_store: ObjectStore) -> None:
    grown(lasting_store)
    past = read_past(lasting_store)
    assert [commit.version for commit in past.commits] == [0, 1, 2, 3, 4, 5]
    assert_as_delta_reads_it(lasting_store, past)
    times = [commit.at_ms for commit in past.commits]
    assert times == sorted(times)
    assert past.at_moment(times[0] - 1) is None
    for at_ms in times:
        assert past.at_moment(at_ms) == max(at for at, ms in enumerate(times) if ms == at_ms)
    assert [past.at_positions({0: position, 1: 7}) for position in (9, 10, 19, 20, 29, 30, 99)] == [0, 1, 1, 4, 4, 5, 5]
    assert past.at_positions({0: 99, 1: 6}) == 2
    assert past.positions_at(4) == {0: 20, 1: 7}


def test_a_file_that_is_gone_ends_the_past_of_versions_that_list_it(lasting_store: ObjectStore) -> None:
    grown(lasting_store)
    past = read_past(lasting_store)
    lasting_store.put(path(0, 10), b"still there")
    assert past.removed_after(0) == {path(0, 10), path(0, 20)}
    assert past.removed_after(4) == set()
    gone = missing_files(lasting_store, past.removed_after(0))
    assert gone == {path(0, 20)}
    assert past.kept_from(gone) == 4
    assert past.kept_from(set()) == 0


def test_what_the_log_was_cut_of_is_no_past_any_more(lasting_store: ObjectStore) -> None:
    table = grown(lasting_store)
    table.tidy()
    table.commit([file(1, 9)], [], NOW_MS)
    table.cut_log(4)
    past = read_past(lasting_store)
    # A version without its own commit has no known moment, and one before the checkpoint cannot be put together.
    assert past.commits[-1].version == 6 and past.commits[0].version >= 5
    assert_as_delta_reads_it(lasting_store, past)
    assert past.at_positions({0: 10, 1: 7}) is None


def test_nothing_before_an_erasure_can_be_read_whoever_looks(lasting_store: ObjectStore) -> None:
    table = grown(lasting_store)
    assert table.end_past() == 6
    table.commit([file(0, 40)], [], NOW_MS)
    past = read_past(lasting_store)
    assert [commit.version for commit in past.commits] == [6, 7]
    assert_as_delta_reads_it(lasting_store, past)
    table.tidy()
    assert table.end_past() == 8
    assert [commit.version for commit in read_past(lasting_store).commits] == [8]


def test_of_two_erasures_at_once_each_has_a_version_of_its_own(
    lasting_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = grown(lasting_store), LakeTable(lasting_store)
    commit, made = table_module.commit_actions, []

    def late(*given: Any, **more: Any) -> None:
        if not made:
            made.append(None)
            made[0] = first.end_past()
        commit(*given, **more)

    monkeypatch.setattr(table_module, "commit_actions", late)
    assert (second.end_past(), made) == (7, [6])
    assert [commit.version for commit in read_past(lasting_store).commits] == [7]


def test_a_clock_that_was_set_back_takes_no_version_out_of_its_place(lasting_store: ObjectStore) -> None:
    grown(lasting_store)
    key = f"_delta_log/{4:020d}.json"
    lines = [json.loads(line) for line in bytes(lasting_store.get(key)).splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = 5
    lasting_store.put(key, "\n".join(map(json.dumps, lines)).encode())
    past = read_past(lasting_store)
    assert past.commits[4].at_ms == past.commits[3].at_ms
    assert past.at_moment(past.commits[3].at_ms) is not None


def test_a_place_without_a_table_has_no_past(lasting_store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing):
        read_past(lasting_store)
