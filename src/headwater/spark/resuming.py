"""Whether a read can continue from an offset: whether the groups' logs still have its positions, and where to continue
if they do not.

Owns the refusal, and where a read continues that was told to accept the loss. Never reads a record.

Of each group:

    the offset's log and history                 -> from its position
    its log, restored or cut                     -> DataLoss, or from where both histories part
    another log                                  -> DataLoss, or from the earliest record
    it names no log, and a position that the
    group's log has not reached                  -> the same
    it does not name the group                   -> the same
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from headwater.model.lineage import Incarnation, shared
from headwater.spark.group_states import Head, Question, State, heads_in, heads_of, look, seen_in
from headwater.spark.lake_place import Place
from headwater.spark.node import DataLoss, LogChanged, Node, NodeRefused, of
from headwater.spark.offsets import Offset

log = logging.getLogger("headwater.spark")
_NOTHING: Mapping[int, Question] = {}


class Resumed(NamedTuple):
    node: Node
    """Refuses to answer for other logs than those that were looked at."""
    states: dict[int, State]
    positions: dict[int, int]
    """Where the offset is in these logs: where it says, unless records are lost."""


class _Lost(NamedTuple):
    position: int
    """Where a read goes on."""
    why: str


def resume(
    node: Node,
    offset: Offset,
    fail: bool,
    place: Place | None = None,
    asked: Mapping[int, Question] = _NOTHING,
    choice: Mapping[str, Any] | None = None,
) -> Resumed:
    """Raises DataLoss when a log does not have what the offset speaks of; unless `fail`, that is only logged.

    One call, which answers the questions too. The questions are asked in any case, also of a log that has changed.
    """
    states: dict[int, State] | None = None
    try:
        # Without its log a group may be another node's, which may have others besides.
        if set(offset.logs) == set(offset.positions):
            states = look(node.expecting(offset.seen), place, asked, choice)
    except (LogChanged, NodeRefused) as error:
        if isinstance(error, NodeRefused) and error.code != "no_such_group":
            raise
    changed = states is None
    if states is None:
        there = heads_of(node)
        questions = {group: asked[group] for group in there if group in asked}
        states = look(node.expecting(seen_in(there)), place, questions, choice)
    heads = heads_in(states)
    positions: dict[int, int] = {}
    lost: dict[int, _Lost] = {}
    for group, head in heads.items():
        found = _lost(node, offset, group, head, changed)
        if found is not None:
            lost[group] = found
        positions[group] = offset.positions[group] if found is None else found.position
    gone = sorted(set(offset.positions) - set(heads))
    if lost or gone:
        whys = list(dict.fromkeys(one.why for one in lost.values()))
        if gone:
            whys.append(f"the checkpoint is of a node that also had group {', '.join(map(str, gone))}")
        where = _where(lost, len(heads))
        if fail:
            raise DataLoss(f"{node.url}: {'; '.join(whys)}. {how_to_go_on(where)}")
        log.warning("%s: %s. It goes on %s", node.url, "; ".join(whys), where)
    return Resumed(node.expecting(seen_in(heads)), states, positions)


def _lost(node: Node, offset: Offset, group: int, head: Head, changed: bool) -> _Lost | None:
    position = offset.positions.get(group)
    if position is None:
        return _Lost(0, f"the checkpoint knows nothing of group {group}: it is of another node")
    seen = offset.seen.get(group)
    if seen is None and position > head.position:
        return _Lost(
            0,
            f"the checkpoint is at position {position}, and the node only at {head.position}: it is another node, was "
            "restored from a backup, or lost its data (the checkpoint is of an earlier version, which did not note "
            "which log it read)",
        )
    if seen is None or not changed:
        return None
    path = f"{of(group)}/incarnations"
    try:
        node.expecting({group: seen}).json("GET", path)
    except LogChanged as error:
        if error.code != "log_set_back":
            return _Lost(0, error.message)
        found = node.json("GET", path)
        here = [Incarnation(*one) for one in found["incarnations"]]
        known = offset.logs[group].incarnations
        return _Lost(shared(known, position, here, found["position"]), error.message)
    return None


def _where(lost: dict[int, _Lost], groups_count: int) -> str:
    """Where a read goes on that does without what is lost."""
    said = []
    for group, one in lost.items():
        parted = f"after position {one.position}, up to which both agree"
        of_group = "" if groups_count == 1 else f" of group {group}"
        said.append((parted if one.position else "with the earliest record of this log") + of_group)
    return ", ".join(said) or "with the groups that there are"


def how_to_go_on(where: str) -> str:
    return (
        "To go on, name the node that the checkpoint is of; or begin anew, with another checkpoint; or set "
        f"failOnDataLoss to false (for a job: --allow-data-loss), and it goes on {where}"
    )
