"""Many appends in one request: `append-batch` on one stream, and bulk append over many.

Owns their bodies. Never bends a rule of append: each entry is judged like a request of its own.

Entries for groups of another process go to it together; each process answers for its own.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from struct import Struct
from typing import Any

import msgspec

from headwater.config import Settings
from headwater.doors.http import bulk_labels
from headwater.doors.http import headers as parse
from headwater.doors.http.access import refusal
from headwater.doors.http.bulk_answers import Answer, Gather
from headwater.doors.http.bulk_entries import AT_ONCE_BYTES_MAX, REQUEST_TIMES, BulkEntry, Pause, bulk_entries
from headwater.doors.http.by_owner import ask_owner, other_owner
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.slices import Work
from headwater.engine import buckets as engine_buckets
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome, Waiter
from headwater.engine.placements import Placement
from headwater.errors import (
    BadBody,
    BadHeader,
    BodyTooLarge,
    Failure,
    MethodNotAllowed,
    NotServedHere,
    TooManyRecords,
)
from headwater.model import content_types, json_mode, json_slices
from headwater.model.commands import Append, Create, Producer
from headwater.model.labels import held_bytes
from headwater.model.names import bucket_of
from headwater.model.stream import Unchanged
from headwater.security.principals import Action, Need
from headwater.topics import job_keys

FRAMES_MAX = 512
APPENDS, CREATES = Action.APPEND, Action.APPEND | Action.CREATE
BATCH_BYTES_MAX = 32 * 1024 * 1024
_SIZE = Struct(">I")


class _Wish(msgspec.Struct, frozen=True, array_like=True):
    """An entry as it is submitted, here or by the process that serves its stream. Its form has been checked."""

    key: str
    command: Append
    bucket: str | None = None
    """The bucket that a stream which has to be made needs; None: no one."""
    placed: Placement | None = None
    """Where the stream lives, when its name's home, of another process, has placed it here."""


class _Request:
    """What the entries of one request share while they are submitted."""

    __slots__ = ("elsewhere", "gather", "missing", "was_sent")

    def __init__(self, gather: Gather, was_sent: bool = False) -> None:
        self.gather = gather
        self.was_sent = was_sent
        """Another process was sent the request."""
        self.elsewhere: dict[int, list[tuple[int, _Wish]]] = {}
        """Entries for other processes, by process."""
        self.missing: dict[str, Failure] = {}
        """Buckets that nothing can be made in, and why."""


class Batches:
    def __init__(
        self,
        engine: Engine,
        buckets: engine_buckets.Buckets,
        settings: Settings,
        placing: ForkPlacement | None = None,
    ) -> None:
        """`placing` is None for a node with one group."""
        self._engine = engine
        self._placing = placing
        self._buckets = buckets
        self._settings = settings
        self._records_max = settings.append_records_max
        self._questions = engine.questions
        self._is_split = not engine.questions.alone
        engine.questions.register("append_entries", self._answer_entries)

    def append_batch(self, exchange: Exchange, key: str) -> None:
        """`POST {stream}/append-batch`: frames of u32 big-endian length and payload, one record or JSON body each."""
        request = exchange.request
        if request.method != b"POST":
            raise MethodNotAllowed("POST, OPTIONS")
        raw = request.headers.get(b"content-type")
        if raw is None:
            raise BadHeader("Content-Type", "an append names the content type of its frames")
        media = parse.content_type(raw, self._settings.content_type_bytes_max)
        parse.refuse(request.headers, parse.APPEND_ONLY, "it judges one append, and each frame of a batch is one")
        close = parse.flag(request.headers, b"stream-closed")
        self._run(exchange, self._submit_frames(exchange, key, media, frames_of(request.body), close))

    def bulk(self, exchange: Exchange) -> None:
        """`POST /__headwater/append`: many streams in one request, JSON or msgpack, one answer per entry, in order."""
        request = exchange.request
        if request.method != b"POST":
            raise MethodNotAllowed("POST, OPTIONS")
        packed = request.headers.get(b"content-type", b"").startswith(b"application/msgpack")
        self._run(exchange, self._submit_entries(exchange, packed))

    @staticmethod
    def _run(exchange: Exchange, work: Work) -> None:
        if len(exchange.request.body) > AT_ONCE_BYTES_MAX:
            exchange.in_slices(work)
            return
        for waits_for in work:
            if waits_for is not None:
                exchange.in_slices(work, waits_for)
                return

    def _submit_frames(
        self, exchange: Exchange, key: str, media: str, frames: list[tuple[int, int]], close: bool
    ) -> Work:
        body = exchange.request.body
        gather = Gather(len(frames), partial(exchange.json, 200), exchange.broke)
        room = self._records_max * REQUEST_TIMES
        pause = Pause()
        last = len(frames) - 1
        for index, (start, end) in enumerate(frames):
            waiter = gather.waiter(index)
            payload = body[start:end]
            records = [payload]
            try:
                if media == json_mode.JSON:
                    records = yield from _messages(payload, self._records_max)
                room -= len(records)
                if room < 0:
                    raise TooManyRecords(self._records_max * REQUEST_TIMES, REQUEST_TIMES)
            except Failure as refused:
                waiter.resolve(refused)
            else:
                self._engine.submit(key, Append(records, media, close=close and index == last), waiter)
            if pause.is_due(len(records), end - start):
                yield None

    def _submit_entries(self, exchange: Exchange, packed: bool) -> Work:
        principal = exchange.principal
        body = exchange.request.body
        entries = yield from bulk_entries(body, packed, self._records_max)
        request = _Request(Gather(len(entries), partial(exchange.json, 200), exchange.broke))
        pause = Pause()
        for index, entry in enumerate(entries):
            try:
                wish = self._wish(entry, packed)
                needed = APPENDS if wish.command.create is None else CREATES
                if not principal.may(needed, wish.key):
                    raise refusal(exchange, Need(needed, wish.key))
                records = wish.command.records
                if records and (entry.records is not None or wish.command.content_type == json_mode.JSON):
                    yield from _check_json(records)
                task = self._submit(request, index, wish)
            except Failure as failure:
                request.gather.resolve(index, failure)
                continue
            if task is not None:
                yield task
                task.result()
            elif pause.is_due(len(records), 0):
                yield None
        yield from self._ask_others(request)

    def _submit(self, request: _Request, index: int, wish: _Wish) -> asyncio.Task[None] | None:
        """Submits an entry, or puts it to those of its owner. Returns what the entries after it have to wait for."""
        if self._placing is not None:
            if self._is_deciding(self._placing, wish) or self._is_doubtful(self._placing, wish):
                return self._later(request, index, wish)
            if self._goes_elsewhere(request, index, wish):
                return None
        bucket = wish.bucket
        if bucket is not None and bucket in request.missing:
            request.gather.resolve(index, request.missing[bucket])
        elif bucket is not None and not self._buckets.exists(bucket):
            return self._later(request, index, wish)
        else:
            self._append(wish, request.gather.waiter(index))
        return None

    @staticmethod
    def _is_deciding(placing: ForkPlacement, wish: _Wish) -> bool:
        """True while a stream of that name must not be made: where it would be is not decided."""
        return wish.command.create is not None and wish.placed is None and placing.is_deciding(wish.key)

    @staticmethod
    def _is_doubtful(placing: ForkPlacement, wish: _Wish) -> bool:
        """See `ForkPlacement.is_doubtful`."""
        return wish.command.create is not None and wish.placed is not None and placing.is_doubtful(wish.placed.group)

    def _goes_elsewhere(self, request: _Request, index: int, wish: _Wish) -> bool:
        """True when another process has to submit it, which is provided for, or when it was sent here in vain."""
        if wish.placed is not None:
            try:
                placed = wish.placed
                self._engine.admit(wish.key, placed.group, placed.version, wish.command.create is not None)
            except Failure as failure:
                request.gather.resolve(index, failure)
                return True
            return False
        try:
            owner = other_owner(self._engine, wish.key, request.was_sent) if self._is_split else None
        except Failure as failure:
            request.gather.resolve(index, failure)
            return True
        if owner is None:
            return False
        there = wish if owner.placed is None else msgspec.structs.replace(wish, placed=owner.placed)
        request.elsewhere.setdefault(owner.member, []).append((index, there))
        return True

    def _later(self, request: _Request, index: int, wish: _Wish) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._submit_later(request, index, wish))

    async def _submit_later(self, request: _Request, index: int, wish: _Wish) -> None:
        """Submits an entry once it is known where its stream is made and that its bucket exists.

        Nothing happens between knowing that and submitting it.
        """
        placing, bucket, confirmed = self._placing, wish.bucket, None
        if placing is not None and wish.placed is not None and self._is_doubtful(placing, wish):
            try:
                confirmed = await placing.confirm(wish.key, wish.placed.group)
            except Failure as failure:
                request.gather.resolve(index, failure)
                return
        known = False
        while not known:
            if placing is not None and self._is_deciding(placing, wish):
                await placing.decided(wish.key)
            if bucket is not None and not self._buckets.exists(bucket):
                try:
                    await self._buckets.require(bucket)
                except Failure as failure:
                    request.missing[bucket] = failure
                    request.gather.resolve(index, failure)
                    return
            known = placing is None or not self._is_deciding(placing, wish)
        if confirmed is not None and self._engine.owned.get(confirmed.number) is not confirmed:
            request.gather.resolve(index, NotServedHere(confirmed.number))
        elif placing is None or not self._goes_elsewhere(request, index, wish):
            self._append(wish, request.gather.waiter(index))

    def _ask_others(self, request: _Request) -> Work:
        """Has other processes answer their entries, all at the same time."""
        if request.elsewhere:
            asked = asyncio.gather(
                *(
                    ask_owner(self._questions, member, "append_entries", items, _size_of, request.gather.set)
                    for member, items in request.elsewhere.items()
                )
            )
            yield asked
            asked.result()

    async def _answer_entries(self, entries: list[Any]) -> list[Answer]:
        """Submits entries that another process was sent, for streams of groups of this one."""
        wishes = msgspec.convert(entries, list[_Wish])
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        request = _Request(Gather(len(wishes), done.set_result, partial(_fail, done)), was_sent=True)
        for waits_for in self._submit_wishes(request, wishes):
            await (asyncio.sleep(0) if waits_for is None else waits_for)
        return await done

    def _submit_wishes(self, request: _Request, wishes: list[_Wish]) -> Work:
        pause = Pause()
        for index, wish in enumerate(wishes):
            task = self._submit(request, index, wish)
            if task is not None:
                yield task
            elif pause.is_due(len(wish.command.records), 0):
                yield None
        yield from self._ask_others(request)

    def _append(self, wish: _Wish, waiter: Waiter) -> None:
        """A job whose key is in its queue already is left out, as it is from a write to the topic."""
        command = wish.command
        if job_keys.has_keys(command.labels):
            stream = self._engine.look(wish.key)
            if stream is not None and stream.topic is not None and stream.topic.queue is not None:
                command = job_keys.split(self._engine, stream, command).append
                if not command.records and command.producer is None and not command.close:
                    self._engine.group_of(stream).group.after_pending(_Known(stream, waiter))
                    return
        self._engine.submit(wish.key, command, waiter)

    def _wish(self, entry: BulkEntry, packed: bool) -> _Wish:
        settings = self._settings
        path = entry.stream if entry.stream.startswith("/") else parse.FLAT_PREFIX + entry.stream
        key = parse.stream_key(path, settings.stream_name_bytes_max)
        media = None
        if entry.content_type is not None:
            media = content_types.check(entry.content_type, settings.content_type_bytes_max)
        elif entry.records is not None:
            media = json_mode.JSON
        records = _records(entry, media)
        if not records and not entry.close:
            raise BadBody("an entry brings records, or closes its stream")
        if entry.stream_seq is not None:
            _check_size("stream_seq", entry.stream_seq, settings.stream_seq_bytes_max)
        names = (entry.producer_id, entry.producer_epoch, entry.producer_seq)
        producer = None
        if entry.producer_id and entry.producer_epoch is not None and entry.producer_seq is not None:
            _check_size("producer_id", entry.producer_id, settings.producer_id_bytes_max)
            producer = Producer(entry.producer_id, entry.producer_epoch, entry.producer_seq)
            if min(producer.epoch, producer.seq) < 0 or max(producer.epoch, producer.seq) >= 1 << 53:
                raise BadBody("producer_epoch and producer_seq are integers from 0 to 2^53-1")
        elif any(name is not None for name in names):
            raise BadBody("producer_id, producer_epoch and producer_seq go together")
        labels = bulk_labels.labels(entry, len(records), packed, self._engine.clock.now_ms())
        command = Append(records, media, producer, entry.stream_seq, entry.close, labels=labels)
        if not entry.create:
            return _Wish(key, command)
        needs_bucket = entry.stream.startswith("/") and not entry.stream.startswith(parse.FLAT_PREFIX)
        command = msgspec.structs.replace(command, create=Create(key, entry.content_type or media, []))
        return _Wish(key, command, bucket_of(key) if needs_bucket else None)


class _Known:
    """A Waiter for an append of which all is there already."""

    __slots__ = ("_stream", "_waiter")

    def __init__(self, stream: LoadedStream, waiter: Waiter) -> None:
        self._stream = stream
        self._waiter = waiter

    def resolve(self, outcome: Outcome) -> None:
        known = Unchanged(self._stream.visible, self._stream.closed_visible)
        self._waiter.resolve(outcome if isinstance(outcome, Failure) else known)


def _size_of(wish: _Wish) -> int:
    """About as long as it is encoded."""
    records, labels = wish.command.records, wish.command.labels or ()
    return 200 + len(wish.key) + sum(map(len, records)) + 5 * len(records) + held_bytes(labels)


def _fail(future: asyncio.Future[Any]) -> None:
    """Called while an exception is handled."""
    error = sys.exc_info()[1]
    if error is not None and not future.done():
        future.set_exception(error)


def _check_size(name: str, value: str, bytes_max: int) -> None:
    if len(value.encode()) > bytes_max:
        raise BadBody(f"{name} is at most {bytes_max} bytes")


def _records(entry: BulkEntry, media: str | None) -> list[bytes]:
    given = [value for value in (entry.records, entry.text, entry.binary) if value is not None]
    if len(given) > 1:
        raise BadBody("an entry has one of records, text and binary")
    if entry.records is not None:
        found = [bytes(raw) for raw in entry.records]
    elif entry.text is not None:
        found = [text.encode() for text in entry.text]
    else:
        found = list(entry.binary or ())
    if not all(found):
        raise BadBody("an empty record cannot be appended")
    if found and media is None:
        raise BadBody("text and binary name their content_type")
    return found


def _messages(body: bytes, count_max: int) -> json_slices.Slices:
    if json_mode.is_long(body):
        return (yield from json_mode.messages_in_slices(body, False, count_max))
    return json_mode.messages(body, False, count_max)


def _check_json(records: list[bytes]) -> Work:
    """Each record is one JSON value. Raises BadBody.

    All are read as one array. Its elements are compared with the records: "[1" and "2]" make an array of their own.
    """
    values = yield from _messages(b"[" + b",".join(records) + b"]", json_mode.COUNT_MAX)
    if values != records and [value.strip() for value in values] != [record.strip() for record in records]:
        raise BadBody("a record of a JSON stream is one JSON value")


def frames_of(body: bytes) -> list[tuple[int, int]]:
    """Where each frame's payload begins and ends in an append-batch body. Raises BadBody or BodyTooLarge."""
    if len(body) > BATCH_BYTES_MAX:
        raise BodyTooLarge(BATCH_BYTES_MAX)
    frames: list[tuple[int, int]] = []
    at, size = 0, len(body)
    while at < size:
        if at + 4 > size:
            raise BadBody("a frame's length is cut off")
        (length,) = _SIZE.unpack_from(body, at)
        if not length:
            raise BadBody("a frame of length zero appends nothing")
        at += 4
        if at + length > size:
            raise BadBody("a frame is cut off")
        if len(frames) >= FRAMES_MAX:
            raise BadBody(f"at most {FRAMES_MAX} frames in one batch")
        frames.append((at, at + length))
        at += length
    if not frames:
        raise BadBody("an empty batch appends nothing")
    return frames
