"""What workers and receivers are told of a subscription's streams.

Owns the choice of what is told when there is too much. Never changes a subscription.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import msgspec

from headwater.model import offsets
from headwater.model.subscriptions import Link, LinkRow, Subscription
from headwater.subscriptions.all_streams import AllStreams, Looked

SHOWN_STREAMS_MAX = 10_000
SHOWN_BYTES_MAX = 512 * 1024
"""Streams named to one worker at once; what is left out stays pending and is told of with the next wake."""


class StreamInfo(msgspec.Struct, frozen=True):
    """A linked stream as workers and receivers are told of it."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


@dataclass(frozen=True, slots=True)
class Told:
    infos: list[StreamInfo]
    tails: list[LinkRow]
    """Those with work, as (path, sid, tail). One whose process is away is not among them: its tail is not known."""
    omitted_count: int
    away: bool
    """Whether the process of a stream with work is away."""


def chosen(sub: Subscription) -> list[tuple[str, Link]]:
    """Linked streams, those with work first, as many as are told of at once."""
    found: list[tuple[str, Link]] = []
    size = 0
    for pending, paths in ((True, sub.pending), (False, sub.links)):
        for path in paths:
            if not pending and path in sub.pending:
                continue
            if len(found) >= SHOWN_STREAMS_MAX or size >= SHOWN_BYTES_MAX:
                return found
            found.append((path, sub.links[path]))
            size += len(path)
    return found


def link_type(link: Link) -> str:
    return "explicit" if link.explicit else "glob"


async def tell(sub: Subscription, streams: AllStreams) -> Told:
    """What is linked on return, with tails as they are."""
    places = {path: streams.group_of(link.sid) for path, link in chosen(sub) if path in sub.pending}
    return _told(sub, places, await streams.look(places))


def _told(sub: Subscription, sought: Container[str], looked: Looked) -> Told:
    infos: list[StreamInfo] = []
    tails: list[LinkRow] = []
    away = False
    for path, link in chosen(sub):
        tail, unknown = link.acked, False
        if path in sub.pending:
            # One that is pending since the others were looked up is not known either.
            unknown = path in looked.unknown or path not in sought
            away = away or path in looked.unknown
            if not unknown:
                tail = max(looked.tail(path, link.sid), tail)
                tails.append((path, link.sid, tail))
        acked_text, tail_text = offsets.show(link.acked), offsets.show(tail)
        infos.append(StreamInfo(path, link_type(link), acked_text, tail_text, unknown or tail > link.acked))
    return Told(infos, tails, len(sub.links) - len(infos), away)
