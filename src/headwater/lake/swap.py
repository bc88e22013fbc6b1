"""Whether new files of the lake hold exactly the live rows of old ones, and where in them each stream's records lie.

Owns the judgement of a swap. Never changes anything: catalog and table do, when this has found nothing wrong.

    rows of the old files that live extents name    =    rows of the new files, less those that died meanwhile

Both sides are sorted by incarnation and seq and compared column by column in Arrow: a second or so for a million rows,
120 bytes of memory for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import OwnerChanged, SwapRefused
from headwater.lake.columns import numbers
from headwater.lake.keys import NAMES, NUMBERS, Check, Keys, NotLake, is_data_path, read_keys, row_count
from headwater.lake.layout import NewFile
from headwater.lake.names import epoch_of
from headwater.lake.store import ObjectMissing, ObjectStore
from headwater.model.extents import Extent
from headwater.ports import Writer

ROWS_MAX = 8_000_000
"""Of the old files of one swap, and of the new ones."""
_ORDER = [("incarnation", "ascending"), ("seq", "ascending")]
_PLACE = ["incarnation", "seq"]


class Matched:
    """The new files hold what they should. `extents` says where, in the order of incarnations and offsets."""

    def __init__(self, rows: pa.Table, new: Sequence[Keys], dropped_rows: int) -> None:
        self._rows = rows
        self._places = [(keys.path, number) for keys in new for number in range(len(keys.starts) - 1)]
        """File and row group, by the number that `rows` has for them."""
        self.live_rows = len(rows)
        self.dropped_rows = dropped_rows
        groups = pc.unique(rows["group"]).to_pylist()
        used = {self._places[group][0] for group in groups}
        self.files: list[NewFile] = [keys.file for keys in new if keys.path in used]
        """Those of the new files that hold a live row."""
        self.unused: list[str] = [keys.path for keys in new if keys.path not in used]

    def extents(self) -> Iterator[Extent]:
        rows = self._rows
        firsts, lasts = _runs(rows)
        names = ("incarnation", "offset", "seq", "ts_ms", "n", "group", "row")
        at_firsts = [_view(rows[name].take(firsts)) for name in names]
        at_lasts = [_view(rows[name].take(lasts)) for name in ("end", "position")]
        counts = _view(pc.add(pc.subtract(lasts, firsts), 1))
        for sid, start, seq, ms, n, group, row, end, position, count in zip(*at_firsts, *at_lasts, counts, strict=True):
            path, number = self._places[group]
            yield Extent(sid, start, end, seq, ms, n, path, number, row, count, position)


class Swap:
    """The keys of old and new files, read. `match` may be asked again with other live extents."""

    def __init__(self, old: Sequence[Keys], new: Sequence[Keys]) -> None:
        self._old = old
        self._new = new

    def match(self, live: dict[str, list[Extent]]) -> Matched:
        """`live`: the extents of each old file. Raises SwapRefused, and says what is wrong."""
        alive = _alive(self._old, live)
        found = _numbered(self._new)
        dropped = 0
        if len(found) != len(alive):
            found, dropped = self._without_dead(found, alive)
        self._require_names()
        alive = alive.take(pc.sort_indices(alive, sort_keys=_ORDER))
        found = found.take(pc.sort_indices(found, sort_keys=_ORDER))
        if len(found) != len(alive) or not _same(found, alive, _PLACE):
            _refuse_rows(found, alive)
        for name in NUMBERS:
            if not found[name].equals(alive[name]):
                raise SwapRefused(f"the new files have another {name} for a row than the old ones")
        return Matched(found.append_column("end", alive["end"]), self._new, dropped)

    def _without_dead(self, found: pa.Table, alive: pa.Table) -> tuple[pa.Table, int]:
        """Rows that died since the new files were written do not count; rows that never were are refused."""
        kept = _joined(found, alive, _PLACE, "left semi")
        dead = _joined(found, alive, _PLACE, "left anti")
        if len(dead):
            were = pa.concat_tables([keys.numbers for keys in self._old])
            never = _joined(dead, were, list(NUMBERS), "left anti")
            if len(never):
                raise SwapRefused(f"the new files hold {len(never)} rows that the old ones do not, {_example(never)}")
        return kept, len(dead)

    def _require_names(self) -> None:
        if not self._new:
            return
        known = pa.concat_tables([keys.names for keys in self._old])
        told = pa.concat_tables([keys.names for keys in self._new])
        if len(_joined(told, known, list(NAMES), "left anti")):
            raise SwapRefused("the new files give a stream another name or content type than the old ones")


def read_swap(store: ObjectStore, remove: Sequence[str], add: Sequence[str], writer: Writer, check: Check) -> Swap:
    """Reads the keys of all files; the new ones are as durable as the store can make them. Raises SwapRefused,
    OwnerChanged, StoreError.
    """
    group = writer.group
    for path in add:
        if not is_data_path(path, group):
            raise SwapRefused(f"{path!r} is no place for a file of group {group}: it lies below data/{group}/")
        if epoch_of(path) != writer.epoch:
            # An earlier owner that does not know that it was fenced may be about to remove it.
            raise OwnerChanged(group, epoch_of(path), writer.epoch)
    try:
        for paths in (remove, add):
            rows = sum(row_count(store, path) for path in paths)
            if rows > ROWS_MAX:
                raise SwapRefused(f"{rows} rows are more than {ROWS_MAX} in one swap; swap fewer files at once")
        store.sync(add)
        new = [read_keys(store, path, group, check) for path in add]
        old = [read_keys(store, path, group, check) for path in remove]
    except (NotLake, ObjectMissing) as wrong:
        raise SwapRefused(str(wrong)) from wrong
    return Swap(old, new)


def _alive(old: Sequence[Keys], live: dict[str, list[Extent]]) -> pa.Table:
    """The rows of the old files that extents name, each with the offset it ends at."""
    tables = []
    for keys in old:
        extents = sorted(live.get(keys.path, ()), key=lambda extent: (extent.row_group, extent.row_start))
        if not extents:
            continue
        rows = array("q")
        lasts = array("q")
        ends = array("q")
        sids, seqs, offsets = (_view(keys.numbers[name]) for name in ("incarnation", "seq", "offset"))
        for extent in extents:
            if not _fits(extent, keys.starts):
                raise SwapRefused(f"{keys.path} has fewer rows than the catalog says; run headwater lake verify")
            first = keys.starts[extent.row_group] + extent.row_start
            if (sids[first], seqs[first], offsets[first]) != (extent.sid, extent.seq_start, extent.start):
                raise SwapRefused(f"{keys.path} does not hold what the catalog says; run headwater lake verify")
            rows.extend(range(first, first + extent.row_count))
            lasts.append(len(rows) - 1)
            ends.append(extent.end)
        table = keys.numbers if len(rows) == len(keys.numbers) else keys.numbers.take(_column(rows))
        tables.append(table.append_column("end", _ends(table["offset"], lasts, ends)))
    return pa.concat_tables(tables).combine_chunks() if tables else _nothing("end")


def _fits(extent: Extent, starts: list[int]) -> bool:
    if not 0 <= extent.row_group < len(starts) - 1:
        return False
    rows = starts[extent.row_group + 1] - starts[extent.row_group]
    return extent.row_start >= 0 and extent.row_count > 0 and extent.row_start + extent.row_count <= rows


def _ends(offsets: pa.ChunkedArray, lasts: array[int], ends: array[int]) -> pa.Array:
    """Where each row ends: where the next one of its extent begins, or the extent does."""
    begins = offsets.combine_chunks()
    following = pa.concat_arrays([begins.slice(1), _column(array("q", (0,)))])
    mark = bytearray(len(begins))
    for last in lasts:
        mark[last] = 1
    is_last = pa.Array.from_buffers(pa.uint8(), len(mark), [None, pa.py_buffer(mark)]).cast(pa.bool_())
    return pc.replace_with_mask(following, is_last, _column(ends))


def _numbered(new: Sequence[Keys]) -> pa.Table:
    """All rows of the new files, each with the number of its row group among all of theirs, and its own in that."""
    tables = []
    number = 0
    for keys in new:
        groups, rows = array("q"), array("q")
        for first, end in pairwise(keys.starts):
            groups += array("q", (number,)) * (end - first)
            rows.extend(range(end - first))
            number += 1
        table = keys.numbers.append_column("group", _column(groups))
        tables.append(table.append_column("row", _column(rows)))
    return pa.concat_tables(tables).combine_chunks() if tables else _nothing("group", "row")


def _runs(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """The first and the last row of each run: neighbours in their stream and in their row group."""
    begins = pc.or_(_steps(rows["incarnation"], 0), _steps(rows["seq"], 1))
    begins = pc.or_(begins, pc.or_(_steps(rows["group"], 0), _steps(rows["row"], 1)))
    firsts = pc.indices_nonzero(begins).cast(pa.int64())
    following = pa.concat_arrays([firsts.slice(1), _column(array("q", (len(rows),)))])
    return firsts, pc.subtract(following.slice(0, len(firsts)), 1)


def _steps(column: pa.ChunkedArray, by: int) -> pa.Array:
    """True where a value is not that much more than the one before it; True for the first."""
    values = column.combine_chunks()
    differs = pc.not_equal(pc.subtract(values.slice(1), values.slice(0, max(0, len(values) - 1))), by)
    return pa.concat_arrays([pa.array([True] * min(1, len(values)), pa.bool_()), differs])


def _joined(rows: pa.Table, others: pa.Table, keys: list[str], kind: str) -> pa.Table:
    return rows.join(others.select(keys), keys, join_type=kind, use_threads=False)


def _same(rows: pa.Table, others: pa.Table, names: list[str]) -> bool:
    return all(rows[name].equals(others[name]) for name in names)


def _refuse_rows(found: pa.Table, alive: pa.Table) -> None:
    missing = _joined(alive, found, _PLACE, "left anti")
    if len(missing):
        raise SwapRefused(f"the new files lack {len(missing)} live rows of the old ones, {_example(missing)}")
    raise SwapRefused(f"the new files hold {len(found) - len(alive)} rows twice")


def _example(rows: pa.Table) -> str:
    first = rows.select(_PLACE).slice(0, 1).to_pylist()[0]
    return f"such as record {first['seq']} of incarnation {first['incarnation']}"


def _nothing(*more: str) -> pa.Table:
    names = [*NUMBERS, *more]
    return pa.table({name: pa.array([], pa.int64()) for name in names})


def _column(values: array[int]) -> pa.Array:
    return numbers(pa.int64(), values)


def _view(values: pa.Array | pa.ChunkedArray) -> memoryview:
    flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not len(flat):
        return memoryview(b"").cast("q")
    return memoryview(flat.buffers()[1]).cast("B").cast("q")[flat.offset : flat.offset + len(flat)]
