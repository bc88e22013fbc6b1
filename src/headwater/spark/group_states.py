"""What a node says of its groups when a read is planned: how far each is, its files, its losses, what a limit allows.

Owns these questions. Never decides what is read: `planning` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from headwater.model.lineage import Incarnation
from headwater.spark.lake_place import Place
from headwater.spark.node import Node, NodeRefused, Seen, of
from headwater.spark.offsets import Log, Offset
from headwater.spark.ranges import FAR, Positions, Range
from headwater.spark.reading import Listing, list_files, listing_of

LOSSES_PAGE = 10_000
ROW_BYTES = 64
"""What a row takes beside its payload, about."""


class Head(NamedTuple):
    """How far a group is."""

    position: int
    lake_position: int
    hot_bytes: int
    log: Log

    @property
    def seen(self) -> Seen:
        return Seen(self.log.id, self.log.incarnations[-1].id, self.position)


Heads = Mapping[int, Head]
"""By group."""


def heads_of(node: Node) -> dict[int, Head]:
    """Raises LogChanged when a group is expected to have another log."""
    return heads_in(look(node, None, {}))


def _head(facts: dict[str, Any]) -> Head:
    log = Log(facts["log"], tuple(Incarnation(*one) for one in facts["incarnations"]))
    return Head(facts["position"], facts["lake_position"], facts["hot_bytes"], log)


def seen_in(heads: Heads) -> dict[int, Seen]:
    return {group: head.seen for group, head in heads.items()}


def ends_of(heads: Heads) -> dict[int, int]:
    return {group: head.position for group, head in heads.items()}


def offset_at(heads: Heads, positions: Positions) -> Offset:
    """Positions of these logs."""
    return Offset(dict(positions), {group: head.log for group, head in heads.items()})


# ---- what was lost -----------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    group: int
    bucket: str
    stream: str
    incarnation: int
    position: int
    """Of the newest record that is gone."""
    earliest: int
    """Offset of the oldest one left."""
    at: int
    """Log position at which the stream let go of it, at the latest."""


def losses(node: Node, group: int, after: int) -> list[Loss]:
    """Streams that let go of records after a position, in the order of the newest of those."""
    found: dict[int, Loss] = {}
    while True:
        query = urlencode({"after": after, "limit": LOSSES_PAGE})
        try:
            page: dict[str, Any] = node.json("GET", f"{of(group)}/losses?{query}")
        except NodeRefused as refused:
            if refused.status == 404:
                return []  # a node without a lake: it keeps nothing, and no account of what it let go of
            raise
        for one in page["losses"]:
            loss = _loss(group, one)
            found[loss.incarnation] = loss
            after = max(after, loss.position)
        if not page["more"]:
            return list(found.values())


def _loss(group: int, one: dict[str, Any]) -> Loss:
    facts = (one["bucket"], one["stream"], one["incarnation"], one["position"], int(one["earliest"]))
    return Loss(group, *facts, one.get("at", FAR))


# ---- all that a plan needs ---------------------------------------------------------------------------------------


class Question(NamedTuple):
    """What is asked of a group: about records after a position, and how far into them a limit reaches."""

    after: int
    rows_max: int | None = None
    bytes_max: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.rows_max is not None or self.bytes_max is not None


class Matched(NamedTuple):
    """What memory holds of the chosen streams in a range."""

    within: Range
    rows_count: int
    payload_bytes: int
    oldest_ms: int | None


class State(NamedTuple):
    """What a group answers."""

    head: Head
    listing: Listing | None
    """None: everything that was asked about is in memory."""
    losses: list[Loss]
    """Not older than the listing: what had left the files by then is among them."""
    cut: int | None
    """How far the limit reaches, when everything is in memory; None also while these records settle."""
    cut_rows: int = 0
    """Records up to there."""
    matched: Matched | None = None
    """None: no streams were chosen, or their records settled while they were counted."""

    def is_empty(self, wanted: Range) -> bool:
        """Certainly memory held nothing of the chosen streams in the range."""
        found = self.matched
        if found is None or found.rows_count:
            return False
        return found.within.after <= wanted.after and wanted.until <= found.within.until

    def hot_bytes_in(self, wanted: Range) -> float:
        """About how much memory holds of what is chosen."""
        found = self.matched
        if found is not None:
            width = found.within.until - found.within.after
            held = found.payload_bytes + ROW_BYTES * found.rows_count
        else:
            width = self.head.position - self.head.lake_position
            held = self.head.hot_bytes
        return held / max(width, 1) * (wanted.until - wanted.after)


def look(
    node: Node, place: Place | None, asked: Mapping[int, Question], choice: Mapping[str, Any] | None = None
) -> dict[int, State]:
    """Groups in one call, as `Node.plan` says which: of those that are not asked about only how far they are.

    `place` takes the place of what the node says of where the lake is, and `choice` says which streams matter. Raises
    LogChanged when a group is expected to have another log, and NodeRefused with the code `no_such_group`.
    """
    found = node.plan(_wishes(asked), choice)
    node.owners.update({facts["group"]: facts["address"] for facts in found if "address" in facts})
    known = choice is not None
    return {facts["group"]: _state(node, place, facts, asked.get(facts["group"]), known) for facts in found}


def _wishes(asked: Mapping[int, Question]) -> dict[int, dict[str, Any]]:
    names = ("from", "max_rows", "max_bytes")
    return {
        group: {"files": True, **{name: value for name, value in zip(names, one, strict=True) if value is not None}}
        for group, one in asked.items()
    }


def _state(node: Node, place: Place | None, facts: dict[str, Any], question: Question | None, chosen: bool) -> State:
    group, head = facts["group"], _head(facts)
    if question is None:
        return State(head, None, [], None)
    listing = None
    # Asked about chosen streams, a node with a lake lists files whenever one has anything behind the position.
    told = "files" in facts or (chosen and "losses" in facts)
    if "files" in facts:
        listing = listing_of(facts, place)
    elif not told and question.after < head.lake_position:
        listing = listed(node, group, place, head)
    found = [_loss(group, one) for one in facts.get("losses", ())]
    if facts.get("more_losses"):
        found = losses(node, group, question.after)
    cut = facts.get("cut")
    cut = None if cut is None or (cut["from"] != question.after and (listing is not None or not told)) else cut
    matched = None
    if "matched" in facts:
        one = facts["matched"]
        matched = Matched(Range(one["from"], one["position"]), one["rows"], one["bytes"], one["oldest_ms"])
    reached, rows = (None, 0) if cut is None else (cut["position"], cut["rows"])
    return State(head, listing, found, reached, rows, matched)


def listed(node: Node, group: int, place: Place | None, head: Head) -> Listing:
    """The group's files; none for a node that has no lake, and keeps everything in memory."""
    try:
        return list_files(node, group, place)
    except NodeRefused as refused:
        if refused.status in (400, 404) and place is None:
            return Listing(head.lake_position, Place("memory:"), [])
        raise


def asked_of(positions: Positions) -> dict[int, Question]:
    """Questions without a limit."""
    return {group: Question(after) for group, after in positions.items()}


def heads_in(states: Mapping[int, State]) -> dict[int, Head]:
    return {group: state.head for group, state in states.items()}
