"""What a server of schedules lends to the commands that it runs, in place of what each makes for itself.

Owns the hand-over: the session that all share, and how a command tells what became of it. Without a loan a command is
one that a person typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.job_runs import Progress


class WouldRun(Exception):
    """A command that is only checked has come as far as its job: nothing is wrong with it."""


@dataclass
class Loan:
    session: Callable[[], SparkSession] | None
    """None: the command is only checked."""
    progress: Progress
    summary: dict[str, Any] = field(default_factory=dict)
    """Of the job, once it has ended."""


_loan: ContextVar[Loan | None] = ContextVar("_loan", default=None)


def loan() -> Loan | None:
    return _loan.get()


@contextmanager
def lent(given: Loan) -> Iterator[Loan]:
    """For commands that are run in the block, by this thread."""
    mark = _loan.set(given)
    try:
        yield given
    finally:
        _loan.reset(mark)
