"""`headwater stream …`: create, append, read, tail, head, close, delete and list streams over HTTP.
Owns arguments, output and the advice beside an error; never speaks HTTP itself, that is `client`.
Exit codes: 0 done, 1 the server or the connection refused, 2 the command was wrong, 130 interrupted."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headwater import config
from headwater.cli import client as http
from headwater.cli.client import Answer, BadUsage, Client, ClientError, Refused, stream_path

app = typer.Typer(help="Create, write, read and follow streams on a running server.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="NAME or BUCKET/NAME.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"Address of the server; also {config.URL_VARIABLE}.",
        show_default=config.URL_DEFAULT,
    ),
]
Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="The data, or - for standard input.", show_default=False)
]
File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Take the data from a file.", exists=True, dir_okay=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


Durability = Literal["fsync", "disk", "memory"]


@app.command()
def create(
    name: Name,
    data: Data = None,
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Such as application/json or text/plain."),
    ] = None,
    ttl: Annotated[int | None, typer.Option("--ttl", metavar="SECONDS", min=0, help="Life without use.")] = None,
    expires_at: Annotated[
        str | None, typer.Option("--expires-at", metavar="TIME", help="End as 2030-01-31T12:00:00Z.")
    ] = None,
    closed: Annotated[bool, typer.Option("--closed", help="Create it closed: DATA is all it will hold.")] = False,
    durability: Annotated[
        Durability | None, typer.Option("--durability", help="When an append is acknowledged.")
    ] = None,
    file: File = None,
    url: Url = None,
) -> None:
    """Create a stream, with first data if there is any."""
    with _talking(url, name) as client:
        if ttl is not None and expires_at is not None:
            raise BadUsage("--ttl and --expires-at exclude each other", "leave out one of them")
        headers = _present(
            {
                "Content-Type": content_type,
                "Stream-TTL": None if ttl is None else str(ttl),
                "Stream-Expires-At": expires_at,
                "Stream-Closed": "true" if closed else None,
                "Stream-Durability": durability,
            }
        )
        body = _body(data, file) if data is not None or file is not None else None
        answer = client.request("PUT", stream_path(name), headers=headers, body=body)
        done = "created" if answer.status == 201 else "exists already, nothing added:"
        kind = answer.content_type or "unknown type"
        _say(f"{done} {name} ({kind}){_at(answer)}")


@app.command()
def append(
    name: Name,
    data: Data = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="One record per line of standard input (or --file), as they come.")
    ] = False,
    file: File = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Send as application/json; else the stream's type is asked for.")
    ] = False,
    producer: Annotated[
        str | None,
        typer.Option("--producer", metavar="ID", help="Idempotent producer; needs --producer-seq."),
    ] = None,
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", min=0, help="Epoch of the producer.")] = 0,
    producer_seq: Annotated[
        int | None,
        typer.Option("--producer-seq", metavar="N", min=0, help="Its sequence number; of the first of --lines."),
    ] = None,
    seq: Annotated[
        str | None, typer.Option("--seq", metavar="TEXT", help="Stream-Seq: must grow with every append.")
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Close the stream after the data.")] = False,
    url: Url = None,
) -> None:
    """Append data to a stream.

    On a JSON stream an array is one record per element. With --lines each line is one record: on a JSON
    stream one message, elsewhere the line with its line end, so that reading gives the same lines back.
    """
    with _talking(url, name) as client:
        if (producer is None) != (producer_seq is None):
            raise BadUsage("--producer and --producer-seq belong together", "give both or neither")
        if lines and seq is not None:
            raise BadUsage("--seq would be the same for each of --lines", "use --producer with --producer-seq")
        if lines and data not in (None, "-"):
            raise BadUsage("--lines reads standard input or --file, not DATA", "leave DATA out")

        def headers(content_type: str | None, index: int, closing: bool) -> dict[str, str]:
            return _present(
                {
                    "Content-Type": content_type,
                    "Stream-Seq": seq,
                    "Stream-Closed": "true" if closing else None,
                    "Producer-Id": producer,
                    "Producer-Epoch": None if producer is None else str(epoch),
                    "Producer-Seq": None if producer_seq is None else str(producer_seq + index),
                }
            )

        path = stream_path(name)
        body = b"" if lines else _body(data, file)
        if not body and not lines and not close:
            raise BadUsage("there is nothing to append", "give data, or --close to close the stream")
        content_type = "application/json" if as_json else _head(client, name).content_type
        if lines:
            _append_lines(client, name, content_type, headers, file, close)
            return
        answer = client.request("POST", path, headers=headers(content_type, 0, close), body=body)
        # With a producer, 200 is news and 204 a repetition; without one, 204 is all there is.
        repeated = producer is not None and answer.status == 204 and not close
        done = "already there, nothing appended to" if repeated else f"appended {_counted(len(body), 'byte')} to"
        _say(f"{done} {name}{_at(answer)}")


def _append_lines(
    client: Client,
    name: str,
    content_type: str,
    headers: Callable[[str | None, int, bool], dict[str, str]],
    file: Path | None,
    close: bool,
) -> None:
    path, json_mode = stream_path(name), http.is_json(content_type)
    count, answer = 0, None
    source: BinaryIO = sys.stdin.buffer if file is None else file.open("rb")
    try:
        for number, line in enumerate(source, start=1):
            if not line.strip() and json_mode:
                continue
            record = _in_array(line, number) if json_mode else line
            try:
                answer = client.request("POST", path, headers=headers(content_type, count, False), body=record)
            except ClientError as why:
                why.message = f"line {number}: {why.message} ({_counted(count, 'record')} appended before it)"
                raise
            count += 1
        if close:
            answer = client.request("POST", path, headers=headers(None, count, True), body=b"")
    finally:
        if file is not None:
            source.close()
    _say(f"appended {_counted(count, 'record')} to {name}{_at(answer) if answer is not None else ''}")


@app.command()
def read(
    name: Name,
    offset: Annotated[
        str | None,
        typer.Option("--offset", metavar="OFFSET", help="Where to begin.", show_default="the start"),
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin at the start, as by default.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", dir_okay=False, help="Write to a file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One message per line, of a JSON stream.")] = False,
    url: Url = None,
) -> None:
    """Print what a stream holds, up to its present end."""
    with _talking(url, name) as client:
        if from_start and offset is not None:
            raise BadUsage("--from-start and --offset exclude each other", "leave out one of them")
        pages = http.pages(client, name, offset or "-1")
        # Before the file is touched: a refused read leaves it as it was.
        page = next(pages)
        json_mode = _json_mode(name, page.content_type, as_json)
        with _sink(output) as sink:
            count, sep = 0, b""
            if json_mode and not as_json:
                sink(b"[")
            while True:
                if as_json:
                    sink(b"".join(_messages(page.body)))
                elif json_mode:
                    # Each page is an array of its own; together they make one.
                    inner = page.body.strip()[1:-1]
                    sink(sep + inner if inner else b"")
                    sep = b"," if inner else sep
                else:
                    sink(page.body)
                count += len(page.body)
                following = next(pages, None)
                if following is None:
                    break
                page = following
            if json_mode and not as_json:
                sink(b"]\n")
        if output is not None:
            _say(f"wrote {_counted(count, 'byte')} of {name} to {output}, next offset {page.next_offset}")


@app.command()
def tail(
    name: Name,
    offset: Annotated[
        str,
        typer.Option("--offset", metavar="OFFSET", help="Where to begin: now, -1 for the start, an offset."),
    ] = "now",
    url: Url = None,
) -> None:
    """Follow a stream live until it is closed; JSON messages come one per line. Ctrl-C ends it."""

    def trouble(why: ClientError) -> None:
        _note(f"{why.message}; trying again")

    with _talking(url, name) as client:
        head = _head(client, name)
        # The tail seen now, not at some later reconnect: nothing appended from here on is missed.
        begin = head.next_offset if offset == "now" and head.next_offset else offset
        json_mode = http.is_json(head.content_type)
        client.close()
        with _sink(None) as sink:
            for payload in http.follow(client, name, begin, time.sleep, trouble):
                sink(b"".join(_messages(payload)) if json_mode else payload)
        _note(f"{name} is closed")


@app.command()
def head(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Show what a stream is: type, tail, closed or open, expiry."""
    with _talking(url, name) as client:
        answer = _head(client, name)
        facts: dict[str, Any] = {
            "stream": name,
            "url": client.base_url + stream_path(name),
            "content_type": answer.content_type,
            "next_offset": answer.next_offset,
            "closed": answer.closed,
        }
        for key, header in (
            ("ttl_s", "stream-ttl"),
            ("expires_at", "stream-expires-at"),
            ("durability", "stream-durability"),
        ):
            if header in answer.headers:
                value = answer.headers[header]
                facts[key] = int(value) if key == "ttl_s" and value.isdecimal() else value
        if as_json:
            _say(json.dumps(facts))
            return
        _show(
            ("", ""),
            [
                (key.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
                for key, value in facts.items()
            ],
        )


@app.command()
def close(name: Name, url: Url = None) -> None:
    """Close a stream: it takes no more data and its followers end."""
    with _talking(url, name) as client:
        answer = client.request("POST", stream_path(name), headers={"Stream-Closed": "true"}, body=b"")
        _say(f"closed {name}{_at(answer)}")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")] = False,
    url: Url = None,
) -> None:
    """Delete a stream and all its data."""
    with _talking(url, name, missing="nothing was deleted; check the name:") as client:
        if sys.stdin.isatty() and not yes and not typer.confirm(f"Delete {name} and all its data?"):
            raise ClientError("nothing was deleted")
        client.request("DELETE", stream_path(name))
        _say(f"deleted {name}")


@app.command()
def ls(
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket to list.")] = "_default",
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    url: Url = None,
) -> None:
    """List the streams of a bucket: a table on a terminal, tab-separated lines elsewhere."""
    columns = ("stream_id", "status", "content_type", "tail_offset", "created_at_ms", "last_write_at_ms")
    titles = [column.removesuffix("_ms").replace("_", " ") for column in columns]
    with _talking(url, bucket, missing="check the bucket's name:") as client:
        for page in http.streams(client, bucket, prefix):
            if as_json:
                for stream in page:
                    _say(json.dumps(stream))
            else:
                _show(titles, [[_cell(column, stream.get(column)) for column in columns] for stream in page])


@contextmanager
def _talking(url: str | None, name: str, missing: str = "create it with: headwater stream create") -> Iterator[Client]:
    """A client for one command; a failure is printed with what to do about it and becomes the exit code."""
    client: Client | None = None
    try:
        client = Client(config.client_url(url, config.process_environment()))
        yield client
    except ClientError as why:
        _note(f"error: {why.message}")
        advice = _advice(why, name, missing) if isinstance(why, Refused) else why.advice
        if advice:
            _note(f"  {advice}")
        raise typer.Exit(why.exit_code) from None
    finally:
        if client is not None:
            client.close()


def _advice(why: Refused, name: str, missing: str) -> str:
    quoted = shlex.quote(name)
    facts = why.facts
    match why.status, why.code:
        case 404, _:
            return f"{missing} {quoted}"
        case 403, _ if "producer-epoch" in facts:
            return f"take over with --epoch {_following(facts['producer-epoch'])} --producer-seq 0"
        case 409, _ if "producer-expected-seq" in facts:
            return f"continue with --producer-seq {facts['producer-expected-seq']}"
        case 409, "content_type_mismatch":
            return f"see its type with: headwater stream head {quoted}"
        case 409, _ if facts.get("stream-closed") == "true":
            return "append to another stream; a closed one stays closed"
        case 409, "stream_exists_incompatible":
            return f"see what it is with: headwater stream head {quoted}"
        case 410, _ if "stream-earliest-offset" in facts:
            return f"begin with --offset {facts['stream-earliest-offset']}"
        case 413, _:
            return "split the data into several appends"
        case ((429 | 503), _):
            return f"try again in {facts.get('retry-after', 'a few')} seconds"
    return ""


def _head(client: Client, name: str) -> Answer:
    try:
        return client.request("HEAD", stream_path(name))
    except Refused as why:
        # An answer to HEAD has no body that could say it.
        if why.status == 404:
            why.message = f"no such stream: {name}"
        raise


def _following(number: str) -> str:
    return str(int(number) + 1) if number.isdecimal() else "N"


def _body(data: str | None, file: Path | None) -> bytes:
    if (data is None) == (file is None):
        raise BadUsage("there must be one of DATA and --file", "give DATA, - for standard input, or --file FILE")
    if file is not None:
        return file.read_bytes()
    # fsencode gives back the very bytes of the command line, also those that are not text.
    return sys.stdin.buffer.read() if data == "-" else os.fsencode(data or "")


def _in_array(line: bytes, number: int) -> bytes:
    """One JSON message as an array of one: a line that is itself an array would become several records."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as why:
        raise ClientError(f"line {number} is not JSON: {why}", "the lines before it were appended") from None
    return b"[" + line.strip() + b"]"


def _json_mode(name: str, content_type: str, asked: bool) -> bool:
    if asked and not http.is_json(content_type):
        raise BadUsage(f"{name} holds {content_type or 'bytes'}, not JSON", "leave out --json")
    return http.is_json(content_type)


def _messages(array: bytes) -> Iterator[bytes]:
    """The messages of a JSON array, one line each, numbers and key order exactly as they were stored."""
    if not array.strip():
        return
    try:
        for message in msgspec.json.decode(array, type=list[msgspec.Raw]):
            yield msgspec.json.format(bytes(message), indent=-1) + b"\n"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise http.NotUnderstood("the server sent JSON that is not an array of messages") from None


@contextmanager
def _sink(output: Path | None) -> Iterator[Callable[[bytes], object]]:
    """Where data goes. On a terminal a line end is added after data that has none, for the prompt's sake."""
    if output is not None:
        try:
            with output.open("wb") as file:
                yield file.write
        except OSError as why:
            raise ClientError(f"cannot write {output}: {why.strerror or why}") from why
        return
    stdout, last = sys.stdout.buffer, b"\n"

    def write(chunk: bytes) -> None:
        nonlocal last
        # With PYTHONUNBUFFERED this is the bare file, whose write may take only a part.
        rest = memoryview(chunk)
        while rest:
            rest = rest[stdout.write(rest) :]
        stdout.flush()
        last = chunk[-1:] or last

    yield write
    if last != b"\n" and sys.stdout.isatty():
        write(b"\n")


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if column.endswith("_at_ms") and isinstance(value, int) and 0 <= value < 253_402_300_800_000:  # Year 10000.
        return datetime.fromtimestamp(value / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return str(value)


def _present(headers: Mapping[str, str | None]) -> dict[str, str]:
    return {header: value for header, value in headers.items() if value is not None}


def _at(answer: Answer) -> str:
    offset = f", next offset {answer.next_offset}" if answer.next_offset else ""
    return offset + (", closed" if answer.closed else "")


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _show(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere lines that a script can split at tabs."""
    console = Console(highlight=False, markup=False)
    table = Table(*titles, show_header=any(titles))
    for row in rows:
        cells = [http.printable(cell) for cell in row]
        if console.is_terminal:
            table.add_row(*cells)
        else:
            typer.echo("\t".join(cells))
    if table.row_count:
        console.print(table)


def _say(text: str) -> None:
    typer.echo(http.printable(text))


def _note(text: str) -> None:
    typer.echo(http.printable(text), err=True)
