"""What Spark reports of a failure, cut down to what its reader can act on.

Owns finding the cause inside Spark's messages, which wrap it in traces of two languages. Never hides one: what it does
not know is told as Spark tells it, in one line.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.spark.runs import JobRefused
from headwater.spark.sending import SinkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEPTH_MAX = 10
_OURS = re.compile(r"^(?:headwater|pyspark_headwater)[\w.]*\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_SPARK = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .+")


def spark_errors() -> tuple[type[Exception], ...]:
    """Everything that a call to Spark may raise. Some failures come as Java has them."""
    from pyspark.errors import PySparkException

    return PySparkException, importlib.import_module("py4j.protocol").Py4JJavaError


def cause(error: BaseException) -> str:
    """One line: what our own code raised in a worker, else what Python code raised there, else Spark's own messages."""
    text = "\n".join(str(one) for one in _chain(error))
    for pattern in (_OURS, _PYTHON):
        if found := pattern.findall(text):
            name, message = found[-1]
            return message.strip() if pattern is _OURS else f"{name}: {message.strip()}"
    if spark := [said.strip() for said in _SPARK.findall(text)]:
        # What Spark was doing, and what stood in its way.
        return spark[0] if spark[-1] == spark[0] else f"{spark[0]} {spark[-1]}"
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, as far as PySpark has taken that over from Java."""
    seen: BaseException | None = error
    for _ in range(_DEPTH_MAX):
        if seen is None:
            return
        yield seen
        seen = getattr(seen, "_cause", None)


def refused(error: BaseException, columns: str) -> JobRefused:
    """For what Spark refused before anything ran. `columns`: what the expressions may name."""
    why = cause(error).rstrip(" ;")
    advice = f"{columns}; a fixed name stands in quotes of its own, as \"'bucket/name'\"" if "UNRESOLVED" in why else ""
    return JobRefused(why, advice)


def quiet(spark: SparkSession) -> None:
    """For somebody at a terminal: Spark's own account of a failure, pages of it, is left out; `cause` is told."""
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("SQLQueryContextLogger").disabled = True


def failed(error: BaseException) -> SinkFailed:
    """For what went wrong on the way."""
    return SinkFailed(cause(error))
