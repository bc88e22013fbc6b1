"""What the commands of `headwater ctl` share: options, output, failures as exit codes, and waiting for something.

Owns how they look. Never decides what is wrong with a cluster.
Exit codes: 0 done or healthy, 1 degraded, refused, failed or not done in time, 2 nobody answers or the command was
wrong, 130 interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headwater import config
from headwater.cli.client import BadUsage, ClientError, Refused, printable
from headwater.cli.ctl.cluster import Cluster, ClusterSeen, Silent

LOOK_S = 0.5
"""Between two looks at a cluster that is waited for."""
EXIT_CODES = (
    "Exit codes: 0 done or healthy; 1 degraded, refused or not done in time; 2 no node answers, or the command was "
    "wrong."
)

Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of a node: several times or with commas for several. The first that answers is asked; "
        f"also {config.URL_VARIABLE}.",
        show_default=config.URL_DEFAULT,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done, not when it is asked for.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Number or id of a node.", show_default=False)]


@contextmanager
def telling() -> Iterator[None]:
    """A failure is printed with what to do about it and becomes the exit code."""
    try:
        yield
    except ClientError as why:
        note(f"error: {why.message}")
        advice = why.advice
        if isinstance(why, Refused) and why.status in (429, 503):
            advice = f"try again in {why.facts.get('retry-after', 'a few')} seconds"
        if advice:
            note(f"  {advice}")
        raise typer.Exit(why.exit_code) from None
    except KeyboardInterrupt:
        note("interrupted: what was asked for may still happen; see: headwater ctl status")
        raise typer.Exit(130) from None


def connected(urls: Sequence[str] | None) -> Cluster:
    """Raises BadUsage when what was given are not addresses."""
    return Cluster(urls_of(urls), lambda s: time.sleep(s), note)


def urls_of(urls: Sequence[str] | None) -> list[str]:
    """Those of an option that may be given several times, and hold several. Raises BadUsage when there is none."""
    given = [one.strip() for text in urls or [] for one in text.split(",")]
    if not given:
        text = config.client_url(None, config.process_environment())
        given = [one.strip() for one in text.split(",")]
    wanted = list(dict.fromkeys(one.rstrip("/") for one in given if one))
    if not wanted:
        raise BadUsage("--url names no address", "write it as http://HOST:PORT")
    return wanted


class NotInTime(ClientError):
    """What was waited for did not happen."""


def wait(
    cluster: Cluster,
    missing: Callable[[ClusterSeen], Sequence[str]],
    what: str,
    timeout_s: float,
    advice: str = "see: headwater ctl status",
) -> ClusterSeen:
    """Looks at the cluster until nothing is missing, and says on standard error what is, whenever that changes.

    Raises NotInTime, with what was missing at the end; Silent when nobody answered then."""
    deadline_s = time.monotonic() + timeout_s
    told = ""
    while True:
        silent: Silent | None = None
        try:
            seen = cluster.seen()
            reasons = list(missing(seen))
            if not reasons:
                return seen
        except Silent as why:
            silent, reasons = why, [why.message]
        except Refused as why:
            if not why.passing:
                raise
            reasons = [why.message]  # such as a node that is just starting
        text = "; ".join(reasons)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            if silent is not None:
                raise Silent(f"not {what} within {timeout_s:g} s: {silent.message}", silent.advice)
            raise NotInTime(f"not {what} within {timeout_s:g} s: {text}", advice)
        if text != told:
            told = text
            note(f"waiting: {text}")
        time.sleep(min(LOOK_S, left_s))


def show(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere lines that a script can split at tabs."""
    console = Console(highlight=False, markup=False)
    table = Table(*titles)
    for row in rows:
        cells = [printable(cell) for cell in row]
        if console.is_terminal:
            table.add_row(*cells)
        else:
            typer.echo("\t".join(cells))
    if table.row_count:
        console.print(table)


def say(text: str) -> None:
    typer.echo(printable(text))


def note(text: str) -> None:
    typer.echo(printable(text), err=True)


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def lasted(ms: int) -> str:
    """The two largest units of a time."""
    seconds = max(0, ms) // 1000
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for index, (name, size) in enumerate(units):
        if seconds >= size:
            text = f"{seconds // size} {name}"
            if index + 1 < len(units) and (rest := seconds % size // units[index + 1][1]):
                text += f" {rest} {units[index + 1][0]}"
            return text
    return "0 s"
