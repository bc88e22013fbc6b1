"""gc, the table and `verify` after swaps of files: what was swapped out goes in time, what was swapped in stays, and a
table that a crash left behind is made to follow the catalog."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.lake.info import read_table
from headwater.lake.layout import SCHEMA
from headwater.lake.sorted_writer import write_sorted
from headwater.lake.verify import verify
from headwater.lake.writer import SORTED_BY
from headwater.model.extents import Extent, packed
from headwater.ports import FilesSwapped, Writer
from tests.catalog import change
from tests.cli.lake import GRACE_MS, Farm


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path)


def rewritten(farm: Farm, files: list[str]) -> str:
    """A new object with all rows of the files; nothing refers to it yet."""
    rows = pa.concat_tables([pq.read_table(pa.BufferReader(farm.store.get(file))) for file in files]).cast(SCHEMA)
    written = write_sorted(rows.sort_by([(name, "ascending") for name in SORTED_BY]).to_batches(), 0, "new")
    assert written is not None
    farm.store.put(written.file.path, written.data)
    return written.file.path


def swap(farm: Farm, old: dict[str, list[Extent]], new: str, table: bool = True) -> list[Extent]:
    """As a node swaps; without `table` it dies before that."""
    found = farm.lake.relocation(list(old), [new], Writer(0), lambda: None).match(old)
    extents = list(found.extents())
    farm.catalog.write(change(swaps=[FilesSwapped(list(old), [new], [packed(extents)], farm.clock.now_ms())]))
    if table:
        farm.lake.relocate(list(old), found, Writer(0))
        farm.catalog.table_followed()
    return extents


class Known:
    """The catalog as `verify` reads it, without a log on top."""

    def __init__(self, farm: Farm) -> None:
        self.streams, self.extents = farm.lake_files.streams, farm.lake_files.extents
        self.extents_in, self.files = farm.lake_files.extents_in, farm.lake_files.files


def findings(farm: Farm) -> list[tuple[str, str]]:
    found = read_table(farm.store)
    report = verify(farm.store, {} if found is None else found[1], Known(farm), True, lambda *_: None)
    return sorted((one.kind, one.subject) for one in report.findings)


def test_new_files_wait_for_their_swap_as_long_as_the_grace_period(farm: Farm) -> None:
    old, _ = farm.settle(1)
    new = rewritten(farm, [old])
    farm.sweep()
    assert farm.in_store() == {old, new}, "it may be swapped in any moment"
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep().orphans_deleted == 1
    assert farm.in_store() == {old} == farm.in_table()


def test_what_was_swapped_out_goes_when_its_grace_period_is_over_and_the_rest_stays(farm: Farm) -> None:
    (a, in_a), (b, in_b), (kept, _) = farm.settle(1), farm.settle(2), farm.settle(3)
    new = rewritten(farm, [a, b])
    extents = swap(farm, {a: in_a, b: in_b}, new)
    assert farm.in_table() == {new, kept} and findings(farm) == []
    farm.sweep()
    assert farm.in_store() == {a, b, new, kept}, "whoever planned before still reads them"
    farm.clock.ms += GRACE_MS + 60_000
    assert farm.sweep().files_deleted == 2
    assert farm.in_store() == {new, kept} == farm.in_table() and set(farm.lake_files.files()) == {new, kept}
    assert farm.lake.read(extents[0], 0, 10).payloads and findings(farm) == []


def test_a_table_that_a_crash_left_behind_is_found_and_made_to_follow(farm: Farm) -> None:
    (a, in_a), (b, in_b) = farm.settle(1), farm.settle(2)
    new = rewritten(farm, [a, b])
    swap(farm, {a: in_a, b: in_b}, new, table=False)
    assert findings(farm) == sorted([("table", a), ("table", b), ("table", new)])
    assert farm.lake_files.table_behind()
    assert farm.lake.reconcile(farm.catalog.alive(), set(), Writer(0)) == 3
    assert farm.in_table() == {new} and findings(farm) == []
    info = farm.lake.files()[new]
    assert (info.row_count, info.group, info.position_min) == (20, 0, 1_000)
    version = farm.lake._opened().version
    assert farm.lake.reconcile(farm.catalog.alive(), set(), Writer(0)) == 0 and farm.lake._opened().version == version


def test_following_the_catalog_takes_no_notice_of_objects_that_are_gone_or_unused(farm: Farm) -> None:
    (a, in_a), (b, _) = farm.settle(1), farm.settle(2)
    farm.lake._opened().commit([], [a, b], 1)
    farm.delete(2)
    farm.store.delete(a)
    assert farm.lake.reconcile(farm.catalog.alive(), set(), Writer(0)) == 0
    assert farm.in_table() == set()
    assert in_a


def test_a_file_that_only_the_log_speaks_of_stays_in_the_table(farm: Farm) -> None:
    logged, _ = farm.settle(1, checkpointed=False)
    stray, _ = farm.settle(2, checkpointed=False)
    assert farm.lake.reconcile(farm.catalog.alive(), {logged}, Writer(0)) == 1
    assert farm.in_table() == {logged} and stray in farm.in_store()


def test_extents_with_another_position_than_their_rows_are_found(farm: Farm) -> None:
    file, extents = farm.settle(1)
    first = extents[0]
    fields = [getattr(first, name) for name in first.__struct_fields__]
    assert first.position == 1_000 + 40 * 9
    farm.lake_files._db.execute("delete from extents")
    farm.lake_files._db.commit()
    farm.catalog.write(change(extents=[Extent(*fields[:-1], first.position + 1)], files=[file]))
    assert findings(farm) == [("rows", file)]
