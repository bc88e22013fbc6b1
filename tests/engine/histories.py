"""Random histories of a whole group on a real log and catalog, and everything that a restart has to bring back.
Owns the steps and the comparison. Never says which outcome a step has: refusals are part of a history."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine import listing
from headwater.engine.checkpoint import checkpoint
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.recovery import recover
from headwater.errors import StreamNotFound, StreamSoftDeleted
from headwater.log.wal import Wal
from headwater.model import forks
from headwater.model.commands import (
    Append,
    Configure,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DeleteRecords,
    Durability,
    Fork,
    Producer,
    PublishSnapshot,
    Retention,
    Trim,
)
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.model.names import bucket_of
from headwater.model.stream import Limits
from headwater.model.topics import TopicConfig
from tests.engine import HandClock, Inbox, group_on

KEYS = ("alpha/a", "beta/b", "beta/c", "gamma/d")
BUCKETS = ("alpha", "beta", "gamma")
FILE_BYTES = 512
LIMITS = Limits(producers_max=3, producer_idle_ms=5_000)


class Notes:
    """The smallest domain there can be: names with a value."""

    name = "notes"
    in_memory = True

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed: set[str] = set()

    def apply(self, body: bytes, at_ms: int, position: int) -> None:
        name, _, value = body.partition(b"=")
        self._changed.add(name.decode())
        if value:
            self.values[name.decode()] = value
        else:
            self.values.pop(name.decode(), None)

    def restore(self, things: dict[str, bytes]) -> None:
        self.values = dict(things)

    def changes(self) -> dict[str, bytes | None]:
        changed, self._changed = self._changed, set()
        return {name: self.values.get(name) for name in changed}

    def retry(self, changes: dict[str, bytes | None]) -> None:
        self._changed |= set(changes)


class Node:
    """A group on real files. `start` recovers it from what the directory holds."""

    def __init__(self, directory: Path, clock: HandClock) -> None:
        self.directory = directory
        self.clock = clock
        self.wal = Wal(directory / "wal", FILE_BYTES, 1)
        self.catalog = SqliteCatalog(directory / "catalog.db")
        self._moved = asyncio.Event()
        self.group = group_on(self.wal, self.catalog, clock, asyncio.get_running_loop().call_soon, LIMITS)
        self.notes = Notes()
        self.group.domains["notes"] = self.notes
        recover(self.group)
        self.wal.start(self._progress)

    def _progress(self) -> None:
        self.group.progress()
        self._moved.set()

    async def settle(self) -> None:
        """Waits until everything decided is durable and visible."""
        while True:
            await asyncio.sleep(0)
            if self.wal.synced == self.wal.tail:
                self.group.progress()
                return
            self._moved.clear()
            async with asyncio.timeout(60):
                await self._moved.wait()

    def close(self) -> None:
        self.wal.close()
        self.catalog.close()


# ---- steps ------------------------------------------------------------------------------------------------------

Step = Callable[[Node], Awaitable[None] | None]


@dataclass(frozen=True)
class Submit:
    key: str
    build: Callable[[LoadedStream | None, Group], Any]
    what: str

    def __call__(self, node: Node) -> None:
        command = self.build(node.group.loaded.find(self.key), node.group)
        node.group.submit(self.key, command, Inbox())

    def __repr__(self) -> str:
        return f"{self.key} {self.what}"


@dataclass(frozen=True)
class Do:
    act: Callable[[Node], Awaitable[None] | None]
    what: str

    def __call__(self, node: Node) -> Awaitable[None] | None:
        return self.act(node)

    def __repr__(self) -> str:
        return self.what


def boundary(stream: LoadedStream | None, pick: int) -> int:
    """An offset that a client could have been given, or (rarely) one behind the tail."""
    if stream is None:
        return pick
    ends = [span.timeline.ends[i] for span in whole(stream) for i in range(span.first, span.last)]
    choices = [stream.earliest, *ends, stream.tail + 1]
    return choices[pick % len(choices)]


def whole(stream: LoadedStream) -> list[forks.Span]:
    found = forks.spans(stream, stream.earliest, stream.tail)
    assert found is not None, f"{stream.key} cannot be read from its earliest offset"
    return found


keys = st.sampled_from(KEYS)
picks = st.integers(0, 12)
payload = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(97, 122), st.integers(1, 60))
payloads = st.lists(payload, max_size=3)
classes = st.sampled_from([None, None, None, Durability.FSYNC, Durability.DISK, Durability.MEMORY])
"""An ephemeral stream does not come back: see test_ephemeral.py."""
labels = st.none() | st.builds(Labels, st.sampled_from([None, "red", "blue"]), st.sampled_from([None, "n"]))


@st.composite
def creates(draw: st.DrawFn) -> Submit:
    key = draw(keys)
    records, durability = draw(payloads), draw(classes)
    ttl_ms = draw(st.sampled_from([None, None, None, 20_000]))
    retention = draw(st.sampled_from([None, None, Retention(records=3), Retention(bytes=150), Retention(age_ms=2_000)]))
    source = draw(st.sampled_from([None, None, *KEYS]))
    pick, sub = draw(st.none() | picks), draw(st.sampled_from([0, 0, 0, 1, 2]))

    def build(stream: LoadedStream | None, group: Group) -> Create:
        fork = None
        if source is not None:
            offset = None if pick is None else boundary(group.loaded.find(source), pick)
            fork = Fork(source, offset, sub if offset is not None else 0)
        return Create(key, None if fork else "text/plain", records, ttl_ms, durability=durability, retention=retention,
                      fork=fork)  # fmt: skip

    return Submit(key, build, f"create {len(records)} {durability} ttl={ttl_ms} {retention} from={source}@{pick}+{sub}")


@st.composite
def appends(draw: st.DrawFn) -> Submit:
    key = draw(keys)
    records = draw(payloads.filter(bool))
    name = draw(st.sampled_from([None, "p", "q", "r", "s"]))
    ahead = draw(st.sampled_from([0, 0, 0, -1, 1]))
    close = draw(st.sampled_from([False] * 15 + [True]))
    seq_text = draw(st.none() | st.text("ab", min_size=1, max_size=3))
    labelled = draw(st.none() | st.lists(labels, min_size=len(records), max_size=len(records)))

    def build(stream: LoadedStream | None, group: Group) -> Append:
        producer = None
        if name is not None:
            epoch, seq, _ = (0, -1, 0) if stream is None else stream.producers.get(name, (0, -1, 0))
            producer = Producer(name, epoch, max(0, seq + 1 + ahead))
        return Append(records, None, producer, seq_text, close, labels=labelled)

    return Submit(key, build, f"append {[len(record) for record in records]} {name}{ahead:+} close={close} {labelled}")


def lets_go() -> st.SearchStrategy[Submit]:
    def trim(key: str, pick: int) -> Submit:
        return Submit(key, lambda stream, _: Trim(boundary(stream, pick)), f"trim {pick}")

    def snapshot(key: str, pick: int) -> Submit:
        def build(stream: LoadedStream | None, group: Group) -> PublishSnapshot:
            return PublishSnapshot(boundary(stream, pick), "text/plain", f"blob-{pick}", 5)

        return Submit(key, build, f"snapshot {pick}")

    def delete(key: str, chosen: list[int]) -> Submit:
        def build(stream: LoadedStream | None, group: Group) -> DeleteRecords:
            there = [] if stream is None else [run for span in whole(stream) for run in _runs(span)]
            return DeleteRecords([run for run in there if run.first % 7 in chosen])

        return Submit(key, build, f"delete records {chosen}")

    def configure(key: str, records: int | None, priority: int) -> Submit:
        policy = None if records is None else Retention(records=records)
        return Submit(
            key, lambda stream, _: Configure(policy, TopicConfig(priority=priority)), f"keep {records}, {priority}"
        )

    return st.one_of(
        st.builds(trim, keys, picks),
        st.builds(snapshot, keys, picks),
        st.builds(delete, keys, st.lists(st.integers(0, 6), min_size=1, max_size=4)),
        st.builds(configure, keys, st.sampled_from([None, None, 2, 5]), st.integers(0, 1)),
    )


def _runs(span: forks.Span) -> list[Run]:
    timeline = span.timeline
    return [
        Run(timeline.seq + i, timeline.seq + i + 1, timeline.begin_of(i), timeline.ends[i])
        for i in range(span.first, span.last)
    ]


deletes = keys.map(lambda key: Submit(key, lambda stream, group: Delete(), "delete"))


def bucket_step(name: str, new: bool) -> Do:
    command = CreateBucket(name) if new else DeleteBucket(name)
    return Do(lambda node: node.group.submit_bucket(command, Inbox()), repr(command))


def walk(ms: int) -> Do:
    def act(node: Node) -> None:
        node.clock.ms += ms

    return Do(act, f"+{ms} ms")


async def upkeep(node: Node) -> None:
    await node.settle()  # a policy lets go only of what is visible
    node.group.expire_due(10)
    node.group.apply_retention()


def touch(key: str) -> Do:
    async def act(node: Node) -> None:
        await node.settle()
        try:
            node.group.find(key, touch=True)
        except (StreamNotFound, StreamSoftDeleted):
            pass

    return Do(act, f"read {key}")


def note(body: bytes) -> Do:
    named = b"%c=%b" % (97 + body[0] % 3, body[1:])
    return Do(lambda node: node.group.note("notes", named), f"note {named!r}")


others = st.one_of(
    st.builds(bucket_step, st.sampled_from(BUCKETS), st.booleans()),
    st.sampled_from([1, 500, 3_000, -700]).map(walk),
    st.just(Do(upkeep, "upkeep")),
    keys.map(touch),
    st.binary(min_size=1, max_size=6).map(note),
    st.just(Do(Node.settle, "settle")),
)
changes = st.sampled_from([creates()] * 4 + [appends()] * 12 + [lets_go()] * 4 + [deletes] * 2 + [others] * 4).flatmap(
    lambda kind: kind
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint during which `meanwhile` happens."""

    meanwhile: list[Step]

    async def __call__(self, node: Node) -> None:
        task = asyncio.get_running_loop().create_task(checkpoint(node.group))
        for step in self.meanwhile:
            await asyncio.sleep(0)
            await run(step, node)
        await task


# What comes and goes while rows are being captured is what a checkpoint can get wrong.
meanwhile = st.sampled_from([creates(), deletes, appends(), lets_go()]).flatmap(lambda kind: kind)
steps = st.sampled_from([changes] * 12 + [st.lists(meanwhile, max_size=6).map(Checkpoint)]).flatmap(lambda kind: kind)
# Every history begins with streams, so that little of it is spent on names that are not there.
first = [Submit(key, lambda _, __, key=key: Create(key, "text/plain", [b"first"]), "create") for key in KEYS[:3]]
histories = st.lists(steps, min_size=30, max_size=60).map(lambda rest: [*first, *rest])


async def run(step: Step, node: Node) -> None:
    waiting = step(node)
    if waiting is not None:
        await waiting


# ---- what a restart has to bring back -----------------------------------------------------------------------------


def state(node: Node) -> dict[str, Any]:
    group, loaded = node.group, node.group.loaded
    found: dict[str, Any] = {}
    for key in KEYS:
        stream = loaded.find(key)
        found[key] = None if stream is None else stream_state(stream)
    for name in BUCKETS:
        bucket = loaded.bucket(name)
        found[f"bucket {name}"] = None if bucket is None or not bucket.exists else (bucket.explicit, bucket.count)
        found[f"listing {name}"] = [
            (one.stream_id, one.tail_offset, one.earliest_offset, one.records)
            for one in listing.page(loaded, name, "", "", 100, node.clock.ms).streams
        ]
    found["notes"] = dict(node.notes.values)
    found["next sid"] = group.next_sid
    return found


def stream_state(stream: LoadedStream) -> dict[str, Any]:
    row = stream.row()
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    del fields["counted"]  # what the last checkpoint counted
    if stream.ttl_ms is not None:
        # Reads are logged coarsely: a restart may find a window that began a little earlier.
        del fields["touched_ms"], fields["position"]
    timeline = stream.timeline
    assert timeline.seq + len(timeline.payloads) == stream.count, stream.key
    return {
        **fields,
        "visible": (stream.visible, stream.closed_visible),
        "parent": stream.parent and stream.parent.sid,
        "records": [
            (span.timeline.payloads[i], span.timeline.ends[i], span.timeline.ms[i], span.timeline.n[i],
             span.timeline.positions[i], span.timeline.seq + i,
             span.timeline.labels[i] if span.timeline.labels else None)
            for span in whole(stream) for i in range(span.first, span.last)
        ],
    }  # fmt: skip


def check_sums(node: Node) -> None:
    """Counters that have to agree with what they count."""
    loaded = node.group.loaded
    assert loaded.hot_bytes == sum(stream.timeline.held_bytes for stream in loaded.by_key.values())
    of_buckets: dict[str, dict[int, LoadedStream]] = {}
    for stream in loaded.holding.values():
        of_buckets.setdefault(bucket_of(stream.key), {})[stream.sid] = stream
    assert loaded.holding_by_bucket == of_buckets
    floor = node.group.log_floor()
    for stream in loaded.by_key.values():
        if stream.timeline.payloads:
            assert floor < stream.timeline.positions[0], f"{stream.key} could be trimmed away"


def copy(source: Path, target: Path) -> None:
    """The directory as a crash would leave it: nothing closed, nothing flushed by anyone but the log itself."""
    while True:
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("spare*"))
            return
        except (FileNotFoundError, shutil.Error):
            continue  # a trimmed file went meanwhile
