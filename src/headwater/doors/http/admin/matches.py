"""Whether a group has anything by a name: `POST .../matches`, asked before a read that would come back empty.

Owns `/__headwater/groups/{g}/matches`. Never tells what there is: listings do.

    {"streams": ["orders/1", "orders/2"]}  or  {"bucket": "orders"}  or  {"pattern": "orders/*/events"}
    {"missing": ["orders/2"], "complete": true}

A bucket or a pattern is missing when no stream is in it. `complete` is false when there were too many streams to look
at. `except_bucket` leaves one out of a pattern's.
"""

from __future__ import annotations

import asyncio

import msgspec

from headwater.doors.http.exchange import Exchange
from headwater.engine.group import Group
from headwater.engine.listing import keys_from, page, visible
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadBody
from headwater.model.glob import ANY_DEPTH_MAX, PATTERN_BYTES_MAX, Patterns, literal_prefix
from headwater.model.names import DEFAULT_BUCKET
from headwater.model.subscriptions import path_of

NAMES_MAX = 1_000
"""In one request: each is a look into the catalog."""
KEYS_MAX = 200_000
"""Looked at for one pattern, about a second in slices; after that nobody knows."""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    streams: list[str] | None = None
    bucket: str | None = None
    pattern: str | None = None
    except_bucket: str | None = None


_decode = msgspec.json.Decoder(Wanted).decode


def matches(exchange: Exchange, owned: OwnedGroup, rest: bytes, query: bytes) -> None:
    exchange.only(b"POST", rest)
    try:
        wanted = _decode(exchange.request.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadBody(f"expected streams, a bucket or a pattern ({error})") from None
    if sum(one is not None for one in (wanted.streams, wanted.bucket, wanted.pattern)) != 1:
        raise BadBody("expected one of streams, bucket and pattern")
    if wanted.streams is not None and len(wanted.streams) > NAMES_MAX:
        raise BadBody(f"at most {NAMES_MAX} streams in one request")
    pattern = wanted.pattern
    if pattern is not None and (
        len(pattern.encode()) > PATTERN_BYTES_MAX or pattern.split("/").count("**") > ANY_DEPTH_MAX
    ):
        raise BadBody(f"a pattern has at most {PATTERN_BYTES_MAX} bytes, and ** at most {ANY_DEPTH_MAX} times")
    exchange.run(_answer(exchange, owned.group, wanted))


async def _answer(exchange: Exchange, group: Group, wanted: Wanted) -> None:
    loaded, now_ms = group.loaded, group.clock.now_ms()
    complete = True
    missing: list[str] = []
    if wanted.streams is not None:
        missing = [key for key in wanted.streams if not visible(loaded, key, now_ms)]
    elif wanted.bucket is not None:
        missing = [] if page(loaded, wanted.bucket, "", "", 1, now_ms).streams else [wanted.bucket]
    elif wanted.pattern is not None:
        found = await _matches(group, wanted.pattern, wanted.except_bucket)
        complete, missing = found is not None, [wanted.pattern] if found is False else []
    exchange.json(200, {"missing": missing, "complete": complete})


async def _matches(group: Group, pattern: str, except_bucket: str | None) -> bool | None:
    """Whether any stream matches; None: nobody knows."""
    patterns = Patterns()
    patterns.add(pattern, pattern)
    start = literal_prefix(pattern)[0]
    loaded, now_ms = group.loaded, group.clock.now_ms()
    # A path without a slash is a stream of the default bucket.
    plain = bool(start) and "/" not in start and bool(patterns.matching(start))
    if plain and visible(loaded, f"{DEFAULT_BUCKET}/{start}", now_ms):
        return True
    looked = 0
    for keys in keys_from(loaded, start, now_ms):
        looked += len(keys)
        for key in keys:
            if key.partition("/")[0] != except_bucket and patterns.matching(path_of(key)):
                return True
        if looked >= KEYS_MAX:
            return None
        await asyncio.sleep(0)
    return False
