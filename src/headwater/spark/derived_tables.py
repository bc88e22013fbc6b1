"""Derived tables: Delta tables whose rows come from streams, each batch of them committed exactly once.

Owns a table's creation, its columns and its files; `lake/delta_log` commits. Never writes rows (executors do,
`table_parts`), and never commits a batch twice: the number of the newest one stands in the same commit as its rows.

    day=2025-06-01/bucket=runs/part-<random>.parquet   rows
    _delta_log/                                        the Delta table over them
    _headwater/owner.json                              who derives it: the application whose batches are numbered
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from headwater.lake.delta_log import LOG, CommitConflict, DeltaLog, commit_actions, meaning
from headwater.lake.store import ObjectMissing, StoreUnavailable
from headwater.spark.job_runs import JobRefused
from headwater.spark.lake_place import Place
from headwater.spark.same_versions import for_executors
from headwater.spark.table_parts import Output, Part, write_parts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

T = TypeVar("T")

OWNER = "_headwater/owner.json"
SMALL_BYTES = 16 << 20
SMALL_COUNT_MAX = 24
"""So many small files of one partition are worth one large one."""
DEAD_KEPT_HOURS = 168
"""How long a reader may go on with files that are no longer in the table."""

_NOT_ASCII = re.compile("%[89A-F]")


class Snapshot(NamedTuple):
    version: int
    paths: list[str]


class Added(NamedTuple):
    """What happened to a table since an older version."""

    version: int
    paths: list[str]
    partitions: list[dict[str, str | None]]
    """Of each path."""


class DerivedTable:
    """One table at a place. Thread-safe it is not; several processes may commit to it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._store = place.store()
        self._log = DeltaLog(self._store)

    # ---- looking --------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """Where it is, the same wherever it is asked from."""
        return self._store.uri

    def exists(self) -> bool:
        return self._open() is not None

    @property
    def version(self) -> int:
        return self._opened().version()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._opened().schema())

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self._opened().metadata().partition_columns)

    def done(self, app: str) -> int | None:
        """The newest batch of that application that is in the table."""
        table = self._open()
        return None if table is None else table.transaction_version(app)

    def files(self) -> pa.Table:
        """Every file: path, size_bytes, num_records, partition.<column>."""
        listed = pa.table(self._opened().get_add_actions(flatten=True))
        paths = [unquote(path) for path in listed["path"].to_pylist()]
        return listed.set_column(listed.column_names.index("path"), "path", pa.array(paths, pa.string()))

    def newest_since(self, moment: str, rows_count: int) -> datetime | None:
        """A moment, of the column `moment`, from which on the table has so many rows; None when that is not known."""
        files = self.files()
        names = [f"{end}.{moment}" for end in ("max", "min")]
        if not set(names) <= set(files.column_names):
            return None
        newest = files.filter(files[names[0]].is_valid()).sort_by([(names[0], "descending")])
        count = 0
        since: datetime | None = None
        for first, rows in zip(newest[names[1]].to_pylist(), newest["num_records"].to_pylist(), strict=True):
            since = first if since is None else min(since, first)
            count += rows
            if count >= rows_count:
                return since
        return None

    @property
    def id(self) -> str:
        """Another one for a table that was deleted and made again."""
        return str(self._opened().metadata().id)

    def snapshot(self) -> Snapshot:
        """The newest version and its files, whatever is committed meanwhile."""
        table = self._opened()
        paths = pa.table(table.get_add_actions())["path"].to_pylist()
        return Snapshot(table.version(), [unquote(path) for path in paths])

    def added_since(self, version: int, until: int | None = None) -> Added | None:
        """The files that later versions brought; None when that cannot be told, or rows were taken away as well."""
        newest = self.version if until is None else until
        paths: list[str] = []
        partitions: list[dict[str, str | None]] = []
        for number in range(version + 1, newest + 1):
            try:
                commit = self._store.get(f"{LOG}/{number:020d}.json")
            except ObjectMissing:
                return None
            for line in commit.splitlines():
                action = json.loads(line)
                if action.get("remove", {}).get("dataChange"):
                    return None
                if action.get("add", {}).get("dataChange"):
                    paths.append(unquote(action["add"]["path"]))
                    partitions.append(action["add"]["partitionValues"])
        return Added(newest, paths, partitions)

    # ---- whose it is ----------------------------------------------------------------------------------------------

    def owner(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._store.get(OWNER))
        except ObjectMissing:
            return None
        return found

    def own(self, owner: dict[str, Any]) -> None:
        self._store.put(OWNER, json.dumps(owner).encode())

    # ---- columns --------------------------------------------------------------------------------------------------

    def ensure(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """The table is there and has these columns: made if need be, new columns added at the end (null in old rows).

        Raises JobRefused when it has a column of another type, or another partitioning. Columns that only the table
        has stay, null from now on.
        """
        table = self._open()
        if table is None:
            self._create(schema, partition_by)
            return
        self._check_partitions(partition_by)
        found = {field.name.lower(): field for field in self.schema}
        changed = [
            f"{field.name} is {found[field.name.lower()].type}, not {field.type}"
            for field in schema
            if field.name.lower() in found and found[field.name.lower()].type != field.type
        ]
        if changed:
            raise JobRefused(
                f"the table at {self.place.url} has columns of other types: {'; '.join(changed)}",
                "give the changed column a new name, or start the table anew with --overwrite",
            )
        if any(field.name.lower() not in found for field in schema):
            self._change(lambda table: _add_columns(table, schema))

    def _check_partitions(self, by: Sequence[str]) -> None:
        if self.partition_by != tuple(by):
            shown = [", ".join(names) or "nothing" for names in (self.partition_by, by)]
            raise JobRefused(
                f"the table at {self.place.url} is partitioned by {shown[0]}, not by {shown[1]}", "name another place"
            )

    # ---- committing -----------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[Part], app: str, batch: int) -> bool:
        """Adds the parts; False when this batch, or a newer one of the application, is in the table already."""
        if not parts:
            return False
        return self._commit(parts, (), app, batch, self.schema)

    def replace(self, parts: Sequence[Part], app: str, batch: int, schema: pa.Schema, by: Sequence[str] = ()) -> bool:
        """All rows go, and these come, in one step; the columns become those of `schema`. False as with `append`."""
        if not self.exists():
            self._create(schema, by)
        self._check_partitions(by)
        return self._commit(parts, None, app, batch, schema)

    def replace_days(self, parts: Sequence[Part], days: Iterable[str], app: str, batch: int) -> bool:
        """All rows of those days go, and these come, in one step. False as with `append`."""
        files, wanted = self.files(), set(days)
        listed = files["partition.day"].cast(pa.string()).to_pylist()
        gone = [path for path, day in zip(files["path"].to_pylist(), listed, strict=True) if day in wanted]
        return self._commit(parts, gone, app, batch, self.schema)

    def rewrite(self, parts: Sequence[Part], gone: Sequence[str]) -> None:
        """The same rows in other files. Raises StoreUnavailable when others changed those files meanwhile."""
        self._commit(parts, gone, None, 0, self.schema)

    def _commit(
        self, parts: Sequence[Part], gone: Sequence[str] | None, app: str | None, batch: int, schema: pa.Schema
    ) -> bool:
        """`gone` None: everything. Without an application the rows are the same ones as before."""
        now_ms = time.time_ns() // 1_000_000
        new = app is not None
        adds = [AddAction(one.path, one.size_bytes, one.partition, now_ms, new, one.statistics) for one in parts]

        def act(table: DeltaTable) -> bool:
            done = None if app is None else table.transaction_version(app)
            if done is not None and done >= batch:
                return False
            commit_actions(
                table,
                [*adds, *self._removes(table, gone or (), now_ms, new)],
                DeltaSchema.from_arrow(schema),
                mode="overwrite" if gone is None else "append",
                transaction=None if app is None else Transaction(app, batch, now_ms),
            )
            return True

        try:
            return self._change(act)
        except CommitConflict as conflict:
            raise StoreUnavailable(
                f"{self.place.url}: {len(conflict.paths)} files have left the table meanwhile; run it again"
            ) from conflict

    def _removes(self, table: DeltaTable, gone: Sequence[str], now_ms: int, data_change: bool) -> list[RemoveAction]:
        if not gone:
            return []
        listed = pa.table(table.get_add_actions(flatten=False))
        known = {
            unquote(path): (size, {name: _text(value) for name, value in (partition or {}).items()})
            for path, size, partition in zip(
                listed["path"].to_pylist(),
                listed["size_bytes"].to_pylist(),
                listed["partition"].to_pylist() if "partition" in listed.column_names else [None] * len(listed),
                strict=True,
            )
        }
        missing = [path for path in gone if path not in known]
        if missing:
            raise CommitConflict(missing)
        return [RemoveAction(path, data_change, now_ms, *known[path]) for path in gone]

    def _change(self, act: Callable[[DeltaTable], T]) -> T:
        self._opened()
        return self._log.change(act, look_first=False)

    # ---- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> DeltaTable | None:
        try:
            return self._log.table if self._log.open() else None
        except (DeltaError, OSError) as error:
            raise meaning(self._store, error) from error

    def _opened(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise JobRefused(f"there is no table at {self.place.url}", "derive it first, or name another place")
        return table

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        try:
            self._log.create(
                schema,
                partition_by=list(partition_by) or None,
                description="Derived from streams by headwater.",
                configuration={"delta.enableDeletionVectors": "false"},
            )
        except (DeltaError, OSError) as error:
            raise meaning(self._store, error) from error

    def vacuum(self) -> int:
        """Deletes files that left the table long ago, and parts that never came into it; returns how many."""
        try:
            return len(self._opened().vacuum(retention_hours=DEAD_KEPT_HOURS, dry_run=False, full=True))
        except (DeltaError, OSError) as error:
            raise meaning(self._store, error) from error


# ---- with Spark ------------------------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a frame as a table stores them. Raises JobRefused for one that no Delta table can hold."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        fields = [pa.field(field.name, _loose(field.type)) for field in to_arrow_schema(schema, timezone="UTC")]
        # There and back: the library has its own names for what is inside lists and maps.
        found = pa.schema(DeltaSchema.from_arrow(pa.schema(fields)))
    except Exception as error:  # each library has its own for a type it does not know
        raise JobRefused(f"a column cannot be stored in a table ({error})", "cast it to another type") from error
    names = [name.lower() for name in found.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise JobRefused(f"columns that differ in case alone: {', '.join(twice)}", "name each one in its own way")
    return found


def _loose(kind: pa.DataType) -> pa.DataType:
    """The same type with nothing required in it: what one batch always has may be missing in the next."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _loose(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_loose(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_loose(kind.key_type), _loose(kind.item_type))
    return kind


def read(spark: SparkSession, table: DerivedTable, paths: Sequence[str] | None = None) -> DataFrame:
    """The rows of the newest version, or of some files: natively where Spark reaches them, else through Arrow."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = table.schema
    wanted = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if paths is None:
        paths = table.snapshot().paths
    if not paths:
        return spark.createDataFrame([], wanted)
    if table.place.is_local:
        store = table.place.store()
        frame = (
            spark.read.schema(wanted).option("basePath", store.uri).parquet(*(f"{store.uri}/{path}" for path in paths))
        )
        # Spark puts the columns of folders last, and takes each escaped byte of their values for a character.
        bent = set(table.partition_by) if any(_NOT_ASCII.search(path) for path in paths) else set()
        return frame.select(*[_straight(field) if field.name in bent else F.col(f"`{field.name}`") for field in wanted])
    from headwater.spark.executor_tasks import parallelism
    from headwater.spark.table_parts import read_parts

    place = table.place
    stored, by = schema, table.partition_by
    listed = spark.createDataFrame([(path,) for path in paths], "path string")
    count = min(len(paths), parallelism(spark) * 4)
    return listed.repartition(count).mapInArrow(
        for_executors(lambda batches: read_parts(place, stored, by, batches)), wanted
    )


def native_root(place: Place) -> str | None:
    """What paths at a place begin with for Spark's own readers; None when it cannot read there."""
    root = place.store().uri if place.is_local else None
    # Spark takes these for patterns.
    return None if root is None or set(root) & set("*?[]{}\\") else f"file://{root}"


def output(table: DerivedTable) -> Output:
    """What executors need to know to write parts of this table as it is now."""
    return Output(table.place, table.schema, table.partition_by)


def compact(spark: SparkSession, table: DerivedTable) -> int:
    """Small files of a partition become one; returns how many went. Readers notice nothing."""
    files = table.files()
    by = [name for name in files.column_names if name.startswith("partition.")]
    folders: dict[tuple[Any, ...], list[str]] = {}
    rows = zip(
        files["path"].to_pylist(), files["size_bytes"].to_pylist(), *(files[n].to_pylist() for n in by), strict=True
    )
    for path, size, *values in rows:
        if size < SMALL_BYTES:
            folders.setdefault(tuple(values), []).append(path)
    small = [path for paths in folders.values() if len(paths) >= SMALL_COUNT_MAX for path in paths]
    if not small:
        return 0
    frame = read(spark, table, small)
    keys = list(table.partition_by)
    frame = frame.repartition(*keys) if keys else frame.coalesce(1)
    parts = write_parts(frame, [output(table)])
    table.rewrite(parts, small)
    table.vacuum()
    return len(small)


def _straight(field: StructField) -> Column:
    from pyspark.sql import functions as F

    column = F.col(f"`{field.name}`")
    if field.dataType.typeName() != "string":
        return column
    return F.decode(F.encode(column, "ISO-8859-1"), "UTF-8").alias(field.name)


def _add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    found = {field.name.lower() for field in pa.schema(table.schema())}
    new = [field.with_nullable(True) for field in schema if field.name.lower() not in found]
    if new:
        table.alter.add_columns(DeltaSchema.from_arrow(pa.schema(new)).fields)


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else value.isoformat()
