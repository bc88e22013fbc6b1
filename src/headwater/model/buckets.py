"""Buckets: namespaces of streams, made by name or by the first stream in them.

Owns their rules and counts. Never lists streams: the catalog does.
"""

from __future__ import annotations

from typing import assert_never

from headwater.errors import BucketExists, BucketNotEmpty, BucketNotFound
from headwater.model.commands import BucketCommand, CreateBucket, DeleteBucket
from headwater.model.events import BucketCreated, BucketDeleted, BucketEvent
from headwater.model.row import BucketRow


class Bucket:
    __slots__ = ("count", "created_ms", "explicit", "name", "position", "stored")

    def __init__(self, row: BucketRow) -> None:
        self.name = row.name
        self.position = row.position
        self.explicit = row.explicit
        self.created_ms = row.created_ms
        self.count = row.count
        self.stored = row.stored

    def row(self) -> BucketRow:
        return BucketRow(self.name, self.position, self.explicit, self.created_ms, self.count, self.stored)

    @property
    def exists(self) -> bool:
        return self.explicit or self.count > 0


def decide(bucket: Bucket | None, command: BucketCommand, now_ms: int) -> BucketEvent:
    """What `command` does. Raises BucketExists, BucketNotFound or BucketNotEmpty."""
    if isinstance(command, CreateBucket):
        if bucket is not None and bucket.explicit:
            raise BucketExists
        return BucketCreated(command.name, now_ms)
    if isinstance(command, DeleteBucket):
        count = command.elsewhere_count + (0 if bucket is None else bucket.count)
        if count:
            raise BucketNotEmpty(count)
        if bucket is None or not bucket.exists:
            raise BucketNotFound
        return BucketDeleted(command.name, now_ms)
    assert_never(command)


def evolve(bucket: Bucket, event: BucketEvent, position: int) -> None:
    if isinstance(event, BucketCreated):
        bucket.explicit = True
        bucket.created_ms = event.at_ms
    elif isinstance(event, BucketDeleted):
        bucket.explicit = False
    else:
        assert_never(event)
    bucket.position = position


def count(bucket: Bucket, by: int, at_ms: int, position: int) -> None:
    """A stream came (+1) or went (-1)."""
    if not bucket.exists:
        bucket.created_ms = at_ms
    bucket.count += by
    bucket.position = position
