"""Marks: what records can be found by beside their numbers. One mechanism for tags, job keys and scheduled jobs.

Owns how labels become marks, and the shape of labelled records on their way into the catalog. Never looks one up:
`engine.marks` does.

    tag -> "t:" + tag      key -> "k:" + key      deliver_at_ms -> "d:" + 15 digits, so that marks sort by time
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from headwater.model.labels import Labels

TAG, KEY, DUE = "t:", "k:", "d:"


def due_mark(at_ms: int) -> str:
    return f"{DUE}{at_ms:015d}"


def marks_of(labels: Labels) -> list[str]:
    found = []
    if labels.tag is not None:
        found.append(TAG + labels.tag)
    if labels.key is not None:
        found.append(KEY + labels.key)
    if labels.deliver_at_ms is not None:
        found.append(due_mark(labels.deliver_at_ms))
    return found


class LabelledRun(msgspec.Struct, frozen=True):
    """Neighbouring records of one stream that settled, as columns: what the catalog keeps their marks of."""

    sid: int
    seq: int
    """Number of the first one."""
    start: int
    ends: array[int]
    labels: list[Labels | None]

    def rows(self) -> Iterator[tuple[int, str, int, int, int]]:
        """(sid, mark, number, begin, end) of every mark."""
        begin = self.start
        for number, (end, labels) in enumerate(zip(self.ends, self.labels, strict=True), self.seq):
            if labels is not None:
                for mark in marks_of(labels):
                    yield self.sid, mark, number, begin, end
            begin = end
