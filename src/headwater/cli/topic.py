"""`headwater topic …`: create, see, change, list, write, read, follow and empty topics on a running server.
Owns arguments and output; what is asked of the server is `headwater.client`'s.
Exit codes: 0 done, 1 the server or the connection refused, 2 the command was wrong, 130 interrupted."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from headwater.cli.client import BadUsage, is_json
from headwater.cli.ctl.common import counted, note, say, show
from headwater.cli.topic_client import (
    AsJson,
    Data,
    File,
    Lines,
    Url,
    Yes,
    confirmed,
    connected,
    given_data,
    given_lines,
    record_data,
    shown_data,
)

if TYPE_CHECKING:
    from headwater.client.values import Record, Tombstone, TopicInfo

app = typer.Typer(help="Create, write, read and follow topics on a running server.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="NAME or BUCKET/NAME.", show_default=False)]
Ttl = Annotated[float | None, typer.Option("--ttl", metavar="SECONDS", min=0, help="How long a record is kept.")]
CapRecords = Annotated[int | None, typer.Option("--cap-records", metavar="N", min=1, help="Most records it keeps.")]
CapBytes = Annotated[int | None, typer.Option("--cap-bytes", metavar="N", min=1, help="Most bytes it keeps.")]
Discard = Annotated[
    Literal["old", "reject"] | None,
    typer.Option("--discard", help="At its cap: the oldest records go, or a write is refused."),
]
Priority = Annotated[int | None, typer.Option("--priority", metavar="N", help="From -1000 to 1000.")]
IsQueue = Annotated[bool, typer.Option("--queue", help="Its records are jobs; the options below are a queue's.")]
Lease = Annotated[float | None, typer.Option("--lease", metavar="SECONDS", help="How long a claimed job is held.")]
MaxDeliveries = Annotated[
    int | None, typer.Option("--max-deliveries", metavar="N", min=0, help="Tries before a job is dead; 0 for any.")
]
DeadLetter = Annotated[str | None, typer.Option("--dead-letter", metavar="TOPIC", help="Where dead jobs go.")]
BackoffS = Annotated[
    float | None, typer.Option("--backoff", metavar="SECONDS", help="First pause of a job that failed; it doubles.")
]
FromSeq = Annotated[int | None, typer.Option("--from-seq", metavar="SEQ", min=0, help="The last seq that was seen.")]
Node = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Leave out what these nodes wrote: a,b.")]
Whole = Annotated[bool, typer.Option("--json", help="Whole records with their labels, one JSON object per line.")]


@app.command()
def create(
    name: Name,
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="application/json unless told.")
    ] = None,
    durability: Annotated[
        Literal["ephemeral", "memory", "disk", "fsync", "quorum"] | None,
        typer.Option("--durability", help="When a write is acknowledged."),
    ] = None,
    ttl: Ttl = None,
    cap_records: CapRecords = None,
    cap_bytes: CapBytes = None,
    discard: Discard = None,
    priority: Priority = None,
    queue: IsQueue = False,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    backoff: BackoffS = None,
    url: Url = None,
) -> None:
    """Create a topic, or a queue with --queue."""
    with connected(url, name, "topic") as hw:
        jobs = _queue(queue, lease, max_deliveries, dead_letter, backoff)
        options = _options(ttl, cap_records, cap_bytes, discard, priority, jobs)
        options |= _present(content_type=content_type, durability=durability)
        done = hw.topic(name).create(**options)
        say(f"{'created' if done.created else 'exists already:'} {name} ({done.config.content_type})")


@app.command()
def update(
    name: Name,
    ttl: Ttl = None,
    cap_records: CapRecords = None,
    cap_bytes: CapBytes = None,
    discard: Discard = None,
    priority: Priority = None,
    queue: IsQueue = False,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    backoff: BackoffS = None,
    url: Url = None,
) -> None:
    """Change what is named and leave the rest as it is."""
    with connected(url, name, "topic") as hw:
        jobs = _queue(queue, lease, max_deliveries, dead_letter, backoff)
        options = _options(ttl, cap_records, cap_bytes, discard, priority, jobs)
        if not options:
            raise BadUsage("there is nothing to change", "name an option, such as --cap-records")
        hw.topic(name).update(**options)
        say(f"changed {name}")


@app.command("show")
def show_topic(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Show a topic's configuration and state."""
    with connected(url, name, "topic") as hw:
        info = hw.topic(name).config()
        if as_json:
            say(msgspec.json.encode(info).decode())
            return
        show(("what", "value"), list(_facts(info)))


@app.command("list")
def list_topics(
    bucket: Annotated[str | None, typer.Option("--bucket", metavar="BUCKET", help="Only topics of a bucket.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    url: Url = None,
) -> None:
    """List topics: a table on a terminal, tab-separated lines elsewhere."""
    with connected(url, bucket or "TOPIC", "topic") as hw:
        rows = []
        for topic in hw.topics(bucket=bucket, prefix=prefix):
            state = topic.state
            if as_json:
                say(msgspec.json.encode(topic).decode())
            else:
                numbers = (state.count, state.bytes, state.earliest_seq, state.head_seq)
                rows.append((topic.topic, *map(str, numbers), "" if state.queue is None else str(state.queue.ready)))
        show(("topic", "records", "bytes", "earliest seq", "head seq", "jobs ready"), rows)


@app.command()
def delete(name: Name, yes: Yes = False, url: Url = None) -> None:
    """Delete a topic and all its records."""
    with connected(url, name, "topic") as hw:
        confirmed(f"Delete {name} and all its records?", yes)
        hw.topic(name).delete()
        say(f"deleted {name}")


@app.command()
def write(
    name: Name,
    data: Data = None,
    lines: Lines = False,
    file: File = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="What records are chosen by.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Who writes.")] = None,
    meta: Annotated[str | None, typer.Option("--meta", metavar="JSON", help="A JSON object beside the data.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Of one record.")] = None,
    url: Url = None,
) -> None:
    """Write one record, or one per line with --lines. On a JSON topic each is one JSON value."""
    with connected(url, name, "topic") as hw:
        from headwater.client import Draft

        topic = hw.topic(name)
        json_mode = is_json(topic.config().config.content_type)
        labels = None if meta is None else _object(meta)
        if lines and key is not None:
            raise BadUsage("--key would be the same for each of --lines", "leave it out")
        raws = list(given_lines(data, file)) if lines else [given_data(data, file)]
        drafts = [Draft(record_data(raw, json_mode), tag=tag, meta=labels, key=key) for raw in raws]
        written = topic.write_many(drafts, node=node)
        place = f", head seq {written.head_seq}" if written.seqs else ""
        say(f"wrote {counted(len(drafts), 'record')} to {name}{place}")


@app.command()
def read(
    name: Name,
    from_seq: FromSeq = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = None,
    node: Node = None,
    as_json: Whole = False,
    url: Url = None,
) -> None:
    """Print the records of a topic, up to its present end, one per line."""
    with connected(url, name, "topic") as hw:
        _print(hw.topic(name).records(from_seq or 0, node=node), as_json, limit)


@app.command()
def tail(
    name: Name,
    from_seq: FromSeq = None,
    node: Node = None,
    as_json: Whole = False,
    url: Url = None,
) -> None:
    """Follow a topic, from now or behind --from-seq. Goes on after a lost connection; Ctrl-C ends it."""
    with connected(url, name, "topic") as hw:
        # Asked once, so that a server which is not there is told of; later ones are waited for.
        begin = hw.topic(name).config().state.head_seq if from_seq is None else from_seq
    from headwater.client import Retries

    with connected(url, name, "topic", Retries(total_s=math.inf)) as patient:
        _print(patient.topic(name).tail(begin, node=node), as_json, None)


@app.command("delete-records")
def delete_records(
    name: Name,
    before: Annotated[int | None, typer.Option("--before", metavar="SEQ", min=1, help="Records before it.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Records with this tag.")] = None,
    tag_prefix: Annotated[
        str | None, typer.Option("--tag-prefix", metavar="TEXT", help="Records with tags that begin so.")
    ] = None,
    yes: Yes = False,
    url: Url = None,
) -> None:
    """Delete records: those before a seq, those with a tag, or those of both."""
    with connected(url, name, "topic") as hw:
        topic = hw.topic(name)
        if before is None and tag is None and tag_prefix is None:
            raise BadUsage("there is nothing to choose records by", "give --before, --tag or --tag-prefix")
        confirmed(f"Delete records of {name}?", yes)
        if tag is None and tag_prefix is None:
            done = topic.delete_before(before or 1)
        else:
            done = topic.delete_where(tag=tag, tag_prefix=tag_prefix, before_seq=before)
        say(f"deleted {counted(done.deleted, 'record')} of {name}, earliest seq {done.earliest_seq}")


def _object(meta: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(meta, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise BadUsage("--meta is not a JSON object", 'write it as \'{"name": "value"}\'') from None


def _print(records: Iterator[Record | Tombstone], as_json: bool, limit: int | None) -> None:
    from headwater.client import Record

    count = 0
    for record in records:
        if not isinstance(record, Record):
            note(f"records {record.gap_from} to {record.gap_to} are lost: the topic keeps no more")
            continue
        if as_json:
            facts = {key: value for key, value in dataclasses.asdict(record).items() if value is not None}
            say(msgspec.json.encode({**facts, "data": record.data}).decode())
        else:
            say(shown_data(record.data))
        count += 1
        if count == limit:
            return


def _facts(info: TopicInfo) -> Iterator[tuple[str, str]]:
    config, state = info.config, info.state
    for part in (config, state):
        for field in part.__struct_fields__:
            value = getattr(part, field)
            if field != "queue" and value is not None:
                yield field.replace("_", " "), value if isinstance(value, str) else json.dumps(value)
    for queue in (config.queue, state.queue):
        if queue is not None:
            for field in queue.__struct_fields__:
                yield f"queue {field.replace('_', ' ')}", str(getattr(queue, field))


def _options(
    ttl: float | None,
    cap_records: int | None,
    cap_bytes: int | None,
    discard: str | None,
    priority: int | None,
    queue: dict[str, Any] | None,
) -> Any:
    ttl_ms = None if ttl is None else round(ttl * 1_000)
    return _present(
        ttl_ms=ttl_ms, cap_records=cap_records, cap_bytes=cap_bytes, discard=discard, priority=priority, queue=queue
    )


def _queue(
    asked: bool, lease: float | None, max_deliveries: int | None, dead_letter: str | None, backoff: float | None
) -> dict[str, Any] | None:
    options = _present(
        lease_ms=None if lease is None else round(lease * 1_000),
        max_deliveries=max_deliveries,
        dead_letter=dead_letter,
        backoff_ms=None if backoff is None else round(backoff * 1_000),
    )
    if options and not asked:
        raise BadUsage("--lease, --max-deliveries, --dead-letter and --backoff are a queue's", "add --queue")
    return options if asked else None


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
