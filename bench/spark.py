"""B11, Spark: rows of the lake read through the product beside `spark.read.parquet` of the very same files.

Owns the rows that are read and the figures; Spark itself runs in this process, the node in one of its own.
"""

import http.client
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from bench import peers, spark_sink
from bench.generator import Failed
from bench.peers import FSYNC, Server
from bench.report import Result, show
from bench.rounds import Settings, median, ratio, tell

ROWS, ROWS_QUICK = 10_000_000, 500_000
STREAMS = 500
RECORDS_PER_ENTRY, ENTRIES_PER_REQUEST = 500, 20
AIM_READ = 0.9
FLUSH_BYTES = "64MiB"


def run_b11(settings: Settings) -> list[Result]:
    return [_read(settings), spark_sink.write(settings, _session)]


# ---- reading -----------------------------------------------------------------------------------------------------


def _read(settings: Settings) -> Result:
    """Every column of every row, into nothing: by Spark's own reader, by `read_lake`, and by the Python source."""
    rows_count = ROWS_QUICK if settings.quick else ROWS
    plain = peers.headwater(FSYNC)
    flags = ("--flush-bytes", FLUSH_BYTES, "--lake-file-bytes", FLUSH_BYTES, "--hot-bytes-max", "1GiB")
    peer = replace(plain, command=lambda data: [*plain.command(data), *flags])
    with peers.serving(peer) as server:
        began_s = time.perf_counter()
        _fill(server, rows_count)
        tell(f"{rows_count} rows in {time.perf_counter() - began_s:.1f} s")
        spark = _session()
        try:
            found = _rounds(spark, server, rows_count, max(settings.rounds, 1))
        finally:
            spark.stop()
    rates = {name: median(rounds, "rows_per_s") for name, rounds in found.items()}
    value = ratio(rates["read_lake"], rates["parquet"])
    note = " ".join(f"{name}_rows_per_s {show(rate)}" for name, rate in rates.items())
    details = {"rows": rows_count, "streams": STREAMS, "rounds": found, "rows_per_s": rates}
    return Result("B11", "read_ratio", value, AIM_READ, note=note, details=details)


def _rounds(spark: Any, server: Server, rows_count: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    from headwater.spark.native_read import read_lake
    from headwater.spark.node import Node

    url = f"http://127.0.0.1:{server.port}"
    node = Node(url)
    listed = node.lake_files()
    paths = [f"{listed['lake']['url']}/{file['path']}" for file in listed["files"]]
    ways: dict[str, Callable[[], Any]] = {
        "parquet": lambda: spark.read.parquet(*paths),
        "read_lake": lambda: read_lake(spark, node, includeHeaders="true"),
        "source": lambda: spark.read.format("headwater").options(url=url, includeHeaders="true").load(),
    }
    for name, way in ways.items():
        counted = way().count()
        if counted != rows_count:
            raise Failed(f"{name} has {counted} rows, and {rows_count} were written")
        _drain(way())  # the JVM is slow at what it does for the first time
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        # There and back: whoever comes later finds the JVM warmer.
        for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
            began_s = time.perf_counter()
            _drain(way())
            took_s = time.perf_counter() - began_s
            found[name].append({"rows_per_s": rows_count / took_s})
            tell(f"round {number + 1} {name}: {show(rows_count / took_s)} rows/s")
    return found


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _fill(server: Server, rows_count: int) -> None:
    """Records of about 100 bytes over some streams, all of them settled on return."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    per_request = RECORDS_PER_ENTRY * ENTRIES_PER_REQUEST
    for first in range(0, rows_count, per_request):
        entries = []
        for entry in range(ENTRIES_PER_REQUEST):
            at = first + entry * RECORDS_PER_ENTRY
            upto = min(at + RECORDS_PER_ENTRY, rows_count)
            if at < upto:
                stream = f"bench/spark/{at // RECORDS_PER_ENTRY % STREAMS:05d}"
                records = [
                    b'{"id":%d,"user":"u%06d","kind":"click","value":%d,"page":"/shop/item/%d"}'
                    % (number, number * 7919 % 1_000_003, number * 31 % 9_973, number % 4_001)
                    for number in range(at, upto)
                ]
                entries.append({"stream": stream, "content_type": "text/plain", "create": True, "binary": records})
        _post(connection, "/__headwater/append", msgspec.msgpack.encode(entries))
    while msgspec.json.decode(_post(connection, "/__headwater/flush", b""))["flushed_bytes"]:
        pass
    connection.close()


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    for _ in range(600):
        connection.request("POST", path, body, {"Content-Type": "application/msgpack"})
        response = connection.getresponse()
        answer = response.read()
        if response.status == 503:
            time.sleep(0.2)
            continue
        if response.status != 200 or b'"error"' in answer:
            raise Failed(f"POST {path} answered {response.status} {answer[:300]!r}")
        return answer
    raise Failed(f"POST {path} was answered 503 for two minutes")


def _session() -> Any:
    from headwater.spark.session import SparkMissing, session

    try:
        return session("headwater bench", "local[2]", spark_driver_memory="3g", spark_sql_shuffle_partitions="2")
    except SparkMissing as missing:
        raise Failed(str(missing)) from missing
