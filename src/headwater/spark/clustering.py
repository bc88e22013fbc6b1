"""Which files of a lake hold rows of the same place in an order, and so have to be opened together: what clustering
compacts.

Owns the order that rows are shared out to files by, and how deep files lie over one another in it, by their bounds
alone. Never reads a row. Within a file rows stand by `SORTED_BY`, whatever the order between files is.

A file's span goes from its least to its greatest value of the first column of the order in which its rows differ. Where
two files share only such an end they are taken to lie side by side: so files that were written in one go never overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.lake import overlap
from headwater.lake.writer import SORTED_BY
from headwater.spark.job_runs import JobRefused
from headwater.spark.lake_listing import File
from headwater.spark.row_filters import MOMENT

CLUSTERED_BY = ("bucket", "stream", MOMENT)
"""In an order of these the records that a file has of a stream follow one another: a read gathers few ranges. In one of
tags each record might be in another file than the one before it."""

Bounds = Mapping[str, Mapping[str, tuple[Any, Any]]]
"""By file and column of the lake, as far as they are known."""
_Mark = tuple[tuple[Any, ...], ...]
"""A place in the order: for each column, one before all values, a value, or one behind all of them."""
_FIRST, _LAST = (0,), (2,)


def order_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Columns of the lake. Raises JobRefused for what rows are not shared out by."""
    wrong = [name for name in columns if name not in CLUSTERED_BY]
    if wrong or len(set(columns)) < len(columns):
        why = f"{wrong[0]!r}" if wrong else "a column twice"
        raise JobRefused(f"files are not clustered by {why}", f"name some of {', '.join(CLUSTERED_BY)}, in any order")
    return tuple("ts_ms" if name == MOMENT else name for name in columns)


def columns_of(order: Sequence[str]) -> tuple[str, ...]:
    """Those whose bounds are looked at."""
    return tuple(dict.fromkeys((*order, *SORTED_BY)))


def deepest(files: Sequence[File], order: Sequence[str], bounds: Bounds) -> list[File]:
    """The most files that overlap at one place of the order; of those without bounds one does with all others."""
    spans = (_span(columns_of(order), bounds.get(file.path, {})) for file in files)
    return [files[number] for number in overlap.deepest(spans)]


def _span(columns: Sequence[str], known: Mapping[str, tuple[Any, Any]]) -> tuple[_Mark, _Mark] | None:
    """None: a file of one row."""
    before: _Mark = ()
    for name in columns:
        found = known.get(name)
        if found is None:
            return (*before, _FIRST), (*before, _LAST)
        low, high = found
        if low != high:
            return (*before, (1, low), _LAST), (*before, (1, high))
        before = (*before, (1, low))
    return None
