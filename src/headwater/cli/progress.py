"""Progress on a terminal: bars for work that takes a while.

Owns how it is shown. Never writes to standard output, nor anything at all where there is no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress() -> Iterator[Any]:
    """A bar per kind of thing on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
