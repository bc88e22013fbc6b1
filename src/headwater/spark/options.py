"""What a user asks a read for: the options of `format("headwater")`, checked before anything is done.

Owns their names, their meaning and what contradicts what. Never asks a node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headwater.errors import BadName
from headwater.model.glob import ANY_DEPTH_MAX, PATTERN_BYTES_MAX
from headwater.model.names import bucket_of, flat_key, stream_of
from headwater.spark.lake_place import Place
from headwater.spark.node import Node, Seen
from headwater.spark.offsets import Offset, offset_of
from headwater.spark.ranges import Positions
from headwater.spark.selection import Selection

NAMES = (
    "url",
    "token",
    "lake",
    "endpoint",
    "region",
    "subscribe",
    "subscribePattern",
    "bucket",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "failOnNoMatch",
    "addedStreams",
    "includeHeaders",
)
STREAMING_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "addedStreams")
BATCH_ONLY = ("endingOffsets",)
NAME_BYTES_MAX = 1_024
EARLIEST, LATEST = "earliest", "latest"


class BadOptions(ValueError):
    """The read cannot be what its options say; the message says which, and what to write instead."""


class Options(NamedTuple):
    """A read as it is asked for. Pickles: it travels to planners and executors."""

    node: Node | None
    """None: the table alone is read."""
    place: Place | None
    """Where the lake is, when that is not to be asked of the node."""
    selection: Selection
    starting: str | Positions | None
    """`earliest`, `latest`, a position of each group, or None when nothing was said."""
    starting_ms: int | None
    ending: str | Positions
    rows_max: int | None
    bytes_max: int | None
    parts_min: int | None
    fail_on_loss: bool
    with_headers: bool
    fail_on_no_match: bool
    added_from: str
    """`earliest` or `latest`: where streams begin that a query did not read before it was stopped."""
    expected: tuple[Mapping[int, Seen], ...] = ()
    """What positions that were given say of the logs that they are of, by group."""


def parse(given: Mapping[str, str]) -> Options:
    """The options, whichever kind of read they are for. Raises BadOptions. Names are taken in any case."""
    found = _named(given)
    for name, value in found.items():
        if not value.strip():
            raise BadOptions(f"{name} is empty: leave it out, or say something")
    url, lake = found.get("url"), found.get("lake")
    if url is None and lake is None:
        raise BadOptions(
            'nothing says where to read: .option("url", "http://HOST:PORT") names a node, and .option("lake", …) alone '
            "the table of a lake without one"
        )
    if lake is None and ("endpoint" in found or "region" in found):
        raise BadOptions('endpoint and region are for a lake that is named: add .option("lake", "s3://…")')
    if "startingOffsets" in found and "startingTimestamp" in found:
        raise BadOptions("startingOffsets and startingTimestamp both say where to begin: leave one out")
    return Options(
        None if url is None else Node(url, found.get("token")),
        None if lake is None else Place(lake, found.get("endpoint"), found.get("region")),
        _selection(found),
        _offsets("startingOffsets", found["startingOffsets"]) if "startingOffsets" in found else None,
        _moment(found["startingTimestamp"]) if "startingTimestamp" in found else None,
        _offsets("endingOffsets", found.get("endingOffsets", LATEST)),
        _count(found, "maxOffsetsPerTrigger"),
        _count(found, "maxBytesPerTrigger"),
        _count(found, "minPartitions"),
        _flag(found, "failOnDataLoss", True),
        _flag(found, "includeHeaders", False),
        _flag(found, "failOnNoMatch", False),
        _added(found),
        _expected(found),
    )


def for_batch(given: Mapping[str, str]) -> Options:
    """The options of a batch read. Raises BadOptions."""
    options = parse(given)
    for name in STREAMING_ONLY:
        if name.lower() in _lower(given):
            raise BadOptions(f"{name} is for streaming reads: a batch read takes everything up to endingOffsets")
    if options.starting == LATEST:
        raise BadOptions("a batch read that begins at the latest offset has no rows: use earliest or a position")
    if options.ending == EARLIEST:
        raise BadOptions("a batch read that ends at the earliest offset has no rows: use latest or a position")
    starting, ending = options.starting, options.ending
    if isinstance(starting, Mapping) and isinstance(ending, Mapping):
        for group, position in starting.items():
            if position > ending.get(group, position):
                raise BadOptions(
                    f"startingOffsets {position} of group {group} lies after endingOffsets {ending[group]}"
                )
    if options.node is None and options.starting_ms is not None:
        raise BadOptions('startingTimestamp is looked up through a node: name one with .option("url", …)')
    return options


def for_streaming(given: Mapping[str, str]) -> Options:
    """The options of a streaming read. Raises BadOptions."""
    options = parse(given)
    for name in BATCH_ONLY:
        if name.lower() in _lower(given):
            raise BadOptions(f"{name} is for batch reads: a streaming read goes on")
    if options.node is None:
        raise BadOptions('a streaming read follows a node, and only a lake is named: add .option("url", …)')
    return options


def offset_in(name: str, document: str) -> Offset:
    """The offset in `{"0": 81236}`, or as a query's progress shows it, with its logs. Raises BadOptions."""
    try:
        offsets: Any = json.loads(document)
        if not isinstance(offsets, dict):
            raise ValueError
        return offset_of(offsets)
    except ValueError:
        said = 'a position of each group as {"0": 81236}'
        raise BadOptions(f"{name} is {EARLIEST}, {LATEST} or {said}, not {document!r}") from None


def _lower(given: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in given}


def _named(given: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in NAMES}
    if "provider" in _lower(given):
        # Of a table Spark would hand on its properties when it is made, and nothing at all when it is read (4.3).
        raise BadOptions(
            "Spark does not keep a table's options for this format: CREATE TEMPORARY VIEW … USING headwater"
        )
    unknown = sorted(name for name in given if name.lower() not in names)
    if unknown:
        raise BadOptions(f"there is no option {', '.join(unknown)} for reading: there are {', '.join(NAMES)}")
    return {names[name.lower()]: value for name, value in given.items()}


def _selection(found: Mapping[str, str]) -> Selection:
    said = [name for name in ("subscribe", "subscribePattern", "bucket") if name in found]
    if len(said) > 1:
        raise BadOptions(f"{' and '.join(said)} both say which streams: leave all but one out")
    if "subscribe" in found:
        names = [name.strip() for name in found["subscribe"].split(",")]
        keys = [_key(name) for name in names if name]
        if not keys:
            raise BadOptions("subscribe names no stream: write them as bucket/stream, with commas between")
        return Selection(streams=frozenset((bucket_of(key), stream_of(key)) for key in keys))
    if "subscribePattern" in found:
        pattern = found["subscribePattern"].strip().strip("/")
        if len(pattern.encode()) > PATTERN_BYTES_MAX or pattern.split("/").count("**") > ANY_DEPTH_MAX:
            raise BadOptions(
                f"subscribePattern has at most {PATTERN_BYTES_MAX} bytes, and ** at most {ANY_DEPTH_MAX} times"
            )
        return Selection(pattern=pattern)
    bucket = found.get("bucket")
    if bucket is not None and "/" in bucket:
        raise BadOptions(
            f"bucket {bucket!r} has a slash: name a stream with subscribe, or several with subscribePattern"
        )
    return Selection(bucket=bucket)


def _key(name: str) -> str:
    try:
        return flat_key(name, NAME_BYTES_MAX)
    except BadName as error:
        raise BadOptions(f"subscribe names {name!r}, and {error.message()}") from None


def _offsets(name: str, text: str) -> str | Positions:
    return text.lower() if text.lower() in (EARLIEST, LATEST) else offset_in(name, text).positions


def of_each(name: str, given: Positions, groups: Iterable[int]) -> Positions:
    """The positions, if they are those of these groups. Raises BadOptions."""
    wanted = set(groups)
    if set(given) != wanted:
        named, there = (", ".join(map(str, sorted(one))) for one in (given, wanted))
        raise BadOptions(f"{name} names positions of group {named}, and there is group {there}: name one of each")
    return given


def _added(found: Mapping[str, str]) -> str:
    text = found.get("addedStreams", LATEST).lower()
    if text not in (EARLIEST, LATEST):
        raise BadOptions(f"addedStreams is {EARLIEST} or {LATEST}, not {text!r}")
    return text


def selection_of(spelled: Mapping[str, str]) -> Selection:
    """The choice that `Selection.spelled` spelled. Raises BadOptions for one of which only a hash was kept."""
    if "hash" in spelled:
        raise BadOptions(
            "the checkpoint holds only a hash of the streams that the query read, there were so many: addedStreams "
            "cannot be earliest. Read the past of the others with a batch, or with another query"
        )
    return _selection(spelled)


def _expected(found: Mapping[str, str]) -> tuple[Mapping[int, Seen], ...]:
    given = [(name, found[name]) for name in ("startingOffsets", "endingOffsets") if name in found]
    offsets = [offset_in(name, text) for name, text in given if text.lower() not in (EARLIEST, LATEST)]
    return tuple(offset.seen for offset in offsets if offset.seen)


def _moment(text: str) -> int:
    """Milliseconds since 1970 of a number of them, or of an ISO date; without a zone it is UTC."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOptions(
            f"startingTimestamp is milliseconds since 1970 or a date as 2026-01-31T12:00:00Z, not {text!r}"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _count(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18) or int(text) == 0:
        raise BadOptions(f"{name} is a whole number of at least 1, not {text!r}")
    return int(text)


def _flag(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise BadOptions(f"{name} is true or false, not {text!r}")
    return text == "true"
