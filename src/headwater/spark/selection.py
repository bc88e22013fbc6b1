"""Which streams a read wants: by name, pattern or bucket.

Owns the test of single rows, and of bounds that stand for many. Never looks at positions in the log.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.choices import STREAMS_MAX
from headwater.model.glob import Patterns, literal_prefix
from headwater.model.names import DEFAULT_BUCKET
from headwater.model.subscriptions import path_of
from headwater.spark.job_runs import RUNS_BUCKET
from headwater.spark.node import Node

SPELLED_MAX = 1_000
NAMES_ASKED = 1_000
NAMES_TOLD = 5

Bounds = Callable[[str], tuple[str, str] | None]
"""Least and greatest value of a column; None when they are not known."""


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
    """At most one of the first three is given; without any it is every stream but the pipeline's own."""

    streams: frozenset[tuple[str, str]] | None = None
    pattern: str | None = None
    bucket: str | None = None
    minus: Selection | None = None
    """Streams that are left out."""

    def single_bucket(self) -> str | None:
        """The bucket that all of it is in; None when it may be in several."""
        if self.streams is not None:
            buckets = {bucket for bucket, _ in self.streams}
            return buckets.pop() if len(buckets) == 1 else None
        first, slash, _ = (self.pattern or "").partition("/")
        return self.bucket or (first if slash and "*" not in first else None)

    def spelled(self) -> dict[str, str]:
        """The choice as options say it, for a checkpoint; a hash of it where that would be long."""
        if self.streams is not None:
            names = ",".join(f"{bucket}/{stream}" for bucket, stream in sorted(self.streams))
            if len(names) > SPELLED_MAX:
                return {"hash": hashlib.sha256(names.encode()).hexdigest()[:32]}
            return {"subscribe": names}
        if self.pattern is not None:
            return {"subscribePattern": self.pattern}
        return {} if self.bucket is None else {"bucket": self.bucket}

    def choice(self) -> dict[str, Any] | None:
        """The choice as a node is asked for it (see `model.choices`); None for one with too many names."""
        names = self.streams if self.streams is not None else ()
        minus = None if self.minus is None else self.minus.choice()
        if len(names) > STREAMS_MAX or (self.minus is not None and minus is None):
            return None
        found: dict[str, Any] = {}
        but: list[dict[str, Any]] = [] if minus is None else [minus]
        if self.streams is not None:
            found["streams"] = [f"{bucket}/{stream}" for bucket, stream in sorted(self.streams)]
        elif self.bucket is not None:
            found["bucket"] = self.bucket
        else:
            if self.pattern is not None:
                found["pattern"] = self.pattern
            if self.pattern is None or self.pattern.partition("/")[0] != RUNS_BUCKET:
                but.append({"bucket": RUNS_BUCKET})
        return {**found, **({"except": but} if but else {})}

    def takes(self, bucket: str, stream: str) -> bool:
        """Whether rows of that stream are wanted, as far as its name says."""
        if self.minus is not None and self.minus.takes(bucket, stream):
            return False
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
        if self.minus is not None:
            return {"bucket", "stream"}
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

    def unmatched(self, node: Node) -> list[str]:
        """What it names and no stream goes by, each in words. Raises NodeError."""
        if self.streams is not None:
            names = [f"{bucket}/{stream}" for bucket, stream in sorted(self.streams)]
            parts = [names[at : at + NAMES_ASKED] for at in range(0, len(names), NAMES_ASKED)]
            missing = [name for part in parts for name in node.missing({"streams": part})]
            more = f", and {len(missing) - NAMES_TOLD} more that are named" if len(missing) > NAMES_TOLD else ""
            return [f"there is no stream {', '.join(missing[:NAMES_TOLD])}{more}"] if missing else []
        if self.pattern is not None:
            own = self.pattern.partition("/")[0] == RUNS_BUCKET
            wanted = {"pattern": self.pattern, **({} if own else {"except_bucket": RUNS_BUCKET})}
            return [f"no stream matches {name}" for name in node.missing(wanted)]
        if self.bucket is not None:
            return [f"there is no stream in bucket {name}" for name in node.missing({"bucket": self.bucket})]
        return []

    def mask(self, rows: pa.Table) -> Any:
        """Which rows are wanted, by the columns `bucket` and, unless the choice is by bucket alone, `stream`."""
        if self.minus is not None:
            return pc.and_not(replace(self, minus=None).mask(rows), self.minus.mask(rows))
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
