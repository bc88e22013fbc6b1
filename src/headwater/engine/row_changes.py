"""Rows of a domain that changed since the last checkpoint: the part of a `Domain` that is the same wherever each change
makes or takes away whole rows. Never decides what a row holds."""

from __future__ import annotations


class RowChanges:
    def __init__(self) -> None:
        self._changes: dict[str, bytes | None] = {}
        """By name; None: the row is gone."""

    def changes(self) -> dict[str, bytes | None]:
        changes, self._changes = self._changes, {}
        return changes

    def retry(self, changes: dict[str, bytes | None]) -> None:
        """A checkpoint failed. What changed once more since then counts."""
        for name, row in changes.items():
            self._changes.setdefault(name, row)
