"""The least and greatest values of a file's rows, gathered while they are written: what its statistics say.

Never reads a file: of one that is stored, the footer tells (see `keys`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.lake.layout import PRUNED_BY, statistics


class Bounds:
    """Of the columns `names`; what is known of others goes into `low` and `high` before they are told."""

    def __init__(self, group: int, names: Sequence[str] = PRUNED_BY) -> None:
        self.low: dict[str, Any] = {"group": group}
        self.high: dict[str, Any] = {"group": group}
        self.row_count = 0
        self._tagless_count = 0
        self._names = names

    def add(self, rows: pa.Table) -> None:
        """Raises ValueError for rows of another group."""
        self.row_count += len(rows)
        for name in self._names:
            column = rows[name]
            if name == "tag":
                self._tagless_count += column.null_count
                if column.null_count == len(column):
                    continue
            found = pc.min_max(column).as_py()
            self.low[name] = min(self.low.get(name, found["min"]), found["min"])
            self.high[name] = max(self.high.get(name, found["max"]), found["max"])
        if self.low["group"] != self.high["group"]:
            raise ValueError("rows of another group")

    def told(self) -> str:
        """Delta's JSON."""
        return statistics(self.row_count, self.low, self.high, self._tagless_count)
