"""What a query would read if it ran now, for dry runs: rows of a batch that begins where its checkpoint has come to.

Owns the look into a checkpoint. Never writes one, and never starts a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.spark.options import BEGINNINGS, LATEST, STREAMING_ONLY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_START = "startingoffsets"
_OFFSET_LINE = 2
"""Of a file of a checkpoint's offsets: after the format's version and the batch's facts, that of the only source."""


def would_read(
    spark: SparkSession, options: Mapping[str, str], checkpoint: str | None, schema: str | None = None
) -> DataFrame:
    """The rows that a streaming read with these options has before it. A batch that a crash cut off counts as not read.

    `checkpoint`: None, or a place without one, for a query that is new.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in STREAMING_ONLY:
        given.pop(name.lower(), None)
    after = None if checkpoint is None else committed_offset(spark, checkpoint)
    if after is not None:
        for name in BEGINNINGS:
            given.pop(name.lower(), None)
        given[_START] = after
    nothing = given.get(_START, "").strip().lower() == LATEST
    if nothing:
        del given[_START]
    reader = spark.read.format("headwater").options(**given)
    rows = (reader if schema is None else reader.schema(schema)).load()
    return rows.limit(0) if nothing else rows


def committed_offset(spark: SparkSession, checkpoint: str) -> str | None:
    """Up to where the query of a checkpoint has done its work; None when it has committed nothing, or is not there."""
    from pyspark.errors import PySparkException

    place = checkpoint.rstrip("/")
    try:
        # This format reads no content as long as it is not asked for.
        listed = spark.read.format("binaryFile").load(f"{place}/commits").select("path").collect()
        names = [row["path"].rpartition("/")[2] for row in listed]
        newest = max((int(name) for name in names if name.isdigit()), default=None)
        if newest is None:
            return None
        # As one value: lines of a file that is read as text need not come in order.
        (told,) = spark.read.text(f"{place}/offsets/{newest}", wholetext=True).collect()
    except PySparkException:
        return None
    lines = str(told["value"]).splitlines()
    return lines[_OFFSET_LINE] if len(lines) > _OFFSET_LINE else None
