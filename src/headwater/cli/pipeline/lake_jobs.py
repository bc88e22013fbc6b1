"""Commands of the pipeline that keep the lake: `compact`, `erase`, `verify` and `usage`.
Owns their options and exit codes. Never does the work: the jobs do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.pipeline.common import (
    IMPATIENCE_S,
    URL_DEFAULT,
    DryRun,
    Master,
    Token,
    Url,
    ended,
    run,
    telling,
)
from headwater.client.connection import printable
from headwater.config import Setting
from headwater.setting_values import GIB, MIB, TIB, Wrong, parsed

OUTPUTS = (".json", ".csv", ".parquet")
"""As `headwater.spark.jobs.usage` has them, which is not imported for a wrong name."""


def _size(name: str, low: int, high: int) -> Any:
    def read(text: str | int) -> int:
        try:
            return int(parsed(Setting(name, "size", low, "", "", low, high), text, typed=False))
        except Wrong as wrong:
            raise typer.BadParameter(f"{wrong.wrong}; {wrong.change}") from None

    return read


Target = Annotated[
    int,
    typer.Option(
        "--target",
        metavar="SIZE",
        parser=_size("target", MIB, 4 * GIB),
        help="Size of the files that are written, about.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds this module's commands to `headwater pipeline run`."""
    app.command()(compact)
    app.command()(erase)
    app.command()(verify)
    app.command()(usage)


def compact(
    target: Target = "128MiB",  # type: ignore[assignment]
    min_files: Annotated[
        int, typer.Option("--min-files", min=2, max=1_000, help="Leave fewer small files than this for later.")
    ] = 4,
    max_bytes: Annotated[
        int,
        typer.Option(
            "--max",
            metavar="SIZE",
            parser=_size("max", MIB, 1024 * TIB),
            help="Read at most so much; the next run goes on.",
        ),
    ] = "16GiB",  # type: ignore[assignment]
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITIONS",
            help="Take only files that can hold such rows: conditions on bucket, stream and timestamp.",
            show_default=False,
        ),
    ] = None,
    cluster_by: Annotated[
        str | None,
        typer.Option(
            "--cluster-by",
            metavar="COLUMNS",
            help="Give each new file a range of this order, such as timestamp or bucket,timestamp; else of streams.",
            show_default=False,
        ),
    ] = None,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Turn many small files of the lake into few large ones.

    Streams are read and written meanwhile as ever; rows that nobody has any
    more are left behind. The old files go after the node's lake_grace_ms.

        headwater pipeline run compact --cluster-by timestamp
            --where "bucket = 'orders' AND timestamp >= '2026-01-01'"
    """

    def job(spark, node, progress):
        from headwater.spark.jobs.compact import compact as work

        return work(
            spark,
            node,
            target_bytes=target,
            min_files=min_files,
            max_bytes=max_bytes,
            where=where,
            cluster_by=order,
            progress=progress,
        )

    order = [] if cluster_by is None else [name.strip() for name in cluster_by.split(",")]
    _check_choice(where, order)
    run("compact", url, token, master, job)


def _check_choice(where: str | None, order: list[str]) -> None:
    """Before Spark is started: what is wrong is told at once."""
    from headwater.spark.clustering import order_of
    from headwater.spark.job_runs import JobRefused
    from headwater.spark.jobs.compact import condition_of

    for option, check in (("--where", lambda: condition_of(where)), ("--cluster-by", lambda: order_of(order))):
        try:
            check()
        except JobRefused as refused:
            raise typer.BadParameter(str(refused), param_hint=option) from None


def erase(
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            metavar="BUCKET/NAME",
            help="Erase what this deleted stream has left, and print a receipt; otherwise all dead rows.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="With --stream: delete the stream first.")] = False,
    receipt: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="With --stream: write the receipt there, too."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="RECEIPT", help="With --stream: only say whether this receipt is about it."),
    ] = None,
    find: Annotated[
        bool,
        typer.Option("--find", help="With --stream: only name what still holds it, also beyond the lake."),
    ] = False,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="PLACE", help="With --find: a table to look into, beside those of recorded runs."
        ),
    ] = None,
    backups: Annotated[
        list[str] | None,
        typer.Option(
            "--backups", metavar="PLACE", help="With --find: a place with backups, beside those of recorded runs."
        ),
    ] = None,
    dead_share: Annotated[
        float | None,
        typer.Option(
            "--dead-share",
            min=0.0,
            max=0.99,
            help="Rewrite only files of which more than this share of rows is dead, such as 0.2.",
            show_default="0",
        ),
    ] = None,
    max_bytes: Annotated[
        int,
        typer.Option(
            "--max",
            metavar="SIZE",
            parser=_size("max", MIB, 1024 * TIB),
            help="Read at most so much; the next run goes on. With --stream: without a bound.",
        ),
    ] = "64GiB",  # type: ignore[assignment]
    target: Target = "128MiB",  # type: ignore[assignment]
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
    dry_run: DryRun = False,
) -> None:
    """Remove rows of deleted and expired streams, and of ranges that were trimmed.

    Files that hold such rows are written anew without them. The old ones go
    after the node's lake_grace_ms. With --stream the node's log and catalog are
    cleared, too; the exit code is 1 when forks still need some of its records,
    or a backup is under way. With --find it is 1 when something holds it.

        headwater pipeline run erase --stream users/4711 --delete
        headwater pipeline run erase --stream users/4711 --find
    """
    given = {"--delete": delete, "--receipt": receipt, "--check": check, "--find": find}
    chosen = [option for option, value in given.items() if value]
    if stream is None and chosen:
        raise typer.BadParameter(f"{chosen[0]} is for one stream: name it with --stream")
    if (find or check) and len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)} exclude each other")
    if dry_run and (find or check or receipt is not None):
        said = (
            "--receipt is written when something was erased" if receipt else "--find and --check change nothing anyway"
        )
        raise typer.BadParameter(f"{said}: leave it out, or --dry-run")
    if (tables or backups) and not find:
        raise typer.BadParameter(f"{'--table' if tables else '--backups'} says where to look: add --find")
    if stream is not None and not all(stream.partition("/")):
        raise typer.BadParameter(f"{printable(repr(stream))} names no stream: write bucket/name, or _default/name")
    if stream is not None and dead_share is not None:
        raise typer.BadParameter("--dead-share and --stream exclude each other: of a stream every row is erased")
    if receipt is not None and not receipt.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {printable(str(receipt.absolute().parent))} for the receipt")
    if stream is not None and check is not None:
        _check_receipt(url, token, stream, check)
        return
    if stream is not None and find:
        _find(url, token, master, stream, tables or [], backups or [])
        return

    def job(spark, node, progress):
        from headwater.spark.jobs import erase as work

        if stream is not None:
            return work.erase_stream(spark, node, stream, delete=delete, target_bytes=target, progress=progress)
        return work.erase(
            spark,
            node,
            dead_share=dead_share or 0.0,
            target_bytes=target,
            max_bytes=max_bytes,
            progress=progress,
        )

    summary = run("erase", url, token, master, job)
    if receipt is not None:
        receipt.write_text(json.dumps(summary, indent=2) + "\n")
    if stream is not None and not dry_run:
        if summary["rows_kept_for_forks"]:
            typer.echo(f"error: forks still need {summary['rows_kept_for_forks']} of its records", err=True)
            typer.echo("  delete the forks, then run this again", err=True)
        if summary["backups_under_way"]:
            typer.echo("error: a backup under way has a copy of its log and catalog", err=True)
            typer.echo("  run this again when the backup is done", err=True)
    ended(summary)


def _check_receipt(url: str, token: str | None, stream: str, file: Path) -> None:
    with telling():
        from headwater.spark.job_runs import JobRefused
        from headwater.spark.node import Node

        try:
            found = json.loads(file.read_bytes())["stream_hash"]
            if not isinstance(found, str):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise JobRefused(f"{file} is no receipt of an erasure that can be read") from None
        matches = Node(url, token, IMPATIENCE_S).known(stream)["stream_hash"] == found
    typer.echo(json.dumps({"matches": matches}) if not sys.stdout.isatty() else "yes" if matches else "no")
    if not matches:
        typer.echo("error: the receipt is about another stream, or of a node with another receipt-key", err=True)
        raise typer.Exit(1)


def _find(url: str, token: str | None, master: str | None, stream: str, tables: list[str], backups: list[str]) -> None:
    def job(spark, node, progress):
        from headwater.spark.finding import find_stream

        return find_stream(spark, node, stream, tables=tables, backups=backups, progress=progress)

    summary: dict[str, Any] = run("erase", url, token, master, job)
    for finding in summary["findings"]:
        typer.echo(printable(f"{finding['kind']}: {finding['where']}: {finding['what']}"), err=True)
    for blind in summary["not_looked_at"]:
        typer.echo(printable(f"not looked at: {blind}"), err=True)
    ended(summary)


def verify(
    deep: Annotated[bool, typer.Option("--deep", help="Read payloads too: all of the lake.")] = False,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Check that streams, catalog, table, files and objects agree, while the node serves.

    Exit code 1 and a line on standard error for each finding. A finding is
    what is still wrong at a second look. What is in memory alone is counted,
    not checked. `headwater lake verify` checks a stopped node without Spark.
    """

    def job(spark, node, progress):
        from headwater.spark.jobs.verify import verify as work

        return work(spark, node, deep=deep, progress=progress)

    summary: dict[str, Any] = run("verify", url, token, master, job)
    for finding in summary.get("findings", ()):
        typer.echo(printable(f"{finding['kind']}: {finding['subject']}: {finding['what']}"), err=True)
    ended(summary)


def usage(
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help=f"Write the table of days there instead of printing it: {', '.join(OUTPUTS)}.",
        ),
    ] = None,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Add up records and bytes of each bucket by day, without reading payloads.

    Days are those of the records' times, in UTC. Records that are in memory
    alone are in a bucket's sums, and in no day yet.
    """
    if output is not None and not output.endswith(OUTPUTS):
        raise typer.BadParameter(f"{printable(output)} ends with none of {', '.join(OUTPUTS)}")
    if output is not None and not output.endswith(".parquet") and not Path(output).absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {printable(str(Path(output).absolute().parent))}")

    def job(spark, node, progress):
        from headwater.spark.jobs.usage import usage as work

        return work(spark, node, output=output, progress=progress)

    run("usage", url, token, master, job)
