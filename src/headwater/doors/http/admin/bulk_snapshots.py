"""Snapshots of many streams in one request.

Owns `POST /__headwater/snapshots`: a msgpack list of entries, one answer each, in order. Never bends a rule of
publishing one: each entry is judged like a request of its own. Never holds up appends: threads of its own store blobs.

Entries for groups of another process go to it together; each process answers for its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from headwater.config import Settings
from headwater.doors.http import failures
from headwater.doors.http import headers as parse
from headwater.doors.http.access import refusal
from headwater.doors.http.bulk_answers import Answer
from headwater.doors.http.by_owner import ask_owner, other_owner
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.snapshots import discard_refused
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.pending_answers import Outcome
from headwater.engine.placements import Placement
from headwater.errors import BadBody, BodyTooLarge, Failure, MethodNotAllowed, Overloaded
from headwater.lake.names import epoch_token, snapshot_key
from headwater.model import content_types, json_mode, offsets
from headwater.model.commands import PublishSnapshot
from headwater.model.forks import ColdOffset
from headwater.model.stream import decide_snapshot
from headwater.ports import Blobs, BlobsUnavailable, Rng
from headwater.security.principals import Action, Need

ENTRIES_MAX = 1_000
BYTES_MAX = 32 * 1024 * 1024
REQUESTS_MAX = 8
"""At work at once; each may hold BYTES_MAX. Overflow: 503."""
THREADS = 16
"""Each object is synced by itself, and a disk syncs many at once: 2,000 objects/s with 16 threads, 140 with one
(LocalStore.put of 3,000 small objects, each in a folder of its own, on ext4)."""
SLICE_COUNT = 128
"""Blobs stored before their references are logged together. Not all of a request's: gc takes a blob without a reference
for an orphan once it is old enough, and a store may be slow."""
COLD_MAX = 32
"""Entries whose offset is looked up in the lake at once, of one request: others read from there too."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: str
    offset: int
    body: bytes
    content_type: str = "application/octet-stream"


class _Sent(msgspec.Struct, frozen=True, array_like=True):
    """An entry on its way to the process that publishes it."""

    entry: Entry
    placed: Placement | None = None
    """Where the stream lives, when its name's home, of another process, has placed it here."""


class _Wish(msgspec.Struct, frozen=True):
    """An entry that may be published."""

    index: int
    key: str
    group: Group
    command: PublishSnapshot
    body: bytes
    cold: bool
    """Memory does not tell whether its offset is the end of a message."""


_decode = msgspec.msgpack.Decoder(list[Entry]).decode


class BulkSnapshots:
    def __init__(self, engine: Engine, blobs: Blobs, settings: Settings, rng: Rng) -> None:
        self._engine = engine
        self._blobs = blobs
        self._settings = settings
        self._rng = rng
        self._pool = ThreadPoolExecutor(THREADS, "snapshots")
        self._requests_count = 0
        self._questions = engine.questions
        self._is_split = not engine.questions.alone
        engine.questions.register("publish_snapshots", self._answer_entries)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def handle(self, exchange: Exchange, rest: bytes, query: bytes) -> None:
        request = exchange.request
        if request.method != b"POST":
            raise MethodNotAllowed("POST, OPTIONS")
        if len(request.body) > BYTES_MAX:
            raise BodyTooLarge(BYTES_MAX)
        try:
            entries = _decode(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadBody(f"expected a msgpack list of snapshots ({json_mode.fault(error, request.body)})") from None
        if not 0 < len(entries) <= ENTRIES_MAX:
            raise BadBody(f"expected 1 to {ENTRIES_MAX} snapshots")
        if self._requests_count >= REQUESTS_MAX:
            raise Overloaded("too many requests publish snapshots at once")
        exchange.run(self._reply(exchange, entries))

    async def _reply(self, exchange: Exchange, entries: list[Entry]) -> None:
        refused = {} if exchange.principal.everything else self._refused(exchange, entries)
        self._requests_count += 1
        try:
            answers = await self._publish([_Sent(one) for at, one in enumerate(entries) if at not in refused])
        finally:
            self._requests_count -= 1
        following = iter(answers)
        exchange.json(200, [refused[at] if at in refused else next(following) for at in range(len(entries))])

    def _refused(self, exchange: Exchange, entries: list[Entry]) -> dict[int, Answer]:
        """The answers to those that whoever asks may not publish, by their places."""
        found: dict[int, Answer] = {}
        for at, entry in enumerate(entries):
            try:
                key = self._key(entry)
                if not exchange.principal.may(Action.APPEND, key):
                    raise refusal(exchange, Need(Action.APPEND, key))
            except Failure as failure:
                found[at] = failures.entry(failure)
        return found

    async def _answer_entries(self, entries: list[Any]) -> list[Answer]:
        """Publishes what another process was sent, for streams of groups of this one."""
        return await self._publish(msgspec.convert(entries, list[_Sent]), was_sent=True)

    async def _publish(self, entries: list[_Sent], was_sent: bool = False) -> list[Answer]:
        answers: list[Answer] = [{} for _ in entries]
        here: list[int] = []
        there: dict[int, list[tuple[int, _Sent]]] = {}
        for index, sent in enumerate(entries):
            if sent.placed is None and self._is_split:
                try:
                    owner = other_owner(self._engine, self._key(sent.entry), was_sent)
                except Failure as failure:
                    answers[index] = failures.entry(failure)
                    continue
                if owner is not None:
                    there.setdefault(owner.member, []).append((index, _Sent(sent.entry, owner.placed)))
                    continue
            here.append(index)
        asked = [
            ask_owner(self._questions, member, "publish_snapshots", items, _size_of, answers.__setitem__)
            for member, items in there.items()
        ]
        await asyncio.gather(self._publish_here(entries, here, answers), *asked)
        return answers

    async def _publish_here(self, entries: list[_Sent], some: list[int], answers: list[Answer]) -> None:
        outcomes: list[Outcome | None] = [None] * len(entries)
        room = asyncio.Semaphore(COLD_MAX)
        published = []
        for at in range(0, len(some), SLICE_COUNT):
            wishes = self._wishes(entries, some[at : at + SLICE_COUNT], outcomes)
            stored = await asyncio.gather(*(self._store(wish, outcomes) for wish in wishes))
            waiting = [self._submit(wish, room, outcomes) for wish, done in zip(wishes, stored, strict=True) if done]
            published += [asyncio.ensure_future(one) for one in waiting]
            await asyncio.sleep(0)
        await asyncio.gather(*published)
        for index in some:
            answers[index] = _told(entries[index].entry, outcomes[index])

    def _wishes(self, entries: list[_Sent], some: list[int], outcomes: list[Outcome | None]) -> list[_Wish]:
        """Those of the entries that are not refused at once."""
        found = []
        for index in some:
            try:
                found.append(self._wish(index, entries[index]))
            except Failure as failure:
                outcomes[index] = failure
        return found

    def _key(self, entry: Entry) -> str:
        path = entry.stream if entry.stream.startswith("/") else parse.FLAT_PREFIX + entry.stream
        return parse.stream_key(path, self._settings.stream_name_bytes_max)

    def _wish(self, index: int, sent: _Sent) -> _Wish:
        settings, entry = self._settings, sent.entry
        key = self._key(entry)
        if entry.offset < 0:
            raise BadBody("offset is a number of bytes")
        content_types.check(entry.content_type, settings.content_type_bytes_max)
        if len(entry.body) > settings.snapshot_bytes_max:
            raise BodyTooLarge(settings.snapshot_bytes_max, "snapshot_bytes_max")
        engine = self._engine
        if sent.placed is not None:
            engine.admit(key, sent.placed.group, sent.placed.version, creates=False)
        stream = engine.find(key, True)
        group = engine.group_of(stream).group
        token = epoch_token(group.epoch, self._rng.token(8).hex())
        blob = snapshot_key(group.number, stream.sid, entry.offset, token)
        command = PublishSnapshot(entry.offset, entry.content_type, blob, len(entry.body))
        # Judged twice: now, so that a hopeless blob is not stored, and again when it is.
        try:
            decide_snapshot(stream, command, 0)
            return _Wish(index, key, group, command, entry.body, cold=False)
        except ColdOffset:
            return _Wish(index, key, group, command, entry.body, cold=True)

    async def _store(self, wish: _Wish, outcomes: list[Outcome | None]) -> bool:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, self._blobs.put, wish.command.blob, wish.body)
            return True
        except (BlobsUnavailable, RuntimeError) as error:  # the pool is closed when the node stops
            refused = Overloaded(f"the object store does not answer ({error})")
            outcomes[wish.index] = refused
            discard_refused(self._engine, wish.command, refused)
            return False

    async def _submit(self, wish: _Wish, room: asyncio.Semaphore, outcomes: list[Outcome | None]) -> None:
        if not wish.cold:
            outcomes[wish.index] = await self._submitted(wish)
            return
        async with room:
            outcomes[wish.index] = await self._submitted(wish)

    async def _submitted(self, wish: _Wish) -> Outcome:
        future = OutcomeFuture()
        wish.group.submit(wish.key, wish.command, future)
        outcome = await future.wait()
        discard_refused(self._engine, wish.command, outcome)
        return outcome


def _size_of(sent: _Sent) -> int:
    """About as long as it is encoded."""
    return 200 + len(sent.entry.stream) + len(sent.entry.body)


def _told(entry: Entry, outcome: Outcome | None) -> Answer:
    if isinstance(outcome, Failure):
        return failures.entry(outcome)
    return {"status": 204, "stream_snapshot_offset": offsets.show(entry.offset)}
