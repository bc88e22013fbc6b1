"""`headwater top`: what a node or a cluster is doing, looked at again and again.

Owns the loop, the keys and the exit codes. Never judges what it shows, and changes nothing in a node.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headwater.cli.client import ClientError
from headwater.cli.ctl.common import AsJson, Urls, telling, urls_of
from headwater.cli.top import view
from headwater.cli.top.figures import Figures, Look, figures
from headwater.cli.top.sources import Nodes

INTERVAL_S_MIN, INTERVAL_S_MAX = 0.5, 60.0
LOOK_S = 0.1
"""How soon a key is noticed."""
KEYS = "q quit  p pause  + - interval"

Interval = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=INTERVAL_S_MIN, max=INTERVAL_S_MAX, help="Between looks.")
]
Once = Annotated[bool, typer.Option("--once", help="Look twice, one interval apart, print what was between, and end.")]


def top(urls: Urls = None, interval: Interval = 2.0, once: Once = False, as_json: AsJson = False) -> None:
    """Watch a node or a cluster: rates, times, memory, the lake's backlog, queues, groups and the hottest streams.

    One address is enough for a cluster: its other nodes are asked too. Times are the median and the 99th percentile of
    what came between two looks. With --json one object is printed for each look, on a line of its own.

    Keys: q quits, p pauses, + and - change the interval.

    Exit codes: 0 ended as asked; 1 no node answers, or the one that was named refuses; 2 the command was wrong.

    Example: headwater top --url http://10.0.0.1:4437 --once
    """
    with telling():
        nodes = Nodes(urls_of(urls))
        try:
            if as_json or once:
                _print(nodes, interval, once, as_json)
            elif not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise ClientError("this is no terminal", "print one look with --once, or lines with --json")
            else:
                _watch(nodes, interval)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None  # that is how one ends it
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read is gone
            raise typer.Exit(0) from None
        finally:
            nodes.close()


def _print(nodes: Nodes, interval_s: float, once: bool, as_json: bool) -> None:
    console = Console(highlight=False, markup=False)
    before = nodes.look()
    while True:
        time.sleep(interval_s)
        after = nodes.look()
        found = figures(before, after)
        if as_json:
            typer.echo(msgspec.json.encode(found).decode())
        else:
            console.print(view.printed(found, where(after, nodes.is_cluster), console.width))
        if once:
            return
        sys.stdout.flush()
        before = after


class Screen:
    """What is shown now, and the looks that it comes from."""

    def __init__(self) -> None:
        self.before: Sequence[Look] = []
        self.after: Sequence[Look] = []
        self.failure: ClientError | None = None
        self.figures: Figures | None = None

    def looked(self, looks: Sequence[Look]) -> None:
        self.before, self.after = self.after or looks, looks
        self.failure = None
        self.figures = figures(self.before, self.after)


def _watch(nodes: Nodes, interval_s: float) -> None:
    console = Console(highlight=False, markup=False)
    screen, paused = Screen(), False
    screen.looked(nodes.look())  # a node that is not there is told without a screen of its own
    next_s = time.monotonic() + min(1.0, interval_s)
    looking: Future[list[Look]] | None = None
    asker = ThreadPoolExecutor(1, thread_name_prefix="top-asker")
    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                _draw(live, console, screen, nodes, interval_s, paused)
                for key in pressed(LOOK_S):
                    if key in "qQ\x1b\x03\x04":
                        return
                    if key in "pP ":
                        paused = not paused
                    elif key in "+=":
                        interval_s = min(INTERVAL_S_MAX, interval_s * 2)
                    elif key in "-_":
                        interval_s = max(INTERVAL_S_MIN, interval_s / 2)
                if looking is not None and looking.done():
                    try:
                        looked = looking.result()
                        if not paused:
                            screen.looked(looked)
                    except ClientError as why:
                        screen.failure = why
                    looking, next_s = None, time.monotonic() + interval_s
                elif looking is None and not paused and time.monotonic() >= next_s:
                    looking = asker.submit(nodes.look)
                next_s = min(next_s, time.monotonic() + interval_s)
        finally:
            asker.shutdown(wait=False, cancel_futures=True)


def _draw(live: Live, console: Console, screen: Screen, nodes: Nodes, interval_s: float, paused: bool) -> None:
    if screen.figures is None:
        return
    note = f"{KEYS}  every {interval_s:g} s{'  PAUSED' if paused else ''}"
    if screen.failure is not None:
        note = f"NOT UP TO DATE: {screen.failure.message}"
    where_ = where(screen.after, nodes.is_cluster)
    width, height = console.size
    if width < view.WIDTH_MIN or height < view.HEIGHT_MIN:
        live.update(Text(f"make this terminal larger than {view.WIDTH_MIN}x{view.HEIGHT_MIN}"), refresh=True)
    else:
        live.update(view.screen(screen.figures, where_, note, width, height), refresh=True)


def where(looks: Sequence[Look], in_cluster: bool) -> str:
    if in_cluster:
        return f"cluster of {len(looks)} nodes"
    return ", ".join(look.url for look in looks)


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed: a function of how long to wait for one. The terminal is as before afterwards."""
    import termios
    import tty

    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([source], [], [], wait_s)
        return os.read(source, 64).decode("latin-1") if ready else ""

    try:
        tty.setcbreak(source)
        yield pressed
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
