"""Which line of which file Spark could not read.

Owns the second look that Spark's own message makes necessary: that names the file at best. Costs a read of the files,
once, after a load has failed; never fails itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from headwater.spark.failures import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

SHOWN_CHARS = 120
_BAD, _OTHER = "_headwater_bad", "_headwater_other"
_MALFORMED = re.compile(r"MALFORMED|CANNOT_PARSE|FAILED_READ_FILE|NumberFormatException|DateTimeException")
"""In Spark's messages about a line that does not fit."""


class BadLine(NamedTuple):
    file: str
    line: int | None
    """From 1; None where lines are not what is read."""
    text: str

    @property
    def where(self) -> str:
        return self.file if self.line is None else f"line {self.line} of {self.file}"

    @property
    def shown(self) -> str:
        return self.text if len(self.text) <= SHOWN_CHARS else f"{self.text[:SHOWN_CHARS]}…"


def is_malformed(message: str) -> bool:
    return _MALFORMED.search(message) is not None


def first_bad_line(
    spark: SparkSession, paths: Sequence[str], format: str, schema: str | None, options: Mapping[str, str]
) -> BadLine | None:
    """The first, by file and place, that does not fit; None when a second look does not find it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    looking = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
    try:
        reader = spark.read.format(format).options(**looking)
        columns = reader.load(list(paths)).schema if schema is None else StructType.fromDDL(schema)
        # Spark wants to be asked for another column, too, before it tells what it could not read.
        fields = [field for field in columns.fields if field.name != _BAD] or [StructField(_OTHER, StringType())]
        frame = spark.read.format(format).options(**looking)
        rows = frame.schema(StructType([*fields, StructField(_BAD, StringType())])).load(list(paths))
        whole = F.struct(*[F.col(f"`{field.name}`") for field in fields]).alias("whole")
        seen = rows.select(_BAD, whole, *_place())
        found = seen.where(F.col(_BAD).isNotNull()).orderBy("file", "block", "row").limit(1).collect()
        if not found:
            return None
        file, text = unquote(found[0]["file"]), found[0][_BAD]
        several = {name.lower(): value for name, value in options.items()}.get("multiline", "").lower() == "true"
        line = None if several else _line(spark, file, text, options)
        return BadLine(re.sub(r"^file:/+", "/", file), line, text.strip().replace("\n", " "))
    except spark_errors():
        return None


def _place() -> list[Column]:
    from pyspark.sql import functions as F

    names = {"file": "_metadata.file_path", "block": "_metadata.file_block_start"}
    names["row"] = "monotonically_increasing_id()"
    return [F.expr(text).alias(name) for name, text in names.items()]


def _line(spark: SparkSession, file: str, text: str, options: Mapping[str, str]) -> int | None:
    from pyspark.sql import functions as F

    separator = {name: value for name, value in options.items() if name.lower() == "linesep"}
    rows = spark.read.options(**separator).text(file).select("value", *_place())
    found = rows.where(F.col("value") == text).orderBy("block", "row").limit(1).collect()
    if not found:
        return None
    block, row = found[0]["block"], found[0]["row"]
    before = (F.col("block") < block) | ((F.col("block") == block) & (F.col("row") < row))
    return int(rows.where(before).count()) + 1
