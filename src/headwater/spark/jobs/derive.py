"""`derive`: typed tables from JSON streams, in one go or from micro-batch to micro-batch, each record once.

Owns a table's life: who derives it, how far that one is, what happens to its columns. Never parses a record twice, and
never loses one: what does not fit is in the quarantine table with the reason.

    source -> parse once -> executors write parts of both tables -> the driver commits each with the batch's number
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwater.spark import typed_rows
from headwater.spark.derived_tables import DerivedTable, compact
from headwater.spark.dry_runs import would_read
from headwater.spark.failures import no_connect, refused, spark_errors
from headwater.spark.job_runs import DONE, FINDINGS, JobRefused, Progress, recorded, silent
from headwater.spark.json_types import SAMPLE_ROWS
from headwater.spark.lake_place import Place
from headwater.spark.matching import job_match
from headwater.spark.native_read import read_lake
from headwater.spark.node import Node
from headwater.spark.options import BadOptions, parse
from headwater.spark.quarantine import Allowed
from headwater.spark.schema_choice import SchemaChoice
from headwater.spark.table_parts import Output, Part, write_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.5
BATCH_BYTES = 1 << 30
"""Of the lake's files, in one micro-batch, unless the source's options say otherwise."""
COMPACT_EVERY_COUNT = 50
QUERY_ID = "sql.streaming.queryId"
BATCH_APP = "batch"
_NOT_ON_CONNECT = ("a table that goes from batch to batch", "compute it in one go with --batch")
_SELECTING = ("subscribe", "subscribepattern", "bucket")
_LIMITS = ("maxbytespertrigger", "maxoffsetspertrigger")
_STREAMING = (*_LIMITS, "startingoffsets", "startingtimestamp", "failondataloss")


@recorded("derive")
def derive(
    spark: SparkSession,
    node: Node,
    *,
    target: str | Place,
    source: Mapping[str, str] | None = None,
    schema: str | None = None,
    quarantine: str | Place | None = None,
    checkpoint: str | None = None,
    batch: bool = False,
    overwrite: bool = False,
    continuous: bool = False,
    interval: str = "5 seconds",
    day_from: str | None = None,
    any_content_type: bool = False,
    sample_rows: int = SAMPLE_ROWS,
    infer: bool = False,
    quarantined_max: int | str = 0,
    require_match: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, object]:
    """Brings the table up to where the node is, or (`continuous`) goes on until it is interrupted. Raises JobRefused.

    Without a schema: that which the table was declared with; else the bucket's; else the table's own; else one that is
    inferred from a sample. `infer` infers one in any case, and adds to a table what is new in its newest records.
    `batch` computes the whole table anew and replaces it in one step; `overwrite` begins a table that exists anew. More
    records in the quarantine than `quarantined_max`, a number or a share of the run's as "2%", are a finding.
    `require_match` refuses names that no stream goes by, which is a warning otherwise.
    """
    allowed = Allowed.of(quarantined_max)
    if batch and continuous:
        raise JobRefused("a table that is computed in one go is not followed", "leave out batch, or continuous")
    if infer and schema is not None:
        raise JobRefused("a schema is declared, and one is to be inferred", "leave out --schema, or --infer")
    warnings = _match(node, source or {}, require_match)
    job = Derivation(
        spark,
        node,
        _place(target),
        source or {},
        schema,
        None if quarantine is None else _place(quarantine),
        checkpoint,
        day_from,
        any_content_type,
        sample_rows,
        overwrite,
        infer,
        batch,
    )
    if dry_run:
        return {**job.would(batch), **({"warnings": warnings} if warnings else {})}
    if batch:
        summary = job.whole()
    else:
        query = job.start({"processingTime": interval} if continuous else {"availableNow": True})
        follow([query], progress, job.counts)
        if not continuous:
            job.tidy()
        summary = job.summary(query)
    outcome = FINDINGS if allowed.exceeded(job.counts) else DONE
    return {"outcome": outcome, **summary, **({"warnings": warnings} if warnings else {})}


def _match(node: Node, source: Mapping[str, str], require: bool) -> list[str]:
    try:
        return job_match(node, parse({"url": node.url, **source}).selection, require)
    except BadOptions as error:
        raise JobRefused(str(error)) from None


def _place(given: str | Place) -> Place:
    return given if isinstance(given, Place) else Place(given)


class Derivation:
    """One table in the making. Raises JobRefused when it is made, before anything has changed."""

    def __init__(
        self,
        spark: SparkSession,
        node: Node,
        target: Place,
        source: Mapping[str, str],
        schema: str | None,
        quarantine: Place | None,
        checkpoint: str | None,
        day_from: str | None = None,
        any_content_type: bool = False,
        sample_rows: int = SAMPLE_ROWS,
        overwrite: bool = False,
        infer: bool = False,
        whole: bool = False,
    ) -> None:
        self._spark, self._node = spark, node
        self._options = {"url": node.url, **credentials(node), **source}
        self._any_content_type = any_content_type
        self._day_from = day_from
        self.table = DerivedTable(target)
        beside = target._replace(url=f"{target.url.rstrip('/')}_quarantine")
        self.quarantine = DerivedTable(quarantine or beside)
        self._checkpoint_given = checkpoint
        self._overwrite = overwrite
        self.counts: Counter[str] = Counter()
        self._selection = {name.lower(): value for name, value in source.items() if name.lower() in _SELECTING}
        self.owner = self.table.owner()
        self._refuse_strangers()
        self._choice = SchemaChoice(
            node,
            self.table,
            self.owner,
            parse({"url": node.url, **source}).selection,
            overwrite,
            whole,
            self._batch_rows,
        )
        self.schema = self._choice.choose(schema, infer, sample_rows)
        typed_rows.check_day(self.schema, day_from)
        self.columns: pa.Schema = typed_rows.table_schema(self.schema)

    def _batch_rows(self, where: str | None) -> DataFrame:
        return self.rows(False, where)

    def rows(self, streaming: bool, where: str | None = None) -> DataFrame:
        """The records as the source gives them; `where` narrows a batch."""
        lower = {name.lower(): value for name, value in self._options.items()}
        if streaming:
            defaults = {"startingoffsets": "earliest"} if "startingtimestamp" not in lower else {}
            if not any(name in lower for name in _LIMITS):
                defaults["maxbytespertrigger"] = str(BATCH_BYTES)
            source = self._spark.readStream.options(**(defaults | lower)).format("headwater")
            read = source.schema(typed_rows.READ).load()
        else:
            # All there is: planned now, and read by the JVM where it can.
            options = {name: lower[name] for name in lower if name not in (*_STREAMING, "url", "token")}
            if where is not None:
                options["where"] = " AND ".join(one for one in (options.get("where"), where) if one is not None)
            read = typed_rows.as_read(read_lake(self._spark, self._node, **options))
        return read.drop("content_type") if self._any_content_type else typed_rows.only_json(read)

    def would(self, batch: bool) -> dict[str, object]:
        """What a run would begin with and read. How many of the records fit is known when they are parsed."""
        checkpoint = None
        if batch:
            self._refuse_to_replace()
        else:
            no_connect(self._spark, *_NOT_ON_CONNECT)
            if self.owner is not None and not self._overwrite:
                self._check_checkpoint(self.owner, self._checkpoint_given)
                checkpoint = self.owner["checkpoint"]
                if not self._is_replaced(self.owner) and self.table.exists():
                    self._choice.fit()
        read = would_read(self._spark, self._options, checkpoint, typed_rows.READ)
        return {
            "table": self.table.place.url,
            "quarantine": self.quarantine.place.url,
            "anew": batch or self.owner is None or self._overwrite,
            **self._choice.told(),
            "records": (read if self._any_content_type else typed_rows.only_json(read)).count(),
            "rows": None,
            "quarantined": None,
        }

    # ---- in one go ------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, object]:
        """Everything there is replaces everything there was, in one step for each of the two tables."""
        self._refuse_to_replace()
        owner = self._owner(None, BATCH_APP, False)
        outputs = [Output(self.table.place, self.columns, typed_rows.PARTITION_BY), self._unfit_output()]
        parts = self._parts(self.rows(streaming=False), outputs, self.columns)
        done = [table.done(BATCH_APP) for table in (self.table, self.quarantine)]
        number = max(time.time_ns() // 1_000_000, *(1 + (one or 0) for one in done))
        self._own(owner)
        replaced = self.table.replace(parts[0], BATCH_APP, number, self.columns, typed_rows.PARTITION_BY)
        self._count(parts[0], replaced, "rows")
        replaced = self.quarantine.replace(parts[1], BATCH_APP, number, typed_rows.QUARANTINE, typed_rows.PARTITION_BY)
        self._count(parts[1], replaced, "quarantined")
        return self.summary(None)

    def _refuse_to_replace(self) -> None:
        if self.owner is not None and self.owner["app"] != BATCH_APP and not self._overwrite:
            raise JobRefused(
                f"the table at {self.table.place.url} is derived from batch to batch",
                "go on with that, or replace it for good with --overwrite",
            )

    # ---- from batch to batch --------------------------------------------------------------------------------------

    def start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        no_connect(self._spark, *_NOT_ON_CONNECT)
        owner = self._begin()
        write = self.rows(streaming=True).writeStream.foreachBatch(
            lambda frame, number: self._batch(frame, number, owner)
        )
        try:
            return write.option("checkpointLocation", owner["checkpoint"]).trigger(**trigger).start()
        except spark_errors() as error:
            raise refused(error) from error

    def _begin(self) -> dict[str, Any]:
        """Both tables are there with the right columns, and it is written down who derives them."""
        base = self._checkpoint_given
        # Without an app no batch was ever begun, so no row is lost with a checkpoint that could not be written.
        begun = self.owner is not None and (self.owner["app"] is not None or self.owner["checkpoint"] is None)
        anew = not begun or self._overwrite
        if base is None and anew:
            if not self.table.place.is_local:
                raise JobRefused(
                    f"nothing says where to remember how far {self.table.place.url} is",
                    "name a place that Spark can write with --checkpoint, such as a directory",
                )
            base = f"{self.table.place.store().uri}/_headwater/checkpoint"
        if not anew and self.owner is not None and not self._is_replaced(self.owner) and self.table.exists():
            self.schema = self._choice.fit()
            self.columns = typed_rows.table_schema(self.schema)
        if self.owner is None or anew:
            # A folder of its own: an older one, if there is any, belongs to rows that go.
            place = f"{str(base).rstrip('/')}/{secrets.token_hex(8)}"
            owner = self._owner(place, None, self.table.exists())
        else:
            owner = {**self.owner, **self._choice.owned()}
            self._check_checkpoint(owner, base)
        if anew:
            self._own(owner)  # before there is a table: one without an owner is taken for a table that no job made
        if not self._is_replaced(owner):
            self.table.ensure(self.columns, typed_rows.PARTITION_BY)
        self.quarantine.ensure(typed_rows.QUARANTINE, typed_rows.PARTITION_BY)
        if not anew:
            self._own(owner)  # after its columns were found to fit
        return owner

    def _is_replaced(self, owner: dict[str, Any]) -> bool:
        """Its first batch takes the place of the rows and columns that there are, and is still to come."""
        return owner["replace"] and (owner["app"] is None or self.table.done(owner["app"]) is None)

    def _own(self, owner: dict[str, Any]) -> None:
        self.quarantine.own({"quarantine_of": self.table.uri})
        self.table.own(owner)

    def _owner(self, checkpoint: str | None, app: str | None, replace: bool) -> dict[str, Any]:
        return {
            "checkpoint": checkpoint,
            "app": app,
            "replace": replace,
            "source": self._selection,
            **self._choice.owned(),
        }

    def _check_checkpoint(self, owner: dict[str, Any], base: str | None) -> None:
        kept = owner["checkpoint"]
        if kept is None:
            raise JobRefused(
                f"the table at {self.table.place.url} was derived in one go, and nothing says how far that was",
                "derive it in one go again with --batch, or begin it anew with --overwrite",
            )
        if base is not None and not kept.startswith(f"{base.rstrip('/')}/"):
            raise JobRefused(
                f"the table at {self.table.place.url} goes by the checkpoint {kept}",
                "leave out --checkpoint, or begin the table anew with --overwrite",
            )
        if owner["app"] is not None and checkpoint_id(self._spark, kept) != owner["app"]:
            raise JobRefused(
                f"the checkpoint {kept} is gone, or another one: nothing else says how far the table is",
                "bring it back, or begin the table anew with --overwrite",
            )

    def _batch(self, frame: DataFrame, number: int, owner: dict[str, Any]) -> None:
        app = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not app:
            raise JobRefused(
                f"this Spark does not tell which query a batch belongs to ({QUERY_ID})", "use pyspark 4.2 up"
            )
        if owner["app"] is None:
            owner["app"] = app
            self.table.own(owner)
        tables = (self.table, self.quarantine)
        done = [table.done(app) for table in tables]
        if all(batch is not None and batch >= number for batch in done):
            self.counts["batches_known"] += 1
            return
        replace = owner["replace"] and number == 0
        columns = self.columns if replace else self.table.schema
        outputs = [Output(self.table.place, columns, typed_rows.PARTITION_BY), self._unfit_output()]
        fitting, unfit = self._parts(frame, outputs, columns)
        if replace:
            added = self.table.replace(fitting, app, number, columns, typed_rows.PARTITION_BY)
            set_aside = self.quarantine.replace(unfit, app, number, typed_rows.QUARANTINE, typed_rows.PARTITION_BY)
        else:
            added = self.table.append(fitting, app, number)
            set_aside = self.quarantine.append(unfit, app, number)
        self._count(fitting, added, "rows")
        self._count(unfit, set_aside, "quarantined")
        self.counts["batches"] += 1
        if self.counts["batches"] % COMPACT_EVERY_COUNT == 0:
            self.tidy()

    def _unfit_output(self) -> Output:
        return Output(self.quarantine.place, typed_rows.QUARANTINE, typed_rows.PARTITION_BY)

    def _parts(self, rows: DataFrame, outputs: list[Output], columns: pa.Schema) -> tuple[list[Part], list[Part]]:
        found = write_parts(
            typed_rows.parsed(rows, self.schema, self._day_from), outputs, typed_rows.Router(self.schema, columns)
        )
        return [part for part in found if part.output == 0], [part for part in found if part.output == 1]

    def _count(self, parts: list[Part], added: bool, what: str) -> None:
        if added:
            self.counts[what] += sum(part.row_count for part in parts)
            self.counts["files"] += len(parts)

    # ---- afterwards -----------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        for table in (self.table, self.quarantine):
            self.counts["files_compacted"] += compact(self._spark, table)

    def summary(self, query: StreamingQuery | None) -> dict[str, object]:
        names = ("rows", "quarantined", "batches", "batches_known", "files", "files_compacted")
        return {
            "table": self.table.place.url,
            **{name: self.counts[name] for name in names if query is not None or not name.startswith("batches")},
            "version": self.table.version,
            "quarantine": self.quarantine.place.url,
            **self._choice.told(),
            **({} if query is None else {"query": str(query.id)}),
        }

    def _refuse_strangers(self) -> None:
        place = self.table.place.url
        if self.table.exists() if self.owner is None else "schema" not in self.owner:
            raise JobRefused(f"the table at {place} was not derived by this job", "name another place")
        if self.owner is not None and self.owner["source"] != self._selection and not self._overwrite:
            raise JobRefused(
                f"the table at {place} is derived from {_shown(self.owner['source'])}, not {_shown(self._selection)}",
                "name those streams, or begin the table anew with --overwrite",
            )
        set_aside = self.quarantine.owner()
        if self.quarantine.exists() if set_aside is None else set_aside.get("quarantine_of") != self.table.uri:
            raise JobRefused(
                f"the table at {self.quarantine.place.url} is not the quarantine of {place}",
                "name another place with --quarantine",
            )


def _shown(selection: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {value}" for name, value in selection.items()) or "every stream"


def credentials(node: Node) -> dict[str, str]:
    """What a read needs beside the node's address."""
    token = node.token
    return {} if token is None else {"token": token}


def checkpoint_id(spark: SparkSession, checkpoint: str) -> str | None:
    """The id of the query that a checkpoint belongs to; None when there is no checkpoint."""
    from pyspark.errors import PySparkException

    try:
        rows = spark.read.json(f"{checkpoint}/metadata").collect()
    except PySparkException:
        return None
    return rows[0]["id"] if rows and "id" in rows[0].asDict() else None


def follow(queries: list[StreamingQuery], progress: Progress, counts: Mapping[str, int]) -> None:
    """Waits until all queries have ended, or stops them when one fails or the user interrupts. Raises JobRefused."""
    from pyspark.errors import PySparkException

    try:
        waiting = list(queries)
        while waiting:
            waiting = [query for query in waiting if not query.awaitTermination(POLL_S)]
            progress("rows", counts["rows"], None)
    except KeyboardInterrupt:
        pass
    except PySparkException as error:
        raise refused(error) from error
    finally:
        for query in queries:
            query.stop()
