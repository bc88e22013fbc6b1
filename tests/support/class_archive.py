"""Spark's classes as an archive that JVMs map at their start, instead of reading and checking thousands of them again.
It owns that file, beside this Python: made once by `python -m tests.support.class_archive`, of a small job that uses
what the tests use. A JVM that cannot use it, or finds none, starts without it and says nothing.

Measured with Java 17, in seconds of a core: a session and four small queries take 13 without it and 8 with it; making
it takes 25 more, once. It has 180 MB.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Halves the start of a JVM."""


def archive() -> Path:
    return Path(sys.prefix) / f"spark-{importlib.metadata.version('pyspark')}-classes.jsa"


def options() -> str:
    """For every JVM of a test. Options are divided by spaces, so an archive below a folder with one is left out."""
    place = str(archive())
    return QUICK if " " in place else f"{QUICK} -Xshare:auto -XX:SharedArchiveFile={place} -Xlog:disable"


def make() -> None:
    """Does nothing when it is there. Others that make it at the same time do no harm: the last one stays."""
    place = archive()
    if place.exists() or " " in str(place):
        return
    unfinished = place.with_suffix(f".{os.getpid()}.jsa")
    try:
        _run_job(f"{QUICK} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable")
        if unfinished.exists():
            unfinished.rename(place)
    finally:
        unfinished.unlink(missing_ok=True)


def _run_job(java: str) -> None:
    import tempfile

    from headwater.spark.session import session

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "spark_driver_memory": "1g",
            "spark_driver_extraJavaOptions": f"{java} -Dderby.system.home={folder}",
            "spark_sql_shuffle_partitions": "2",
            "spark_sql_warehouse_dir": f"{folder}/warehouse",
        }
        spark = session("class archive", "local[2]", **settings)
        gateway = spark.sparkContext._gateway
        try:
            _use(spark, folder)
        finally:
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()  # it writes the archive when it ends


def _use(spark: SparkSession, folder: str) -> None:
    from pyspark.sql import functions

    rows = spark.range(1_000).withColumn("key", functions.col("id") % 7)
    rows.groupBy("key").agg(functions.sum("id"), functions.max("id")).collect()
    rows.join(rows.limit(5), "key").orderBy("key").limit(3).collect()
    rows.write.parquet(f"{folder}/rows")
    spark.read.parquet(f"{folder}/rows").filter("id > 5").toPandas()
    spark.range(10).select(functions.udf(lambda number: str(number))("id")).collect()
    spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows")
    query = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query.foreachBatch(lambda batch, number: batch.count()).start().awaitTermination()


if __name__ == "__main__":
    make()
