"""FOLD: what a snapshot saves a client, and how fast tables are derived and streams folded.

Owns the streams that are measured and the clocks; Spark runs in this process, the node in one of its own. A read ends
when the client has the state: everything is parsed and applied, in both cases by the same lines.
"""

import http.client
import json
import time
from dataclasses import replace
from typing import Any

import msgspec

from bench import peers
from bench.generator import Failed
from bench.peers import FSYNC, Server
from bench.report import Result, show
from bench.rounds import Settings, ratio, tell

RECORDS, RECORDS_QUICK = 500_000, 20_000
KEYS = 100
STREAMS, STREAMS_QUICK = 10_000, 500
PER_STREAM = 100
READS = 9
AIM = 20.0
FLAGS = ("--flush-bytes", "64MiB", "--hot-bytes-max", "1GiB", "--flush-interval-ms", "86400000")


def run_fold(settings: Settings) -> list[Result]:
    """Two streams of the same records, one of them folded; then many streams, derived into a table and folded."""
    records = RECORDS_QUICK if settings.quick else RECORDS
    streams = STREAMS_QUICK if settings.quick else STREAMS
    plain = peers.headwater(FSYNC)
    peer = replace(plain, command=lambda data: [*plain.command(data), *FLAGS])
    with peers.serving(peer) as server:
        spark = _session()
        try:
            return [_bootstrap(spark, server, records), *_rates(spark, server, streams)]
        finally:
            spark.stop()


# ---- a client's start --------------------------------------------------------------------------------------------


def _bootstrap(spark: Any, server: Server, records: int) -> Result:
    from headwater.spark.jobs.fold import fold
    from headwater.spark.node import Node

    node = Node(f"http://127.0.0.1:{server.port}")
    events = [_event(number, number * 7919 % KEYS) for number in range(records)]
    for at in range(0, records, 5_000):
        _append(node, {f"{bucket}/run": events[at : at + 5_000] for bucket in ("whole", "folded")})
    node.flush()
    told = fold(spark, node, key=("/id",), bucket="folded", min_records=1)
    if told["published"] != 1:
        raise Failed(f"the fold published nothing: {told}")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    times: dict[str, list[float]] = {"replay": [], "bootstrap": [], "replay_wire": [], "bootstrap_wire": []}
    states = {}
    for _ in range(READS):
        for name, read in (("replay", _replay), ("bootstrap", _start)):
            began_s = time.perf_counter()
            bodies = read(connection)
            times[f"{name}_wire"].append(time.perf_counter() - began_s)
            state = {event["id"]: event for body in bodies for event in json.loads(body)}
            times[name].append(time.perf_counter() - began_s)
            states[name] = state
        if states["replay"] != states["bootstrap"] or len(state) != KEYS:
            raise Failed("the snapshot is not what the replay comes to")
    connection.close()
    ms = {name: sorted(found)[len(found) // 2] * 1e3 for name, found in times.items()}
    wire = ratio(ms["replay_wire"], ms["bootstrap_wire"])
    note = (
        f"replay_ms {show(ms['replay'])} bootstrap_ms {show(ms['bootstrap'])} wire_ratio {show(wire)} records {records}"
    )
    details = {"bytes": sum(map(len, events)), "keys": KEYS, "ms": ms, "seconds": times}
    return Result("FOLD", "bootstrap_ratio", ratio(ms["replay"], ms["bootstrap"]), AIM, note=note, details=details)


def _replay(connection: http.client.HTTPConnection) -> list[bytes]:
    """All pages of the stream, from its beginning to its end."""
    offset, bodies = "-1", []
    while True:
        headers, body = _get(connection, f"/v1/stream/whole/run?offset={offset}")
        bodies.append(body)
        offset = headers["stream-next-offset"]
        if headers.get("stream-up-to-date") == "true":
            return bodies


def _start(connection: http.client.HTTPConnection) -> list[bytes]:
    """The snapshot, and an array of what follows it."""
    headers, body = _get(connection, "/folded/run/bootstrap")
    mark = b"--" + headers["content-type"].partition("boundary=")[2].encode()
    parts = [part.partition(b"\r\n\r\n")[2] for part in body[len(mark) :].split(b"\r\n" + mark)[:-1]]
    return [parts[0], b"[" + b",".join(parts[1:]) + b"]"]


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[dict[str, str], bytes]:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise Failed(f"GET {path} answered {answer.status} {body[:300]!r}")
    return {name.lower(): value for name, value in answer.getheaders()}, body


# ---- the jobs ----------------------------------------------------------------------------------------------------


def _rates(spark: Any, server: Server, streams: int) -> list[Result]:
    from headwater.spark.jobs.derive import derive
    from headwater.spark.jobs.fold import fold
    from headwater.spark.node import Node

    node = Node(f"http://127.0.0.1:{server.port}")
    for first in range(0, streams, 100):
        some = range(first, min(first + 100, streams))
        _append(node, {f"many/{s:06d}": [_event(n, n % 10) for n in range(PER_STREAM)] for s in some})
    while node.flush()["flushed_bytes"]:
        pass
    rows = streams * PER_STREAM
    schema = "id STRING, kind STRING, value BIGINT, at BIGINT, text STRING"
    target = str(server.directory / "table")
    rounds: dict[str, float] = {}
    # The first two tell how long Spark takes to warm up; the later ones stand.
    for name, more in (("batch", {"batch": True}), ("incremental", {})) * 2:
        began_s = time.perf_counter()
        told = derive(
            spark, node, target=f"{target}-{name}", source={"bucket": "many"}, schema=schema, **more, overwrite=True
        )
        rounds[name] = rows / (time.perf_counter() - began_s)
        if told["rows"] != rows:
            raise Failed(f"{told['rows']} rows were derived, and {rows} were written")
        tell(f"derive {name}: {show(rounds[name])} rows/s")
    began_s = time.perf_counter()
    done = fold(spark, node, key=("/id",), bucket="many", min_records=1)
    took_s = time.perf_counter() - began_s
    if done["published"] != streams:
        raise Failed(f"{done['published']} snapshots were published, not {streams}: {done}")
    tell(f"fold: {streams} snapshots of {rows} records in {took_s:.1f} s")
    note = f"rows {rows} incremental_rows_per_s {show(rounds['incremental'])}"
    folded = f"streams {streams} records {rows} records_per_s {show(rows / took_s)}"
    return [
        Result("FOLD", "derive_rows_per_s", rounds["batch"], note=note, details=dict(rounds)),
        Result("FOLD", "snapshots_per_s", streams / took_s, note=folded, details={"seconds": took_s}),
    ]


def _event(number: int, key: int) -> bytes:
    return b'{"id":"k%02d","kind":"step","value":%d,"at":%d,"text":"what the agent said, number %d"}' % (
        key,
        number * 31 % 9_973,
        1_780_000_000_000 + number,
        number,
    )


def _append(node: Any, streams: dict[str, list[bytes]]) -> None:
    entries = [
        {"stream": name, "content_type": "application/json", "create": True, "binary": records}
        for name, records in streams.items()
    ]
    headers = {"Content-Type": "application/msgpack"}
    answers = msgspec.json.decode(
        node.call("POST", "/__headwater/append", msgspec.msgpack.encode(entries), headers).body
    )
    wrong = [answer for answer in answers if answer["status"] >= 300]
    if wrong:
        raise Failed(f"an append was refused: {wrong[0]}")


def _session() -> Any:
    from headwater.spark.session import SparkMissing, session

    try:
        return session("headwater bench", "local[2]", spark_driver_memory="3g", spark_sql_shuffle_partitions="2")
    except SparkMissing as missing:
        raise Failed(str(missing)) from missing
