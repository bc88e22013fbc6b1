"""Compares what the clients of a run were told with what the streams hold at its end.

Owns what a cluster promises, one function for each promise. Pure: it takes a record and gives complaints.

    promised                                                        found as
    an acknowledged append is there, once, where it was told to be  lost, repeated, elsewhere
    a refused one is not there, one of unknown outcome once at most refused_but_there, repeated
    nothing is there that nobody sent                               foreign
    what ended before another one began comes before it             order
    a producer's numbers are there in order, without a gap          producer_order, producer_gap
    what a reader saw stays                                         vanished, bad_offset
    an answer that says that it is up to date has what was
      acknowledged before it was asked for, but for the lease       stale
    whoever follows a stream comes to its end                       stuck
    a subscriber hears of the end of every stream it is linked to   untold

Of the lease: an owner that lost its log serves reads until its lease is over, and another node may own the group by
then. So a plain read may miss what was acknowledged within the lease before it. A linearizable one may not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.cluster.chaos.history import ACKNOWLEDGED, REFUSED, Append, History, Read


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    stream: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.stream}: {self.what}"


@dataclass
class Content:
    """A stream as it was read at the end."""

    name: str
    data: bytes
    ends: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The offsets behind each payload."""

    def __post_init__(self) -> None:
        offset = 0
        for line in self.data.splitlines(keepends=True):
            offset += len(line)
            self.ends[line].append(offset)

    def end_of(self, payload: bytes) -> int | None:
        ends = self.ends.get(payload)
        return ends[0] if ends else None


def check(history: History, final: Mapping[str, bytes], lease_s: float = 0.0) -> list[Violation]:
    """Everything that was promised and is not so. `final` holds every stream of the run, read when all was quiet."""
    contents = {name: Content(name, data) for name, data in final.items()}
    appends: dict[str, list[Append]] = defaultdict(list)
    for append in history.appends:
        appends[append.stream].append(append)
    reads: dict[str, list[Read]] = defaultdict(list)
    for read in history.reads:
        reads[read.stream].append(read)
    found = [Violation("strange", one.stream, f"{one.client}: {one.what}") for one in history.strange]
    for name in sorted({*appends, *reads, *contents}):
        content = contents.get(name)
        if content is None:
            found.append(Violation("lost", name, "the stream is not there"))
            continue
        found += check_presence(content, appends[name])
        found += check_order(content, appends[name])
        found += check_producers(content, appends[name])
        found += check_reads(content, reads[name])
        found += check_freshness(content, appends[name], reads[name], lease_s)
    found += check_tails(history, contents)
    found += check_subscriptions(history, contents)
    return found


def check_presence(content: Content, appends: Iterable[Append]) -> Iterator[Violation]:
    sent = set()
    for append in appends:
        sent.add(append.payload)
        ends = content.ends.get(append.payload, [])
        shown = _shown(append)
        if len(ends) > 1:
            yield Violation("repeated", content.name, f"{shown} is there {len(ends)} times, behind {ends}")
        if append.outcome == ACKNOWLEDGED and not ends:
            yield Violation("lost", content.name, f"{shown} was acknowledged and is not there")
        if append.outcome == REFUSED and ends:
            yield Violation("refused_but_there", content.name, f"{shown} ends at {ends[0]}")
        if append.outcome == ACKNOWLEDGED and ends and append.next_offset not in (None, *ends):
            yield Violation(
                "elsewhere", content.name, f"{shown} was acknowledged up to {append.next_offset}, ends at {ends[0]}"
            )
    for payload, ends in content.ends.items():
        if payload not in sent:
            yield Violation("foreign", content.name, f"{payload!r} up to {ends[0]} was sent by nobody")


def check_order(content: Content, appends: Iterable[Append]) -> Iterator[Violation]:
    """One complaint for each append that stands behind one that began after it had ended."""
    there = [(end, append) for append in appends if (end := content.end_of(append.payload)) is not None]
    there.sort(key=lambda one: one[0])
    latest: Append | None = None
    for _, append in there:
        if append.outcome == ACKNOWLEDGED and latest is not None and append.end_s < latest.start_s:
            yield Violation(
                "order",
                content.name,
                f"{_shown(append)} ended before {_shown(latest)} began, and stands behind it",
            )
        if latest is None or append.start_s > latest.start_s:
            latest = append


def check_producers(content: Content, appends: Iterable[Append]) -> Iterator[Violation]:
    by_producer: dict[str, dict[tuple[int, int], Append]] = defaultdict(dict)
    for append in appends:
        if append.producer is not None:
            by_producer[append.producer][append.epoch, append.seq] = append
    for producer, numbered in by_producer.items():
        before_end = -1
        before: tuple[int, int] | None = None
        missing: tuple[int, int] | None = None
        for number in sorted(numbered):
            end = content.end_of(numbered[number].payload)
            if end is None:
                missing = missing or number
                continue
            if missing is not None and missing[0] == number[0]:
                yield Violation("producer_gap", content.name, f"{producer} has {number}, and {missing} is missing")
            missing = None
            if end <= before_end:
                yield Violation("producer_order", content.name, f"{number} of {producer} stands before {before}")
            before_end, before = end, number


def check_reads(content: Content, reads: Iterable[Read]) -> Iterator[Violation]:
    for read in reads:
        if not read.fits(content.data):
            yield Violation(
                "vanished", content.name, f"{read.reader} saw {_cut(read.data)} from {read.from_offset} to {read.end}"
            )
        if read.next_offset not in (None, read.end):
            yield Violation(
                "bad_offset",
                content.name,
                f"{read.reader} got what is from {read.from_offset} to {read.end}, and was told that it is at "
                f"{read.next_offset}",
            )


def check_freshness(
    content: Content, appends: Iterable[Append], reads: Iterable[Read], lease_s: float
) -> Iterator[Violation]:
    acknowledged = sorted(
        (append.end_s, end)
        for append in appends
        if append.outcome == ACKNOWLEDGED and (end := content.end_of(append.payload)) is not None
    )
    times = [end_s for end_s, _ in acknowledged]
    furthest: list[int] = []
    for _, end in acknowledged:
        furthest.append(max(end, furthest[-1] if furthest else 0))
    for read in reads:
        if not read.up_to_date or not read.fresh:
            continue
        known = bisect_left(times, read.start_s - (0.0 if read.linearizable else lease_s))
        end = read.end
        if known and furthest[known - 1] > end:
            behind_s = read.start_s - times[bisect_left(furthest, end + 1)]
            yield Violation(
                "stale",
                content.name,
                f"{read.reader} was told that {end} is the end, and {furthest[known - 1]} was acknowledged before; "
                f"it is behind by {behind_s:.3f} s",
            )


def check_tails(history: History, contents: Mapping[str, Content]) -> Iterator[Violation]:
    for (reader, stream), offset in history.tails.items():
        end = len(contents[stream].data) if stream in contents else -1
        if offset != end:
            yield Violation("stuck", stream, f"{reader} has come to {offset}, and the end is {end}")


def check_subscriptions(history: History, contents: Mapping[str, Content]) -> Iterator[Violation]:
    for subscription, streams in history.subscribed.items():
        for stream in streams:
            told = history.told.get((subscription, stream), 0)
            end = len(contents[stream].data) if stream in contents else -1
            if told < end:
                yield Violation("untold", stream, f"{subscription} was told of {told} at last, and the end is {end}")


def _shown(append: Append) -> str:
    who = f"{append.producer}/{append.epoch}/{append.seq}" if append.producer is not None else append.client
    return f"{_cut(append.payload)} of {who} ({append.outcome}, {append.start_s:.3f} to {append.end_s:.3f} s)"


def _cut(data: bytes) -> str:
    return repr(data) if len(data) <= 60 else f"{data[:40]!r}... ({len(data)} bytes)"
