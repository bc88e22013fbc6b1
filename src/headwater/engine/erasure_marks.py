"""That something was erased, told to everybody who follows a shared log: their catalogs lose what deleted rows left.

Owns the mark, from the event until the catalog's file was written anew. Never knows what was erased: an event with a
name in it would be one more place where the name is.
"""

from __future__ import annotations

_DUE = "due"


class ErasureMarks:
    """The `Domain` of erasures, of one group."""

    name = "erasures"
    in_memory = True

    def __init__(self) -> None:
        self.due = False
        """The catalog's file may hold traces of rows that were deleted because of an erasure."""
        self.position = 0
        """Of the event: rows that it speaks of are gone from a catalog that is true for this position."""
        self._changed = False

    def cleared(self) -> None:
        """The file holds none any more."""
        self._changed = self._changed or self.due
        self.due = False

    # ---- the Domain ---------------------------------------------------------------------------------------------

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        self.due = self._changed = True
        self.position = position

    def restore(self, things: dict[str, bytes]) -> None:
        self.due = _DUE in things

    def changes(self) -> dict[str, bytes | None]:
        changed, self._changed = self._changed, False
        return {_DUE: b"" if self.due else None} if changed else {}

    def retry(self, changes: dict[str, bytes | None]) -> None:
        self._changed = self._changed or bool(changes)
