"""A choice of streams as a program asks for it: by name, by bucket or by pattern, with exceptions.

Owns its meaning. Never looks a stream up: whoever has the streams asks about each key, or looks up the names.

    {"streams": ["orders/1", "orders/2"]}  or  {"bucket": "orders"}  or  {"pattern": "orders/**"}  or  {}: every stream
    {…, "except": [{…}, …]}                     without those of other choices
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headwater.model.glob import ANY_DEPTH_MAX, PATTERN_BYTES_MAX, Patterns
from headwater.model.names import flat_key
from headwater.model.subscriptions import path_of

STREAMS_MAX = 10_000
"""Names in one choice."""
DEPTH_MAX = 4
"""Exceptions of exceptions."""
EXCEPTIONS_MAX = 8
"""Of one choice."""
_NAME_BYTES_MAX = 16_384
"""A stream that exists was named within the limit of its time."""


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    streams: list[str] | None = None
    bucket: str | None = None
    pattern: str | None = None
    but: list[Choice] = msgspec.field(default_factory=list, name="except")


class BadChoice(ValueError):
    """The message says why."""


class Chosen:
    """A choice, ready to be asked. Raises BadChoice, or BadName for a name that no stream has."""

    __slots__ = ("buckets", "choice", "keys", "takes")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.takes = _taker(choice, DEPTH_MAX)
        """Whether a stream of that key is meant."""
        self.buckets = _buckets(choice)
        """Which bucket is meant (None: every one) and which are not, when the choice is about buckets alone."""
        self.keys: tuple[str, ...] | None = None
        """The only streams that can be meant, when they are named."""
        if choice.streams is not None:
            names = dict.fromkeys(flat_key(name, _NAME_BYTES_MAX) for name in choice.streams)
            self.keys = tuple(key for key in names if self.takes(key))


def _buckets(choice: Choice) -> tuple[str | None, tuple[str, ...]] | None:
    if choice.streams is not None or choice.pattern is not None:
        return None
    out: list[str] = []
    for one in choice.but:
        if one.bucket is None or one.but:
            return None
        out.append(one.bucket)
    return choice.bucket, tuple(dict.fromkeys(out))


def _taker(choice: Choice, depth: int) -> Callable[[str], bool]:
    if not depth:
        raise BadChoice(f"at most {DEPTH_MAX - 1} choices within each other")
    if sum(one is not None for one in (choice.streams, choice.bucket, choice.pattern)) > 1:
        raise BadChoice("one of streams, bucket and pattern")
    takes = _own(choice)
    if len(choice.but) > EXCEPTIONS_MAX:
        raise BadChoice(f"at most {EXCEPTIONS_MAX} exceptions")
    left_out = [_taker(one, depth - 1) for one in choice.but]
    if not left_out:
        return takes
    return lambda key: takes(key) and not any(out(key) for out in left_out)


def _own(choice: Choice) -> Callable[[str], bool]:
    if choice.streams is not None:
        if len(choice.streams) > STREAMS_MAX:
            raise BadChoice(f"at most {STREAMS_MAX} streams")
        return frozenset(flat_key(name, _NAME_BYTES_MAX) for name in choice.streams).__contains__
    if choice.bucket is not None:
        prefix = f"{choice.bucket}/"
        if "/" in choice.bucket:
            raise BadChoice("a bucket's name has no slash")
        return lambda key: key.startswith(prefix)
    pattern = choice.pattern
    if pattern is None:
        return lambda key: True
    if len(pattern.encode()) > PATTERN_BYTES_MAX or pattern.split("/").count("**") > ANY_DEPTH_MAX:
        raise BadChoice(f"a pattern has at most {PATTERN_BYTES_MAX} bytes, and ** at most {ANY_DEPTH_MAX} times")
    patterns = Patterns()
    patterns.add(pattern, "it")
    return lambda key: bool(patterns.matching(path_of(key)))
