"""Spark's offset of a streaming read, as JSON in its checkpoint.

Owns the shape. Never judges whether a node still has those positions: `resuming` does.

    {"0": 81236, "1": 90,                               the position of each group; the rest is beside them
     "logs": {"0": {"log": "5b0c…",                     of which log each is a position, and the newest incarnations
                    "incarnations": [["5b0c…", 0]]}, …} that it has gone through, with their beginnings
     "after": {"0": 70112},                             only of groups where the batch does not begin at the end of the
                                                        one before it
     "began": {"0": 91004},                             of groups until they have caught up: where they were when the
                                                        query began
     "selection": {"bucket": "orders"},                 which streams it reads (a hash of a long list)
     "past": {"of": {"subscribe": "a/1"},               only of a batch from before the positions, up to `until`, for
              "until": {"0": 70, "1": 0}}}              streams that the query did not read while it read `of`

A query that began with each of some streams elsewhere has `bounds` until it has caught up (see `stream_bounds`): a
thousand streams at most are named there. What a query's progress shows as its latest offset has `lag` beside it (see
`lag`), which is never read.

Earlier versions knew one group, and wrote `log` and `incarnations` of it, and numbers for `after`, `began` and `until`.
An offset never names streams one by one: two hundred thousand of them made a file of 5 MB for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from headwater.model.lineage import Incarnation
from headwater.spark.node import Seen
from headwater.spark.ranges import Positions
from headwater.spark.stream_bounds import Bounds, bounds_of

GROUPS_MAX = 4_096
"""As many as an offset may name. Far more than a node has."""
BESIDE = {"logs", "after", "began", "selection", "past", "log", "incarnations", "lag", "bounds"}
"""Everything in an offset that is no group."""

_NOWHERE: Positions = {}
T = TypeVar("T")


class Past(NamedTuple):
    of: dict[str, str]
    """What the query read before it read more."""
    until: Positions


class Log(NamedTuple):
    """Which log a position is of."""

    id: str
    incarnations: tuple[Incarnation, ...]
    """The newest; at least one."""


_UNKNOWN: Mapping[int, Log] = {}


class Offset(NamedTuple):
    positions: Positions
    logs: Mapping[int, Log] = _UNKNOWN
    """By group; none in the oldest checkpoints."""
    after: Positions = _NOWHERE
    began: Positions = _NOWHERE
    selection: dict[str, str] | None = None
    past: Past | None = None
    bounds: Bounds | None = None

    @property
    def seen(self) -> dict[int, Seen]:
        """What a node must have to go on from here, as far as is known."""
        return {
            group: Seen(log.id, log.incarnations[-1].id, self.positions[group])
            for group, log in self.logs.items()
            if group in self.positions
        }

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = _by_text(self.positions)
        if self.logs:
            logs = {
                group: {"log": log.id, "incarnations": [list(one) for one in log.incarnations]}
                for group, log in self.logs.items()
            }
            found["logs"] = _by_text(logs)
        for name, positions in (("after", self.after), ("began", self.began)):
            if positions:
                found[name] = _by_text(positions)
        if self.selection is not None:
            found["selection"] = self.selection
        if self.past is not None:
            found["past"] = {"of": self.past.of, "until": _by_text(self.past.until)}
        if self.bounds is not None:
            found["bounds"] = self.bounds.json()
        return found


def offset_of(document: dict[str, Any]) -> Offset:
    """Raises ValueError for what is no offset."""
    groups = {name: value for name, value in document.items() if name not in BESIDE}
    positions = _by_group(groups, _whole)
    if not positions:
        raise ValueError("position")
    logs = _by_group(document.get("logs", {}), _log)
    if not logs and document.get("log") is not None and document.get("incarnations"):
        logs = {0: _log(document)}  # of an earlier version
    after, began = (_positions(document.get(name)) for name in ("after", "began"))
    selection, past = document.get("selection"), document.get("past")
    if selection is not None:
        selection = _texts(selection)
    if past is not None:
        if not isinstance(past, dict) or set(past) != {"of", "until"}:
            raise ValueError("past")
        past = Past(_texts(past["of"]), _positions(past["until"]))
    bounds = None if document.get("bounds") is None else bounds_of(document["bounds"])
    return Offset(positions, logs, after, began, selection, past, bounds)


def _by_text(values: Mapping[int, T]) -> dict[str, T]:
    return {str(group): value for group, value in sorted(values.items())}


def _by_group(values: Any, read: Callable[[Any], T]) -> dict[int, T]:
    if not isinstance(values, dict):
        raise ValueError("groups")
    return {_group(name): read(value) for name, value in values.items()}


def _group(name: str) -> int:
    if not (name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < GROUPS_MAX):
        raise ValueError("group")
    return int(name)


def _positions(value: Any) -> Positions:
    """By group; a number alone is an earlier version's, of group 0."""
    if value is None:
        return {}
    return {0: _whole(value)} if isinstance(value, int) else _by_group(value, _whole)


def _log(facts: Any) -> Log:
    if not isinstance(facts, dict) or not isinstance(facts.get("log"), str):
        raise ValueError("log")
    incarnations = facts.get("incarnations")
    if not isinstance(incarnations, list) or not incarnations:
        raise ValueError("incarnations")
    return Log(facts["log"], tuple(_incarnation(one) for one in incarnations))


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
