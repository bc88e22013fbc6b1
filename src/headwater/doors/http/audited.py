"""Which requests the audit log tells of when they were done: those that change or end what is there, and are no data.

Owns the table of them, and what one is about by its path. Never notes anything: `watch` does.

What programs do with records all day is not in it: appends, claims and acks, trims, snapshots, creations of streams.
Reading is not in it either; a backup's hold is.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from headwater.model.names import DEFAULT_BUCKET

_OWN = rb"/__headwater"
_SUBSCRIPTION = rb"/v1/stream/__ds/subscriptions/([^/]+)"
_ONE_BUCKET = rb"(?:/ds)?/(?!__)([^/]{4,})"
_TOPIC = rb"/v0/topics/(.+)"
_TABLE: dict[bytes, tuple[tuple[bytes, str], ...]] = {
    b"POST": (
        (_OWN + rb"/tokens/?()", "key.make"),
        (_OWN + rb"/tokens/([^/]+)/rotate", "key.rotate"),
        (_OWN + rb"/sign/?()", "url.sign"),
        (_OWN + rb"/erase/?()", "erase"),
        (_OWN + rb"/flush/?(.*)", "flush"),
        (_OWN + rb"/groups/([0-9]+)/flush", "flush"),
        (_OWN + rb"/groups/([0-9]+)/snapshot", "group.snapshot"),
        (_OWN + rb"/groups/([0-9]+)/purge", "group.purge"),
        (_OWN + rb"/groups/([0-9]+/owner/.+)", "group.move"),
        (_OWN + rb"/groups/([0-9]+)/backup/?", "backup.begin"),
        (_OWN + rb"/groups/([0-9]+)/lake/swap", "lake.swap"),
        (_OWN + rb"/cluster/drain()", "cluster.drain"),
        (_OWN + rb"/cluster/move()", "cluster.move"),
        (_OWN + rb"/cluster/snapshot()", "cluster.snapshot"),
        (_OWN + rb"/cluster/forget()", "cluster.forget"),
        (_SUBSCRIPTION + rb"/streams", "subscription.change"),
        (_TOPIC + rb"/purge", "topic.purge"),
        (_TOPIC + rb"/delete", "topic.delete_records"),
    ),
    b"PUT": (
        (_OWN + rb"/buckets/([^/]+)/public", "bucket.public"),
        (_OWN + rb"/buckets/([^/]+)/schema", "bucket.schema"),
        (_SUBSCRIPTION, "subscription.put"),
        (rb"/v0/routers/([^/]+)", "router.put"),
        (_ONE_BUCKET, "bucket.make"),
    ),
    b"PATCH": ((_TOPIC, "topic.configure"),),
    b"DELETE": (
        (_OWN + rb"/tokens/([^/]+)", "key.revoke"),
        (_OWN + rb"/buckets/([^/]+)/public", "bucket.private"),
        (_OWN + rb"/buckets/([^/]+)/schema", "bucket.no_schema"),
        (_OWN + rb"/groups/([0-9]+/backup/[^/]+)", "backup.end"),
        (_SUBSCRIPTION, "subscription.delete"),
        (_SUBSCRIPTION + rb"/streams/.+", "subscription.change"),
        (rb"/v0/routers/([^/]+)", "router.delete"),
        (_TOPIC, "topic.delete"),
        (rb"/v1/stream/(?!__ds/)(.+)", "stream.delete"),
        (_ONE_BUCKET, "bucket.delete"),
        (rb"(?:/ds)?/(?!__|v1/|v0/|ds/)([^/]{4,}/[^/]+)", "stream.delete"),
    ),
}
_ANY = {
    method: re.compile(b"|".join(b"(?:%b)" % pattern for pattern, _ in rows), re.DOTALL)
    for method, rows in _TABLE.items()
}
"""Each row has one group, so the number of the group that matched is that of the row. One expression for all of them:
most requests are none of these, and are found to be after 1 to 2 µs."""
_STREAMS = ("stream.", "topic.")
ACTIONS = frozenset(action for rows in _TABLE.values() for _, action in rows)


def action_of(method: bytes, path: bytes) -> tuple[str, str] | None:
    """The action, and what it is about as far as the path says; None for what is not told."""
    any_of = _ANY.get(method)
    found = None if any_of is None else any_of.fullmatch(path)
    if found is None or found.lastindex is None:
        return None
    action, about = _TABLE[method][found.lastindex - 1][1], shown(found[found.lastindex])
    if action.startswith(_STREAMS) and "/" not in about:
        about = f"{DEFAULT_BUCKET}/{about}"
    return action, about


def shown(path: bytes) -> str:
    """As text, decoded once like the names of streams."""
    return unquote_to_bytes(path).decode("utf-8", "replace")
