"""Spark's offset of a streaming read, as JSON in its checkpoint.

Owns the shape. Never judges whether a node still has what it speaks of: `resuming` does.

    {"0": 81236,                                        the position of the group; the rest is beside it
     "log": "5b0c…",                                    which log that is a position of; absent in older checkpoints
     "incarnations": [["5b0c…", 0], ["9d1e…", 70112]],  the newest that the log has gone through, with their beginnings
     "after": 70112,                                    only when the batch does not begin where the one before it ended
     "began": 91004,                                    until it has caught up: where the node was when the query began
     "selection": {"bucket": "orders"},                 which streams it reads (a hash of a long list)
     "past": {"of": {"subscribe": "a/1"}, "until": 70}} only of a batch from before the position, here up to 70, for
                                                        streams that the query did not read while it read `of`

It never names streams one by one: two hundred thousand of them made a file of 5 MB for every batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headwater.model.lineage import Incarnation
from headwater.spark.node import Seen

GROUP = "0"
"""The one group of a node, as offsets name it."""


class Past(NamedTuple):
    of: dict[str, str]
    """What the query read before it read more."""
    until: int


class Offset(NamedTuple):
    position: int
    log: str | None = None
    incarnations: tuple[Incarnation, ...] = ()
    after: int | None = None
    began: int | None = None
    selection: dict[str, str] | None = None
    past: Past | None = None

    @property
    def seen(self) -> Seen | None:
        """What a node must have to go on from here; None in an older checkpoint."""
        if self.log is None or not self.incarnations:
            return None
        return Seen(self.log, self.incarnations[-1].id, self.position)

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = {GROUP: self.position}
        if self.log is not None:
            found |= {"log": self.log, "incarnations": [list(one) for one in self.incarnations]}
        past = None if self.past is None else self.past._asdict()
        beside = {"after": self.after, "began": self.began, "selection": self.selection, "past": past}
        return found | {name: value for name, value in beside.items() if value is not None}


def offset_of(document: dict[str, Any]) -> Offset:
    """Raises ValueError for what is no offset."""
    position = _whole(document.get(GROUP))
    log, incarnations = document.get("log"), document.get("incarnations", [])
    if log is not None and not isinstance(log, str):
        raise ValueError("log")
    if not isinstance(incarnations, list):
        raise ValueError("incarnations")
    known = tuple(_incarnation(one) for one in incarnations)
    after, began = (None if document.get(name) is None else _whole(document[name]) for name in ("after", "began"))
    selection, past = document.get("selection"), document.get("past")
    if selection is not None:
        selection = _texts(selection)
    if past is not None:
        if not isinstance(past, dict) or set(past) != {"of", "until"}:
            raise ValueError("past")
        past = Past(_texts(past["of"]), _whole(past["until"]))
    return Offset(position, log, known, after, began, selection, past)


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError("selection")
    return value


def _incarnation(entry: Any) -> Incarnation:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        raise ValueError("incarnations")
    return Incarnation(entry[0], _whole(entry[1]))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError("position")
    return value
