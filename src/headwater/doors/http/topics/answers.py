"""Answers about topics: JSON, with what the time went to.

Owns the `performance` block and the JSON of records. Never decodes a payload: a JSON topic's records go out as the
bytes that came in.

    "performance":{"queue_ms":0.041,"fsync_ms":0.812,"throttle_wait_ms":0.000,"total_ms":0.880}

`queue_ms` is the time until the request was judged, `fsync_ms` what it waited for the log, `throttle_wait_ms` what it
was held back for because of pressure.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from time import perf_counter

import msgspec

from headwater.doors.http import sse
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.live_reads import SLICE_BYTES, BodyPump
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.read_plan import Data
from headwater.engine.record_reads import TopicRecord

_HEADERS = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nContent-Length: "
encode = msgspec.json.Encoder().encode


class Timing:
    """What one request's time goes to. Seconds of `perf_counter`."""

    __slots__ = ("_judged_s", "_started_s", "throttle_wait_s", "waits_for_log")

    def __init__(self) -> None:
        self._started_s = perf_counter()
        self._judged_s = 0.0
        self.throttle_wait_s = 0.0
        self.waits_for_log = True
        """False when its answer waits for nothing but its turn."""

    def judged(self) -> None:
        """The request is handed to the engine now."""
        self._judged_s = perf_counter()

    def block(self) -> bytes:
        """The `performance` field, of an answer that is given now."""
        now_s = perf_counter()
        judged_s = self._judged_s or now_s
        waited_s = now_s - judged_s if self.waits_for_log else 0.0
        return b'"performance":{"queue_ms":%.3f,"fsync_ms":%.3f,"throttle_wait_ms":%.3f,"total_ms":%.3f}' % (
            (judged_s - self._started_s) * 1000,
            waited_s * 1000,
            self.throttle_wait_s * 1000,
            (now_s - self._started_s) * 1000,
        )


def reply(exchange: Exchange, status: int, fields: bytes, timing: Timing) -> None:
    """Answers with an object of which `fields` is the text, without braces, and which is not large."""
    body = b"{%b,%b}" % (fields, timing.block())
    responder, keep_alive = exchange.responder, exchange.request.keep_alive
    if status == 200 and keep_alive:
        # Nearly always: the same bytes as below, put together at once.
        exchange.reply(b"%b%d\r\n%b\r\n%b" % (_OK, len(body), responder.common, body))
    else:
        exchange.reply(responder.full(status, _HEADERS, body, keep_alive))


def reply_value(exchange: Exchange, status: int, value: object, timing: Timing) -> None:
    """Answers with a value that encodes as an object with at least one field."""
    reply(exchange, status, encode(value)[1:-1], timing)


def reply_parts(exchange: Exchange, parts: list[bytes], timing: Timing) -> None:
    """Answers 200 with an object of which `parts` are the text, without braces; it may be large."""
    parts = [b"{", *parts, b",", timing.block(), b"}"]
    size = sum(map(len, parts))
    head = exchange.responder.head(200, _HEADERS, size, exchange.request.keep_alive)
    if size <= SLICE_BYTES:
        exchange.reply(head + b"".join(parts))
    else:
        BodyPump(exchange, head, _in_slices(parts))


def _in_slices(parts: list[bytes]) -> Iterator[Data]:
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= SLICE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def records(stream: LoadedStream, found: Iterable[TopicRecord]) -> list[bytes]:
    """The text of each record's object."""
    if stream.is_json:
        return [b'{"seq":%d,"ts":%d,"data":%b%b' % (one.seq, one.ms, bytes(one.payload), _labels(one)) for one in found]
    is_text = sse.is_text(stream.media)
    return [b'{"seq":%d,"ts":%d,%b%b' % (one.seq, one.ms, _data(one.payload, is_text), _labels(one)) for one in found]


def texts(stream: LoadedStream, found: Iterable[TopicRecord]) -> list[bytes]:
    """The same without the seq, which other fields may follow."""
    if stream.is_json:
        return [b'"ts":%d,"data":%b%b' % (one.ms, bytes(one.payload), _labels(one)) for one in found]
    is_text = sse.is_text(stream.media)
    return [b'"ts":%d,%b%b' % (one.ms, _data(one.payload, is_text), _labels(one)) for one in found]


def _data(payload: Data, is_text: bool) -> bytes:
    """Bytes that are no JSON: as a string where the topic holds text and they are such, otherwise in base64."""
    if is_text:
        try:
            return b'"data":' + encode(str(payload, "utf-8"))
        except UnicodeDecodeError:
            pass
    return b'"data_base64":"%b"' % b2a_base64(payload, newline=False)


def _labels(one: TopicRecord) -> bytes:
    """What ends a record's object."""
    labels = one.labels
    if labels is None:
        return b"}"
    out = [b""]
    if labels.tag is not None:
        out.append(b'"tag":' + encode(labels.tag))
    if labels.node is not None:
        out.append(b'"node":' + encode(labels.node))
    if labels.meta is not None:
        out.append(b'"meta":' + labels.meta)
    if labels.key is not None:
        out.append(b'"key":' + encode(labels.key))
    if labels.deliver_at_ms is not None:
        out.append(b'"deliver_at":%d' % labels.deliver_at_ms)
    return b",".join(out) + b"}"
