"""The files of a lake as the node lists them, group by group: what every job that reads files begins with.

Owns the check that the lake which the node names can be reached from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.lake.store import StoreError
from headwater.spark.job_runs import JobRefused
from headwater.spark.lake_place import Place, place_of
from headwater.spark.node import Node, NodeRefused


class File(NamedTuple):
    path: str
    bytes: int
    rows: int
    live_rows: int
    position_min: int
    position_max: int
    modified_ms: int

    @property
    def live_bytes(self) -> int:
        """About what its live rows take."""
        return self.bytes * self.live_rows // max(self.rows, 1)


class Listing(NamedTuple):
    """A group's files as the node sees them: every settled record of it is in exactly one of these."""

    group: int
    lake_position: int
    place: Place
    files: list[File]
    unused_ms_max: int
    """How long an object that nothing refers to may still be there."""
    epoch: int = 0
    """Of the group's owner: new files are named with it, and only that owner swaps them in."""


def listings(node: Node) -> list[Listing]:
    """One for each group, in order. Raises JobRefused when there is no lake, or none that can be reached from here."""
    return [listed(node, group) for group in node.groups()]


def would_look_at(by_group: Sequence[Listing]) -> dict[str, object]:
    """What a dry run of a job says that only looks at files, at all of them."""
    every = [file for listing in by_group for file in listing.files]
    return {
        "files": len(every),
        "bytes": sum(file.bytes for file in every),
        "rows": sum(file.rows for file in every),
    }


def listed(node: Node, group: int) -> Listing:
    """Raises JobRefused when the node has no lake, or one that cannot be reached from here."""
    try:
        facts = node.lake_files(group)
    except NodeRefused as refused:
        if refused.status in (400, 404):
            raise JobRefused(
                f"the node at {node.url} keeps no lake", "name a node that was started with --data"
            ) from None
        raise
    place = place_of(facts["lake"])
    advice = "run the job where the lake's directory is, or with the credentials of its bucket in the environment"
    try:
        if facts["files"] and next(place.store().list("_delta_log"), None) is None:
            raise JobRefused(f"the lake {place.url} is not here", advice)
    except StoreError as error:
        raise JobRefused(f"the lake cannot be reached from here: {error.reason}", advice) from error
    files = [
        File(one["path"], one["bytes"], one["rows"], one["live_rows"], *(one[name] or 0 for name in File._fields[4:]))
        for one in facts["files"]
    ]
    return Listing(facts["group"], facts["lake_position"], place, files, facts["unused_ms_max"], facts.get("epoch", 0))
