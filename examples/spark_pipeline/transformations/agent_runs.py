"""Tables and a stream from agent runs, declared to Spark: it decides the order and keeps the checkpoints.

Owns what comes from what. Never says how it is run: `spark-pipelines run` does.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
URL = spark.conf.get("headwater.url")
SCHEMA = "kind STRING, at TIMESTAMP, model STRING, step INT, tokens BIGINT"


@dp.table
def events() -> DataFrame:
    """Bronze: the records of the bucket `runs`, typed. New ones with every run."""
    records = (
        spark.readStream.format("headwater")
        .option("url", URL)
        .option("bucket", "runs")
        .option("startingOffsets", "earliest")
        .schema("stream STRING, seq BIGINT, timestamp TIMESTAMP, payload STRING")
        .load()
    )
    parsed = records.select("stream", "seq", "timestamp", F.from_json("payload", SCHEMA).alias("event"))
    return parsed.select("stream", "seq", "timestamp", "event.*")


@dp.materialized_view
def per_run() -> DataFrame:
    """Gold: what each run cost. Computed anew with every run."""
    usage = spark.read.table("events").where("kind = 'tokens'")
    return usage.groupBy("stream").agg(F.sum("tokens").alias("tokens"), F.count("*").alias("steps"))


dp.create_sink("alerts", "headwater", {"url": URL, "contentType": "application/json", "orderBy": "seq"})


@dp.append_flow(target="alerts")
def expensive_steps() -> DataFrame:
    """Back out to streams, each record once. One partition: rows of a stream must not come from two."""
    costly = spark.readStream.table("events").where("tokens > 2500")
    payload = F.to_json(F.struct("stream", "tokens"))
    return costly.select(
        F.concat(F.lit("alerts/"), "stream").alias("stream"), payload.alias("payload"), "seq"
    ).coalesce(1)
