"""Plans for one stream: create, append, read, follow, look, close, delete at `/v1/stream/`.

Owns how values become request headers and bodies, and answers become values. Does no I/O. Following is by long-poll:
each answer says where the next request begins, so a lost connection repeats nothing and leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from headwater.client.connection import Answer
from headwater.client.failures import Conflict, NotFound, not_understood
from headwater.client.plans import Give, Plan, Send, Sent, Walk, produced, sent, stream_path, with_query
from headwater.client.producers import Producer, Stamp
from headwater.client.retries import Retries
from headwater.client.values import Appended, Chunk, StreamHead

JSON = "application/json"
LIVE_WAIT_S = 60.0
"""A server answers a long-poll within a minute, unless its setting `long_poll_timeout_ms` is raised beyond."""
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_MAX = 4 * 1024 * 1024


class StreamPlans:
    """Of one stream. `content_type` is asked of the server when it is needed and not known."""

    def __init__(self, name: str, producer: Producer | None, retries: Retries, content_type: str | None) -> None:
        self.name, self.producer = name, producer
        self._path, self._retries = stream_path(name), retries
        self._content_type = content_type

    def create(
        self,
        content_type: str,
        data: object,
        ttl_s: int | None,
        expires_at: datetime | None,
        retention_age_s: int | None,
        retention_bytes: int | None,
        retention_records: int | None,
        durability: str | None,
        closed: bool,
    ) -> Plan[bool]:
        if expires_at is not None and expires_at.tzinfo is None:
            raise ValueError("expires_at needs a time zone: datetime.now(UTC) + …")
        headers = _present(
            {
                "Content-Type": content_type,
                "Stream-TTL": ttl_s,
                "Stream-Expires-At": None if expires_at is None else _rfc3339(expires_at),
                "Stream-Retention-Age": retention_age_s,
                "Stream-Retention-Bytes": retention_bytes,
                "Stream-Retention-Records": retention_records,
                "Stream-Durability": durability,
                "Stream-Closed": "true" if closed else None,
            }
        )
        body = None if data is None else _body([data], content_type)
        done = yield from sent(Send("PUT", self._path, headers, body), self._retries)
        self._content_type = content_type
        return done.answer.status == 201 or done.repeated

    def append(self, items: Sequence[object], close: bool) -> Plan[Appended]:
        """One request: several items only on a JSON stream."""
        kind = yield from self._kind()
        body = _body(items, kind)

        def request(stamp: Stamp | None) -> Send:
            headers = _present(
                {
                    "Content-Type": kind,
                    "Stream-Closed": "true" if close else None,
                    "Producer-Id": stamp and stamp.id,
                    "Producer-Epoch": stamp and stamp.epoch,
                    "Producer-Seq": None if stamp is None else stamp.seq,
                }
            )
            return Send("POST", self._path, headers, body, fresh=stamp is None)

        try:
            done: Sent = yield from produced(request, self.producer, self._retries)
        except Conflict as why:
            if why.code == "content_type_mismatch":
                self._content_type = None  # Another stream has the name now.
            raise
        # With a producer a new append is 200, one that was there is 204.
        repeated = self.producer is not None and done.answer.status == 204
        return Appended(done.answer.next_offset, repeated, done.answer.closed)

    def append_many(self, items: Iterable[object]) -> Plan[Appended | None]:
        """As few requests as the sizes allow; None when there was no item. A request is taken whole or not at all."""
        kind = yield from self._kind()
        last: Appended | None = None
        batch: list[object] = []
        batch_bytes = written = 0
        try:
            for item in items:
                encoded = _body([item], kind)
                full = len(batch) >= BATCH_RECORDS_MAX or batch_bytes + len(encoded) > BATCH_BYTES_MAX
                if batch and (full or not is_json(kind)):
                    last = yield from self.append(batch, False)
                    written += len(batch)
                    batch, batch_bytes = [], 0
                batch.append(encoded[1:-1] if is_json(kind) else encoded)
                batch_bytes += len(encoded)
            if batch:
                last = yield from self.append(batch, False)
        except Exception as why:
            why.add_note(f"{written} records of the call were appended before")
            raise
        return last

    def close(self) -> Plan[str]:
        """The final offset."""
        done = yield from sent(Send("POST", self._path, {"Stream-Closed": "true"}, b""), self._retries)
        return done.answer.next_offset

    def delete(self) -> Plan[None]:
        try:
            yield from sent(Send("DELETE", self._path), self._retries)
        except NotFound as why:
            if not why.outcome_unknown:
                raise
            # An attempt whose answer was lost has deleted it.

    def head(self) -> Plan[StreamHead]:
        try:
            done = yield from sent(Send("HEAD", self._path), self._retries)
        except NotFound as why:
            if why.code:
                raise
            # An answer to HEAD has no body that could say it.
            raise NotFound("stream_not_found", f"no such stream: {self.name}", status=404) from None
        headers = done.answer.headers
        ttl = headers.get("stream-ttl", "")
        self._content_type = done.answer.content_type
        return StreamHead(
            done.answer.content_type,
            done.answer.next_offset,
            headers.get("stream-earliest-offset", ""),
            done.answer.closed,
            headers.get("stream-durability", ""),
            int(ttl) if ttl.isascii() and ttl.isdecimal() else None,
            _moment(headers.get("stream-expires-at")),
            headers.get("etag", ""),
        )

    def read(self, offset: str) -> Walk[Chunk]:
        """Up to the present end."""
        while True:
            path = with_query(self._path, offset=offset)
            done = yield from sent(Send("GET", path), self._retries)
            chunk = _chunk(done.answer)
            if chunk.data:
                yield Give(chunk)
            if chunk.up_to_date or chunk.closed:
                return
            if chunk.next_offset == offset:
                raise not_understood("it holds nothing and says that there is more")
            offset = chunk.next_offset

    def tail(self, offset: str) -> Walk[Chunk]:
        """Until the stream is closed. `now` means the end at the first request, however often that one is sent."""
        if offset == "now":
            offset = (yield from self.head()).next_offset
        cursor: str | None = None
        while True:
            path = with_query(self._path, offset=offset, live="long-poll", cursor=cursor)
            done = yield from sent(Send("GET", path, wait_s=LIVE_WAIT_S), self._retries)
            chunk = _chunk(done.answer)
            cursor = done.answer.headers.get("stream-cursor", cursor)
            if chunk.data:
                yield Give(chunk)
            if chunk.closed:
                return
            offset = chunk.next_offset

    def _kind(self) -> Plan[str]:
        if self._content_type is None:
            yield from self.head()
        return self._content_type or "application/octet-stream"


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON


def _chunk(answer: Answer) -> Chunk:
    if not answer.next_offset:
        raise not_understood("it has no Stream-Next-Offset")
    data, messages = answer.body, None
    if is_json(answer.content_type) and data:
        try:
            messages = msgspec.json.decode(data, type=list[Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise not_understood("it is not a JSON array of messages") from None
        data = data if messages else b""
    return Chunk(data, messages, answer.next_offset, answer.up_to_date, answer.closed)


def _body(items: Sequence[object], kind: str) -> bytes:
    """Raises TypeError or ValueError for data that the stream cannot hold."""
    if is_json(kind):
        # An array, so that a message which is itself an array stays one message.
        return b"[" + b",".join(map(_message, items)) + b"]"
    (data,) = items
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"a stream of {kind} takes bytes or text, not {type(data).__name__}")


def _message(item: object) -> bytes:
    if not isinstance(item, bytes | bytearray | memoryview):
        return msgspec.json.encode(item)
    text = bytes(item)
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as why:
        raise ValueError(f"the bytes are not one JSON message: {why}") from None
    return text


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise not_understood(f"{text} is no moment") from None


def _present(headers: dict[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in headers.items() if value is not None}
