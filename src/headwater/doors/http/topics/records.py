"""Writing to a topic: `POST /v0/topics/{topic}/records`.

Owns the shape of a write and what a record's labels may be. Never decodes a JSON payload: its bytes are kept as they
came, once they are known to be JSON.

    body -> one decode: records with raw data -> one Append with labels -> outcome -> answer

There is no coroutine for a request. A long body is read in slices, with others' turns in between, when its records come
first in it and only small fields after them; any other is decoded in one go.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from msgspec import Raw

from headwater.config import Settings
from headwater.doors.http.exchange import Exchange, Repeated
from headwater.doors.http.slices import Work
from headwater.doors.http.topics.answers import Timing, reply
from headwater.doors.http.topics.config import NUMBER_MAX, decoded
from headwater.doors.http.topics.routes import TopicRoutes, once_published
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.engine.read_plan import shown_count
from headwater.errors import BadBody, Failure, StreamNotFound, TooManyRecords
from headwater.model import json_mode, json_slices
from headwater.model.commands import Append, Durability, Producer
from headwater.model.events import Appended
from headwater.model.labels import Labels
from headwater.security.principals import Action

RECORDS_MAX = 10_000
LABEL_BYTES_MAX = 1_024
META_BYTES_MAX = 16 * 1024
MOMENT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
DELAY_MS_MAX = 10 * 366 * 24 * 3600 * 1000
_TAIL_BYTES_MAX = 16 * 1024
"""What may follow the records of a long body."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RECORDS_FIRST = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"records"[ \t\r\n]*:[ \t\r\n]*(?=\[)')


class Labelled(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a record may say beside its data."""

    tag: str | None = None
    node: str | None = None
    meta: Raw = Raw()
    key: str | None = None
    deliver_at: int | None = None
    delay_ms: int | None = None


class _Record(Labelled, forbid_unknown_fields=True, gc=False):
    data: Raw = Raw()
    data_base64: str | None = None


class _Producer(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    epoch: int
    seq: int


class Write(msgspec.Struct, forbid_unknown_fields=True):
    """What one write says. Also what a message over a WebSocket does."""

    records: list[_Record]
    node: str | None = None
    producer: _Producer | None = None
    disable_backpressure: bool = False


_decode_write = msgspec.json.Decoder(Write).decode
_decode_record = msgspec.json.Decoder(_Record).decode
_decode_text = msgspec.json.Decoder(str).decode

Told = Callable[[bytes | Failure], None]
"""Is told what became of a write that is no request: the fields of an answer, or why there is none."""
Answer = Callable[[Outcome], bytes]
"""Makes the fields of an answer of what became of a write."""
Jobs = Callable[[LoadedStream, Append], tuple[Append, Answer]]
"""Takes from a write to a queue the jobs whose key is there already; what is left may be without records."""


class Writes:
    """Writes as commands."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._records_max = min(RECORDS_MAX, settings.append_records_max)
        self._producer_id_bytes_max = settings.producer_id_bytes_max

    def decode(self, body: bytes) -> Write:
        """Raises BadBody."""
        write: Write = decoded(_decode_write, body)
        return write

    def command(self, stream: LoadedStream, write: Write) -> Append:
        """What the write asks of the topic. Raises BadBody, TooManyRecords."""
        count = len(write.records)
        if not count:
            raise BadBody("records: a write brings at least one")
        if count > self._records_max:
            raise TooManyRecords(self._records_max)
        node = None if write.node is None else label("node", write.node)
        now_ms = self._engine.clock.now_ms()
        as_json = stream.is_json
        payloads: list[bytes] = []
        labels: list[Labels | None] = []
        labelled = False
        for index, record in enumerate(write.records):
            payloads.append(_json(index, record) if as_json else _bytes(index, record))
            one = labels_of(index, record, node, now_ms)
            labels.append(one)
            labelled = labelled or one is not None
        producer = None if write.producer is None else self._producer(write.producer)
        return Append(payloads, stream.media, producer, labels=labels if labelled else None)

    def in_slices(self, body: bytes) -> Iterator[Write | None]:
        """A long body, read with others' turns in between: None at each, and the write at last. Raises BadBody."""
        found = _RECORDS_FIRST.match(body)
        end = body.rfind(b"]")
        write = None
        if found is not None and len(body) - end <= _TAIL_BYTES_MAX and end > found.end():
            try:
                write = _decode_write(b'{"records":[]' + body[end + 1 :])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                pass  # it is wrong, or has a bracket behind the records: what it is shows when all of it is read
        if write is None or found is None:
            yield None
            yield self.decode(body)
            return
        walk = json_slices.elements(body[found.end() : end + 1], 0, self._records_max)
        while True:
            try:
                next(walk)
            except StopIteration as done:
                texts: list[bytes] = done.value
                break
            yield None
        size = 0
        for index, text in enumerate(texts):
            try:
                write.records.append(_decode_record(text))
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadBody(f"records[{index}]: {json_mode.fault(error, text)[:300]}") from None
            size += len(text)
            if size > json_slices.PIECE_BYTES:
                size = 0
                yield None
        yield write

    def _producer(self, given: _Producer) -> Producer:
        if not given.id:
            raise BadBody("producer.id: it is empty")
        if len(given.id.encode()) > self._producer_id_bytes_max:
            raise BadBody(f"producer.id: at most {self._producer_id_bytes_max} bytes")
        for name, value in (("epoch", given.epoch), ("seq", given.seq)):
            if not 0 <= value <= NUMBER_MAX:
                raise BadBody(f"producer.{name}: expected a whole number from 0 to {NUMBER_MAX}")
        return Producer(given.id, given.epoch, given.seq)


class Records:
    def __init__(self, engine: Engine, writes: Writes) -> None:
        self._engine = engine
        self._writes = writes
        self.jobs: Jobs | None = None
        """Who looks at writes to queues first."""
        self.admit: Callable[[LoadedStream], None] = lambda stream: None
        """Raises the failure that a write is refused with under pressure."""

    def register(self, routes: TopicRoutes) -> None:
        routes.verb("records", "POST", self._post, Action.APPEND)

    def _post(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        known = exchange.request.known
        if known is not None:
            known.memo = Repeated(partial(self._again, key))
        self._write(exchange, key, timing)

    def _again(self, key: str, exchange: Exchange) -> None:
        self._write(exchange, key, Timing())

    def _write(self, exchange: Exchange, key: str, timing: Timing) -> None:
        body = exchange.request.body
        if len(body) > json_mode.SHORT_BYTES_MAX and json_mode.is_long(body):
            exchange.in_slices(self._write_long(exchange, key, timing))
            return
        self._judge(exchange, key, self._writes.decode(body), timing)

    def _write_long(self, exchange: Exchange, key: str, timing: Timing) -> Work:
        for write in self._writes.in_slices(exchange.request.body):
            if write is None:
                yield None
            else:
                self._judge(exchange, key, write, timing)

    def _judge(self, exchange: Exchange, key: str, write: Write, timing: Timing) -> None:
        # The topic's creation may still be under way: then the write is answered after it.
        stream = self._engine.look(key)
        if stream is None:
            once_published(self._engine, exchange, key, _not_found)  # its deletion may be under way
        else:
            self._submit(exchange, stream, write, timing)

    def _submit(self, exchange: Exchange, stream: LoadedStream, write: Write, timing: Timing) -> None:
        command = self._admitted(stream, write)
        timing.waits_for_log = stream.durability <= Durability.DISK
        command, answer = self._parted(stream, command)
        exchange.then = partial(self._written, answer, timing)
        timing.judged()
        if command.records or command.producer is not None:
            self._engine.submit(stream.key, command, exchange)
        else:
            self._engine.group_of(stream).group.after_pending(exchange)

    def _parted(self, stream: LoadedStream, command: Append) -> tuple[Append, Answer]:
        if self.jobs is not None and stream.topic is not None and stream.topic.queue is not None:
            return self.jobs(stream, command)
        return command, partial(written, stream)

    def _admitted(self, stream: LoadedStream, write: Write) -> Append:
        """Raises BadBody, TooManyRecords, and what `admit` raises."""
        command = self._writes.command(stream, write)
        if not write.disable_backpressure:
            self.admit(stream)
        if stream.topic is not None and stream.topic.reject_when_full:
            self._engine.apply_retention(stream)  # what is too old takes no room
        return command

    def write(self, group: Group, key: str, body: bytes, told: Told) -> None:
        """A write to a topic of a group of this process that is no request, with the body that one would have.

        Raises Failure when it is refused at once; `told` is not called then.
        """
        write = self._writes.decode(body)
        stream = group.loaded.find(key)
        if stream is None:
            raise StreamNotFound
        command, answer = self._parted(stream, self._admitted(stream, write))
        if command.records or command.producer is not None:
            group.submit(key, command, _Telling(answer, told))
        else:
            group.after_pending(_Telling(answer, told))

    def _written(self, answer: Answer, timing: Timing, exchange: Exchange, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            raise outcome
        reply(exchange, 200, answer(outcome), timing)


class _Telling:
    """A Waiter for a write that is no request."""

    __slots__ = ("_answer", "_told")

    def __init__(self, answer: Answer, told: Told) -> None:
        self._answer = answer
        self._told = told

    def resolve(self, outcome: Outcome) -> None:
        self._told(outcome if isinstance(outcome, Failure) else self._answer(outcome))


def _not_found() -> None:
    raise StreamNotFound


def written(stream: LoadedStream, outcome: Outcome) -> bytes:
    """The fields that tell of a write: also for a message over a WebSocket."""
    if type(outcome) is Appended:
        first, count = outcome.seq + 1, len(outcome.records)
        seqs = b"%d" % first if count == 1 else ",".join(map(str, range(first, first + count))).encode()
        return b'"seqs":[%b],"head_seq":%d,"duplicates":[]' % (seqs, first + count - 1)
    return b'"seqs":[],"head_seq":%d,"duplicates":[],"duplicate":true' % shown_count(stream)


# ---- one record ----------------------------------------------------------------------------------------------------


def _json(index: int, record: _Record) -> bytes:
    data = bytes(record.data)
    if not data:
        what = "data_base64 is for topics that hold no JSON; give data" if record.data_base64 is not None else "missing"
        raise BadBody(f"records[{index}].data: {what}")
    if record.data_base64 is not None:
        raise BadBody(f"records[{index}].data_base64: the topic holds JSON, and data is given")
    return data


def _bytes(index: int, record: _Record) -> bytes:
    data = bytes(record.data)
    if record.data_base64 is not None:
        if data:
            raise BadBody(f"records[{index}].data_base64: data is given as well")
        try:
            payload = a2b_base64(record.data_base64.encode(), strict_mode=True)
        except (Base64Error, UnicodeEncodeError):
            raise BadBody(f"records[{index}].data_base64: not valid base64") from None
    elif not data:
        raise BadBody(f"records[{index}].data: missing")
    elif data[:1] != b'"':
        raise BadBody(f"records[{index}].data: the topic holds no JSON; expected a string, or data_base64")
    else:
        payload = _decode_text(data).encode()
    if not payload:
        raise BadBody(f"records[{index}].data: a record is not empty")
    return payload


def labels_of(index: int, record: Labelled, node: str | None, now_ms: int) -> Labels | None:
    """`node`: of a record that names none. Raises BadBody."""
    tag, key, deliver_at = record.tag, record.key, record.deliver_at
    if record.node is not None:
        node = label(f"records[{index}].node", record.node)
    meta = bytes(record.meta) or None
    if meta == b"null":
        meta = None
    if tag is None and node is None and meta is None and key is None and deliver_at is None and record.delay_ms is None:
        return None
    if tag is not None:
        label(f"records[{index}].tag", tag)
    if key is not None:
        label(f"records[{index}].key", key)
    if meta is not None:
        if meta[:1] != b"{":
            raise BadBody(f"records[{index}].meta: expected an object")
        if len(meta) > META_BYTES_MAX:
            raise BadBody(f"records[{index}].meta: at most {META_BYTES_MAX} bytes")
    if record.delay_ms is not None:
        if deliver_at is not None:
            raise BadBody(f"records[{index}].delay_ms: deliver_at is given as well")
        if not 0 <= record.delay_ms <= DELAY_MS_MAX:
            raise BadBody(f"records[{index}].delay_ms: expected a whole number from 0 to {DELAY_MS_MAX}")
        deliver_at = now_ms + record.delay_ms
    elif deliver_at is not None and not 0 <= deliver_at <= MOMENT_MS_MAX:
        raise BadBody(f"records[{index}].deliver_at: expected milliseconds since 1970, up to {MOMENT_MS_MAX}")
    return Labels(tag, node, meta, key, deliver_at)


def label(name: str, value: str) -> str:
    if not value:
        raise BadBody(f"{name}: it is empty; leave it out instead")
    if len(value) > LABEL_BYTES_MAX or len(value.encode()) > LABEL_BYTES_MAX:
        raise BadBody(f"{name}: at most {LABEL_BYTES_MAX} bytes")
    if _CONTROL.search(value) is not None:
        raise BadBody(f"{name}: it holds a control character")
    return value
