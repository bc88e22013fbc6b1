"""`headwater doctor`: what this machine has of what Headwater can use, and how to get the rest.
Owns how findings are shown. Never changes anything, and needs nothing installed itself."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Say what the data pipeline needs of this machine, and what to install. A node itself needs none of it."""
    from headwater.spark.session import Finding, findings

    python = Finding("python", sys.version.partition(" ")[0], "")
    found = [python, *findings()]
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in found]))
    else:
        for finding in found:
            typer.echo(f"{'ok     ' if not finding.advice else 'missing'} {finding.what}: {finding.found}")
            if finding.advice:
                typer.echo(f"        {finding.advice}")
    if any(finding.advice for finding in found):
        raise typer.Exit(1)
