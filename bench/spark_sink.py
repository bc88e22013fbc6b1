"""The writing part of B11: rows of a streaming query onto streams, exactly once, through the product's sink.

Owns the rows that are written and the figure; Spark runs in this process, the node in one of its own.
"""

import http.client
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import peers
from bench.generator import Failed
from bench.peers import FSYNC, Server
from bench.report import Result, show
from bench.rounds import Settings, median, tell

STREAMS = 1_000
ROW_BYTES = 100
BATCHES, BATCH_ROWS = 6, 1_000_000
BATCHES_QUICK, BATCH_ROWS_QUICK = 3, 200_000
BATCHES_WARM = 1
"""Left out of the figure: the JVM is slow at what it does for the first time, and the streams are made."""
AIM_WRITE = 200_000.0


def write(settings: Settings, session: Callable[[], Any]) -> Result:
    """Rows a second from the start of a micro-batch to its commit, which comes after the node has synced every row."""
    batches, rows = (BATCHES_QUICK, BATCH_ROWS_QUICK) if settings.quick else (BATCHES, BATCH_ROWS)
    folder = peers.scratch_directory()
    spark = session()
    try:
        # One file a batch, each with every stream: what a query that fans out has to do.
        for batch in range(batches):
            made = spark.range(batch * rows, (batch + 1) * rows, 1, 1).selectExpr(
                "id AS n", f"lpad(cast(id AS string), {ROW_BYTES}, 'x') AS payload"
            )
            made.write.mode("append").parquet(str(folder / "rows"))
        with peers.serving(peers.headwater(FSYNC)) as server:
            rounds = _run(spark, server, folder, batches)
            _check(server, batches * rows)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    value = median(rounds[BATCHES_WARM:], "rows_per_s")
    spent = [one["seconds"] for one in rounds[BATCHES_WARM:]]
    note = f"streams {STREAMS} batch_rows {rows} batch_s {show(sorted(spent)[len(spent) // 2])}"
    details = {"streams": STREAMS, "row_bytes": ROW_BYTES, "batch_rows": rows, "batches": rounds}
    return Result("B11", "write_rows_per_s", value, AIM_WRITE, note=note, details=details)


def _run(spark: Any, server: Server, folder: Path, batches: int) -> list[dict[str, Any]]:
    from headwater.spark.node import Node
    from headwater.spark.sink import start_stream

    read = spark.readStream.schema("n BIGINT, payload STRING").option("maxFilesPerTrigger", "1")
    frame = read.parquet(str(folder / "rows"))
    query = start_stream(
        frame,
        Node(f"http://127.0.0.1:{server.port}"),
        str(folder / "checkpoint"),
        stream=f"concat('bench/sink/', n * 7919 % {STREAMS})",
        order_by=["n"],
        trigger={"availableNow": True},
    )
    try:
        if not query.awaitTermination(1_200):
            raise Failed("the query did not end within twenty minutes")
        told = [one for one in query.recentProgress if one["numInputRows"]]
    finally:
        query.stop()
    if len(told) != batches:
        raise Failed(f"{len(told)} batches were written, and {batches} files were there")
    found = []
    for one in told:
        seconds = one["durationMs"]["triggerExecution"] / 1_000
        found.append({"rows_per_s": one["numInputRows"] / seconds, "seconds": seconds})
        tell(f"batch {one['batchId']}: {show(found[-1]['rows_per_s'])} rows/s in {seconds:.2f} s {one['durationMs']}")
    return found


def _check(server: Server, rows_count: int) -> None:
    """A figure for rows that are not there would be none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("GET", "/bench/streams?limit=1000")
    listed = json.loads(connection.getresponse().read())
    connection.close()
    held = sum(one["tail_offset"] for one in listed["streams"])
    if held != rows_count * ROW_BYTES:
        raise Failed(f"the streams hold {held} bytes, and {rows_count * ROW_BYTES} were written")
