"""What every `headwater pipeline` command shares: its options, a Spark session, progress, a summary, exit codes.
Owns how a job is run from a terminal or a script, and that no failure is told as a traceback, unless with --verbose.
Never knows what a job does.
Exit codes: 0 done, 1 refused, failed or with findings, 2 the command was wrong."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headwater.cli.pipeline.lent import WouldRun, loan
from headwater.cli.progress import progress
from headwater.client.connection import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.job_runs import Progress
    from headwater.spark.node import Node

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
    typer.Option("--allow-data-loss", help="Go on when records are gone, or the node is another one or was restored."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show what Spark logs, and where in the code a failure came from.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it would do, and change nothing.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; may be given several times."),
]
URL_DEFAULT = "http://127.0.0.1:4437"
IMPATIENCE_S = 2.0
"""How long a person at a terminal waits for a node that may not be there at all."""

_SETTING = re.compile(r"spark(\.[\w-]+)+", re.ASCII)

Job = Callable[["SparkSession", "Node", "Progress"], dict[str, object]]
_verbose: ContextVar[bool] = ContextVar("verbose", default=False)
_conf: ContextVar[Mapping[str, str]] = ContextVar("conf", default=MappingProxyType({}))


def job_command(command: Callable[..., None]) -> Callable[..., None]:
    """The command with what all have: --conf, --dry-run and --verbose, and failures that are told in a line or two.

    One that has to know of a dry run names that option itself, and gets it. Jobs of all others know of it (`job_runs`).
    """
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def wrapped(*, verbose: bool, dry_run: bool, conf: list[str] | None, **given: Any) -> None:
        from headwater.spark.job_runs import dry_runs

        _verbose.set(verbose)
        _conf.set(_settings(conf or ()))
        if conf and loan() is not None:
            raise typer.BadParameter("jobs of one server share its session: name settings there", param_hint="--conf")
        if "dry_run" in own.parameters:
            given["dry_run"] = dry_run
        with telling(), dry_runs(dry_run):
            command(**given)

    options = {"conf": (None, Conf), "dry_run": (False, DryRun), "verbose": (False, Verbose)}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (default, annotation) in options.items()
        if name not in own.parameters
    ]
    wrapped.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    return wrapped


def _settings(given: Iterable[str]) -> dict[str, str]:
    """Settings of Spark's by name. A value is told nowhere: it may be a key."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not _SETTING.fullmatch(name):
            raise typer.BadParameter(
                f"{printable(repr(name))} is not spark.NAME=VALUE, such as spark.executor.memory=4g",
                param_hint="--conf",
            )
        if name in ("spark.master", "spark.remote"):
            raise typer.BadParameter(f"{name} is named with --master", param_hint="--conf")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--conf")
        found[name] = value
    return found


def run(name: str, url: str, token: str | None, master: str | None, job: Job, **conf: str) -> dict[str, object]:
    """Runs a job on a session made for it; a bar on a terminal, and one line of JSON at the end on standard output."""
    with telling():
        from headwater.spark.node import Node

        given = loan()
        if given is not None and given.session is None:
            raise WouldRun
        if given is None:
            Node(url, token, IMPATIENCE_S).groups()  # before Spark is started: a wrong address is told at once
        node = Node(url, token)
        shown = progress() if given is None else nullcontext(given.progress)
        with sparked(name, master, **conf) as spark, shown as tell:
            summary = job(spark, node, tell)
        show(name, summary)
        if given is not None:
            given.summary = summary
        warnings = summary.get("warnings")
        for warning in warnings if isinstance(warnings, list) else []:
            typer.echo(printable(f"warning: {warning}"), err=True)
        return summary


@contextmanager
def sparked(name: str, master: str | None, **conf: str) -> Iterator[SparkSession]:
    """A session for one job, ended with the block. What Spark raises in it becomes JobRefused, with the cause."""
    from headwater.spark.failures import quiet, refused, spark_errors
    from headwater.spark.session import session

    given = loan()
    if given is not None and given.session is not None:
        try:
            yield given.session()
        except spark_errors() as error:
            raise refused(error) from error
        return
    verbose = _verbose.get()
    spark = session(f"headwater {name}", master, verbose=verbose, settings=_conf.get(), **conf)
    if not verbose:
        quiet(spark)
    try:
        yield spark
    except spark_errors() as error:
        raise refused(error) from error
    finally:
        spark.stop()


def ended(summary: dict[str, object]) -> None:
    """Exit code 1 for a job that ended with findings."""
    if summary.get("outcome", "done") != "done":
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
    """A failure is printed with what to do about it and becomes the exit code. A server tells it itself."""
    from headwater.lake.store import StoreError
    from headwater.spark.failures import advice
    from headwater.spark.job_runs import JobRefused
    from headwater.spark.node import NodeError
    from headwater.spark.session import SparkMissing

    if loan() is not None:
        yield
        return
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except JobRefused as refused:
        _tell(refused, refused.message, refused.advice or advice(refused.message))
    except (NodeError, SparkMissing, StoreError) as why:
        _tell(why, str(why))
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        _tell(error, f"{place}{error.strerror or error}", "check the path, and that you may read and write there")
    except Exception as error:
        _tell(error, f"{type(error).__name__}: {error}", "nobody foresaw this: --verbose shows where it came from")


def _tell(error: Exception, message: str, advice: str = "") -> NoReturn:
    if _verbose.get():
        traceback.print_exception(error)
    typer.echo(printable(f"error: {message}"), err=True)
    if advice:
        typer.echo(printable(f"  {advice}"), err=True)
    raise typer.Exit(1) from None
