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

from headwater.spark.job_runs import JobRefused
from headwater.spark.sending import SinkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEPTH_MAX = 10
_OURS = re.compile(r"^(?:headwater|pyspark_headwater)[\w.]*\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_SPARK = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .+")
_JAVA = re.compile(r"^(?:: |Caused by: )([\w.$]+)(?:: (.+))?$", re.MULTILINE)
_STATE = re.compile(r"\.? SQLSTATE: \w+")
_ADVICE = (
    (
        re.compile(r"mkdirs? |Mkdirs|not a directory|Permission denied|AccessControl|AccessDenied|Read-only|No space"),
        "Spark cannot write there: check the path, its permissions and the space; a relative path starts where the "
        "command is run",
    ),
    (re.compile(r"PATH_NOT_FOUND"), "check the path: a relative one starts where the command is run"),
    (
        re.compile(r"No FileSystem for scheme|UnsupportedFileSystem"),
        "Spark has no jars for such an address here: name a directory, or give it the jars (guide: A lake on S3)",
    ),
    (re.compile(r"CANNOT_READ_FILE_FOOTER"), "name the format that the files have with --format"),
    (
        re.compile(r"UNRESOLVED"),
        "check the names of columns; a fixed text stands in quotes of its own, as \"'bucket/name'\"",
    ),
    (re.compile(r"PARSE_|SYNTAX"), "check the expression: it is Spark SQL"),
    (
        re.compile(r"Java heap space|OutOfMemory"),
        "give the driver more memory: PYSPARK_SUBMIT_ARGS='--driver-memory 4g pyspark-shell'",
    ),
)
"""What to do about a message of Spark's, by the first that is found in it."""


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
    if spark := [_STATE.sub("", said).strip() for said in _SPARK.findall(text)]:
        # What Spark was doing, and the error that ended it.
        return spark[0] if spark[-1] == spark[0] else f"{spark[0]} {spark[-1]}"
    if java := _JAVA.findall(text):
        name, message = java[-1]
        return (message or name.rpartition(".")[2]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def advice(message: str) -> str:
    """What to do about what `cause` found; empty when nothing more is known than it says."""
    return next((what for pattern, what in _ADVICE if pattern.search(message)), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, as far as PySpark has taken that over from Java."""
    seen: BaseException | None = error
    for _ in range(_DEPTH_MAX):
        if seen is None:
            return
        yield seen
        seen = getattr(seen, "_cause", None)


def refused(error: BaseException, columns: str = "") -> JobRefused:
    """For what Spark refused before anything ran. `columns`: what the expressions may name."""
    why = cause(error).rstrip(" ;")
    what = advice(why)
    return JobRefused(why, f"{columns}; {what}" if columns and "UNRESOLVED" in why else what)


def quiet(spark: SparkSession) -> None:
    """For a person at a terminal: without Spark's own account of a failure, which is pages long; `cause` is told."""
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger("pyspark.sql.connect.client.logging").disabled = True
    if not is_connect(spark):
        spark.sparkContext.setLogLevel("OFF")


def is_connect(spark: SparkSession) -> bool:
    """Whether the session talks to a Spark Connect server: then the driver, and all of its Python, is over there."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def no_connect(spark: SparkSession, what: str, else_: str) -> None:
    """Raises JobRefused on a Spark Connect session, for what needs the driver in this process."""
    if is_connect(spark):
        raise JobRefused(
            f"{what} needs Spark's driver in this process, and Spark Connect has it on the server",
            f"{else_}, or name a cluster with --master spark://HOST:PORT, local[*], yarn or k8s://…",
        )


def failed(error: BaseException) -> SinkFailed:
    """For what went wrong on the way."""
    why = cause(error)
    what = advice(why)
    return SinkFailed(f"{why}: {what}" if what else why)
