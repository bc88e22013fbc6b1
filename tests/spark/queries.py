"""A streaming query as Spark runs it, without Spark: offsets and commits in lists, batches in this process.
Owns the order of calls that Spark promises; it never looks into an offset but where a test does."""

from __future__ import annotations

import json
from typing import Any

from headwater.spark.rows import schema_of
from headwater.spark.stream_source import StreamReader
from tests.spark.reads import Row
from tests.support.node import Node

BATCHES_MAX = 1_000


class Query:
    """The checkpoint of a query, and what came of its batches. Every `run` is a new process on that checkpoint."""

    def __init__(self, node: Node, **options: str) -> None:
        self.node = node
        self.options = {"startingOffsets": "earliest", **options}
        self.offsets: list[str] = []
        """JSON, as in the checkpoint: the first is where the query began."""
        self.committed = 0
        self.batches: list[list[Row]] = []

    def reader(self, **options: str) -> StreamReader:
        return StreamReader({"url": self.node.url, **self.options, **options}, schema_of(False))

    def run(self, batches_max: int = BATCHES_MAX, **options: str) -> list[Row]:
        """What one run reads, to its end or in so many batches."""
        reader = self.reader(**options)
        reader.prepareForTriggerAvailableNow()
        if not self.offsets:
            self.offsets.append(json.dumps(reader.initialOffset()))
        found: list[Row] = []
        for _ in range(batches_max):
            if self.committed == len(self.offsets) - 1 and not self.plan(reader):
                break
            rows = self.read(reader)
            self.batches.append(rows)
            found += rows
            self.committed += 1
        return found

    def plan(self, reader: StreamReader) -> bool:
        """Writes down where the next batch ends; False when there is none."""
        start = json.loads(self.offsets[-1])
        end = json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def parts(self, reader: StreamReader) -> Any:
        before, until = (json.loads(one) for one in self.offsets[self.committed : self.committed + 2])
        return reader.partitions(before, until)

    def read(self, reader: StreamReader) -> list[Row]:
        return [row for part in self.parts(reader) for batch in reader.read(part) for row in batch.to_pylist()]

    @property
    def offset(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.offsets[-1])
        return found
