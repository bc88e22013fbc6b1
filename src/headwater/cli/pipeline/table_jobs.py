"""Commands of the pipeline that use records: `derive` tables, `fold` snapshots, and `declared`, a pipeline in a file.
Owns their options and exit codes. Never does the work: the jobs do."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.pipeline.common import (
    URL_DEFAULT,
    AllowDataLoss,
    DryRun,
    Master,
    RequireMatch,
    Token,
    Url,
    ended,
    run,
    telling,
)

Subscribe = Annotated[
    list[str] | None, typer.Option("--stream", metavar="NAME", help="Read this stream; may be given several times.")
]
Pattern = Annotated[
    str | None, typer.Option("--pattern", metavar="GLOB", help="Read streams that match, such as runs/*.")
]
Bucket = Annotated[str | None, typer.Option("--bucket", metavar="NAME", help="Read every stream of this bucket.")]
Continuous = Annotated[bool, typer.Option("--continuous", help="Go on until interrupted, not only to the present end.")]


def register(app: typer.Typer) -> None:
    """Adds this module's commands to `headwater pipeline run`."""
    app.command()(derive)
    app.command()(fold)
    app.command()(declared)


def derive(
    target: Annotated[str, typer.Argument(metavar="TABLE", help="Directory or s3://… of the table.")],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL|JSON|@FILE",
            help="Columns, such as 'run STRING NOT NULL, tokens BIGINT'; they then stay the table's. Without it those "
            "of the bucket's schema, else the table's own, else what a sample of the records shows.",
        ),
    ] = None,
    infer: Annotated[
        bool,
        typer.Option(
            "--infer", help="Infer columns from a sample; of a table that is there, those that are new in it."
        ),
    ] = False,
    subscribe: Subscribe = None,
    pattern: Pattern = None,
    bucket: Bucket = None,
    quarantine: Annotated[
        str | None,
        typer.Option("--quarantine", metavar="TABLE", help="Where records go that do not fit; else TABLE_quarantine."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Where it remembers how far it is; else inside the table."),
    ] = None,
    day_from: Annotated[
        str | None,
        typer.Option("--day-from", metavar="COLUMN", help="Take a row's day from this column, not from the append."),
    ] = None,
    any_content_type: Annotated[
        bool, typer.Option("--any-content-type", help="Also read streams whose content type is not JSON.")
    ] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Compute the whole table anew and replace it in one step.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin a table that exists anew.")] = False,
    continuous: Continuous = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="With --continuous: a batch so often.")
    ] = "5 seconds",
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=1_000_000, help="Records that a schema is inferred from.")
    ] = 10_000,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Of an S3 that is not Amazon's.")
    ] = None,
    region: Annotated[str | None, typer.Option("--region", metavar="NAME", help="Of the table's S3 bucket.")] = None,
    quarantined_max: Annotated[
        str,
        typer.Option(
            "--quarantined-max",
            metavar="COUNT|PERCENT%",
            help="Exit with 1 when more records than this go to the quarantine, such as 100 or 2%.",
        ),
    ] = "0",
    require_match: RequireMatch = False,
    allow_data_loss: AllowDataLoss = False,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Make a typed table of JSON streams, and keep it up to date, each record once.

    Run again it adds what is new. Records that do not fit the schema go to the
    quarantine table, with the reason, and the exit code is 1 then. The table
    is a Delta table, partitioned by day and bucket.

        headwater pipeline run derive ./tables/events --bucket runs
            --schema "kind STRING NOT NULL, tokens BIGINT"
    """
    source = _source(subscribe, pattern, bucket)
    if allow_data_loss:
        source["failOnDataLoss"] = "false"
    text = schema
    if schema is not None and schema.startswith("@"):
        try:
            text = Path(schema[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"--schema {schema} cannot be read: {error}") from None

    def job(spark, node, progress):
        from headwater.spark.jobs.derive import derive as work
        from headwater.spark.lake_place import Place

        def place(given: str) -> Place:
            s3 = given.startswith("s3://")
            return Place(given, endpoint if s3 else None, region if s3 else None)

        return work(
            spark,
            node,
            target=place(target),
            source=source,
            schema=text,
            quarantine=None if quarantine is None else place(quarantine),
            checkpoint=checkpoint,
            batch=batch,
            overwrite=overwrite,
            continuous=continuous,
            interval=interval,
            day_from=day_from,
            any_content_type=any_content_type,
            sample_rows=sample,
            infer=infer,
            quarantined_max=quarantined_max,
            require_match=require_match,
            progress=progress,
        )

    _interruptible(continuous)
    ended(run("derive", url, token, master, job))


def fold(
    mode: Annotated[str, typer.Argument(metavar="MODE", help="last, merge, concat or function.")],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="POINTER", help="last: where a record's key is, such as /id; may be several."),
    ] = None,
    deleted: Annotated[
        str | None,
        typer.Option("--deleted", metavar="POINTER=VALUE", help="last: records that take their key away."),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="MODULE:NAME", help="function: (snapshot before, records) -> snapshot."),
    ] = None,
    bucket: Bucket = None,
    pattern: Pattern = None,
    min_records: Annotated[
        int, typer.Option("--min-records", min=1, help="Leave streams with fewer new records for later.")
    ] = 100,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="POSITION|JSON",
            help="Leave later records alone: others have yet to read them. JSON as a query's progress has it.",
        ),
    ] = None,
    flush: Annotated[
        bool, typer.Option("--flush/--no-flush", help="First settle what is in the node's memory.")
    ] = True,
    require_match: RequireMatch = False,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Fold streams into snapshots, from which clients start instead of from a history.

    A snapshot stands for all records before it, and they are let go of: derive
    and read what you need of them first. Streams with few new records are left
    for later, and only what came since a snapshot is read.

        headwater pipeline run fold last --key /id --bucket boards
    """

    def job(spark, node, progress):
        from headwater.spark.jobs.fold import fold as work

        return work(
            spark,
            node,
            mode=mode,
            key=tuple(key or ()),
            deleted=deleted,
            function=function,
            bucket=bucket,
            pattern=pattern,
            min_records=min_records,
            flush=flush,
            until=None if until is None else _position(until),
            require_match=require_match,
            progress=progress,
        )

    ended(run("fold", url, token, master, job))


def declared(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The pipeline: a .toml or .py file.")],
    continuous: Continuous = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0, help="With --continuous: a round so often.")
    ] = 10.0,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it would run.")] = False,
    require_match: RequireMatch = False,
    allow_data_loss: AllowDataLoss = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", envvar="HEADWATER_URL", help="Address of the node; else the file's."),
    ] = None,
    token: Token = None,
    master: Master = None,
    dry_run: DryRun = False,
) -> None:
    """Run a pipeline that a file declares: tables from streams, tables from tables, streams and snapshots.

    The whole file is checked before anything runs. Run again, every part goes
    on where it was.
    """
    if check and dry_run:
        raise typer.BadParameter("--check changes nothing anyway: leave it out, or --dry-run")
    with telling():
        from headwater.spark.declared import load

        loaded = load(file)

    def job(spark, node, progress):
        from headwater.spark.declared_run import run as work

        return work(
            spark,
            node,
            loaded,
            continuous=continuous,
            interval_s=interval,
            check_only=check,
            require_match=require_match,
            allow_data_loss=allow_data_loss,
            progress=progress,
        )

    _interruptible(continuous)
    ended(run("declared", url or loaded.pipeline.source.url or URL_DEFAULT, token, master, job))


def _source(subscribe: list[str] | None, pattern: str | None, bucket: str | None) -> dict[str, str]:
    said = {"subscribe": ",".join(subscribe or ()), "subscribePattern": pattern or "", "bucket": bucket or ""}
    given = {name: value for name, value in said.items() if value}
    if len(given) != 1:
        raise typer.BadParameter("say which streams to read: give one of --stream, --pattern and --bucket")
    return given


def _position(text: str) -> Any:
    from headwater.spark.options import BadOptions, offset_in

    try:
        return {0: int(text)} if text.isascii() and text.isdigit() else offset_in("--until", text)
    except BadOptions as error:
        raise typer.BadParameter(str(error)) from None


def _interruptible(continuous: bool) -> None:
    """A job that goes on for ever ends well when a supervisor ends it."""
    if continuous:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
