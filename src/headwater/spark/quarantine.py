"""How many records of a derived table may be set aside before its run ends with findings.

Owns that bound. Never sets a record aside: `derive` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headwater.spark.job_runs import JobRefused


class Allowed(NamedTuple):
    """How many records may go to the quarantine before the run ends with findings."""

    records: int
    percent: float | None = None

    @classmethod
    def of(cls, given: int | str) -> Allowed:
        """From a number, or a share of the records of a run such as `2%`. Raises JobRefused."""
        text = str(given).strip()
        try:
            allowed = cls(0, float(text[:-1])) if text.endswith("%") else cls(int(text))
        except ValueError:
            allowed = cls(-1)
        if allowed.records < 0 or not 0 <= (allowed.percent or 0) <= 100:
            raise JobRefused(f"{given!r} is no number of records", "write one such as 100, or a share such as 2%")
        return allowed

    def exceeded(self, counts: Mapping[str, int]) -> bool:
        quarantined = counts["quarantined"]
        if self.percent is None:
            return quarantined > self.records
        return quarantined * 100 > self.percent * (counts["rows"] + quarantined)
