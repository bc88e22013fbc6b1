"""`headwater queue …`: put jobs, look at them, work them, put dead ones back, on a running server.
Owns arguments and output, and finding the function that works; the rest is `headwater.client`'s.
Exit codes: 0 done, 1 the server or the connection refused, 2 the command was wrong, 130 interrupted."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

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

app = typer.Typer(help="Put, look at and work the jobs of a queue on a running server.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="NAME or BUCKET/NAME.", show_default=False)]


@app.command()
def stats(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Show how many jobs are ready, leased, delayed and dead."""
    with connected(url, name, "queue") as hw:
        found = hw.queue(name).stats()
        if as_json:
            say(msgspec.json.encode(found).decode())
            return
        facts = [(field, getattr(found, field)) for field in found.__struct_fields__]
        show(
            ("what", "value"),
            [(field.replace("_", " "), "" if value is None else str(value)) for field, value in facts],
        )


@app.command()
def peek(
    name: Name,
    state: Annotated[Literal["ready", "leased", "delayed"], typer.Option("--state", help="Of these jobs.")] = "ready",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    url: Url = None,
) -> None:
    """Show the next jobs without taking them."""
    with connected(url, name, "queue") as hw:
        jobs = hw.queue(name).peek(state, limit)
        if as_json:
            for job in jobs:
                say(msgspec.json.encode(job).decode())
            return
        titles = ("seq", "put at", "deliveries", "key", "tag", "data")
        show(
            titles,
            [(str(j.seq), _at(j.ts_ms), str(j.deliveries), j.key or "", j.tag or "", shown_data(j.data)) for j in jobs],
        )


@app.command()
def put(
    name: Name,
    data: Data = None,
    lines: Lines = False,
    file: File = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Not put while a job with it lives.")] = None,
    delay: Annotated[float | None, typer.Option("--delay", metavar="SECONDS", min=0, help="Given out later.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="What jobs are deleted by.")] = None,
    url: Url = None,
) -> None:
    """Put a job, or one per line with --lines."""
    with connected(url, name, "queue") as hw:
        from headwater.client import Draft, NotAQueue

        queue = hw.queue(name)
        config = queue.topic.config().config
        if config.queue is None:
            raise NotAQueue("not_a_queue", f"{name} is a topic without a queue: what is put there is nobody's job")
        json_mode = is_json(config.content_type)
        if lines and key is not None:
            raise BadUsage("--key would be the same for each of --lines", "leave it out")
        raws = list(given_lines(data, file)) if lines else [given_data(data, file)]
        put_jobs = queue.put_many(Draft(record_data(raw, json_mode), key=key, delay=delay, tag=tag) for raw in raws)
        known = len(put_jobs.duplicates)
        there = f", {known} of them there already" if known else ""
        say(f"put {counted(len(raws), 'job')} into {name}{there}")


@app.command()
def work(
    name: Name,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="Called with each job; from the working directory.", show_default=False
        ),
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", min=1, help="Jobs at once.")] = 1,
    lease: Annotated[
        float, typer.Option("--lease", metavar="SECONDS", min=0.1, help="Extended while a job runs.")
    ] = 30,
    max_jobs: Annotated[int | None, typer.Option("--max-jobs", metavar="N", min=1, help="End after so many.")] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when no job is ready.")] = False,
    url: Url = None,
) -> None:
    """Run a function for every job: acked when it returns, given back when it raises.

    Ctrl-C and SIGTERM finish the running jobs and end; a second one ends at once.
    """
    with connected(url, name, "queue") as hw:
        function = _function(target)
        # The log of the worker is this command's output.
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        queue = hw.queue(name)
        queue.stats()  # A queue that is not there is told of at once; later a server that is away is waited for.
        note(f"working {name} with {target}")
        worker = queue.worker(concurrency=concurrency, lease=lease, max_jobs=max_jobs)(function)
        count = worker.run(until_empty=until_empty)
        say(f"ran {counted(count, 'job')} of {name}")


@app.command()
def retry(
    name: Name,
    limit: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="At most so many.")] = None,
    url: Url = None,
) -> None:
    """Put dead letters back into their queue, oldest first."""
    with connected(url, name, "queue") as hw:
        count = hw.queue(name).retry_dead(limit)
        say(f"put {counted(count, 'job')} back into {name}")


@app.command()
def purge(name: Name, yes: Yes = False, url: Url = None) -> None:
    """Delete every job of a queue."""
    with connected(url, name, "queue") as hw:
        confirmed(f"Delete every job of {name}?", yes)
        say(f"deleted {counted(hw.queue(name).purge(), 'job')} of {name}")


def _function(target: str) -> Callable[[Any], Any]:
    """Raises BadUsage."""
    module_name, colon, function_name = target.partition(":")
    if not colon or not module_name or not function_name:
        raise BadUsage(f"{target!r} names no function", "write it as MODULE:FUNCTION, such as tasks:send")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as why:
        raise BadUsage(f"cannot import {module_name}: {why}", "run it where the module is, or set PYTHONPATH") from why
    found = getattr(module, function_name, None)
    # A worker that the module made for itself is taken by its function: which queue is worked is said here.
    found = getattr(found, "function", found)
    if not callable(found):
        raise BadUsage(f"{module_name} has no function {function_name}")
    return found


def _at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
