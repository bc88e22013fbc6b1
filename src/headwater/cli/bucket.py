"""`headwater bucket …`: the JSON schema of a bucket on a running server.
Owns arguments and output; never speaks HTTP itself, that is `client`.
Exit codes: 0 done, 1 the server or the connection refused, 2 the command was wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headwater import config
from headwater.cli.client import BadUsage, Client, ClientError, NotUnderstood, printable

app = typer.Typer(help="Say what the JSON records of a bucket look like.", no_args_is_help=True)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"Address of the server; also {config.URL_VARIABLE}.",
        show_default=config.URL_DEFAULT,
    ),
]


@app.callback()
def buckets() -> None:
    """Say what the JSON records of a bucket look like."""


@app.command()
def schema(
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="One that was made by name.", show_default=False)],
    put: Annotated[
        str | None, typer.Option("--put", metavar="FILE", help="Give it this JSON schema; - for standard input.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take its schema away.")] = False,
    if_version: Annotated[
        int | None,
        typer.Option("--if-version", metavar="N", min=0, help="Only where it is this version; 0: where there is none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the server answered.")] = False,
    url: Url = None,
) -> None:
    """Show, put or remove the JSON schema of a bucket.

    A schema describes: tables and readers take their columns from it, and an append is not held against it.
    """
    client: Client | None = None
    try:
        if remove and put is not None:
            raise BadUsage("there is one of --put and --remove at most")
        if if_version is not None and not remove and put is None:
            raise BadUsage("--if-version is for --put and --remove")
        headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
        client = Client(config.client_url(url, config.process_environment()))
        path = f"/__headwater/buckets/{quote(bucket, safe='')}/schema"
        if remove:
            client.request("DELETE", path, headers=headers)
            typer.echo(json.dumps({"removed": bucket}) if as_json else f"{printable(bucket)} has no schema")
        elif put is None:
            _show(_call(client, "GET", path, {}, None), as_json, whole=True)
        else:
            headers["Content-Type"] = "application/json"
            _show(_call(client, "PUT", path, headers, _document(put)), as_json, whole=False)
    except ClientError as why:
        typer.echo(f"error: {printable(why.message)}", err=True)
        if why.advice:
            typer.echo(f"  {why.advice}", err=True)
        raise typer.Exit(why.exit_code) from None
    finally:
        if client is not None:
            client.close()


def _show(found: Any, as_json: bool, whole: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(f"{printable(found['bucket_id'])}: version {found['version']}, of {found['updated_at']}", err=True)
    if whole:
        typer.echo(json.dumps(found["schema"], indent=2, ensure_ascii=not sys.stdout.isatty()))


def _document(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise BadUsage(f"{name} cannot be read: {error}") from None


def _call(client: Client, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Any:
    answer = client.request(method, path, headers=dict(headers), body=body)
    try:
        return json.loads(answer.body)
    except ValueError:
        raise NotUnderstood(f"{client.base_url} answered with no JSON") from None
