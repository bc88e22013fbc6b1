"""Runs a declared pipeline: once, or again and again until it is interrupted.

Owns the order (tables after those they come from, then streams, then folds), and what of a table is computed when.
Never begins before all of the file is known to work: schemas are parsed and SQL is analysed first, on empty tables.

A table that comes from tables remembers in its own commits up to which version of them it is: no other state is kept.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headwater.spark import typed_rows
from headwater.spark.declared import SOURCE, Loaded, Stream, Table
from headwater.spark.derived_tables import DerivedTable, arrow_schema, compact, output, read
from headwater.spark.failures import cause, no_connect
from headwater.spark.folding import BadFold, load_function
from headwater.spark.group_states import ends_of, heads_of, offset_at, seen_in
from headwater.spark.job_runs import DONE, FINDINGS, JobRefused, Progress, recorded, silent
from headwater.spark.jobs.derive import Derivation, follow
from headwater.spark.jobs.fold import fold
from headwater.spark.jobs.route import SELECTING, route
from headwater.spark.matching import job_match
from headwater.spark.node import Node, Seen
from headwater.spark.options import parse
from headwater.spark.quarantine import Allowed
from headwater.spark.table_parts import Output, write_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

INTERVAL_S = 10.0
_SELECTING = {name.lower() for name in SELECTING}
_GATHERING = re.compile(
    r"^[\s:+\-~'!]*(Aggregate|Distinct|Deduplicate|Window|GlobalLimit|LocalLimit|Sort|Pivot)\b", re.M
)
"""Steps of a plan whose result for new rows alone is not a part of their result for all rows."""


def run(
    spark: SparkSession,
    node: Node,
    loaded: Loaded,
    *,
    continuous: bool = False,
    interval_s: float = INTERVAL_S,
    check_only: bool = False,
    cycles_max: int | None = None,
    require_match: bool = False,
    allow_data_loss: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Brings everything up to where the node is; `continuous`: again whenever the node has moved. Raises JobRefused."""
    no_connect(spark, "a declared pipeline", "declare it to Spark's own pipelines (guide: Spark's own pipelines)")
    if check_only:  # no run at all, so none is recorded
        Running(spark, node, loaded, progress).check()
        return {"pipeline": loaded.pipeline.name, "checked": True, "tables": len(loaded.pipeline.tables)}
    given = (continuous, interval_s, cycles_max, require_match, allow_data_loss)
    return _run(spark, node, loaded, *given, dry_run=dry_run, progress=progress)


@recorded("declared", loaded=lambda loaded: {"file": str(loaded.file), "source": loaded.pipeline.source.reading()})
def _run(
    spark: SparkSession,
    node: Node,
    loaded: Loaded,
    continuous: bool,
    interval_s: float,
    cycles_max: int | None,
    require_match: bool,
    allow_data_loss: bool,
    dry_run: bool,
    progress: Progress,
) -> dict[str, object]:
    running = Running(spark, node, loaded, progress, allow_data_loss)
    warnings = running.match(require_match)
    running.check()
    told: dict[str, object] = {"warnings": warnings} if warnings else {}
    if dry_run:
        return {"pipeline": loaded.pipeline.name, "tables": running.would(), **told}
    cycles = 0
    try:
        while True:
            began_s = time.monotonic()
            running.cycle()
            cycles += 1
            if not continuous or cycles == cycles_max:
                break
            time.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))
    except KeyboardInterrupt:
        pass
    outcome = FINDINGS if running.findings() else DONE
    return {"outcome": outcome, "pipeline": loaded.pipeline.name, "cycles": cycles, **running.summary, **told}


class Running:
    def __init__(
        self, spark: SparkSession, node: Node, loaded: Loaded, progress: Progress, allow_data_loss: bool = False
    ) -> None:
        self._spark, self._node, self._progress = spark, node, progress
        self._pipeline, self._base, self._file = loaded.pipeline, loaded.base, loaded.file.name
        self._seen: dict[int, Seen] = {}
        """What everything is up to."""
        self._schemas: dict[str, StructType] = {}
        """Of the records, for tables from the source."""
        self.summary: dict[str, Any] = {"tables": {}, "streams": {}, "folds": []}
        self._reading = self._pipeline.source.reading()
        if allow_data_loss:
            self._reading["failOnDataLoss"] = "false"

    def match(self, require: bool) -> list[str]:
        """What no stream goes by that is to be read. Raises JobRefused."""
        chosen = parse({"url": self._node.url, **self._reading}).selection
        return job_match(self._node, chosen, require)

    def findings(self) -> bool:
        """Whether there are findings that a person should look at."""
        allowed = {table.name: Allowed.of(table.quarantined_max) for table in self._pipeline.tables if table.is_typed}
        tables = self.summary["tables"]
        return any(one.exceeded(tables[name]) for name, one in allowed.items() if name in tables) or any(
            one["outcome"] == FINDINGS for one in self.summary["folds"]
        )

    # ---- before anything runs -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises JobRefused with all that is wrong."""
        # It prints every error of analysis with its stack, and those are told here in a line each.
        logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
        wrong: list[str] = []
        empty: dict[str, DataFrame] = {}
        for table in self._pipeline.ordered():
            if all(name in empty for name in table.sources if name != SOURCE):
                with self._noting(wrong, f"table {table.name}"):
                    empty[table.name] = self._checked(table, empty)
        for stream in self._pipeline.streams:
            if stream.from_ in empty:
                with self._noting(wrong, f"stream {stream.name}"):
                    self._checked_stream(stream, empty)
        for number, one in enumerate(self._pipeline.folds):
            if one.function is not None:
                try:
                    load_function(one.function, str(self._base))
                except BadFold as error:
                    wrong.append(f"fold number {number + 1}: function: {error}")
        if wrong:
            told = "; ".join(f"{self._file}: {one}" for one in wrong)
            raise JobRefused(told, "correct it, and nothing has been run")

    @contextmanager
    def _noting(self, wrong: list[str], part: str) -> Iterator[None]:
        from pyspark.errors import PySparkException

        try:
            yield
        except JobRefused as refused:
            wrong.append(f"{part}: {refused.message}")
        except PySparkException as error:
            wrong.append(f"{part}: sql: {cause(error)}")

    def _checked(self, table: Table, empty: dict[str, DataFrame]) -> DataFrame:
        """The table as a frame without rows. Raises JobRefused, PySparkException."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if table.is_typed:
            derivation = self._derivation(table)
            self._schemas[table.name] = derivation.schema
            return self._spark.createDataFrame([], from_arrow_schema(derivation.columns))
        frame = self._computed(table, empty)
        schema = arrow_schema(frame.schema)
        if table.how == "append" and (found := _gathering(frame)):
            raise JobRefused(
                f"sql: it gathers rows ({found.lower()}), and refresh = append shows it the new ones alone: "
                "use refresh = day or full"
            )
        if table.how == "day":
            for name, one in ((table.sources[0], empty[table.sources[0]]), (table.name, frame)):
                if "day" not in one.columns:
                    raise JobRefused(f"refresh: to compute days anew, {name} needs a column day")
        self._check_place(table, schema)
        return self._spark.createDataFrame([], frame.schema)

    def _check_place(self, table: Table, schema: pa.Schema) -> None:
        """An existing table at the place must be this pipeline's, and of these columns."""
        existing = DerivedTable(self._pipeline.place(table, self._base))
        if not existing.exists():
            return
        owner = existing.owner()
        if owner is None or owner.get("pipeline") != self._pipeline.name or owner.get("table") != table.name:
            raise JobRefused(f"target: the table at {existing.place.url} is not this pipeline's: name another place")
        if table.how != "full":
            changed = {field.name: field.type for field in existing.schema}
            for field in schema:
                if changed.get(field.name, field.type) != field.type:
                    raise JobRefused(
                        f"sql: the column {field.name} is {field.type} now and {changed[field.name]} in the table: "
                        "give it another name, or the table another target"
                    )

    def _checked_stream(self, stream: Stream, empty: dict[str, DataFrame]) -> None:
        frame = self._sql(stream.sql, {stream.from_: empty[stream.from_]})
        for name in ("stream", "payload"):
            if name not in frame.columns:
                raise JobRefused(f"sql: it gives no column {name}")
        if found := _gathering(frame):
            raise JobRefused(f"sql: it gathers rows ({found.lower()}), and a stream takes them one by one")
        lacking = [name for name in stream.order_by if name not in frame.columns]
        if lacking:
            raise JobRefused(f"order_by: the sql gives no column {lacking[0]}")

    # ---- a cycle --------------------------------------------------------------------------------------------------

    def cycle(self) -> None:
        heads = heads_of(self._node)
        seen = seen_in(heads)
        if seen == self._seen:
            return
        for table in self._pipeline.ordered():
            told = self._derive(table) if table.is_typed else self._refresh(table)
            self._add(self.summary["tables"], table.name, told)
        for stream in self._pipeline.streams:
            self._add(self.summary["streams"], stream.name, self._route(stream))
        # No further than everything above has read: a fold lets go of what it has folded.
        self.summary["folds"] = [
            fold(
                self._spark,
                self._node.expecting(seen),
                mode=one.mode,
                key=tuple(one.key),
                deleted=one.deleted,
                function=one.function,
                bucket=one.bucket,
                pattern=one.pattern,
                min_records=one.min_records,
                until=offset_at(heads, ends_of(heads)),
                progress=self._progress,
            )
            for one in self._pipeline.folds
        ]
        self._seen = seen

    @staticmethod
    def _add(into: dict[str, Any], name: str, told: dict[str, Any]) -> None:
        sums = into.setdefault(name, {})
        for key, value in told.items():
            is_sum = key in ("rows", "quarantined", "files", "rows_read", "rows_written")
            sums[key] = sums.get(key, 0) + value if is_sum else value

    def _derivation(self, table: Table) -> Derivation:
        return Derivation(
            self._spark,
            self._node,
            self._pipeline.place(table, self._base),
            self._reading,
            table.schema,
            self._pipeline.quarantine(table, self._base),
            self._pipeline.state(table.name, self._base),
            table.day_from,
            table.any_content_type,
        )

    def would(self) -> dict[str, object]:
        """What tables from the source would read. Of others it is known when those are there."""
        return {table.name: self._derivation(table).would(False) for table in self._pipeline.tables if table.is_typed}

    def _derive(self, table: Table) -> dict[str, Any]:
        derivation = self._derivation(table)
        query = derivation.start({"availableNow": True})
        follow([query], self._progress, derivation.counts)
        derivation.tidy()
        told = derivation.summary(query)
        return {name: told[name] for name in ("table", "rows", "quarantined", "files", "version")}

    def _selects(self) -> bool:
        return any(name.lower() in _SELECTING for name in self._reading)

    def _route(self, stream: Stream) -> dict[str, Any]:
        lineage = self._pipeline.lineage(stream.from_)

        def transform(rows: DataFrame) -> DataFrame:
            first = lineage[0]
            kept = rows.withColumn("payload", rows["payload"].cast("string"))
            kept = kept.drop("content_type") if first.any_content_type else typed_rows.only_json(kept)
            frame = typed_rows.typed_frame(kept, self._schemas[first.name], first.day_from)
            for before, table in pairwise(lineage):
                frame = self._computed(table, {before.name: frame})
            return self._sql(stream.sql, {stream.from_: frame})

        told = route(
            self._spark,
            self._node,
            source=self._reading if self._selects() else {"subscribePattern": "**", **self._reading},
            target="stream",
            checkpoint=self._pipeline.state(f"stream-{stream.name}", self._base),
            transform=transform,
            content_type=stream.content_type,
            order_by=stream.order_by,
            progress=self._progress,
        )
        return {name: told[name] for name in ("rows_read", "rows_written")}

    # ---- tables from tables ---------------------------------------------------------------------------------------

    def _refresh(self, table: Table) -> dict[str, Any]:
        place = self._pipeline.place(table, self._base)
        target = DerivedTable(place)
        places = {name: self._pipeline.place(self._pipeline.table(name), self._base) for name in table.sources}
        sources = {name: DerivedTable(one) for name, one in places.items()}
        first = sources[table.sources[0]]
        snapshots = {name: source.snapshot() for name, source in sources.items()}
        app = ":".join([self._pipeline.name, table.name, *(source.id for source in sources.values())])
        # Any source that changes makes a full table stale; the others follow their first one.
        followed = snapshots.values() if table.how == "full" else [snapshots[table.sources[0]]]
        number = sum(snapshot.version for snapshot in followed)
        done = target.done(app)
        if done is not None and done >= number:
            return {"table": place.url, "rows": 0, "version": target.version}
        frames = {name: read(self._spark, source, snapshots[name].paths) for name, source in sources.items()}
        added = None if done is None or table.how == "full" else first.added_since(done, number)
        if added is not None and not added.paths:
            return {"table": place.url, "rows": 0, "version": target.version}
        days: set[str] = set()
        if added is not None and table.how == "append":
            frames[table.sources[0]] = read(self._spark, first, added.paths)
        elif added is not None:
            days = {str(partition["day"]) for partition in added.partitions}
            frames[table.sources[0]] = _of_days(frames[table.sources[0]], days)
        frame = self._computed(table, frames)
        if days:
            frame = _of_days(frame, days)
        schema = arrow_schema(frame.schema)
        by = tuple(name for name in typed_rows.PARTITION_BY if name in schema.names)
        if added is None:
            outputs = [Output(place, schema, by)]
        else:
            target.ensure(schema, by)
            outputs = [output(target)]
            frame = _in_columns(frame, target.schema)
        parts = write_parts(frame, outputs)
        target.own({"pipeline": self._pipeline.name, "table": table.name})
        if added is None:
            target.replace(parts, app, number, schema, by)
        elif days:
            target.replace_days(parts, days, app, number)
        else:
            target.append(parts, app, number)
        compact(self._spark, target)
        rows = sum(part.row_count for part in parts)
        return {"table": place.url, "rows": rows, "files": len(parts), "version": target.version}

    def _computed(self, table: Table, frames: dict[str, DataFrame]) -> DataFrame:
        if table.transform is not None:
            return table.transform(*(frames[name] for name in table.sources))
        return self._sql(str(table.sql), {name: frames[name] for name in table.sources})

    def _sql(self, sql: str, views: dict[str, DataFrame]) -> DataFrame:
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        try:
            return self._spark.sql(sql)
        finally:
            for name in views:
                self._spark.catalog.dropTempView(name)


def _gathering(frame: DataFrame) -> str | None:
    """The step of the frame's plan that looks at rows together; None: each row is by itself."""
    found = _GATHERING.search(frame._jdf.queryExecution().analyzed().toString())
    return found[1] if found else None


def _of_days(frame: DataFrame, days: set[str]) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.where(F.col("day").cast("string").isin(sorted(days)))


def _in_columns(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """The frame with the table's columns, in its order; what it does not have is null."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    has = {name.lower() for name in frame.columns}
    wanted = from_arrow_schema(schema)
    return frame.select(
        *(
            F.col(f"`{field.name}`")
            if field.name.lower() in has
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in wanted.fields
        )
    )
