"""Going on from an offset: whether the node's log still has what the offset speaks of, and from where on if not.

Owns the refusal, and where a read goes on that is told to do without what is lost. Never reads a record.

    the offset's log and history      -> from its position
    its log, restored or cut          -> DataLoss, or from where both histories part
    another log                       -> DataLoss, or from the earliest record
    no word of a log, and beyond it   -> the same
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from headwater.model.lineage import Incarnation, shared
from headwater.spark.node import DataLoss, LogChanged, Node
from headwater.spark.offsets import Offset
from headwater.spark.planning import Head, head_of

log = logging.getLogger("headwater.spark")


class Resumed(NamedTuple):
    node: Node
    """Refuses to answer for another log than the one that was looked at."""
    head: Head
    position: int
    """Where the offset is in this log: where it says, unless records are lost."""


def resume(node: Node, offset: Offset, fail: bool) -> Resumed:
    """Raises DataLoss when the log does not have what the offset speaks of; unless `fail`, that is only logged."""
    try:
        head = head_of(node.expecting(offset.seen))
    except LogChanged as changed:
        head = head_of(node)
        position = _parted(node, offset) if changed.code == "log_set_back" else 0
        why = changed.message
    else:
        if offset.position <= head.position:
            return Resumed(node.expecting(head.seen), head, offset.position)
        position = 0
        why = (
            f"the checkpoint is at position {offset.position}, and the node only at {head.position}: it is another "
            "node, was restored from a backup, or lost its data (the checkpoint is of an earlier version, which did "
            "not note which log it read)"
        )
    parted = f"behind position {position}, up to which both agree"
    where = parted if position else "with the earliest record of this log"
    if fail:
        raise DataLoss(f"{node.url}: {why}. {how_to_go_on(where)}")
    log.warning("%s: %s. It goes on %s", node.url, why, where)
    return Resumed(node.expecting(head.seen), head, position)


def how_to_go_on(where: str) -> str:
    return (
        "To go on, name the node that the checkpoint is of; or begin anew, with another checkpoint; or set "
        f"failOnDataLoss to false (for a job: --allow-data-loss), and it goes on {where}"
    )


def _parted(node: Node, offset: Offset) -> int:
    found = node.json("GET", "/__headwater/groups/0/incarnations")
    here = [Incarnation(*one) for one in found["incarnations"]]
    return shared(offset.incarnations, offset.position, here, found["position"])
