"""Commands of the pipeline that write streams: `route` between them, `backfill` from files.
Owns their options. Never does the work: the jobs do."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.pipeline.common import URL_DEFAULT, AllowDataLoss, Master, RequireMatch, Token, Url, run

FORMATS = ("parquet", "json", "csv", "orc", "text")
"""As `headwater.spark.jobs.backfill` has them, which is not imported for a wrong name."""

Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="SQL",
        help="Name of the stream for a record, bucket/name: an expression, so a fixed name is in quotes inside. "
        "Null leaves the record out; an array sends it to each.",
    ),
]
Payload = Annotated[str | None, typer.Option("--payload", metavar="SQL", help="What a record is.", show_default=False)]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Take only what this is true for.", show_default=False)
]
OrderBy = Annotated[
    list[str] | None,
    typer.Option("--order-by", metavar="SQL", help="Order of records in a stream; may be given several times."),
]
ContentType = Annotated[
    str | None, typer.Option("--content-type", metavar="TYPE", help="Of the streams that are written.")
]
Create = Annotated[
    bool, typer.Option("--create/--no-create", help="Make streams that are missing; otherwise fail at the first.")
]
Partitions = Annotated[
    int | None, typer.Option("--partitions", min=1, max=100_000, help="Tasks that write at once, or one after another.")
]


def register(app: typer.Typer) -> None:
    """Adds this module's commands to `headwater pipeline run`."""
    app.command()(route)
    app.command()(backfill)


def route(
    target: Target,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where the query remembers how far it is: a path or URL that every run names again. "
            "A new one begins from the start.",
        ),
    ],
    subscribe: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Read this stream; may be given several times.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="GLOB", help="Read streams that match, such as orders/*.")
    ] = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="NAME", help="Read every stream of this bucket.")
    ] = None,
    where: Where = None,
    payload: Payload = None,
    order_by: OrderBy = None,
    content_type: ContentType = None,
    start: Annotated[
        str,
        typer.Option(
            "--start", metavar="earliest|latest|JSON", help="Where a new checkpoint begins; an old one goes on."
        ),
    ] = "earliest",
    batch_rows: Annotated[
        int | None, typer.Option("--batch-rows", min=1, help="Most records of one batch.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until interrupted, not only to the present end.")
    ] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="With --follow: a batch so often.")
    ] = "1 second",
    added_streams: Annotated[
        str,
        typer.Option(
            "--added-streams",
            metavar="earliest|latest",
            help="Where streams begin that earlier runs with this checkpoint did not read.",
        ),
    ] = "latest",
    require_match: RequireMatch = False,
    allow_data_loss: AllowDataLoss = False,
    create: Create = True,
    partitions: Partitions = None,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Copy records from streams to other streams, filtered and changed, each exactly once.

    Expressions are Spark SQL over bucket, stream, offset, seq, timestamp,
    content_type and payload, over `value`, the payload as text, and `name`,
    bucket/stream. Records keep the order in which they were appended.

        headwater pipeline run route --bucket orders --checkpoint ./routes/paid
            --where "get_json_object(value, '$.state') = 'paid'"
            --target "concat('paid/', get_json_object(value, '$.customer'))"
    """
    chosen = {"--stream": subscribe, "--pattern": pattern, "--bucket": bucket}
    given = [name for name, value in chosen.items() if value]
    if len(given) != 1:
        said = f"{' and '.join(given)} exclude each other" if given else "it is not said which streams to read"
        raise typer.BadParameter(f"{said}: give one of --stream, --pattern and --bucket")
    source = {
        "subscribe": ",".join(subscribe or ()),
        "subscribePattern": pattern or "",
        "bucket": bucket or "",
        "startingOffsets": start,
        "maxOffsetsPerTrigger": "" if batch_rows is None else str(batch_rows),
        "addedStreams": added_streams,
        "failOnDataLoss": "false" if allow_data_loss else "",
    }

    def job(spark, node, progress):
        from headwater.spark.jobs.route import route as work

        return work(
            spark,
            node,
            source={name: value for name, value in source.items() if value},
            target=target,
            checkpoint=checkpoint,
            where=where,
            payload=payload,
            order_by=order_by or (),
            content_type=content_type,
            create_streams=create,
            available_now=not follow,
            interval=interval,
            partitions=partitions,
            require_match=require_match,
            progress=progress,
        )

    run("route", url, token, master, job)


def backfill(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or folders that Spark can read.")],
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet, json, csv, orc or text.")],
    stream: Annotated[
        str,
        typer.Option(
            "--stream",
            metavar="SQL",
            help="Name of the stream for a row, bucket/name: an expression, so a fixed name is in quotes inside.",
        ),
    ],
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="SQL", help="What a record is; without it the whole row as JSON."),
    ] = None,
    order_by: OrderBy = None,
    where: Where = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="Columns of the files, such as 'id bigint, at string'."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="Option of Spark's reader, such as header=true."),
    ] = None,
    content_type: ContentType = None,
    producer_id: Annotated[
        str | None,
        typer.Option("--producer-id", metavar="ID", help="Know this load again by this, not by its files and options."),
    ] = None,
    create: Create = True,
    partitions: Partitions = None,
    url: Url = URL_DEFAULT,
    token: Token = None,
    master: Master = None,
) -> None:
    """Load files onto streams, in order, each row exactly once.

    Run again, also after it was cut off, it adds what is missing. A load is
    known by the names and sizes of its files and by these options: a file
    that has grown is another load. Rows of a stream stand by --order-by, then
    as in the files, which go by name.

        headwater pipeline run backfill ./events --format parquet --order-by at
            --stream "concat('devices/', device)"
    """
    if format not in FORMATS:
        raise typer.BadParameter(f"--format {format!r} is none of {', '.join(FORMATS)}")
    options: dict[str, str] = {}
    for one in option or ():
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--option {one!r} is not NAME=VALUE, such as header=true")
        options[name] = value

    def job(spark, node, progress):
        from headwater.spark.jobs.backfill import backfill as work

        return work(
            spark,
            node,
            paths=paths,
            format=format,
            stream=stream,
            payload=payload,
            order_by=order_by or (),
            where=where,
            schema=schema,
            options=options,
            content_type=content_type,
            create_streams=create,
            producer_id=producer_id,
            partitions=partitions,
            progress=progress,
        )

    run("backfill", url, token, master, job)
