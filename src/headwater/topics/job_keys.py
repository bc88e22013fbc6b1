"""Keys of jobs: while a job with a key is there, another one with that key is not written.

Owns which records of a write are duplicates. Judged in one step with the append: between the look and the submission
nothing else happens, so of two writers at once one writes, and the other is told the first one's number.

A record counts from when it is decided, visible or not: an answer about it waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.marks import Marks
from headwater.model.commands import Append
from headwater.model.labels import Labels
from headwater.model.marks import KEY


class Split(NamedTuple):
    """A write of which some records may be there already."""

    append: Append
    """What is left of it."""
    taken: dict[int, int]
    """index in the write -> seq of the job that has the record's key already."""
    twins: dict[int, int]
    """index in the write -> index of the record of the same write that has the key."""

    @property
    def duplicates(self) -> list[int]:
        return sorted([*self.taken, *self.twins])

    def seqs(self, first: int, count: int) -> list[int]:
        """The number of each record of the write, of which those that were written begin at `first`; `count` of all."""
        found: list[int] = []
        for index in range(count):
            if index in self.taken:
                found.append(self.taken[index])
            elif index in self.twins:
                found.append(found[self.twins[index]])
            else:
                found.append(first)
                first += 1
        return found


def has_keys(labels: list[Labels | None] | None) -> bool:
    return labels is not None and any(one is not None and one.key is not None for one in labels)


def split(engine: Engine, stream: LoadedStream, append: Append) -> Split:
    """Raises NotServedHere. What is returned holds until the event loop has another turn."""
    return split_by(engine.marks_of(stream), stream, append)


def split_by(marks: Marks, stream: LoadedStream, append: Append) -> Split:
    taken: dict[int, int] = {}
    twins: dict[int, int] = {}
    seen: dict[str, int] = {}
    for index, labels in enumerate(append.labels or ()):
        key = None if labels is None else labels.key
        if key is None:
            continue
        if key in seen:
            twins[index] = seen[key]
            continue
        found = marks.find(stream, KEY + key, 1)
        if found:
            taken[index] = found[0].first + 1
        else:
            seen[key] = index
    if not taken and not twins:
        return Split(append, taken, twins)
    left = [index for index in range(len(append.records)) if index not in taken and index not in twins]
    labels_left = None if append.labels is None else [append.labels[index] for index in left]
    records = [append.records[index] for index in left]
    return Split(msgspec.structs.replace(append, records=records, labels=labels_left), taken, twins)
