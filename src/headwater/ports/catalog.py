"""The catalog of a group as a Protocol, and what a checkpoint hands it.

Owns the contract between checkpoints, recovery and the catalog. Never knows how rows are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headwater.model.extents import Extent
from headwater.model.marks import LabelledRun
from headwater.model.row import BucketRow, StreamRow


class CatalogCopy(msgspec.Struct, frozen=True):
    """What a copy of the catalog says of itself."""

    position: int
    log_floor: int
    files: list[str]
    """Files of the lake that it counts on."""
    blobs: list[str]
    """Snapshots that its streams refer to."""


class ReadCount(msgspec.Struct, frozen=True):
    """How much was read from a bucket on a day."""

    day: int
    """Days since 1970-01-01, UTC."""
    bucket: str
    reads: int
    """Answers with records in them; an SSE connection is one."""
    bytes: int
    """Payload in those answers."""


class FilesSwapped(msgspec.Struct, frozen=True):
    """Files of the lake that took the place of others, and where in them each stream's records lie."""

    removed: list[str]
    added: list[str]
    extents: list[bytes]
    """Packed (see `model.extents`), in parts. What was deleted or let go of since is among them and does not count."""
    at_ms: int


class Change(msgspec.Struct, frozen=True):
    """What a checkpoint writes: first `gone` (key, sid) is removed, then the rows are put, then the position moves."""

    rows: list[StreamRow]
    buckets: list[BucketRow]
    gone: list[tuple[str, int]]
    extents: list[Extent]
    files: list[str]
    """Files of the lake that extents refer to."""
    cuts: list[tuple[int, int]]
    """(sid, earliest): extents of a stream that end at or before it are dropped."""
    things: list[tuple[str, str, bytes | None]]
    """(domain, name, row) of state beside the streams; None removes it."""
    position: int
    log_floor: int
    """The log may have forgotten what ends at or below this, and nothing else."""
    next_sid: int
    reads: list[ReadCount] = []
    """Added to what the catalog has for the same day and bucket."""
    swaps: list[FilesSwapped] = []
    """In order; after the extents, before the cuts."""
    marks: list[LabelledRun] = []
    """Records that settled: their marks are kept until a cut drops them, or their stream goes."""


class Catalog(Protocol):
    """Durable stream metadata, true for a log position. Reads run on the event loop's thread and take microseconds."""

    @property
    def position(self) -> int:
        """Every event that ends at or below this position is reflected in the rows."""
        ...

    @property
    def log_floor(self) -> int:
        """The log still has everything after this position."""
        ...

    @property
    def next_sid(self) -> int: ...

    def load(self, key: str) -> StreamRow | None: ...

    def load_sid(self, sid: int) -> StreamRow | None: ...

    def load_bucket(self, name: str) -> BucketRow | None: ...

    def extents(self, sid: int, offset: int, count_max: int) -> list[Extent]:
        """Extents of a stream that end after `offset`, in order, `count_max` at most."""
        ...

    def marked(self, sid: int, mark: str, first: int, last: int, count_max: int) -> list[tuple[int, int, int]]:
        """(number, begin, end) of settled records [first, last) with that mark, in order, `count_max` at most."""
        ...

    def marked_between(
        self, sid: int, after: tuple[str, int], high: str, count_max: int
    ) -> list[tuple[str, int, int, int]]:
        """(mark, number, begin, end) of those after (mark, number) with smaller marks than `high`, in that order."""
        ...

    def prune_marks(self) -> bool:
        """Removes marks of what is gone, a bounded number; False when none is left. Each `write` takes such a step too.
        Runs on a worker thread, and not beside a `write`."""
        ...

    def incarnations(self) -> list[tuple[str, int]]:
        """What the log has gone through (see `model.lineage`), in order."""
        ...

    def keep_incarnations(self, incarnations: Sequence[tuple[str, int]]) -> None:
        """They take the place of those that were kept. On return they are on stable storage."""
        ...

    def files(self) -> set[str]:
        """Every file of the lake that was ever settled and not yet removed."""
        ...

    def newest_file(self, prefix: str) -> str | None:
        """The last of those in the order of their names, among those that begin so."""
        ...

    def alive(self) -> dict[str, bool]:
        """Files that are not dead, and whether any extent refers to them. Runs on a worker thread."""
        ...

    table_behind: bool
    """True while the lake's table may not show the last swap of files. Set by a `write` that has one."""

    def table_followed(self) -> None:
        """The table shows it. Runs on a worker thread."""
        ...

    def due(self, now_ms: int, count_max: int) -> list[str]:
        """Keys of streams whose time has passed, as far as their rows say."""
        ...

    def load_things(self, domain: str) -> dict[str, bytes]:
        """Everything kept for a domain, by name."""
        ...

    def thing(self, domain: str, name: str) -> bytes | None:
        """One of them; None when there is none of that name."""
        ...

    def has_things(self, domain: str) -> bool: ...

    def reads(self, day: int, bucket: str, count_max: int) -> list[ReadCount]:
        """Counts after (day, bucket), in that order, `count_max` at most."""
        ...

    def page(self, low: str, high: str, count_max: int) -> list[StreamRow]:
        """Rows with low < key < high, in bytewise order of their keys, `count_max` at most."""
        ...

    def write(self, change: Change) -> None:
        """One transaction. Runs on a worker thread."""
        ...

    def close(self) -> None: ...
