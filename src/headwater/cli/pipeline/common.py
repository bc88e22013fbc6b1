"""What every `headwater pipeline` command shares: its options, a Spark session, progress, a summary, exit codes.
Owns how a job is run from a terminal or a script. Never knows what a job does.
Exit codes: 0 done, 1 refused, failed or with findings, 2 the command was wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.client import printable
from headwater.cli.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.node import Node
    from headwater.spark.runs import Progress

Url = Annotated[
    str,
    typer.Option("--url", metavar="URL", envvar="HEADWATER_URL", help="Address of the node.", show_default=True),
]
Token = Annotated[
    str | None, typer.Option("--token", envvar="HEADWATER_TOKEN", help="Bearer token for the node.", show_default=False)
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master; else Spark's own settings, else local[*]."),
]
RequireMatch = Annotated[
    bool, typer.Option("--require-match", help="Fail when no stream goes by a name, the pattern or the bucket.")
]
AllowDataLoss = Annotated[
    bool,
    typer.Option(
        "--allow-data-loss", help="Go on when records are gone, or the node is another one or was restored."
    ),
]
URL_DEFAULT = "http://127.0.0.1:4437"
IMPATIENCE_S = 2.0
"""How long somebody at a terminal waits for a node that may not be there at all."""

Job = Callable[["SparkSession", "Node", "Progress"], dict[str, object]]


def run(name: str, url: str, token: str | None, master: str | None, job: Job, **conf: str) -> dict[str, object]:
    """Runs a job on a session made for it; a bar on a terminal, and one line of JSON at the end on standard output."""
    with telling():
        from headwater.spark.failures import cause, quiet, spark_errors
        from headwater.spark.node import Node
        from headwater.spark.runs import JobRefused
        from headwater.spark.session import session

        Node(url, token, IMPATIENCE_S).groups()  # before Spark is started: a wrong address is told at once
        node = Node(url, token)
        spark = session(f"headwater {name}", master, **conf)
        quiet(spark)
        try:
            with progress() as tell:
                summary = job(spark, node, tell)
        except spark_errors() as error:
            raise JobRefused(cause(error)) from error
        finally:
            spark.stop()
        show(name, summary)
        warnings = summary.get("warnings")
        for warning in warnings if isinstance(warnings, list) else []:
            typer.echo(printable(f"warning: {warning}"), err=True)
        return summary


def ended(summary: dict[str, object]) -> None:
    """Exit code 1 for a job that found something that somebody should look at."""
    if summary["outcome"] != "done":
        raise typer.Exit(1)


def show(name: str, summary: dict[str, object]) -> None:
    if not sys.stdout.isatty():
        typer.echo(json.dumps({"job": name, **summary}))
        return
    for key, value in summary.items():
        shown = json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
        typer.echo(printable(f"{key.replace('_', ' '):<24} {shown}"))


@contextmanager
def telling() -> Iterator[None]:
    """A failure is printed with what to do about it and becomes the exit code."""
    from headwater.lake.store import StoreError
    from headwater.spark.node import NodeError
    from headwater.spark.runs import JobRefused
    from headwater.spark.session import SparkMissing

    try:
        yield
    except JobRefused as refused:
        typer.echo(printable(f"error: {refused.message}"), err=True)
        if refused.advice:
            typer.echo(printable(f"  {refused.advice}"), err=True)
        raise typer.Exit(1) from None
    except (NodeError, SparkMissing, StoreError) as why:
        typer.echo(printable(f"error: {why}"), err=True)
        raise typer.Exit(1) from None
