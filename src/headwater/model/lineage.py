"""Which log a position is of: the incarnations that a log has gone through, and whether a position is still in it.

Owns the rule. Never makes an id and never keeps one: start-up does, in the catalog.

A log begins a new incarnation whenever a node starts on it. Two copies of a log have the same incarnations up to where
they part, and others from there on:

    a 0 ---- b 50 -------- c 250 ------ 400          what was written
                  \\ d 100 ---- 300                   a copy of it, made at position 100, that went on by itself

Position 400 of incarnation c is not in the copy, nor is 300 of b, which ended at 100 there; 90 of b is in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from headwater.errors import AnotherLog, LogSetBack

INCARNATIONS_MAX = 4_096
"""Kept. The oldest go first, but never the first of all, by which a log is known."""

DOMAIN, IDENTITY = "log", "identity"
"""The thing in a catalog that names the quorum log it is of, when that is not the log it began with: see decision 0018.
Without it, the catalog is of the log whose identity is its first incarnation."""


class Incarnation(NamedTuple):
    id: str
    position: int
    """Where it begins."""


class Lineage(NamedTuple):
    incarnations: tuple[Incarnation, ...] = ()
    """In order; at least one in a log that is served."""

    @property
    def log(self) -> str:
        """By what the log is known: its first incarnation."""
        return self.incarnations[0].id

    @property
    def newest(self) -> Incarnation:
        return self.incarnations[-1]

    def begun(self, id: str, position: int) -> Lineage:
        """With a new incarnation at the log's end."""
        new = Incarnation(id, position)
        if len(self.incarnations) < INCARNATIONS_MAX:
            return Lineage((*self.incarnations, new))
        # One that ended where it began holds nothing.
        rest = [one for one, after in pairwise([*self.incarnations[1:], new]) if one.position < after.position]
        return Lineage((self.incarnations[0], *rest[-(INCARNATIONS_MAX - 2) :], new))

    def end(self, id: str, head: int) -> int | None:
        """Where an incarnation ended: the newest one where the log is now. None: there is none of that id."""
        for index, one in enumerate(self.incarnations):
            if one.id == id:
                return self.incarnations[index + 1].position if index + 1 < len(self.incarnations) else head
        return None

    def check(self, log: str, incarnation: str, position: int, head: int) -> None:
        """Raises AnotherLog or LogSetBack unless that position of that incarnation is in this log."""
        if log != self.log:
            raise AnotherLog(log, self.log)
        end = self.end(incarnation, head)
        if end is None or position > end:
            raise LogSetBack(incarnation, position, end)


def shared(seen: Sequence[Incarnation], position: int, here: Sequence[Incarnation], head: int) -> int:
    """Up to which position two copies of a log agree, of which one was `seen` up to a position. 0: nobody can tell.

    `seen` may lack its oldest incarnations.
    """
    known = {one.id: index for index, one in enumerate(here)}
    ends = [*(one.position for one in seen[1:]), position]
    for one, end in zip(reversed(seen), reversed(ends), strict=True):
        if (index := known.get(one.id)) is not None:
            return min(end, here[index + 1].position if index + 1 < len(here) else head)
    return 0
