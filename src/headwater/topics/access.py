"""Topics wherever they live, for what works inside the server: read on from a cursor, write, and wait for more.

Owns the way to a topic's group, in this process or in another one, and who waits here for a topic to grow. Never tries
again: whoever asks decides that.

    topic_read    (ask)           -> records after a cursor; waits for them a while
    topic_write   (what to write) -> where it is; may demand the `stream_seq` that the topic's last writer left
    topic_seq     (group, key)    -> that `stream_seq`

Waiting for a topic that is there costs nothing: a follower is woken. One that is missing is looked for again now and
then as well, because its name may be placed in another group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.read_plan import shown_count
from headwater.engine.record_reads import TopicRecord
from headwater.errors import (
    Failure,
    MemberUnavailable,
    NotServedHere,
    OutcomeUnknown,
    StreamNotFound,
    StreamSeqConflict,
    StreamSoftDeleted,
)
from headwater.model import content_types
from headwater.model.commands import Append, Configure, Create, Retention
from headwater.model.labels import Labels
from headwater.topics.delivery import Delivery
from headwater.topics.job_keys import split_by
from headwater.topics.priorities import Priorities

WAIT_MS = 25_000
"""For how long a question to another process waits there for records."""
MISSING_MS = 5_000
"""After this long a missing topic is looked for again, perhaps in another group."""
ANSWER_S = 30.0
"""A process that takes longer than this, beside what it was asked to wait, is taken for gone."""
_BEYOND = 1 << 62
Answered = TypeVar("Answered")


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A record of a topic."""

    seq: int
    ms: int
    payload: bytes
    labels: Labels | None


class Ask(msgspec.Struct, frozen=True, array_like=True):
    key: str
    epoch: int
    """Of the topic that the cursor is of: another one is told of at once. 0: whichever there is."""
    from_seq: int
    """The last seq that was seen."""
    count_max: int
    bytes_max: int
    wait_ms: int | None
    """For how long to wait when there is nothing; None: until there is."""
    certain: bool
    """That the topic has another epoch, or ends before `from_seq`, is only told when nobody else can know better."""


class Diff(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    content_type: str
    head_seq: int
    evict_floor: int
    next_seq: int
    """The cursor behind these records."""
    records: list[Copy]


class Write(msgspec.Struct, frozen=True, array_like=True):
    key: str
    group: int
    records: list[bytes]
    labels: list[Labels | None] | None
    stream_seq: str | None
    after: str | None
    """What the topic's `stream_seq` has to be, empty for none; None: whatever it is."""
    content_type: str | None
    """Of the records, and of the topic if it is missing and has to be made. None: it is not made."""
    unique: bool = False
    """Records are left out whose key is that of a record that is there."""
    age_ms: int | None = None
    """How long a topic keeps its records that has to be made; None: for ever."""
    sets_age: bool = False
    """One that is there keeps them so long too, from now on."""


class Written(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    head_seq: int
    """Of the last record that was written."""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(Ask).decode
_decode_write = msgspec.msgpack.Decoder(Write).decode


class _Waiting:
    """A `Follower` that resolves a future, when it is its topic's turn."""

    def __init__(self, delivery: Delivery | None, priorities: Priorities | None) -> None:
        self._delivery = delivery
        self._priorities = priorities
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self, stream: LoadedStream) -> None:
        if self._delivery is None or self._priorities is None:
            self.end()
        elif not self.woken.done():
            self._delivery.mark(self, self._priorities.of(stream), self.end, lower=True)

    def gone(self, stream: LoadedStream) -> None:
        self.end()

    left = gone

    def end(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def forget(self) -> None:
        if self._delivery is not None:
            self._delivery.discard(self)


class TopicAccess:
    """An `Observer` of this process's groups from when a missing topic is waited for."""

    def __init__(
        self,
        engine: Engine,
        placing: ForkPlacement | None = None,
        delivery: Delivery | None = None,
        priorities: Priorities | None = None,
    ) -> None:
        """`placing` knows where names are being placed; None with one group.

        Whoever waits for a topic is woken by `delivery` in the order of `priorities`; None: at once.
        """
        self._engine = engine
        self._placing = placing
        self._delivery = delivery
        self._priorities = priorities
        self._waiting: set[_Waiting] = set()
        self._missing: dict[str, set[_Waiting]] = {}
        """By key: who waits for that topic to be made and written to."""
        self._observes = False
        self._closed = False
        questions = engine.questions
        questions.register("topic_read", self._answer_read)
        questions.register("topic_write", self._answer_write)
        questions.register("topic_seq", self._stream_seq)

    def close(self) -> None:
        """Nobody waits for records here any more: whoever does is refused, so that the doors can close."""
        self._closed = True
        for waiting in self._waiting:
            waiting.end()

    # ---- what is asked of topics --------------------------------------------------------------------------------

    async def read(
        self,
        key: str,
        from_seq: int,
        count_max: int,
        bytes_max: int,
        wait_ms: int | None = 0,
        epoch: int = 0,
        certain: bool = False,
    ) -> Diff | None:
        """Records after `from_seq`, or none when there is none within `wait_ms`; None: there is no such topic.

        Returns at once, and without records, when the topic has another epoch than given or ends before `from_seq`;
        see `Ask.certain`. Raises what its process refused, or that it cannot be reached.
        """
        ask = Ask(key, epoch, from_seq, count_max, bytes_max, wait_ms, certain)
        group = await self._engine.locate(key)
        if group in self._engine.owned:
            return await self._read(group, ask)
        part_ms = WAIT_MS if wait_ms is None else min(wait_ms, WAIT_MS)
        part = _encode(msgspec.structs.replace(ask, wait_ms=part_ms))
        asked = self._engine.questions.ask_owner(group, "topic_read", group, part, into=Diff | None)
        found: Diff | None = await self._answered(group, asked, part_ms / 1000)
        return found

    async def write(
        self,
        key: str,
        records: list[bytes],
        labels: list[Labels | None] | None = None,
        *,
        stream_seq: str | None = None,
        after: str | None = None,
        content_type: str | None = None,
        unique: bool = False,
        age_ms: int | None = None,
        sets_age: bool = False,
    ) -> Written:
        """Appends; on return that is as durable as the topic promises. See `Write` for what may be demanded.

        Raises StreamSeqConflict with the topic's `stream_seq` (empty: it has none) when that is not `after`, what the
        topic's process refused otherwise, or that it cannot be reached; it may have happened after an OutcomeUnknown.
        """
        group = await self._engine.locate(key)
        write = Write(key, group, records, labels, stream_seq, after, content_type, unique, age_ms, sets_age)
        if group in self._engine.owned:
            return await self._write(write)
        asked = self._engine.questions.ask_owner(group, "topic_write", _encode(write), into=Written)
        found: Written = await self._answered(group, asked)
        return found

    async def stream_seq(self, key: str) -> str | None:
        """The topic's `stream_seq`, once that is durable; None when it has none, or there is no such topic."""
        group = await self._engine.locate(key)
        if group in self._engine.owned:
            return await self._stream_seq(group, key)
        asked = self._engine.questions.ask_owner(group, "topic_seq", group, key, into=str | None)
        found: str | None = await self._answered(group, asked)
        return found

    async def head_seq(self, key: str) -> int:
        """Of the topic's last visible record; 0 when there is none, or no such topic. Raises like `read`."""
        diff = await self.read(key, _BEYOND, 1, 1)
        return 0 if diff is None else diff.head_seq

    async def _answered(self, group: int, asked: Awaitable[Answered], wait_s: float = 0.0) -> Answered:
        try:
            async with asyncio.timeout(ANSWER_S + wait_s):
                return await asked
        except TimeoutError:
            raise OutcomeUnknown(self._engine.questions.owner(group)) from None

    # ---- answers --------------------------------------------------------------------------------------------------

    async def _answer_read(self, group: int, ask: bytes) -> Diff | None:
        return await self._read(group, _decode_ask(ask))

    async def _answer_write(self, write: bytes) -> Written:
        return await self._write(_decode_write(write))

    async def _stream_seq(self, group: int, key: str) -> str | None:
        stream = _decided(self._engine.serving(group).group, key)
        found = None if stream is None else stream.stream_seq
        await self._durable(group)
        return found

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def _read(self, number: int, ask: Ask) -> Diff | None:
        waited, is_certain = False, not ask.certain
        while True:
            group = self._engine.serving(number).group
            if group.unpublished(ask.key):
                published = OutcomeFuture()
                group.after_published(ask.key, published)
                await published.success()
                continue
            stream = _visible(group, ask.key)
            if stream is not None:
                head_seq = shown_count(stream)
                if not is_certain and (ask.epoch != stream.sid or head_seq < ask.from_seq):
                    # A process that was replaced and has not noticed may know an older end, or an older topic.
                    await self._engine.confirm_group(number)
                    is_certain = True
                    continue
                if head_seq > ask.from_seq and ask.epoch in (0, stream.sid):
                    return await self._found(stream, ask, head_seq)
                if waited or ask.wait_ms == 0 or head_seq < ask.from_seq or ask.epoch not in (0, stream.sid):
                    return _diff(stream, head_seq, ask.from_seq, [])
            elif waited or ask.wait_ms == 0:
                return None
            if self._closed:
                raise MemberUnavailable(self._engine.questions.me)
            waited = await self._wait(ask, stream)

    async def _found(self, stream: LoadedStream, ask: Ask, head_seq: int) -> Diff:
        done: asyncio.Future[list[TopicRecord] | Failure] = asyncio.get_running_loop().create_future()

        def tell(found: list[TopicRecord] | Failure) -> None:
            if not done.done():
                done.set_result(found)

        self._engine.read_records(stream, ask.from_seq, ask.count_max, ask.bytes_max, tell)
        found = await done
        if isinstance(found, Failure):
            raise found
        records = [Copy(one.seq, one.ms, bytes(one.payload), one.labels) for one in found]
        return _diff(stream, head_seq, records[-1].seq if records else head_seq, records)

    async def _wait(self, ask: Ask, stream: LoadedStream | None) -> bool:
        """Waits until the topic may have changed; True when it is time to answer whatever there is."""
        waiting = _Waiting(self._delivery, self._priorities)
        wait_ms = ask.wait_ms
        if stream is None:
            wait_ms = MISSING_MS if wait_ms is None else min(wait_ms, MISSING_MS)
            self._observe()
            self._missing.setdefault(ask.key, set()).add(waiting)
        else:
            self._engine.follow(stream, waiting)
        self._waiting.add(waiting)
        try:
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                await waiting.woken
        except TimeoutError:
            return True
        finally:
            self._waiting.discard(waiting)
            waiting.forget()
            if stream is not None:
                self._engine.unfollow(stream, waiting)
            else:
                self._missing[ask.key].discard(waiting)
                if not self._missing[ask.key]:
                    del self._missing[ask.key]
        return False

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def _write(self, write: Write) -> Written:
        group = self._engine.serving(write.group).group
        key = write.key
        stream = _decided(group, key)
        # No pause between this and the submission: the group's only writer decides by what is looked at here.
        current = "" if stream is None else stream.stream_seq or ""
        if write.after is not None and current != write.after:
            await self._durable(write.group)
            raise StreamSeqConflict(current, write.stream_seq or "")
        create = None
        if stream is None and write.content_type is not None:
            self._demand_home(write)
            retention = None if write.age_ms is None else Retention(write.age_ms)
            create = Create(key, write.content_type, [], retention=retention)
        elif stream is not None and write.sets_age:
            kept = stream.retention or Retention()
            if kept.age_ms != write.age_ms:
                kept = msgspec.structs.replace(kept, age_ms=write.age_ms)
                group.submit(key, Configure(kept, stream.topic), OutcomeFuture())
        future = OutcomeFuture()
        append = Append(
            write.records, _media(write, stream), stream_seq=write.stream_seq, create=create, labels=write.labels
        )
        if write.unique and stream is not None:
            append = split_by(self._engine.serving(write.group).marks, stream, append).append
            if not append.records:
                await self._durable(write.group)
                return Written(stream.sid, stream.count)
        group.submit(key, append, future)
        written = group.loaded.by_key.get(key)
        answer = None if written is None else Written(written.sid, written.count)
        await future.success()
        if answer is None:
            raise RuntimeError(f"something was appended to {key}, which there is not")
        return answer

    def _demand_home(self, write: Write) -> None:
        """Raises NotServedHere unless a stream of that name is made in this group, now."""
        engine, placing = self._engine, self._placing
        if engine.place(write.key) != write.group or engine.home(write.key) != write.group:
            raise NotServedHere(write.group)
        if placing is not None and placing.is_deciding(write.key):
            raise NotServedHere(write.group)

    async def _durable(self, number: int) -> None:
        """Returns when everything decided so far in that group is durable."""
        future = OutcomeFuture()
        self._engine.serving(number).group.after_pending(future)
        await future.success()

    # ---- as an Observer ---------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        if not self._observes:
            self._observes = True
            self._engine.observe(self)

    def grown(self, stream: LoadedStream, start: int) -> None:
        if self._missing:
            for waiting in self._missing.get(stream.key, ()):
                waiting.wake(stream)

    def deleted(self, stream: LoadedStream) -> None:
        """Whoever waits for it follows it."""

    def pass_ended(self) -> None:
        """Nothing waits for the end of a pass."""

    def left(self) -> None:
        """Another process may serve what is waited for."""
        for waitings in self._missing.values():
            for waiting in waitings:
                waiting.end()


def _visible(group: Group, key: str) -> LoadedStream | None:
    """The topic as readers see it."""
    try:
        return group.find(key, touch=False)
    except (StreamNotFound, StreamSoftDeleted):
        return None


def _decided(group: Group, key: str) -> LoadedStream | None:
    """The topic as the next write finds it, durable or not."""
    return group.loaded.find(key) if group.has(key) else None


def _media(write: Write, stream: LoadedStream | None) -> str | None:
    """The records' content type when it is the topic's: they came from such a topic. Otherwise each one is judged."""
    media = None if write.content_type is None else content_types.normalise(write.content_type)
    return media if stream is None or stream.media == media else None


def _diff(stream: LoadedStream, head_seq: int, next_seq: int, records: list[Copy]) -> Diff:
    return Diff(stream.sid, stream.content_type, head_seq, stream.evict_floor, next_seq, records)
