"""The group that a connection's first request is about, from the first bytes of it.

Never refuses anything: whoever serves the connection does.
"""

from __future__ import annotations

import re

from headwater.doors.http import headers as parse
from headwater.doors.http.topics.paths import BELOW, WEBSOCKET, topic_path
from headwater.engine.buckets import DIRECTORY
from headwater.engine.engine import Engine
from headwater.errors import BadName
from headwater.model import names

FLAT = parse.FLAT_PREFIX.encode()
GROUP = re.compile(rb"/__headwater/groups/([0-9]{1,9})(?:/|$)")
PAGES = frozenset((b"/healthz", b"/readyz", b"/metrics"))
"""They look like buckets, and every process answers them."""
SUBSCRIPTION = re.compile(re.escape(FLAT) + rb"__ds/subscriptions/([^/]+)")


def group_of_first(first: bytes, engine: Engine, name_bytes_max: int) -> int | None:
    """None when any process may serve it, or when these bytes do not tell."""
    line, end, _ = first.partition(b"\r\n")
    words = line.split(b" ")
    if not end or len(words) != 3:
        return None
    path = words[1].partition(b"?")[0]
    found = GROUP.match(path)
    if found is not None:
        return int(found[1]) if int(found[1]) < engine.groups_count else None
    try:
        subscription = SUBSCRIPTION.match(path)
        if subscription is not None:
            return engine.home(f"{names.SUBSCRIPTIONS}/{parse.path_text(subscription[1])}")
        if path.startswith(FLAT):
            return engine.place(names.flat_key(parse.path_text(path[len(FLAT) :]), name_bytes_max))
        if path.startswith(BELOW):
            topic = topic_path(path[len(BELOW) :], name_bytes_max)
            return None if topic.verb == WEBSOCKET else engine.place(topic.key)
        if path.startswith((b"/__", b"/v0/")) or path in PAGES:
            return None
        parts = [parse.path_text(part) for part in path.removeprefix(b"/ds").split(b"/")]
        if len(parts) == 2 and names.is_bucket(parts[1]):
            return DIRECTORY
        if len(parts) > 2 and parts[2] != names.RESERVED_STREAM:
            return engine.place(names.bucketed_key(parts[1], parts[2]))
    except BadName:
        pass
    return None
