"""`headwater serve`, and the flags made from the table of settings that `config show` shares with it.
Owns the way from a command line to Settings, and how bad settings and warnings are told.
Never reads the environment or a file itself (`config` does) and starts nothing itself (`app.serve` does)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater import config
from headwater.client.connection import printable

EXIT_BAD_SETTINGS = 2

EPILOG = (
    "Each flag is also a variable (--log-level: HEADWATER_LOG_LEVEL) and a key of the TOML file (log_level); "
    "flags win over variables, variables over the file. All of them: headwater config docs"
)


def serve(**flags: Any) -> None:
    """Serve streams over HTTP and S3P until the process is told to stop."""
    resolved = settings_or_exit(flags)
    for warning in resolved.warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)
    from headwater.app import serve as run  # Late: the other commands need none of the server.

    raise typer.Exit(run(resolved.settings))


def settings_or_exit(flags: dict[str, Any]) -> config.Resolved:
    """The settings of a command that has `with_settings`. Bad ones are printed, all of them, and end it."""
    config_path = flags.pop("config", None)
    try:
        return config.resolve(flags, config.process_environment(), config_path)
    except config.BadSettings as bad:
        count = len(bad.problems)
        typer.echo(f"error: {count} bad setting{'s' if count > 1 else ''}", err=True)
        for problem in bad.problems:
            typer.echo(f"  {printable(str(problem))}", err=True)
        raise typer.Exit(EXIT_BAD_SETTINGS) from None


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(**flags)` one flag per setting, and --config.

    Values arrive as text and None when not given: `config` reads them, so that all problems come together."""
    config_file = typer.Option("--config", metavar="FILE", help="TOML file with settings.")
    parameters = [_parameter("config", Annotated[Path | None, config_file])]
    parameters += [_parameter(setting.name, _annotation(setting)) for setting in config.TABLE]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(setting: config.Setting) -> Any:
    common: dict[str, Any] = {"help": setting.help}
    # The settings everybody meets first stand beside --help; the rest in a panel per subject.
    if setting.panel != config.SERVING:
        common["rich_help_panel"] = setting.panel
    if setting.kind == "flag":
        return Annotated[bool | None, typer.Option(f"{setting.flag}/--no-{setting.flag[2:]}", **common)]
    shown = setting.shown(setting.default)
    return Annotated[str | None, typer.Option(setting.flag, metavar=_metavar(setting), show_default=shown, **common)]


def _metavar(setting: config.Setting) -> str:
    match setting.kind:
        case "choice":
            return "|".join(setting.choices)
        case "whole":
            return "MS" if setting.name.endswith("_ms") else "N"
        case "count":
            return "N|auto"
        case "listen":
            return "HOST:PORT"
        case "door":
            return "HOST:PORT|off"
        case "path":
            return "DIR"
        case _:
            return setting.kind.upper()
