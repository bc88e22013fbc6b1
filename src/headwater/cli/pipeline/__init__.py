"""`headwater pipeline …`: jobs on Spark that keep and use the lake, how the last ones went, and their schedules.
Owns the list of jobs. Never imports Spark: a command does, when it runs."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from headwater.cli.pipeline import backup_jobs
from headwater.cli.pipeline import serve as schedules
from headwater.cli.pipeline.common import IMPATIENCE_S, URL_DEFAULT, Token, Url, job_command, telling
from headwater.client.connection import printable

app = typer.Typer(help="Run the data pipeline on Spark, and see how its jobs went.", no_args_is_help=True)
run_app = typer.Typer(help="Run a job. `headwater doctor` says what it needs.", no_args_is_help=True)
app.add_typer(run_app, name="run")

for _module in ("lake_jobs", "table_jobs", "stream_jobs", "backup_jobs"):
    importlib.import_module(f"headwater.cli.pipeline.{_module}").register(run_app)
for _job in run_app.registered_commands:
    if _job.callback is not None:
        _job.callback = job_command(_job.callback)

app.command()(schedules.serve)
app.command()(backup_jobs.prune)


@app.command()
def status(
    url: Url = URL_DEFAULT,
    token: Token = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="How many runs to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show the last runs of jobs against this node, newest last, and its schedules."""
    with telling():
        from headwater.spark.job_runs import last_runs
        from headwater.spark.node import Node, NodeRefused
        from headwater.spark.schedules.ledger import last_states

        node = Node(url, token, IMPATIENCE_S)
        runs, states = last_runs(node, count), {}
        try:
            states = last_states(node)
        except NodeRefused as refused:  # a token may read the one and not list the other
            typer.echo(printable(f"schedules cannot be listed: {refused}"), err=True)
    for run in runs:
        if as_json or not sys.stdout.isatty():
            typer.echo(json.dumps(run))
            continue
        began = datetime.fromtimestamp(run.pop("began_ms") / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        head = f"{began}  {run.pop('job'):<10} {run.pop('outcome'):<8} {run.pop('seconds')} s"
        typer.echo(printable(f"{head}  {json.dumps(run)}"))
    if not runs:
        typer.echo("no job has run against this node yet", err=True)
    schedules.show_schedules(states, as_json)
