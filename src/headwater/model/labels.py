"""What a record may carry beside its payload: a tag, the node that wrote it, metadata, and what queues need.

Owns the shape (persisted in the log: fields are only ever added at the end) and what it costs to hold. Never looks
into metadata: that is the text of a JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LABELS_BYTES = 160
"""What labels take in memory beside their texts: the object, and the objects of two short strings."""


class Labels(msgspec.Struct, frozen=True, array_like=True, gc=False):
    tag: str | None = None
    node: str | None = None
    """Who wrote it: whoever reads as this node does not get it back."""
    meta: bytes | None = None
    """The text of a JSON object."""
    key: str | None = None
    """Of a job: no second one with the same key is taken while it is there."""
    deliver_at_ms: int | None = None
    """Of a job: it is handed out no earlier."""


def held_bytes(labels: Iterable[Labels | None]) -> int:
    """Memory that they take. Linear in their number."""
    total = 0
    for one in labels:
        if one is not None:
            total += LABELS_BYTES + len(one.tag or "") + len(one.node or "") + len(one.meta or b"") + len(one.key or "")
    return total
