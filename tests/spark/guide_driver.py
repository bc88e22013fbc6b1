"""Runs the code of a guide, piece by piece in the order of the page, in one process: Python, SQL and commands.
It is started with a plan on standard input and ends at the first piece that fails. Each piece is told on standard
error with its line of the page."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Any

from headwater.cli.main import app
from headwater.spark.session import session

PRELUDE = """
from pyspark.sql import functions as F

chosen = {"url": url, "bucket": "orders", "startingOffsets": "earliest"}
rows_of_orders = spark.readStream.format("headwater").options(**chosen).load()
paid = rows_of_orders.select(
    F.concat(F.lit("written/"), "stream").alias("stream"),
    F.col("payload").cast("string").alias("value"),
    F.lit("c1").alias("customer"),
    F.col("timestamp").alias("at"),
)
totals = spark.createDataFrame([("c1", "2026-11-15", 5, "x")], "customer string, day string, amount int, value string")
"""
"""What pieces of the guide name without making it."""


def run_python(text: str, names: dict[str, Any]) -> None:
    names["spark"] = session("guide", "local[2]")  # a command before it may have ended the session
    exec(PRELUDE, names)
    exec(compile(text, "the guide", "exec"), names)
    for query in names["spark"].streams.active:
        query.processAllAvailable()
        query.stop()


def run_command(text: str) -> None:
    words = shlex.split(text, comments=True)
    if words[0] != "headwater":
        raise ValueError(f"{words[0]} is no command of this driver")
    status = app(words[1:], standalone_mode=False)
    if status not in (None, 0):
        raise RuntimeError(f"exit code {status}")


def main() -> None:
    plan = json.load(sys.stdin)
    names: dict[str, Any] = dict(plan["names"])
    began_s = time.monotonic()
    for piece in plan["pieces"]:
        print(f"line {piece['line']}, after {time.monotonic() - began_s:.0f} s: {piece['text']}", file=sys.stderr)
        try:
            if piece["language"] == "python":
                run_python(piece["text"], names)
            elif piece["language"] == "sql":
                for statement in filter(str.strip, piece["text"].split(";")):
                    run_python(f"spark.sql({statement!r}).collect()", names)
            else:
                run_command(piece["text"])
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    main()
