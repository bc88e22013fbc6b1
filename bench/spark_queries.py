"""B11, Spark's queries: what they cost a node, how long planning takes, how late a row is, and the feed alone.

Owns four measurements. The calls of a query are made by this process as Spark makes them, without Spark where only the
node is measured; rows of the feed and latency are Spark's own.
"""

import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from bench import peers
from bench.generator import Failed
from bench.peers import FSYNC, Server
from bench.proc import cpu_seconds
from bench.report import Result, show
from bench.rounds import Settings, tell

BUCKETS = 16
STREAMS_PER_BUCKET = 50
QUERIES = (0, 1, 4, 16)
INGEST_S, INGEST_S_QUICK = 30.0, 8.0
RECORDS_PER_ENTRY, PAYLOAD_BYTES = 10, 100
INGEST_STEP_S = 0.4
"""8,000 records each: 20,000 a second, as long as the machine takes them."""
TRIGGER_S = 1.0
AIM_COST, AIM_PLAN_MS, AIM_ROWS_PER_S = 1.3, 50.0, 1_000_000
EXTENTS, EXTENTS_QUICK = (10_000, 1_000_000), (10_000,)
STREAMS_PER_FLUSH = 5_000
HOT_ROWS, HOT_ROWS_QUICK = 2_000_000, 200_000
LATENCY_S, LATENCY_S_QUICK = 60.0, 15.0
ALL_IN_MEMORY = ("--flush-interval-ms", "86400000", "--flush-bytes", "1GiB", "--hot-bytes-max", "2GiB")


def run_queries(settings: Settings) -> list[Result]:
    return [_cost(settings), _planning(settings), _latency(settings), _feed(settings)]


# ---- what queries cost a node ----------------------------------------------------------------------------------------


def _cost(settings: Settings) -> Result:
    """Queries that together read everything, each its share of the buckets, while records come in at one rate."""
    seconds = INGEST_S_QUICK if settings.quick else INGEST_S
    found: dict[int, dict[str, float]] = {}
    for count in QUERIES:
        with peers.serving(_peer(*ALL_IN_MEMORY)) as server:  # what settled would not go through the node
            found[count] = _ingest_beside(server, count, seconds)
        tell(f"{count} queries: " + "  ".join(f"{name} {show(value)}" for name, value in found[count].items()))
    rest = found[0]["cpu_us_per_record"]
    own = {count: found[count]["cpu_us_per_record"] - rest for count in QUERIES if count}
    most = max(own[4], own[16]) / own[1] if own[1] > 0 else None
    note = " ".join(f"{count}_queries_cpu_us_per_record {show(value)}" for count, value in own.items())
    sent = " ".join(
        f"{count}_bytes_per_ingested {show(found[count]['sent_per_ingested'])}" for count in QUERIES if count
    )
    return Result(
        "B11Q",
        "queries_cost_ratio",
        most,
        AIM_COST,
        aim_is_ceiling=True,
        note=f"{note} {sent}",
        details={"queries": found},
    )


def _ingest_beside(server: Server, count: int, seconds: float) -> dict[str, float]:
    keys = [f"query{bucket:02d}/{stream:03d}" for bucket in range(BUCKETS) for stream in range(STREAMS_PER_BUCKET)]
    _append(server, keys, 1)
    stop = threading.Event()
    shares = [[f"query{bucket:02d}" for bucket in range(number, BUCKETS, count)] for number in range(count)]
    followed = [_Follower(server, buckets, stop) for buckets in shares]
    for one in followed:
        one.start()
    for one in followed:
        one.ready.wait(60)
    cpu_s, began_s = cpu_seconds(server.pid), time.monotonic()
    records = 0
    while time.monotonic() - began_s < seconds:
        due_s = time.monotonic() + INGEST_STEP_S
        records += _append(server, keys, RECORDS_PER_ENTRY)
        time.sleep(max(due_s - time.monotonic(), 0))
    stop.set()
    for one in followed:
        one.join(120)  # each reads to the end
        if one.failure is not None:
            raise Failed(f"a query ended: {one.failure!r}")
    cpu_s = cpu_seconds(server.pid) - cpu_s
    ingested = records * PAYLOAD_BYTES
    return {
        "records": records,
        "rows": sum(one.rows for one in followed),
        "cpu_us_per_record": cpu_s / records * 1e6,
        "sent_per_ingested": sum(one.sent_bytes for one in followed) / ingested,
        "plan_ms": statistics.median([ms for one in followed for ms in one.plan_ms] or [0.0]),
    }


class _Follower(threading.Thread):
    """A query with a trigger of a second, as Spark would run it, over some buckets."""

    def __init__(self, server: Server, buckets: list[str], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.rows = self.sent_bytes = 0
        self.plan_ms: list[float] = []
        self.failure: Exception | None = None
        self.ready = threading.Event()
        self._server, self._buckets, self._ended = server, buckets, stop

    def run(self) -> None:
        try:
            for reader in self._readers():
                self._follow(reader)
        except Exception as error:
            self.failure = error

    def _readers(self) -> Iterator[list[Any]]:
        from headwater.spark.node import Node
        from headwater.spark.rows import schema_of
        from headwater.spark.stream_source import StreamReader

        follower = self

        class Counting(Node):
            def feed(self, group: int, wanted: Any) -> Any:
                answer = super().feed(group, wanted)
                follower.sent_bytes += len(answer.body)
                return answer

        streams = [f"{bucket}/{stream:03d}" for bucket in self._buckets for stream in range(STREAMS_PER_BUCKET)]
        url = f"http://127.0.0.1:{self._server.port}"
        choice = {"bucket": self._buckets[0]} if len(self._buckets) == 1 else {"subscribe": ",".join(streams)}
        reader = StreamReader({"url": url, "startingOffsets": "latest", **choice}, schema_of(False))
        reader._options = reader._options._replace(node=Counting(url))
        yield [reader]

    def _follow(self, readers: list[Any]) -> None:
        (reader,) = readers
        at = reader.initialOffset()
        self.ready.set()
        while True:
            last = self._ended.wait(TRIGGER_S)
            began_s = time.perf_counter()
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            if end == at and last:
                return
            if end == at:
                continue
            parts = reader.partitions(at, end)
            self.plan_ms.append((time.perf_counter() - began_s) * 1000)
            self.rows += sum(len(batch) for part in parts for batch in reader.read(part))
            at = json.loads(json.dumps(end))


# ---- planning --------------------------------------------------------------------------------------------------------


def _planning(settings: Settings) -> Result:
    """One planning call of a query near the head, of one a flush behind, and of one at the beginning of everything."""
    found: dict[str, dict[str, float]] = {}
    for extents in EXTENTS_QUICK if settings.quick else EXTENTS:
        with peers.serving(_peer("--flush-interval-ms", "86400000", "--flush-bytes", "1GiB")) as server:
            behind = 0
            keys = [f"plans/{number:05d}" for number in range(STREAMS_PER_FLUSH)]
            for _ in range(extents // STREAMS_PER_FLUSH):
                behind = _position(server)
                _append(server, keys, 1)
                _flush(server)
            _append(server, keys[:100], 1)
            starts = {"near": _position(server) - 1, "a_flush_behind": behind, "from_the_beginning": 0}
            found[str(extents)] = {name: _plan_ms(server, start) for name, start in starts.items()}
        tell(f"{extents} extents: " + "  ".join(f"{name} {show(ms)} ms" for name, ms in found[str(extents)].items()))
    worst = max(ms for of_size in found.values() for name, ms in of_size.items() if name != "from_the_beginning")
    note = " ".join(f"{size}_{name}_ms {show(ms)}" for size, of_size in found.items() for name, ms in of_size.items())
    return Result("B11Q", "plan_ms", worst, AIM_PLAN_MS, aim_is_ceiling=True, note=note, details={"extents": found})


def _plan_ms(server: Server, start: int) -> float:
    body = json.dumps({"groups": {"0": {"from": start, "files": True}}, "choice": {"bucket": "plans"}}).encode()
    connection = _connection(server)
    times = []
    for _ in range(15):
        began_s = time.perf_counter()
        _post(connection, "/__headwater/plan", body, "application/json")
        times.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(times)


# ---- latency and the feed through Spark ------------------------------------------------------------------------------


def _latency(settings: Settings) -> Result:
    """From an append's answer to its row in a batch of a query with a trigger of a second."""
    seconds = LATENCY_S_QUICK if settings.quick else LATENCY_S
    late_ms: list[float] = []
    with peers.serving(_peer()) as server:
        _append(server, ["late/0"], 1)
        spark = _session()
        try:
            read = spark.readStream.format("headwater").option("url", f"http://127.0.0.1:{server.port}")
            frame = read.option("bucket", "late").load().selectExpr("cast(payload as string) as sent")

            def keep(batch: Any, number: int) -> None:
                rows = batch.collect()
                now_s = time.time()
                late_ms.extend((now_s - float(row.sent)) * 1000 for row in rows if row.sent.startswith("1"))

            query = frame.writeStream.foreachBatch(keep).trigger(processingTime=f"{TRIGGER_S} seconds").start()
            until_s = time.monotonic() + seconds
            connection = _connection(server)
            while time.monotonic() < until_s:
                connection.request(
                    "POST", "/v1/stream/late/0", f"{time.time():.6f}".encode(), {"Content-Type": "text/plain"}
                )
                connection.getresponse().read()
                time.sleep(0.05)
            query.processAllAvailable()
            query.stop()
        finally:
            spark.stop()
    if len(late_ms) < 10:
        raise Failed(f"only {len(late_ms)} rows came")
    p50, p99 = statistics.median(late_ms), statistics.quantiles(late_ms, n=100)[98]
    note = f"p50_ms {show(p50)} p99_ms {show(p99)}"
    return Result("B11Q", "latency_p99_ms", p99, None, aim_is_ceiling=True, note=note, details={"rows": len(late_ms)})


def _feed(settings: Settings) -> Result:
    """Every column of records that only memory holds, into nothing."""
    count = HOT_ROWS_QUICK if settings.quick else HOT_ROWS
    with peers.serving(_peer(*ALL_IN_MEMORY)) as server:
        keys = [f"hot/{number:03d}" for number in range(200)]
        done = 0
        while done < count:
            done += _append(server, keys, 100)
        spark = _session()
        try:
            rates = []
            for _ in range(max(settings.rounds, 1) + 1):
                frame = spark.read.format("headwater").option("url", f"http://127.0.0.1:{server.port}").load()
                began_s = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                rates.append(done / (time.perf_counter() - began_s))
        finally:
            spark.stop()
    rate = statistics.median(rates[1:])
    return Result("B11Q", "feed_rows_per_s", rate, AIM_ROWS_PER_S, note=f"rows {done}", details={"rates": rates})


# ---- the node --------------------------------------------------------------------------------------------------------


def _peer(*flags: str) -> peers.Peer:
    plain = peers.headwater(FSYNC)
    return replace(plain, command=lambda data: [*plain.command(data), *flags])


def _append(server: Server, keys: list[str], count: int) -> int:
    """So many records to each stream; how many those are in all."""
    connection = _connection(server)
    payload = b"x" * PAYLOAD_BYTES
    for at in range(0, len(keys), 500):
        entries = [
            {"stream": key, "content_type": "text/plain", "create": True, "binary": [payload] * count}
            for key in keys[at : at + 500]
        ]
        _post(connection, "/__headwater/append", msgspec.msgpack.encode(entries), "application/msgpack")
    connection.close()
    return len(keys) * count


def _flush(server: Server) -> None:
    connection = _connection(server)
    while msgspec.json.decode(_post(connection, "/__headwater/flush", b"", "application/json"))["flushed_bytes"]:
        pass
    connection.close()


def _position(server: Server) -> int:
    connection = _connection(server)
    connection.request("GET", "/__headwater/groups")
    found: int = msgspec.json.decode(connection.getresponse().read())["groups"][0]["position"]
    connection.close()
    return found


def _connection(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, kind: str) -> bytes:
    for _ in range(600):
        connection.request("POST", path, body, {"Content-Type": kind})
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
    from bench.spark import _session as session

    return session()
