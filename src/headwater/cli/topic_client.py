"""What `headwater topic …` and `headwater queue …` share: options, the client of one command, failures with advice.

Owns how a failure of `headwater.client` becomes a message and an exit code: 0 done, 1 the server or the connection
refused, 2 the command was wrong. The client is loaded when a command runs, not when the command line starts.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater import config
from headwater.cli.client import BadUsage, ClientError
from headwater.cli.ctl.common import note

if TYPE_CHECKING:
    from headwater.client.clients import Headwater
    from headwater.client.failures import HeadwaterError
    from headwater.client.retries import Retries

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"Address of the server; also {config.URL_VARIABLE}.",
        show_default=config.URL_DEFAULT,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")]
Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="The data, or - for standard input.", show_default=False)
]
File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Take the data from a file.", exists=True, dir_okay=False),
]
Lines = Annotated[bool, typer.Option("--lines", help="One record per line of standard input (or --file).")]


@contextmanager
def connected(url: str | None, name: str, kind: str, retries: Retries | None = None) -> Iterator[Headwater]:
    """A client for one command, which tries once unless told; a failure is printed and becomes the exit code.

    Its writes carry no producer: a stream remembers only so many of them, and each command would leave a new one.
    """
    from headwater.client import NO_RETRIES, Headwater, HeadwaterError

    address = config.client_url(url, config.process_environment())
    try:
        try:
            token = config.client_token(config.process_environment())
            opened = Headwater(address, token=token, retries=retries or NO_RETRIES, idempotent=False)
        except ValueError as why:
            raise BadUsage(str(why), "write the server's address as http://HOST:PORT") from None
        with opened as client:
            try:
                yield client
            except (ValueError, TypeError) as why:
                raise BadUsage(str(why)) from None
            except HeadwaterError as why:
                raise ClientError(_message(why, address), _advice(why, name, kind)) from None
    except ClientError as why:
        note(f"error: {why.message}")
        if why.advice:
            note(f"  {why.advice}")
        raise typer.Exit(why.exit_code) from None


def _message(why: HeadwaterError, address: str) -> str:
    match why.code:
        case "unreachable":
            return f"nothing answers at {address}"
        case "connection_lost":
            return f"the connection to {address} was lost"
    return why.message


def _advice(why: HeadwaterError, name: str, kind: str) -> str:
    quoted = shlex.quote(name)
    create = f"headwater topic create {quoted}" + (" --queue" if kind == "queue" else "")
    match why.status, why.code:
        case _, "unreachable":
            return "is the server running? start it with: headwater serve"
        case _, "connection_lost":
            return "what was to be written may be stored or not; look before you send it again"
        case _, "not_a_queue":
            return f"make it one with: headwater topic update {quoted} --queue"
        case _, "no_dead_letter":
            return f"give it one with: headwater topic update {quoted} --queue --dead-letter TOPIC"
        case _, "topic_exists_incompatible":
            return f"see what it is with: headwater topic show {quoted}"
        case _, "topic_full":
            return f"delete records with: headwater topic delete-records {quoted} --before SEQ"
        case _, "no_such_route":
            return "is --url the address of a server that has topics?"
        case 404, _:
            return f"create it with: {create}"
        case 413, _:
            return "split the data"
        case ((429 | 503), _):
            return f"try again in {max(1, round(why.retry_after_s))} seconds"
    return "is --url the address of a headwater server?" if why.code == "bad_answer" else ""


def given_data(data: str | None, file: Path | None) -> bytes:
    """Raises BadUsage unless there is exactly one of the two."""
    if (data is None) == (file is None):
        raise BadUsage("there must be one of DATA and --file", "give DATA, - for standard input, or --file FILE")
    if file is not None:
        return file.read_bytes()
    return sys.stdin.buffer.read() if data == "-" else os.fsencode(data or "")


def given_lines(data: str | None, file: Path | None) -> Iterator[bytes]:
    """Lines of a file or of standard input, without those that are empty. Raises BadUsage."""
    if data not in (None, "-"):
        raise BadUsage("--lines reads standard input or --file, not DATA", "leave DATA out")
    with file.open("rb") if file is not None else nullcontext(sys.stdin.buffer) as source:
        yield from (line.rstrip(b"\r\n") for line in source if line.strip())


def record_data(raw: bytes, is_json: bool) -> Any:
    """What is written for these bytes. Raises BadUsage for what is not JSON on a JSON topic."""
    if not is_json:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    try:
        # Its own bytes: numbers stay as they were written.
        return msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
        raise BadUsage(f"the data is not JSON: {why}", "quote it for the shell, as in '{\"id\": 1}'") from None


def shown_data(data: Any) -> str:
    """One line for one record: JSON, or the text itself."""
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace")
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def confirmed(question: str, yes: bool) -> None:
    """Raises ClientError when somebody at a terminal says no."""
    if sys.stdin.isatty() and not yes and not typer.confirm(question):
        raise ClientError("nothing was deleted")
