"""One stream, two doors: random interleavings through S3P and HTTP equal one model of both.
The model knows records, trims, closing and what each door must answer; ids are learnt once and may never change."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.doors.s3p.names import path_of
from tests.doors.s3p.client import OK, Client, Error, id_of
from tests.support.http import Connection, Response
from tests.support.node import Node

BYTES, JSON = "application/octet-stream", "application/json"
# Beyond any clock, so that a timestamp which is given is known to be the largest.
FUTURE_MS = 4_000_000_000_000
NAMES = (b"plain", b"bucket/deep/name", b"odd\xff/", "grün/ß".encode())

_fresh = itertools.count()


class Op(NamedTuple):
    kind: str
    door: str
    name: int
    number: int


@dataclass
class Stream:
    content_type: str
    closed: bool = False
    records: list[bytes] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    trimmed_count: int = 0
    last_ms: int | None = None
    """None while it is the clock's and so not known."""

    @property
    def earliest(self) -> int:
        return sum(map(len, self.records[: self.trimmed_count]))

    @property
    def tail(self) -> int:
        return sum(map(len, self.records))


class Both:
    """The two doors of a node, and the model of what stands behind them."""

    def __init__(self, node: Node, client: Client, http: Connection) -> None:
        self.client = client
        self.http = http
        self.prefix = b"cross%d-" % next(_fresh)
        self.streams: dict[bytes, Stream | None] = {}

    def run(self, op: Op) -> None:
        name = self.prefix + NAMES[op.name % len(NAMES)]
        getattr(self, op.kind)(op.door, name, op.number)

    def request(self, method: str, name: bytes, query: str = "", **more: object) -> Response:
        return self.http.request(method, f"/v1/stream/{quote(path_of(name))}{query}", **more)  # type: ignore[arg-type]

    def create(self, door: str, name: bytes, number: int) -> None:
        stream = self.streams.get(name)
        content_type = JSON if door == "http" and number % 2 else BYTES
        if door == "s3p":
            reply = self.client.create(name)
            assert reply == OK if stream is None else _code(reply, "STREAM_EXISTS")
        else:
            status = self.request("PUT", name, headers={"Content-Type": content_type}).status
            same = stream is not None and stream.content_type == content_type and not stream.closed
            assert status == (201 if stream is None else 200 if same else 409)
        if stream is None:
            self.streams[name] = Stream(content_type)

    def append(self, door: str, name: bytes, number: int) -> None:
        stream = self.streams.get(name)
        is_json = stream is not None and stream.content_type == JSON
        records = [b'{"n":%d}' % n if is_json or n % 4 else b"\x00[%d" % n for n in range(number % 5, number % 5 + 3)]
        if door == "http":
            self._post(name, stream, records, JSON if is_json else BYTES)
        else:
            ms = (None, 0, FUTURE_MS + number)[number % 3]
            self._append(name, stream, records if number % 7 else [*records, b"\xff"], ms)

    def _post(self, name: bytes, stream: Stream | None, records: list[bytes], content_type: str) -> None:
        if content_type == JSON:
            body, added = b"[" + b",".join(records) + b"]", records
        else:
            body, added = b"".join(records), [b"".join(records)]
        answer = self.request("POST", name, headers={"Content-Type": content_type}, body=body)
        if stream is None:
            assert answer.status == 404
        elif stream.closed:
            assert answer.status == 409 and answer.header("stream-closed") == "true"
        else:
            assert answer.status == 204
            stream.records += added
            stream.ids += [None] * len(added)
            if stream.last_ms is None or stream.last_ms < FUTURE_MS:
                stream.last_ms = None
            assert answer.header("stream-next-offset") == f"{stream.tail:020d}"

    def _append(self, name: bytes, stream: Stream | None, records: list[bytes], ms: int | None) -> None:
        reply = self.client.append(name, *records, ms=ms)
        if stream is None:
            assert _code(reply, "UNKNOWN_STREAM")
        elif stream.closed or (stream.content_type == JSON and records[-1] == b"\xff"):
            assert _code(reply, "CONFLICT")
        elif ms is not None and not self._grows(stream, ms):
            assert _code(reply, "NON_MONOTONIC_ID")
        else:
            assert isinstance(reply, bytes)
            stream.records += records
            stream.ids += [*[None] * (len(records) - 1), reply.decode()]
            stream.last_ms = id_of(reply)[0]
            assert ms is None or stream.last_ms == ms

    def _grows(self, stream: Stream, ms: int) -> bool:
        last_ms = stream.last_ms
        if last_ms is None:
            last_ms = 0 if not stream.records else FUTURE_MS - 1  # the clock's: above 0, below the future
        return ms >= last_ms

    def close(self, door: str, name: bytes, number: int) -> None:
        """Only HTTP can close a stream."""
        stream = self.streams.get(name)
        status = self.request("POST", name, headers={"Stream-Closed": "true"}).status
        assert status == (404 if stream is None else 204)
        if stream is not None:
            stream.closed = True

    def trim(self, door: str, name: bytes, number: int) -> None:
        """Only S3P can trim to an id."""
        stream = self.streams.get(name)
        if stream is None:
            assert _code(self.client.trim(name, "0-0"), "UNKNOWN_STREAM")
            return
        self.check(door, name, number)
        index = number % (len(stream.records) + 1)
        if index < max(1, stream.trimmed_count):
            min_id = "0-0"
        elif index == len(stream.records):
            min_id = "99999999999999-0"
        else:
            min_id = stream.ids[index] or ""
        assert self.client.trim(name, min_id) == OK
        stream.trimmed_count = max(stream.trimmed_count, 0 if min_id == "0-0" else index)

    def delete(self, door: str, name: bytes, number: int) -> None:
        existed = self.streams.pop(name, None) is not None
        if door == "s3p":
            reply = self.client.delete(name)
            assert reply == OK if existed else _code(reply, "UNKNOWN_STREAM")
        else:
            assert self.request("DELETE", name).status == (204 if existed else 404)

    def flush(self, door: str, name: bytes, number: int) -> None:
        """Everything leaves memory for the lake."""
        assert self.http.request("POST", "/__headwater/flush").status == 200

    def check(self, door: str, name: bytes, number: int) -> None:
        stream = self.streams.get(name)
        found = self._read_all(name)
        if stream is None:
            assert _code(found, "UNKNOWN_STREAM")
            assert self.request("GET", name).status == self.request("HEAD", name).status == 404
            return
        self._check_records(stream, found)
        head = self.request("HEAD", name)
        assert head.header("content-type") == stream.content_type
        assert head.header("stream-next-offset") == f"{stream.tail:020d}"
        assert head.header("stream-earliest-offset") == f"{stream.earliest:020d}"
        assert head.header("stream-closed") == ("true" if stream.closed else None)
        self._check_gone(name, stream)
        first = min(len(stream.records), max(stream.trimmed_count, number % (len(stream.records) + 1)))
        offset = sum(map(len, stream.records[:first]))
        body = self.request("GET", name, f"?offset={offset:020d}").body
        if stream.content_type == JSON:
            assert json.loads(body) == [json.loads(record) for record in stream.records[first:]]
        else:
            assert body == b"".join(stream.records[first:])
        if first < len(stream.records):
            from_there = self.client.read(name, min_id=stream.ids[first] or "", count=1)
            assert from_there == [(stream.ids[first], stream.records[first])]

    def _read_all(self, name: bytes) -> list[tuple[str, bytes]] | Error:
        """Page by page: a reply may end where the lake does."""
        found: list[tuple[str, bytes]] = []
        ms, n = 0, -1
        while True:
            page = self.client.read(name, count=10_000, min_id=f"{ms}-{n + 1}")
            if isinstance(page, Error) or not page:
                return page if isinstance(page, Error) else found
            found += page
            ms, n = id_of(page[-1][0])

    def _check_records(self, stream: Stream, found: list[tuple[str, bytes]] | Error) -> None:
        assert not isinstance(found, Error)
        kept = stream.records[stream.trimmed_count :]
        assert [record for _, record in found] == kept
        ids = [record_id for record_id, _ in found]
        assert [id_of(one) for one in ids] == sorted({id_of(one) for one in ids})
        for index, record_id in enumerate(ids, stream.trimmed_count):
            assert stream.ids[index] in (None, record_id)
            stream.ids[index] = record_id

    def _check_gone(self, name: bytes, stream: Stream) -> None:
        if stream.earliest:
            gone = self.request("GET", name, "?offset=-1")
            assert gone.status == 410
            assert gone.header("stream-earliest-offset") == f"{stream.earliest:020d}"
        else:
            assert self.request("GET", name, "?offset=-1").status == 200


def _code(reply: object, code: str) -> bool:
    return isinstance(reply, Error) and reply.code == f"ERR_{code}"


def ops(*more: str) -> st.SearchStrategy[list[Op]]:
    kinds = ["create", *["append"] * 4, "trim", "close", "delete", "check", *more]
    doors = st.sampled_from(["s3p", "http"])
    one = st.builds(Op, st.sampled_from(kinds), doors, st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(0, 40))
    return st.lists(one, max_size=30)


@settings(max_examples=250)
@given(ops())
@example([Op("create", "http", 0, 1), Op("append", "s3p", 0, 7), Op("append", "s3p", 0, 1), Op("trim", "s3p", 0, 1)])
@example([Op("create", "s3p", 0, 0), *[Op("append", door, 0, 1) for door in ("s3p", "http")] * 3, Op("trim", "", 0, 5)])
@example([Op("create", "s3p", 2, 0), Op("append", "http", 2, 1), Op("delete", "http", 2, 0), Op("append", "s3p", 2, 1)])
def test_both_doors_agree_with_one_model(plain_node: Node, history: list[Op]) -> None:
    agree(plain_node, history)


@settings(max_examples=80)
@given(ops("flush", "flush"))
@example(
    [
        Op("create", "s3p", 0, 0),
        *[Op("append", "s3p", 0, 1), Op("flush", "", 0, 0), Op("append", "http", 0, 2)] * 3,
        *[Op("trim", "", 0, 3), Op("flush", "", 0, 0), Op("trim", "", 0, 7)],
    ]
)
def test_both_doors_agree_when_records_settle_in_the_lake(lake_node: Node, history: list[Op]) -> None:
    agree(lake_node, history)


def agree(node: Node, history: list[Op]) -> None:
    with Client.of(node) as client, Connection("127.0.0.1", node.port) as http:
        both = Both(node, client, http)
        for op in history:
            both.run(op)
        for index in range(len(NAMES)):
            for number in (0, 3):
                both.run(Op("check", "", index, number))


def test_a_record_written_over_http_wakes_a_blocked_read(plain_node: Node) -> None:
    with Client.of(plain_node) as reader, Connection("127.0.0.1", plain_node.port) as http:
        reader.create(b"woken")
        reader.send(b"*3\r\n$4\r\nREAD\r\n$5\r\nwoken\r\n*2\r\n$5\r\nBLOCK\r\n$5\r\n60000\r\n")
        http.request("POST", "/v1/stream/woken", {"Content-Type": BYTES}, b"from the other door")
        [(_, record)] = reader.records()
        assert record == b"from the other door"


def test_a_record_appended_over_s3p_ends_a_long_poll(plain_node: Node) -> None:
    with Client.of(plain_node) as writer, Connection("127.0.0.1", plain_node.port) as http:
        writer.create(b"polled")
        writer.append(b"polled", b"a")
        tail = http.request("HEAD", "/v1/stream/polled").header("stream-next-offset")
        target = f"/v1/stream/polled?offset={tail}&live=long-poll"
        http.send(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        writer.append(b"polled", b"b", b"c")
        assert http.read_response().body == b"bc"
