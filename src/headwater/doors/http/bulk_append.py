"""Many appends in one request: `append-batch` on one stream, and bulk append over many.

Owns their bodies and answers. Never bends a rule of append: each entry is judged like a request of its own.
"""

from __future__ import annotations

from struct import Struct

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.bulk_entries import AT_ONCE_BYTES_MAX, REQUEST_TIMES, BulkEntry, Pause, bulk_entries
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.slices import Work
from headwater.engine import buckets as engine_buckets
from headwater.engine.engine import Engine
from headwater.engine.pending_answers import Outcome
from headwater.errors import (
    BadBody,
    BadHeader,
    BodyTooLarge,
    BucketNotFound,
    Failure,
    MethodNotAllowed,
    StreamNotFound,
    TooManyRecords,
    row,
)
from headwater.model import content_types, json_mode, json_slices, offsets
from headwater.model.commands import Append, Create, Producer
from headwater.model.events import Appended, Created
from headwater.model.names import bucket_of
from headwater.model.stream import Unchanged
from headwater.model.stream_state import NEVER_MS

FRAMES_MAX = 512
BATCH_BYTES_MAX = 32 * 1024 * 1024
_SIZE = Struct(">I")


class _Gather:
    """Collects the outcomes of one request's entries; answers when the last is final."""

    def __init__(self, exchange: Exchange, count: int) -> None:
        self._exchange = exchange
        self._left = count
        self._answers: list[dict[str, object]] = [{} for _ in range(count)]

    def waiter(self, index: int) -> _Entry:
        return _Entry(self, index)

    def set(self, index: int, outcome: Outcome, created: bool = False) -> None:
        try:
            answer = self._answers[index] = _told(outcome)
            if created:
                answer["created"] = True
            self._left -= 1
            if not self._left:
                self._exchange.json(200, self._answers)
        except Exception:
            self._exchange.broke()


class _Entry:
    __slots__ = ("_gather", "_index")

    def __init__(self, gather: _Gather, index: int) -> None:
        self._gather = gather
        self._index = index

    def resolve(self, outcome: Outcome) -> None:
        self._gather.set(self._index, outcome)


class _Made:
    """An entry that makes its stream: final when creation and append both are, whatever waits for less."""

    __slots__ = ("_append", "_create", "_gather", "_index")

    def __init__(self, gather: _Gather, index: int) -> None:
        self._gather = gather
        self._index = index
        self._create: Outcome | None = None
        self._append: Outcome | None = None

    def created(self, outcome: Outcome) -> None:
        self._create = outcome
        self._settle()

    def resolve(self, outcome: Outcome) -> None:
        self._append = outcome
        self._settle()

    def _settle(self) -> None:
        create, append = self._create, self._append
        if create is None or append is None:
            return
        # A creation that was refused matters only if the append found no stream: otherwise somebody else made it.
        told = create if isinstance(create, Failure) and isinstance(append, StreamNotFound) else append
        self._gather.set(self._index, told, type(create) is Created)


class _Creation:
    __slots__ = ("_made",)

    def __init__(self, made: _Made) -> None:
        self._made = made

    def resolve(self, outcome: Outcome) -> None:
        self._made.created(outcome)


def _told(outcome: Outcome) -> dict[str, object]:
    if isinstance(outcome, Failure):
        meaning = row(outcome)
        error = {"code": meaning.code, "message": outcome.message(), "retryable": meaning.retryable}
        facts = {name.lower().replace("-", "_"): value for name, value in outcome.headers()}
        return {"status": meaning.status, "error": error, **facts}
    if isinstance(outcome, Appended):
        status = 200 if outcome.producer is not None and outcome.records else 204
        closed = {"stream_closed": "true"} if outcome.closed else {}
        return {"status": status, "stream_next_offset": offsets.show(outcome.end), **closed}
    if isinstance(outcome, Unchanged):
        closed = {"stream_closed": "true"} if outcome.closed else {}
        return {"status": 204, "stream_next_offset": offsets.show(outcome.end), **closed, "duplicate": True}
    raise RuntimeError(f"an append ended as {outcome!r}")


class Batches:
    def __init__(self, engine: Engine, buckets: engine_buckets.Buckets, settings: Settings) -> None:
        self._engine = engine
        self._buckets = buckets
        self._settings = settings
        self._records_max = settings.append_records_max

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
        else:
            for _ in work:
                pass

    def _submit_frames(
        self, exchange: Exchange, key: str, media: str, frames: list[tuple[int, int]], close: bool
    ) -> Work:
        body = exchange.request.body
        gather = _Gather(exchange, len(frames))
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
                yield

    def _submit_entries(self, exchange: Exchange, packed: bool) -> Work:
        body = exchange.request.body
        entries = yield from bulk_entries(body, packed, self._records_max)
        gather = _Gather(exchange, len(entries))
        pause = Pause()
        for index, entry in enumerate(entries):
            waiter = gather.waiter(index)
            try:
                key, command = self._command(entry)
                if command.records and (entry.records is not None or command.content_type == json_mode.JSON):
                    yield from _check_json(command.records)
                if entry.create and self._is_missing(entry, key):
                    made = _Made(gather, index)
                    self._engine.submit(
                        key, Create(key, entry.content_type or command.content_type, []), _Creation(made)
                    )
                    self._engine.submit(key, command, made)
                else:
                    self._engine.submit(key, command, waiter)
            except Failure as failure:
                waiter.resolve(failure)
            else:
                if pause.is_due(len(command.records), 0):
                    yield

    def _is_missing(self, entry: BulkEntry, key: str) -> bool:
        """True when the stream has to be made, or may have to be. Raises BucketNotFound."""
        stream = self._engine.look(key)
        if stream is not None and stream.deadline_ms == NEVER_MS:
            return False
        needs_bucket = entry.stream.startswith("/") and not entry.stream.startswith(parse.FLAT_PREFIX)
        if needs_bucket and not self._buckets.exists(bucket_of(key)):
            raise BucketNotFound
        return True

    def _command(self, entry: BulkEntry) -> tuple[str, Append]:
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
        return key, Append(records, media, producer, entry.stream_seq, entry.close)


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
