"""Names whose streams live in another group than their home: forks, which live with their source.

Owns, in the home's log and catalog, where such a stream lives. Never says that there is one: it may have been deleted
since, and the name may be used again where it is placed.

Not kept in memory as a whole: there is one for every fork that ever had a name of another group. What changed since the
last checkpoint is here, and what was looked up lately.
"""

from __future__ import annotations

import msgspec

from headwater.engine.row_changes import RowChanges
from headwater.ports import Catalog

KEPT_MAX = 65_536
"""Placements that were looked up lately. Overflow: all are forgotten."""


class Placement(msgspec.Struct, frozen=True, array_like=True):
    group: int
    version: int
    """Log position of the home at which it was decided."""


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """The event: a name's stream is created in `group` from now on; None: in its home again."""

    key: str
    group: int | None


_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Placed).decode
_decode_row = msgspec.msgpack.Decoder(Placement).decode


def encode(event: Placed) -> bytes:
    return _encode(event)


class Placements(RowChanges):
    """The `Domain` of placements, of one group."""

    name = "placements"
    in_memory = False

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self._catalog = catalog
        self._any = catalog.has_things(self.name)
        """False while there never was one: nothing has to be looked up then."""
        self._taken: dict[str, bytes | None] = {}
        """What the last checkpoint was given: the catalog may not have it yet."""
        self._kept: dict[str, Placement | None] = {}

    def get(self, key: str) -> Placement | None:
        if not self._any:
            return None
        kept = self._kept
        if key in kept:
            return kept[key]
        if key in self._changes:
            row = self._changes[key]
        elif key in self._taken:
            row = self._taken[key]
        else:
            row = self._catalog.thing(self.name, key)
        found = None if row is None else _decode_row(row)
        if len(kept) >= KEPT_MAX:
            kept.clear()
        kept[key] = found
        return found

    # ---- the Domain ---------------------------------------------------------------------------------------------

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        event = _decode_event(body)
        self._any = True
        self._kept.pop(event.key, None)
        self._changes[event.key] = None if event.group is None else _encode(Placement(event.group, position))

    def restore(self, things: dict[str, bytes]) -> None:
        raise RuntimeError("placements are looked up, not loaded")

    def changes(self) -> dict[str, bytes | None]:
        self._taken = super().changes()
        return self._taken
