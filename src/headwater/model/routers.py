"""Routers: what may be defined, which records one forwards, and how far its destination has come.

Owns the rules over all routers, the shape of a definition (persisted: fields are only ever added at the end), and the
text that a destination keeps its place in the source by. Never reads or writes a topic.

A place is the `stream_seq` of the append that brought the copies, so it is as durable as they are:

    ~router:<turn, 10 digits>:<epoch of the source, 20 digits>:<seq in the source, 20 digits>

It says: of the source with that epoch, everything up to that seq has been forwarded or passed over. A `stream_seq` only
grows. The turn makes it grow where epoch or seq do not. The tilde sorts after letters and digits, so a destination that
had another `stream_seq` before takes a place as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headwater.errors import BadBody, BadName, RouterConflict, RouterCycle, TooManyRouters
from headwater.model.labels import Labels
from headwater.model.subscriptions import path_of

ROUTERS_MAX = 1_000
NAME_CHARS_MAX = 128
TAG_BYTES_MAX = 1_024
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}")
_PLACE = re.compile(r"~router:([0-9]{10}):([0-9]{20}):([0-9]{20})")
_TURN_MAX = 10**10 - 1


class TagFilter(msgspec.Struct, frozen=True, array_like=True):
    """Takes records by their tag; one that has none is not taken."""

    text: str
    is_prefix: bool = False

    def takes(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag.startswith(self.text) if self.is_prefix else tag == self.text


class RouterConfig(msgspec.Struct, frozen=True, array_like=True):
    source: str
    """Key of a stream."""
    dest: str
    """Key of a stream."""
    filter: TagFilter | None = None
    preserve_tag: bool = True
    preserve_node: bool = True
    preserve_meta: bool = True
    allow_cycle: bool = False


class PassedOver(msgspec.Struct, frozen=True, array_like=True):
    """How far a router had come in its source while its destination stood still."""

    epoch: int = 0
    """Of the source; 0: of none."""
    place: str = ""
    """`stream_seq` of the destination at that time: with another one this says nothing."""
    cursor: int = 0
    lost_count: int = 0
    """Records that the source's retention took before they were forwarded."""


class Place(NamedTuple):
    turn: int
    epoch: int
    seq: int


# ---- definitions --------------------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BadName(
            f"a router is named by 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return name


def parse_filter(value: object) -> TagFilter | None:
    """What a request gives as filter: None, `["tag", "Eq", text]` or `["tag", "Glob", text with a star at its end]`."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or value[0] != "tag" or value[1] not in ("Eq", "Glob"):
        raise BadBody('filter must be null, ["tag","Eq",text] or ["tag","Glob","text*"]')
    text = value[2]
    if not isinstance(text, str) or len(text.encode("utf-8", "surrogatepass")) > TAG_BYTES_MAX:
        raise BadBody(f"the tag of a filter must be text of at most {TAG_BYTES_MAX} bytes")
    if value[1] == "Eq":
        return TagFilter(text)
    if text.count("*") != 1 or not text.endswith("*"):
        raise BadBody("the pattern of a Glob filter has one '*', at its end")
    return TagFilter(text[:-1], True)


def show_filter(tag_filter: TagFilter | None) -> list[str] | None:
    if tag_filter is None:
        return None
    return ["tag", "Glob", f"{tag_filter.text}*"] if tag_filter.is_prefix else ["tag", "Eq", tag_filter.text]


def judge(routers: Mapping[str, RouterConfig], name: str, config: RouterConfig) -> bool:
    """Whether the router is a new one; False: this very one is there. Raises why it cannot be."""
    existing = routers.get(name)
    if existing is not None:
        if existing == config:
            return False
        raise RouterConflict("router_exists", name, "")
    if config.source == config.dest:
        raise BadBody("source and dest are the same topic")
    by_dest = {other.dest: (other_name, other.source) for other_name, other in routers.items()}
    if config.dest in by_dest:
        raise RouterConflict("router_dest_fan_in", by_dest[config.dest][0], path_of(config.dest))
    if not config.allow_cycle:
        closed = cycle({dest: source for dest, (_, source) in by_dest.items()}, config.source, config.dest)
        if closed:
            raise RouterCycle([path_of(key) for key in closed])
    if len(routers) >= ROUTERS_MAX:
        raise TooManyRouters(ROUTERS_MAX)
    return True


def cycle(sources: Mapping[str, str], source: str, dest: str) -> list[str]:
    """The cycle that a router from `source` to `dest` would close, from `source` to `source`; empty when there is none.
    `sources`: the source of every destination, which has only one."""
    way = [source]
    at = source
    while at != dest:
        before = sources.get(at)
        if before is None or before in way:
            return []
        at = before
        way.append(at)
    return [source, *reversed(way)] if len(way) > 1 else [source, source]


def copied_labels(config: RouterConfig, labels: Labels | None) -> Labels | None:
    """What a copy carries. Never a key or a time of delivery: they are about the job that the original is."""
    if labels is None:
        return None
    copied = Labels(
        labels.tag if config.preserve_tag else None,
        labels.node if config.preserve_node else None,
        labels.meta if config.preserve_meta else None,
    )
    return None if copied == Labels() else copied


def takes(config: RouterConfig, labels: Labels | None) -> bool:
    return config.filter is None or config.filter.takes(None if labels is None else labels.tag)


# ---- places -------------------------------------------------------------------------------------------------------


def parse_place(text: str | None) -> Place | None:
    found = None if text is None else _PLACE.fullmatch(text)
    return None if found is None else Place(int(found[1]), int(found[2]), int(found[3]))


def next_place(current: str | None, epoch: int, seq: int) -> str | None:
    """The place to write behind `current`, the destination's `stream_seq`; None when nothing of ours sorts after it."""
    before = parse_place(current)
    turn = 0
    if before is not None:
        turn = before.turn if before.epoch == epoch and seq > before.seq else before.turn + 1
    text = f"~router:{turn:010d}:{epoch:020d}:{seq:020d}"
    return text if turn <= _TURN_MAX and (current is None or text > current) else None


def forwarded_seq(current: str | None, epoch: int) -> int:
    """Up to which seq of the source with that epoch a destination has everything."""
    place = parse_place(current)
    return place.seq if place is not None and place.epoch == epoch else 0


def cursor_at(current: str | None, epoch: int, passed: PassedOver) -> int:
    """Where to go on in the source with that epoch: what was passed over counts only while the destination has the
    place that it had then. A destination that lost copies has an older place."""
    if passed.epoch == epoch and passed.place == (current or ""):
        return passed.cursor
    return forwarded_seq(current, epoch)
