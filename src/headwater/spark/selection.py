"""Which streams a read wants: by name, pattern or bucket.

Owns the test of single rows, and of bounds that stand for many. Never looks at positions in the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.glob import Patterns, literal_prefix
from headwater.model.names import DEFAULT_BUCKET
from headwater.model.subscriptions import path_of
from headwater.spark.runs import RUNS_BUCKET

Bounds = Callable[[str], tuple[str, str] | None]
"""Least and greatest value of a column; None when nobody knows."""


class _Limit(NamedTuple):
    """What the values of a column have to be: one of some, or at least something."""

    column: str
    any_of: tuple[str, ...] = ()
    least: str = ""

    def rules_out(self, low: str, high: str) -> bool:
        """Nothing from `low` to `high` is within it."""
        return high < self.least or (bool(self.any_of) and all(not low <= value <= high for value in self.any_of))


@dataclass(frozen=True)
class Selection:
    """At most one is given; without any it is every stream but the pipeline's own."""

    streams: frozenset[tuple[str, str]] | None = None
    pattern: str | None = None
    bucket: str | None = None

    def takes(self, bucket: str, stream: str) -> bool:
        """Whether rows of that stream are wanted, as far as its name says."""
        if self.streams is not None:
            return (bucket, stream) in self.streams
        if self.pattern is not None:
            return self._matches([f"{bucket}/{stream}"]) == [True]
        return bucket == self.bucket if self.bucket is not None else bucket != RUNS_BUCKET

    def rules_out(self, bounds: Bounds) -> bool:
        """No row within these bounds is wanted."""
        if self.streams is not None and (only := _only(bounds)) is not None and only not in self.streams:
            return True
        known = ((limit, bounds(limit.column)) for limit in self._limits())
        return any(limit.rules_out(*span) for limit, span in known if span is not None)

    def needs(self, bounds: Bounds) -> set[str]:
        """Columns that have to be looked at row by row, when all rows lie within these bounds."""
        if self.streams is not None:
            return {"bucket", "stream"} if _only(bounds) is None else set()
        if self.pattern is not None:
            return {"bucket", "stream"}
        bucket = bounds("bucket")
        if self.bucket is not None:
            return set() if bucket == (self.bucket, self.bucket) else {"bucket"}
        return set() if bucket is not None and not bucket[0] <= RUNS_BUCKET <= bucket[1] else {"bucket"}

    def _limits(self) -> list[_Limit]:
        if self.streams is not None:
            buckets, streams = zip(*sorted(self.streams), strict=True) if self.streams else ((), ())
            return [_Limit("bucket", buckets), _Limit("stream", streams)]
        if self.pattern is not None:
            if "/" not in self.pattern:
                return [] if self.pattern == "**" else [_Limit("bucket", (DEFAULT_BUCKET,))]
            bucket, _, rest = literal_prefix(self.pattern)[0].partition("/")
            # `name/**` takes in `name` too, which is a stream of the default bucket.
            found = [_Limit("bucket", (bucket,) if rest else (bucket, DEFAULT_BUCKET))] if bucket else []
            return [*found, _Limit("stream", least=rest)]
        return [_Limit("bucket", (self.bucket,))] if self.bucket is not None else []

    def mask(self, rows: pa.Table) -> Any:
        """Which rows are wanted, by the columns `bucket` and, unless the choice is by bucket, `stream`."""
        if self.streams is not None:
            by_bucket: defaultdict[str, list[str]] = defaultdict(list)
            for bucket, stream in sorted(self.streams):
                by_bucket[bucket].append(stream)
            whole: Any = pa.array(np.zeros(len(rows), dtype=bool))
            for bucket, streams in by_bucket.items():
                mask = pc.and_(
                    pc.equal(rows["bucket"], bucket), pc.is_in(rows["stream"], value_set=pa.array(streams, pa.string()))
                )
                whole = pc.or_(whole, mask)
            return whole
        if self.pattern is not None:
            keys = pc.binary_join_element_wise(rows["bucket"], rows["stream"], "/")
            found = pc.unique(keys).to_pylist()
            taken = [key for key, wanted in zip(found, self._matches(found), strict=True) if wanted]
            return pc.is_in(keys, value_set=pa.array(taken, pa.string()))
        if self.bucket is not None:
            return pc.equal(rows["bucket"], self.bucket)
        return pc.not_equal(rows["bucket"], RUNS_BUCKET)

    def _matches(self, keys: list[str]) -> list[bool]:
        """A stream's path is what patterns are about: those of the default bucket go by their name alone.

        The pipeline's own streams are wanted only by a pattern that begins with their bucket's name.
        """
        if self.pattern is None:
            raise ValueError("there is no pattern")
        patterns = Patterns()
        patterns.add(self.pattern, "it")
        own = self.pattern.partition("/")[0] == RUNS_BUCKET
        return [
            bool(patterns.matching(path_of(key))) and (own or not key.startswith(f"{RUNS_BUCKET}/")) for key in keys
        ]


def _only(bounds: Bounds) -> tuple[str, str] | None:
    """The one stream that all rows are of, if bounds can tell."""
    bucket, stream = bounds("bucket"), bounds("stream")
    if bucket is None or stream is None or bucket[0] != bucket[1] or stream[0] != stream[1]:
        return None
    return bucket[0], stream[0]
