"""Every benchmark there is, by name. A new one is a function from Settings to Results and a row here.

Owns the list and which of it runs by default; never runs anything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench import (
    access,
    append,
    cluster,
    cost,
    fanout,
    fold,
    greedy,
    hostile,
    lake,
    many_streams,
    pipeline_scale,
    replay,
    s3p,
    spark,
    spark_queries,
    tls,
    topics,
    workers,
)
from bench.report import Result
from bench.rounds import Settings


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    what: str
    run: Callable[[Settings], list[Result]]
    by_default: bool = True


BENCHMARKS = {
    one.name: one
    for one in (
        Benchmark("B1", "append 100 B, 64 connections, fsync before the answer", append.run_b1),
        Benchmark("B2", "the same in memory", append.run_b2),
        Benchmark("B3", "JSON arrays of 100 messages, fsync", append.run_b3),
        Benchmark("B4", "SSE fan-out to 50, 200 and 1,000 subscribers", fanout.run_b4),
        Benchmark("B5", "catch-up read of 256 MB, hot and cold, beside a plain file", lake.run_b5),
        Benchmark("B6", "1,000 clients replaying streams of 1 MB", replay.run_b6),
        Benchmark("B7", "S3P appends beside Redis XADD, fsync, depth 1 and 100, batches of 100", s3p.run_b7),
        Benchmark("B8", "300,000 idle streams: memory, and restart", lake.run_b8),
        Benchmark("B9", "append p99 beside cold reads and flushes", lake.run_b9),
        Benchmark("B10", "appends to a cluster of three nodes, beside bare JetStream", cluster.run_b10, False),
        Benchmark("B11", "Spark: 10,000,000 rows of the lake, beside spark.read.parquet", spark.run_b11),
        Benchmark(
            "B11Q",
            "Spark's queries: their cost to a node, planning, latency, the feed",
            spark_queries.run_queries,
            False,
        ),
        Benchmark("B12", "CPU per append, with a profile", cost.run_b12),
        Benchmark("B13", "CPU per append with 1, 2 and 4 workers, and what 8 and 16 cores would do", workers.run_b13),
        Benchmark(
            "B14", "topics and queues: delivery, claims beside Redis and RQ, deletes by tag", topics.run_b14, False
        ),
        Benchmark("B15", "appends over TLS, by the node and by proxies in front of it", tls.run_b15, False),
        Benchmark("B16", "appends with a key, and with a signed token, beside none", access.run_b16, False),
        Benchmark("FOLD", "bootstrap of a folded stream beside its replay; derive and fold on Spark", fold.run_fold),
        Benchmark("SKETCH", "appends beside a bare sketch of the append path", append.run_sketch, False),
        Benchmark("MANY", "a bucket of 1,000,000 streams: listing a page, creating one", many_streams.run_many, False),
        Benchmark("SCALE", "jobs on Spark over 10,000 to 1,000,000 streams", pipeline_scale.run_scale, False),
        Benchmark("GREEDY", "p99 of a modest client beside 1,000 greedy connections", greedy.run_greedy, False),
        Benchmark("HOSTILE", "append p99 beside clients that misbehave", hostile.run_hostile, False),
    )
}
