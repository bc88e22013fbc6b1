"""`headwater token …`: make, list, rotate and revoke keys on a running server, and sign URLs.
Owns arguments and output: a key is printed once, on standard output, and nothing else that is secret ever is.
Exit codes: 0 done, 1 the server or the connection refused, 2 the command was wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headwater import config
from headwater.cli.client import BadUsage, Client, ClientError, NotUnderstood, Refused, printable
from headwater.security import keys

PATH = "/__headwater/tokens"
app = typer.Typer(help="Make, list, rotate and revoke keys of a running server, and sign URLs.", no_args_is_help=True)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"Address of the server; also {config.URL_VARIABLE}.",
        show_default=config.URL_DEFAULT,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the server answered, as JSON.")]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="For how long: 90d, 12h, 30m, 45s; for good when left out."),
]
Id = Annotated[str, typer.Argument(metavar="KEY", help="Its id, or its name if no other has it.", show_default=False)]
_TIME = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, for people.", show_default=False)],
    scope: Annotated[
        list[str],
        typer.Option("--scope", metavar="SCOPE", help="Such as read,append:orders/eu/*, or admin; may be repeated."),
    ],
    expires: Expires = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once."""
    asked = {"name": name, "scopes": scope, "expires_in_s": _seconds(expires)}
    _made(url, PATH, asked, as_json)


@app.command("list")
def list_keys(url: Url = None, as_json: AsJson = False) -> None:
    """List all keys: who has them, what they allow, and whether they are valid. Never the keys themselves."""
    with _talking(url) as client:
        found = _call(client, "GET", PATH)
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("id", "name", "state", "scopes", "expires", "made by"):
        table.add_column(title)
    for key in found["tokens"]:
        expires = key["expires_at"] or "never"
        cells = (key["id"], key["name"], key["state"], " ".join(key["scopes"]), expires, key["created_by"])
        table.add_row(*(printable(str(cell)) for cell in cells))
    Console(soft_wrap=True, highlight=False, markup=False).print(table)


@app.command()
def rotate(
    key: Id,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="For how long the old one stays valid: 1h, 30m, 0s.")
    ] = "1h",
    expires: Expires = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a new key in the place of one, with the same name and scopes, and print it, this once."""
    with _talking(url) as client:
        id = _id(client, key)
    asked = {"overlap_s": _seconds(overlap), "expires_in_s": _seconds(expires)}
    _made(url, f"{PATH}/{id}/rotate", asked, as_json)


@app.command()
def revoke(key: Id, url: Url = None, as_json: AsJson = False) -> None:
    """End a key: within a second it is refused everywhere, and what it reads live ends."""
    with _talking(url) as client:
        ended = _call(client, "DELETE", f"{PATH}/{_id(client, key)}")
    typer.echo(json.dumps(ended) if as_json else f"revoked {ended['id']} ({printable(ended['name'])})")


@app.command()
def sign(
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="NAME or BUCKET/NAME.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="PREFIX", help="BUCKET/ and what names begin with, instead.")
    ] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="For how long: 10m, 1h, 7d.")] = "1h",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print what to put behind a URL so that a browser may read it: for GET alone, and for a while."""
    if (stream is None) == (prefix is None):
        _end(BadUsage("there must be one of STREAM and --prefix"))
    asked = {"expires_in_s": _seconds(expires)} | ({"stream": stream} if prefix is None else {"prefix": prefix})
    with _talking(url) as client:
        signed = _call(client, "POST", "/__headwater/sign", asked)
    typer.echo(json.dumps(signed) if as_json else signed["query"])


@app.command()
def new() -> None:
    """Print a new key for the setting admin_key_file. No server hears of it: whoever has the file has the server."""
    # Not at the top: other commands would load asyncio with it.
    from headwater.ports import SystemRng

    typer.echo(keys.make(SystemRng()).text)


def _made(url: str | None, path: str, asked: Mapping[str, object], as_json: bool) -> None:
    with _talking(url) as client:
        made = _call(client, "POST", path, {name: value for name, value in asked.items() if value is not None})
    if as_json:
        typer.echo(json.dumps(made))
        return
    expires = made["expires_at"] or "never"
    facts = f"key {made['id']} ({made['name']}), {' '.join(made['scopes'])}, expires {expires}; it is shown this once:"
    typer.echo(printable(facts), err=True)
    typer.echo(made["token"])


def _id(client: Client, key: str) -> str:
    """Of a key by its id, or by the name that only one valid key has."""
    if keys.ID.fullmatch(key):
        return key
    named = [
        one["id"] for one in _call(client, "GET", PATH)["tokens"] if one["name"] == key and one["state"] == "valid"
    ]
    if len(named) != 1:
        many = "no valid key is" if not named else "several keys are"
        raise BadUsage(f"{many} called {printable(key)}", "name it by its id: headwater token list")
    return str(named[0])


def _call(client: Client, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    raw = None if body is None else json.dumps(body).encode()
    answer = client.request(method, path, headers={"Content-Type": "application/json"}, body=raw)
    try:
        return json.loads(answer.body)
    except ValueError:
        raise NotUnderstood(f"{client.base_url} answered with no JSON") from None


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if text in ("0", "0s"):
        return 0
    found = _TIME.fullmatch(text)
    if found is None:
        _end(BadUsage(f"{printable(text)} is no time", "write 90d, 12h, 30m or 45s"))
        return None
    return int(found[1]) * _UNITS[found[2]]


@contextmanager
def _talking(url: str | None) -> Iterator[Client]:
    """A client for one command; a failure is printed with what to do about it and becomes the exit code."""
    client: Client | None = None
    try:
        client = Client(config.client_url(url, config.process_environment()))
        yield client
    except ClientError as why:
        _end(why)
    finally:
        if client is not None:
            client.close()


def _end(why: ClientError) -> None:
    typer.echo(f"error: {printable(why.message)}", err=True)
    advice = why.advice
    if isinstance(why, Refused) and why.status in (401, 403):
        advice = f"give an admin key: {config.TOKEN_VARIABLE}, or headwater --token @FILE token …"
    if advice:
        typer.echo(f"  {advice}", err=True)
    raise typer.Exit(why.exit_code) from None
