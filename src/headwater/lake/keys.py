"""The keys of a file's rows, without their payloads: what a swap is judged by.

Owns what makes a Parquet file one of the lake's: its columns, its order, its row groups. Never looks at a payload, and
never trusts a writer: whoever stored the file, a reader of it counts on what is checked here.

A million rows take about a second, nearly all of it in Arrow, without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa

from headwater.lake.arrow_file import PyFile, open_parquet
from headwater.lake.layout import PRUNED_BY, SCHEMA, WIDE, NewFile, statistics
from headwater.lake.names import data_prefix
from headwater.lake.store import Data, LakeDamaged, ObjectStore, StoreError, check_key
from headwater.lake.writer import SORTED_BY, in_order

NUMBERS = ("incarnation", "seq", "offset", "ts_ms", "n", "position")
NAMES = ("incarnation", "bucket", "stream", "content_type")
GROUP_ROWS_MAX = 65_536
GROUP_BYTES_MAX = (1 << 31) - 1
"""A cold read decodes a whole row group, with offsets of 32 bits."""
_BATCH_ROWS = 131_072

Check = Callable[[], None]
"""Called now and then; whatever it raises ends the reading."""


class NotLake(Exception):
    """A stored object is not a file of the lake. `what` says why, for whoever made it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is not a file of this lake: {what}")


class Keys(msgspec.Struct, frozen=True):
    """One file's rows, in its order."""

    path: str
    numbers: pa.Table
    """A row for each: NUMBERS."""
    names: pa.Table
    """NAMES of each incarnation, in no order."""
    starts: list[int]
    """Which row each row group begins with, and after the last one the number of rows."""
    file: NewFile


def is_data_path(path: str, group: int) -> bool:
    try:
        check_key(path)
    except ValueError:
        return False
    return path.startswith(data_prefix(group)) and path.endswith(".parquet")


def described(store: ObjectStore, path: str) -> NewFile:
    """What a commit says of a stored file, by its footer. Raises NotLake, StoreError."""
    with _Opened(store, path) as opened:
        return opened.described()


def row_count(store: ObjectStore, path: str) -> int:
    """Raises NotLake, StoreError."""
    with _Opened(store, path) as opened:
        return opened.rows


def read_keys(store: ObjectStore, path: str, group: int, check: Check) -> Keys:
    """Reads the keys of all rows, and holds the file against what readers count on. Raises NotLake, StoreError."""
    with _Opened(store, path) as opened:
        opened.require(group)
        numbers: list[pa.Table] = []
        names: list[pa.Table] = []
        last: pa.Table | None = None
        for groups in opened.batches():
            check()
            some = opened.read(groups, [*NUMBERS, "bucket", "stream", "content_type"])
            if any(some[name].null_count for name in some.column_names):
                raise NotLake(path, "a row lacks a value that every record has")
            if not in_order(some if last is None else pa.concat_tables([last, some])):
                raise NotLake(path, f"its rows are not sorted by {', '.join(SORTED_BY)}, or one is there twice")
            last = some.slice(len(some) - 1)
            names.append(some.select(NAMES).group_by(list(NAMES)).aggregate([]))
            numbers.append(some.select(NUMBERS))
        known = pa.concat_tables(names).group_by(list(NAMES)).aggregate([]).select(NAMES)
        return Keys(path, pa.concat_tables(numbers).combine_chunks(), known, opened.starts, opened.described())


class _Opened:
    """A file's footer, and a way to its columns."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        size = store.head(path)
        if size is None:
            raise NotLake(path, "there is no such object")
        self._path = path
        self._size = size
        self._source = _Source(store, path, size)
        try:
            self._file = open_parquet(self._source)
        except (pa.ArrowException, OSError, StoreError) as error:
            raise self._meaning(error) from error
        footer = self._file.metadata
        counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        self.rows = int(footer.num_rows)
        self.starts = list(accumulate(counts, initial=0))
        self.wide = len(self._file.schema_arrow.names) > len(SCHEMA)
        """It has, if it is a file of the lake, the columns that were added."""

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def require(self, group: int) -> None:
        """Columns, row groups and statistics are those of a file of the lake."""
        found = self._file.schema_arrow
        shape = WIDE if self.wide else SCHEMA
        if found.names != shape.names:
            raise NotLake(self._path, f"its columns are {', '.join(found.names)}")
        for field in shape:
            other = found.field(field.name)
            if other.type != field.type or (other.nullable and not field.nullable):
                raise NotLake(self._path, f"its column {field.name} is {other}, not {field}")
        footer = self._file.metadata
        if not self.rows:
            raise NotLake(self._path, "it has no rows")
        payload = SCHEMA.get_field_index("payload")
        for number in range(footer.num_row_groups):
            one = footer.row_group(number)
            if not 0 < one.num_rows <= GROUP_ROWS_MAX:
                why = f"row group {number} has {one.num_rows} rows; readers take 1 to {GROUP_ROWS_MAX}"
                raise NotLake(self._path, why)
            if one.column(payload).total_uncompressed_size > GROUP_BYTES_MAX:
                raise NotLake(self._path, f"row group {number} holds more than {GROUP_BYTES_MAX} bytes")
        low, high = self._bounds("group")
        if low != group or high != group:
            raise NotLake(self._path, f"its column group is not {group} throughout, or has no statistics")

    def batches(self) -> list[list[int]]:
        """Row groups that are read together."""
        found: list[list[int]] = []
        rows = _BATCH_ROWS
        for number in range(len(self.starts) - 1):
            if rows >= _BATCH_ROWS:
                found.append([])
                rows = 0
            found[-1].append(number)
            rows += self.starts[number + 1] - self.starts[number]
        return found

    def read(self, groups: list[int], columns: list[str]) -> pa.Table:
        try:
            # Neighbouring columns are fetched together, and decoded in this one thread.
            self._source.hold([self._span(number, columns) for number in groups])
            return self._file.read_row_groups(groups, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, StoreError, ValueError) as error:
            raise self._meaning(error) from error

    def _span(self, number: int, columns: list[str]) -> tuple[int, int]:
        """Where the columns lie in the file: start and length of one range around them all."""
        group = self._file.metadata.row_group(number)
        starts, ends = [], []
        for name in columns:
            column = group.column(SCHEMA.get_field_index(name))
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            starts.append(start)
            ends.append(start + column.total_compressed_size)
        return min(starts), max(ends) - min(starts)

    def described(self) -> NewFile:
        bounds = {name: self._bounds(name) for name in PRUNED_BY}
        low = {name: bound[0] for name, bound in bounds.items()}
        high = {name: bound[1] for name, bound in bounds.items()}
        known = statistics(self.rows, low, high, self._nulls("tag"))
        return NewFile(self._path, self._size, self.rows, known, self.wide)

    def _bounds(self, name: str) -> tuple[Any, Any]:
        """The column's least and greatest value by the footer; None where it does not tell, or there is none."""
        low = high = None
        for rows, known in self._statistics(name):
            if known is not None and known.has_null_count and known.null_count == rows:
                continue
            if known is None or not known.has_min_max:
                return None, None
            low = known.min if low is None else min(low, known.min)
            high = known.max if high is None else max(high, known.max)
        return low, high

    def _nulls(self, name: str) -> int | None:
        """How many rows have no value there; None where the footer does not tell."""
        count = 0
        for _, known in self._statistics(name):
            if known is None or not known.has_null_count:
                return None
            count += known.null_count
        return count

    def _statistics(self, name: str) -> Iterator[tuple[int, Any]]:
        """Rows of each row group, and what it says of the column."""
        footer = self._file.metadata
        index = SCHEMA.get_field_index(name)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            yield group.num_rows, group.column(index).statistics

    def _meaning(self, error: Exception) -> Exception:
        """A store that does not answer stays what it is; anything else is about the file."""
        failure = self._source.failure
        if failure is not None:
            return failure
        return NotLake(self._path, str(error).partition("\n")[0])


class _Source(PyFile):
    """An object of the store as the file that Arrow reads from."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        super().__init__(size)
        self._store = store
        self._path = path
        self._held: list[tuple[int, Data]] = []
        self.failure: StoreError | None = None
        """What the store raised, which Arrow would turn into words."""

    def hold(self, ranges: list[tuple[int, int]]) -> None:
        """Fetches ranges (start, length) that are read next, and forgets those held before."""
        self._held = []
        self._held = [(start, self._fetch(start, length)) for start, length in ranges]

    def fetched(self, start: int, length: int) -> Data:
        for held_from, data in self._held:
            if held_from <= start and start + length <= held_from + len(data):
                return data[start - held_from : start - held_from + length]
        return self._fetch(start, length)

    def _fetch(self, start: int, length: int) -> Data:
        if start < 0 or length <= 0 or start + length > self._size:
            raise OSError("its footer points outside the file")
        try:
            return self._store.get_range(self._path, start, length)
        except LakeDamaged:
            raise
        except StoreError as error:
            self.failure = error
            raise OSError(error.reason) from error
