"""The `headwater` command line: its groups put together, the version, and `config show` and `config docs`.
Owns how settings are rendered for people, as a TOML file and as the configuration guide.
Never decides what a setting means (`config` does) nor what a command does (its own module does)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater import __version__, config
from headwater.cli import bucket, cluster, ctl, lake, pipeline, queue, s3p, stream, token, topic
from headwater.cli.doctor import doctor
from headwater.cli.serve import EPILOG, serve, settings_or_exit, with_settings
from headwater.cli.top import top
from headwater.setting_rules import CLUSTER_RULES, MEMORY_RULE, RELATIONS
from headwater.setting_values import without_credentials
from headwater.web_settings import RULES

app = typer.Typer(
    help="Headwater: durable streams over plain HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="See the settings in force, or what all of them mean.", no_args_is_help=True)

app.command(epilog=EPILOG)(with_settings(serve))
app.add_typer(stream.app, name="stream")
app.add_typer(bucket.app, name="bucket")
app.add_typer(topic.app, name="topic")
app.add_typer(queue.app, name="queue")
app.command("s3p")(s3p.shell)
app.command()(top)
app.add_typer(ctl.app, name="ctl")
app.add_typer(lake.app, name="lake")
app.add_typer(token.app, name="token")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(cluster.app, name="cluster")
app.command()(doctor)
app.add_typer(config_app, name="config")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="KEY|@FILE",
            help=f"Key for the server that a command talks to; also {config.TOKEN_VARIABLE}. Others on this machine "
            "see what a command line holds: @FILE takes it from a file.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Headwater: durable streams over plain HTTP."""
    if token is not None:
        config.give_token(_token(token))


def _token(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        typer.echo(f"error: cannot read the file of --token: {error}", err=True)
        raise typer.Exit(2) from None


@config_app.command("show", epilog=EPILOG)
@with_settings
def config_show(**flags: Any) -> None:
    """Print every setting in force and where it came from, as a TOML file that gives the same settings.

    Of an address with a user and a password these are left out, and its line is a comment."""
    for line in toml_lines(settings_or_exit(flags)):
        typer.echo(line)


@config_app.command("docs")
def config_docs() -> None:
    """Print the configuration guide: every setting, its names, default, bounds and meaning."""
    typer.echo(guide(), nl=False)


def toml_lines(resolved: config.Resolved) -> Iterator[str]:
    """The settings as a TOML file that loads to the same settings, with the source of each as a comment."""
    lines = []
    for setting in config.TABLE:
        value: config.Value = getattr(resolved.settings, setting.name)
        shown = setting.shown(value)
        quoted = shown if isinstance(value, bool) or shown.isdecimal() else _toml_text(shown)
        # A data directory beside `memory = true` would be refused when this is read back.
        unused = "# " if setting.name == "data" and resolved.settings.memory else ""
        told = without_credentials(quoted)
        if told != quoted:
            unused = "# "  # without its password it is another value
        lines.append((f"{unused}{setting.name} = {told}", resolved.sources[setting.name]))
    width = max(len(line) for line, _ in lines)
    for line, source in lines:
        yield f"{line:<{width}}  # {source}"


def _toml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def guide() -> str:
    """The configuration guide, whole. docs/guides/configuration.md is this text; a test holds them equal."""
    out = [GUIDE_HEAD]
    for panel in dict.fromkeys(setting.panel for setting in config.TABLE):
        out += [f"\n## {panel}\n\n", "| TOML key | flag | environment | default | allowed | meaning |\n"]
        out.append("| --- | --- | --- | --- | --- | --- |\n")
        for row in (setting for setting in config.TABLE if setting.panel == panel):
            default = f"`{row.shown(row.default)}`"
            names = f"`{row.name}` | `{row.flag}` | `{row.variable}`"
            out.append(f"| {names} | {default} | {row.allowed} | {row.help} |\n")
    out.append("\n## How settings relate\n\n")
    out += [f"- {rule}.\n" for rule in (MEMORY_RULE, *(relation.rule for relation in RELATIONS))]
    out += [f"- {rule}.\n" for rule in RULES]
    out += [f"- In a cluster: {rule}; {change}.\n" for _, rule, change in CLUSTER_RULES]
    return "".join(out)


GUIDE_HEAD = """\
# Configuration

Every setting can be given as a flag of `headwater serve`, as an environment variable, or in a TOML file; the
first of these that names it wins, and a setting that nobody names has its default. The file is the one of
`--config FILE`, or of the variable `HEADWATER_CONFIG`.

```toml
listen = "127.0.0.1:4437"
data = "/var/lib/headwater"
body_bytes_max = "16MiB"
```

- Sizes are whole numbers of bytes, or `KiB`, `MiB`, `GiB`, `TiB`: `"64MiB"`.
- Names that end in `_ms` are whole milliseconds.
- Switches have a flag that turns them off: `--no-memory`. In the environment they are `true` or `false`.
- A relative `data` directory starts at the directory the server is started in.
- The server refuses to start on an unknown name, a value out of bounds or a contradiction, and lists all.
- `headwater config show` prints every setting in force and where it came from, as a TOML file; it takes the
  flags of `serve`. `headwater config docs` prints this page.
- `HEADWATER_URL`, `HEADWATER_CA_FILE`, `HEADWATER_CLIENT_CERTIFICATE` and `HEADWATER_CLIENT_KEY` are read by the client
  commands (`headwater stream …`), not by the server.
"""
