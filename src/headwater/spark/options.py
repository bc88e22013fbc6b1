"""What a user asks a read for: the options of `format("headwater")`, checked before anything is done.

Owns their names, their meaning and what contradicts what. Never asks a node.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headwater.errors import BadName
from headwater.model.glob import ANY_DEPTH_MAX, PATTERN_BYTES_MAX
from headwater.model.names import bucket_of, flat_key, stream_of
from headwater.spark.job_runs import RUNS_BUCKET
from headwater.spark.lake_place import Place
from headwater.spark.node import Node, Seen
from headwater.spark.offsets import BESIDE, Offset, offset_of
from headwater.spark.ranges import Positions
from headwater.spark.row_filters import BadCondition, RowFilter, row_filter
from headwater.spark.selection import Selection
from headwater.spark.stream_bounds import BadDocument, Bounds, Edges, edges_of, names_streams, unnamed

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
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "asOfPosition",
    "asOfTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "failOnNoMatch",
    "addedStreams",
    "includeHeaders",
    "where",
    "parse",
    "parseMode",
)
STREAMING_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "addedStreams",
)
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "asOfPosition", "asOfTimestamp")
BATCH_ONLY = ENDS
BEGINNINGS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
PERMISSIVE, FAILFAST, DROPMALFORMED = PARSE_MODES = ("permissive", "failfast", "dropmalformed")
DELAY_MS_DEFAULT = 15 * 60_000
KAFKA = {
    "kafka.bootstrap.servers": "url",
    "assign": "subscribe",
    "groupidprefix": "",
    "kafka.group.id": "",
    "fetchoffset.numretries": "",
    "fetchoffset.retryintervalms": "",
    "kafkaconsumer.polltimeoutms": "",
    "startingoffsetsbytimestampstrategy": "",
    "maxrecordsperpartition": "minPartitions",
}
"""What Kafka's source has and this one does not, and what is there instead."""
NAME_BYTES_MAX = 1_024
EARLIEST, LATEST = "earliest", "latest"
_REGEX = re.compile(r"\.[*+]|\\|^\^|\$$|\[[^\]]*\]|\([^)]*\)|\|")
"""What stands in regular expressions and hardly in a name."""
_DELAY = re.compile(r"(\d{1,9})\s*(ms|s|m|min|h|d)?")
_DELAY_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
log = logging.getLogger("headwater.spark")


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
    stream_starts: Edges | None = None
    """Where single streams begin; the others begin where reads of the kind do when nothing is said."""
    stream_ends: Edges | None = None
    ending_ms: int | None = None
    rows_min: int | None = None
    delay_ms: int = DELAY_MS_DEFAULT
    """How long a batch waits for `rows_min` records at most."""
    where: RowFilter | None = None
    as_of: Positions | None = None
    as_of_ms: int | None = None
    """What there was at these positions, or at that moment, is read."""
    parse_mode: str | None = None
    """What becomes of records that do not fit; None: they are not parsed."""
    bounds: Bounds | None = None
    """What the beginnings and ends of streams, and a moment to end at, came to on the node, once it was asked."""


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
    for names, what in ((BEGINNINGS, "begin"), (ENDS, "end")):
        said = [name for name in names if name in found]
        if len(said) > 1:
            raise BadOptions(f"{' and '.join(said)} both say where to {what}: leave one out")
    where = _where(found)
    selection = _narrowed(_selection(found), where)
    starts = _edges(found, "startingOffsets", "startingOffsetsByTimestamp", selection)
    ends = _edges(found, "endingOffsets", "endingOffsetsByTimestamp", selection)
    if "maxTriggerDelay" in found and "minOffsetsPerTrigger" not in found:
        raise BadOptions("maxTriggerDelay is how long a batch waits for minOffsetsPerTrigger records: add that one")
    return Options(
        None if url is None else Node(url, found.get("token")),
        None if lake is None else Place(lake, found.get("endpoint"), found.get("region")),
        selection,
        _offsets("startingOffsets", found["startingOffsets"]) if "startingOffsets" in found and not starts else None,
        _moment("startingTimestamp", found["startingTimestamp"]) if "startingTimestamp" in found else None,
        LATEST if ends else _offsets("endingOffsets", found.get("endingOffsets", LATEST)),
        _count(found, "maxOffsetsPerTrigger"),
        _count(found, "maxBytesPerTrigger"),
        _count(found, "minPartitions"),
        _flag(found, "failOnDataLoss", True),
        _flag(found, "includeHeaders", False),
        _flag(found, "failOnNoMatch", False),
        _added(found),
        _expected(found),
        starts,
        ends,
        _moment("endingTimestamp", found["endingTimestamp"]) if "endingTimestamp" in found else None,
        _count(found, "minOffsetsPerTrigger"),
        _delay(found),
        where,
        _as_of(found["asOfPosition"]) if "asOfPosition" in found else None,
        _moment("asOfTimestamp", found["asOfTimestamp"]) if "asOfTimestamp" in found else None,
        parse_mode=_parse_mode(found),
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
    name, last = ("endingOffsets", ending) if options.as_of is None else ("asOfPosition", options.as_of)
    if isinstance(starting, Mapping) and isinstance(last, Mapping):
        for group, position in starting.items():
            if position > last.get(group, position):
                raise BadOptions(f"startingOffsets {position} of group {group} lies after {name} {last[group]}")
    if options.node is None and options.starting_ms is not None:
        raise BadOptions('startingTimestamp is looked up through a node: name one with .option("url", …)')
    if options.node is None and (options.stream_starts or options.stream_ends):
        raise BadOptions('offsets of streams are looked up through a node: name one with .option("url", …)')
    if options.stream_ends and any(edge.kind == EARLIEST for edge in options.stream_ends.values()):
        raise BadOptions("a stream that ends at its earliest offset has no rows: leave it out")
    return options


def for_streaming(given: Mapping[str, str]) -> Options:
    """The options of a streaming read. Raises BadOptions."""
    options = parse(given)
    for name in BATCH_ONLY:
        if name.lower() in _lower(given):
            raise BadOptions(f"{name} is for batch reads: a streaming read goes on")
    if options.node is None:
        raise BadOptions('a streaming read follows a node, and only a lake is named: add .option("url", …)')
    if options.rows_min is not None and options.rows_max is not None and options.rows_min > options.rows_max:
        raise BadOptions("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
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
    kafkas = [name for name in unknown if name.lower() in KAFKA or name.lower().startswith("kafka.")]
    if kafkas:
        instead = KAFKA.get(kafkas[0].lower())
        raise BadOptions(
            f"{kafkas[0]} is an option of Kafka's source: "
            + (f"{instead} is this one's" if instead else "there is nothing like it here, leave it out")
            + " (see the guide from-kafka)"
        )
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
        if _REGEX.search(pattern):
            raise BadOptions(
                f"subscribePattern {pattern!r} looks like a regular expression, and it is a pattern of paths: * is one "
                "part of a path and ** any number of them, as in orders/* or orders/**. A stream whose name really is "
                "like that is named with subscribe"
            )
        if any("*" in part.strip("*") or (part.strip("*") and "*" in part) for part in pattern.split("/")):
            log.warning("subscribePattern %r: * stands for a whole part of a path; within a part it is a star", pattern)
        return Selection(pattern=pattern)
    bucket = found.get("bucket")
    if bucket is not None and "/" in bucket:
        raise BadOptions(
            f"bucket {bucket!r} has a slash: name a stream with subscribe, or several with subscribePattern"
        )
    return Selection(bucket=bucket)


def _where(found: Mapping[str, str]) -> RowFilter | None:
    try:
        return row_filter(found["where"]) if "where" in found else None
    except BadCondition as bad:
        raise BadOptions(f"where: {bad}") from None


def _narrowed(selection: Selection, where: RowFilter | None) -> Selection:
    """The choice without streams of which no row comes through, where conditions name the others."""
    bucket, streams = (None, None) if where is None else where.names()
    if bucket is None or bucket == RUNS_BUCKET or selection not in (Selection(), Selection(bucket=bucket)):
        return selection
    return (
        Selection(bucket=bucket) if streams is None else Selection(streams=frozenset((bucket, one) for one in streams))
    )


def _key(name: str) -> str:
    try:
        return flat_key(name, NAME_BYTES_MAX)
    except BadName as error:
        raise BadOptions(f"subscribe names {name!r}, and {error.message()}") from None


def _offsets(name: str, text: str) -> str | Positions:
    return text.lower() if text.lower() in (EARLIEST, LATEST) else offset_in(name, text).positions


def _as_of(text: str) -> Positions:
    """A position of each group; a number is that of the only one."""
    alone = text.strip()
    return {0: int(alone)} if alone.isascii() and alone.isdigit() else offset_in("asOfPosition", alone).positions


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


def _parse_mode(found: Mapping[str, str]) -> str | None:
    if "parse" not in found:
        if "parseMode" in found:
            raise BadOptions('parseMode is for reads that parse: add .option("parse", "json")')
        return None
    if found["parse"].lower() != "json":
        raise BadOptions(f"parse is json, not {found['parse']!r}")
    mode = found.get("parseMode", PERMISSIVE).lower()
    if mode not in PARSE_MODES:
        raise BadOptions(f"parseMode is {', '.join(PARSE_MODES[:-1])} or {PARSE_MODES[-1]}, not {mode!r}")
    return mode


def selection_of(spelled: Mapping[str, str]) -> Selection:
    """The choice that `Selection.spelled` spelled. Raises BadOptions for one of which only a hash was kept."""
    if "hash" in spelled:
        raise BadOptions(
            "the checkpoint holds only a hash of the streams that the query read, there were so many: addedStreams "
            "cannot be earliest. Read the past of the others with a batch, or with another query"
        )
    return _selection(spelled)


def _expected(found: Mapping[str, str]) -> tuple[Mapping[int, Seen], ...]:
    named = ("startingOffsets", "endingOffsets", "asOfPosition")
    given = [(name, found[name].strip()) for name in named if name in found]
    offsets = [
        offset_in(name, text)
        for name, text in given
        if text.lower() not in (EARLIEST, LATEST) and not text.isdigit() and not names_streams(text, BESIDE)
    ]
    return tuple(offset.seen for offset in offsets if offset.seen)


def _edges(found: Mapping[str, str], offsets: str, moments: str, selection: Selection) -> Edges | None:
    """Where single streams begin or end; None when nothing is said of them."""
    if moments in found:
        name, edges = moments, _document(moments, found[moments], lambda text: _moment(moments, text))
    elif offsets in found and names_streams(found[offsets], BESIDE):
        name, edges = offsets, _document(offsets, found[offsets], None)
    else:
        return None
    strange = unnamed(edges, selection.takes)
    if strange:
        raise BadOptions(f"{name} names {', '.join(strange[:5])}, which this read does not have: name what it reads")
    return edges


def _document(name: str, text: str, moment: Callable[[str], int] | None) -> Edges:
    try:
        return edges_of(text, moment)
    except BadDocument as bad:
        raise BadOptions(f"{name}: {bad}") from None


def _delay(found: Mapping[str, str]) -> int:
    """Milliseconds of a number of them, or of a text as 30s, 15m or 2h."""
    text = found.get("maxTriggerDelay")
    if text is None:
        return DELAY_MS_DEFAULT
    parts = _DELAY.fullmatch(text.strip().lower())
    if parts is None:
        raise BadOptions(f"maxTriggerDelay is a time as 30s, 15m or 2h, or milliseconds, not {text!r}")
    return int(parts[1]) * _DELAY_UNITS[parts[2] or "ms"]


def _moment(name: str, text: str) -> int:
    """Milliseconds since 1970 of a number of them, or of an ISO date; without a zone it is UTC."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOptions(f"{name} is milliseconds since 1970 or a date as 2026-01-31T12:00:00Z, not {text!r}") from None
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
