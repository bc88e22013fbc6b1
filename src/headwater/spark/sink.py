"""The sink: rows of a frame, batch or streaming, onto streams, exactly once (`format("headwater")`).

Owns under which name and number a batch is written. Never repartitions a frame by itself: a data source cannot;
`to_streams` and `start_stream` do.

    streaming   Producer-Id spark-{queryId}, Producer-Epoch epochBase + batchId, Producer-Seq chunk of (stream, batch)
    batch       Producer-Id made on the driver, or producerId; Producer-Epoch epochBase

In the output modes `complete` and `update` a row is the newest state of its stream: it is appended like any other, and
published as the stream's snapshot, which lets go of the states before it (see `states`).
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headwater.errors import BadName
from headwater.model.names import bucket_of, flat_key, stream_of
from headwater.spark.chunks import KIND, LABELS, BadRows, Chunk, chunks_of_sorted, sorted_rows
from headwater.spark.node import Node, NodeError
from headwater.spark.options import NAME_BYTES_MAX
from headwater.spark.same_versions import Checked
from headwater.spark.sending import PATIENCE_S, Identity, Sender, SinkFailed
from headwater.spark.sink_options import SOURCE_ORDER, Columns, Options
from headwater.spark.states import States, check_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming import StreamingQuery

BATCH_PROPERTY = "streaming.sql.batchId"
QUERY_PROPERTY = "sql.streaming.queryId"
REACH_S = 5.0
"""After so long the caller is told that no node answers."""
HASHES_MAX = 131_072
"""How many streams of a task are compared with other tasks' one by one; of more, those with the lowest hashes."""
OUTPUT_MODES = ("append", "complete", "update")


class Written(WriterCommitMessage):
    """What a task tells the driver. Small, however many streams it wrote to."""

    def __init__(self, partition: int, sender: Sender, streams: list[int]) -> None:
        self.partition = partition
        self.rows, self.rows_known = sender.rows, sender.rows_known
        self.chunks, self.chunks_known = sender.chunks, sender.chunks_known
        self.streams_count = len(streams)
        kept = sorted(streams)[:HASHES_MAX]
        self.complete = len(kept) == len(streams)
        self.hashes = np.array(kept, dtype=np.uint64).tobytes()


class _Writing(Checked):
    """What both writers do. Pickled to the executors."""

    def __init__(self, columns: Columns, options: Options) -> None:
        self._columns = columns
        self._options = options

    def _write(self, batches: Iterator[pa.RecordBatch], identity: Identity, partition: int) -> Written:
        options = self._options
        node = Node(options.url, options.token, options.retry_s)
        states = States(node, options.retry_s) if options.states else None
        taken = None if states is None else states.add
        sender = Sender(node, identity, options.create_streams, options.retry_s, taken)
        streams: list[int] = []

        def counted(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
            for chunk in chunks:
                if states is not None:
                    check_state(chunk)
                if chunk.seq == 0:
                    self._check(chunk.stream)
                    streams.append(xxhash.xxh3_64_intdigest(chunk.stream.encode()))
                yield chunk

        picked = (self._columns.pick(batch) for batch in batches)
        try:
            sender.send(counted(chunks_of_sorted(picked if options.presorted else sorted_rows(picked))))
        except BadRows as bad:
            raise SinkFailed(str(bad)) from None
        if states is not None:
            states.finish()
        return Written(partition, sender, streams)

    def _check(self, stream: str) -> None:
        read = self._options.not_into
        if read is None:
            return
        try:
            key = flat_key(stream, NAME_BYTES_MAX)
        except BadName as bad:
            raise SinkFailed(f"{stream!r} is not the name of a stream: {bad.message()}") from None
        if read.takes(bucket_of(key), stream_of(key)):
            raise SinkFailed(
                f"{stream!r} is among the streams that are read: its records would come round again. "
                "Write into another bucket, or narrow what is read"
            )

    def _commit(self, messages: Sequence[Written | None], what: dict[str, object]) -> None:
        written = [message for message in messages if message is not None]
        shared = shared_streams(written)
        if shared:
            raise SinkFailed(
                f"rows of {shared} streams came from more than one partition, so some of them were taken for "
                "repetitions and are not written. Write with to_streams or start_stream of headwater.spark.sink, or "
                "repartition by the stream before; then write anew, with another producerId"
            )
        if self._options.report_file is not None:
            names = ("rows", "rows_known", "chunks", "chunks_known", "streams_count")
            sums = {name: sum(getattr(message, name) for message in written) for name in names}
            _report(self._options.report_file, {**what, **sums})


class BatchWriter(_Writing, DataSourceArrowWriter):
    def __init__(self, columns: Columns, options: Options) -> None:
        super().__init__(columns, options)
        # Made here, on the driver: every attempt of every task has the same.
        self._identity = Identity(options.producer_id or f"spark-write-{uuid.uuid4()}", options.epoch_base)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        identity = identity_of_query(context, self._options) if self._options.of_query else self._identity
        return self._write(iterator, identity, -1 if context is None else context.partitionId())

    def commit(self, messages: list[Written | None]) -> None:
        known = {} if self._options.of_query else {"producer_id": self._identity.producer_id}
        self._commit(messages, {**known, "epoch": self._identity.epoch})

    def abort(self, messages: list[Written | None]) -> None:
        """Nothing to undo: what was appended stays, and the same write again finds it there."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        identity = identity_of_query(context, self._options)
        return self._write(iterator, identity, -1 if context is None else context.partitionId())

    def commit(self, messages: list[Written | None], batchId: int) -> None:
        self._commit(messages, {"batch": batchId})

    def abort(self, messages: list[Written | None], batchId: int) -> None:
        """Nothing to undo: the batch comes again, and what is there already is known by its numbers."""


def identity_of_query(context: TaskContext | None, options: Options) -> Identity:
    """Whose batch a task writes, as Spark tells it. Raises SinkFailed."""
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    if context is None or batch is None or not batch.isdigit() or not query:
        raise SinkFailed(
            f"this Spark does not tell its tasks which batch they write ({BATCH_PROPERTY}={batch!r}, "
            f"{QUERY_PROPERTY}={query!r}), and without that nothing can be written exactly once: use pyspark 4.2 "
            "to 4.3, or foreachBatch with to_streams, producer_id and epoch_base; start_stream takes a producer_id"
        )
    return Identity(options.producer_id or f"spark-{query}", options.epoch_base + int(batch))


def writer(schema: Any, overwrite: bool, options: Mapping[str, str]) -> BatchWriter:
    """What `DefaultSource.writer` returns. Raises SinkFailed."""
    if overwrite:
        raise SinkFailed('a stream is only ever appended to: write with mode("append"), or delete the stream first')
    parsed = Options.of(options)
    _wait_for(parsed)
    return BatchWriter(Columns.of(schema, parsed), parsed)


def stream_writer(schema: Any, overwrite: bool, options: Mapping[str, str]) -> StreamWriter:
    """What `DefaultSource.streamWriter` returns. Raises SinkFailed."""
    parsed = Options.of(options)
    if overwrite:  # Spark's word for the output mode `complete`
        parsed = parsed._replace(states=True)
    return StreamWriter(Columns.of(schema, parsed), parsed)


def to_streams(
    frame: DataFrame,
    node: Node,
    *,
    stream: str | Column | None = None,
    payload: str | Column | None = None,
    content_type: str | None = None,
    order_by: Sequence[str | Column] = (),
    create_streams: bool = True,
    producer_id: str | None = None,
    epoch_base: int = 0,
    partitions: int | None = None,
    report_file: str | None = None,
    retry_s: float = PATIENCE_S,
) -> None:
    """Writes a frame onto streams: each row a record of the stream that the expression `stream` names.

    `payload` is an expression too. Without them they are what the format takes: the columns `stream`, in `bucket` if
    there is one, and `payload`, or else `value`; `tag`, `node`, `meta` and `key` become what the record carries.
    Records of one write stand in a stream by `order_by`, then by payload. With a `producer_id` the same frame may be
    written again and again; without one a second call appends a second time. A node that is away or busy is waited
    for, `retry_s` at most. Raises what Spark raises.
    """
    shaped = _shaped(frame, stream, payload, order_by, partitions)
    order = [name for name in shaped.columns if name.startswith("order")]
    labels = [name for name in LABELS if name in shaped.columns]
    ready = shaped.sortWithinPartitions("stream", *order, "payload", *labels)
    options = _options(node, content_type, order, create_streams, producer_id, epoch_base, report_file, retry_s)
    ready.write.format("headwater").mode("append").options(**options, presorted="true").save()


def start_stream(
    frame: DataFrame,
    node: Node,
    checkpoint: str,
    *,
    stream: str | Column | None = None,
    payload: str | Column | None = None,
    content_type: str | None = None,
    order_by: Sequence[str | Column] = (),
    create_streams: bool = True,
    producer_id: str | None = None,
    epoch_base: int = 0,
    partitions: int | None = None,
    report_file: str | None = None,
    not_into: Mapping[str, str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    retry_s: float = PATIENCE_S,
    output_mode: str = "append",
) -> StreamingQuery:
    """The same for a streaming frame: starts a query that writes every batch exactly once.

    `trigger` is what `DataStreamWriter.trigger` takes. Rows that come from this product's source are ordered as they
    were appended, unless `order_by` says otherwise. `not_into`: options of a read whose streams must not be written to.
    With the `output_mode` `complete` or `update` a row is the newest state of its stream, and becomes its snapshot; a
    batch has at most one row of a stream then.
    """
    shaped = _shaped(frame, stream, payload, order_by, partitions)
    order = [name for name in shaped.columns if name.startswith("order")]
    options = _options(node, content_type, order, create_streams, producer_id, epoch_base, report_file, retry_s)
    _reach(Node(node.url, options.get("token"), REACH_S))
    if not_into:
        options["notInto"] = json.dumps(dict(not_into))
    if output_mode not in OUTPUT_MODES:
        raise SinkFailed(f"output_mode is one of {', '.join(OUTPUT_MODES)}, not {output_mode!r}")
    query = shaped.writeStream.outputMode(output_mode).option("checkpointLocation", checkpoint)
    if output_mode == "update":
        # Spark refuses this mode for a sink in Python, and not for a function.
        query = query.foreachBatch(_states_of_batches(options, producer_id, epoch_base))
    else:
        query = query.format("headwater").options(**options)
    if query_name is not None:
        query = query.queryName(query_name)
    if trigger:
        query = query.trigger(**trigger)
    return query.start()


def _states_of_batches(
    options: Mapping[str, str], producer_id: str | None, epoch_base: int
) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, number: int) -> None:
        batch.sparkSession.createDataFrame([], "n int")  # see `_shaped`
        writing = batch.write.format("headwater").mode("append").options(**options).option("states", "true")
        if producer_id is None:
            writing.option("ofQuery", "true").save()
        else:
            writing.option("epochBase", str(epoch_base + number)).save()

    return write


def shared_streams(written: Sequence[Written]) -> int:
    """How many streams were written by more than one task: all of them, or of very many those that are compared."""
    hashes = [np.frombuffer(message.hashes, dtype=np.uint64) for message in written]
    # Where a task told only its lowest hashes, nothing is known of those above.
    known = [int(found[-1]) for found, message in zip(hashes, written, strict=True) if not message.complete]
    together = np.concatenate(hashes) if hashes else np.array([], dtype=np.uint64)
    if known:
        together = together[together <= np.uint64(min(known))]
    _, counts = np.unique(together, return_counts=True)
    return int((counts > 1).sum())


def _shaped(
    frame: DataFrame,
    stream: str | Column | None,
    payload: str | Column | None,
    order_by: Sequence[str | Column],
    partitions: int | None,
) -> DataFrame:
    """The columns that the sink takes, with all rows of a stream in one partition."""
    from pyspark.sql import functions as F

    def column(given: str | Column) -> Column:
        return F.expr(given) if isinstance(given, str) else given

    # A thread of one's own has no active session, and Spark finds sources in Python only through one: this sets it.
    frame.sparkSession.createDataFrame([], "n int")
    if stream is None:
        stream = F.concat_ws("/", "bucket", "stream") if "bucket" in frame.columns else F.col("stream")
    if payload is None:
        payload = F.col("payload" if "payload" in frame.columns else "value")
    if not order_by and "position" in frame.columns and "seq" in frame.columns:
        order_by = [F.col(f"`{name}`") for name in SOURCE_ORDER if name in frame.columns]
    order = [column(given).alias(f"order{index}") for index, given in enumerate(order_by)]
    kinds = [F.col(KIND)] if KIND in frame.columns else []
    labels = [F.col(name) for name in LABELS if name in frame.columns]
    shaped = frame.select(column(stream).alias("stream"), column(payload).alias("payload"), *kinds, *labels, *order)
    if partitions is None:
        # Each partition costs a worker's start per batch: as many as can run at once, not 200.
        partitions = max(1, _parallelism(frame))
    return shaped.repartition(partitions, "stream")


def _parallelism(frame: DataFrame) -> int:
    spark = frame.sparkSession
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context to ask
        return int(spark.conf.get("spark.sql.shuffle.partitions", "8") or 8)


def _options(
    node: Node,
    content_type: str | None,
    order: Sequence[str],
    create_streams: bool,
    producer_id: str | None,
    epoch_base: int,
    report_file: str | None,
    retry_s: float,
) -> dict[str, str]:
    token = node.token
    found = {
        "url": node.url,
        "token": token,
        "contentType": content_type,
        "orderBy": ",".join(order) or None,
        "createStreams": "true" if create_streams else "false",
        "producerId": producer_id,
        "epochBase": str(epoch_base),
        "reportFile": report_file,
        "retrySeconds": str(retry_s),
    }
    return {name: value for name, value in found.items() if value is not None}


def _reach(node: Node) -> None:
    """Raises NodeError when no node is there. Tasks are patient with one that is away: a wrong address is told here."""
    node.call("GET", "/healthz")


def _wait_for(options: Options) -> None:
    """As long as its tasks would. It may be one write of many, and the node restarts: but it is told that it waits."""
    try:
        _reach(Node(options.url, options.token, min(REACH_S, options.retry_s)))
    except NodeError as away:
        rest_s = options.retry_s - REACH_S
        if rest_s <= 0:
            raise
        print(f"{away}; waiting up to {rest_s:.0f} s more (retrySeconds)", file=sys.stderr, flush=True)
        _reach(Node(options.url, options.token, rest_s))


def _report(file: str, facts: dict[str, object]) -> None:
    try:
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as out:
            out.write(json.dumps(facts) + "\n")
    except OSError:
        pass  # what was written matters more; with a driver elsewhere it is not read
