"""A raw, blocking S3P client for tests, and the node that it talks to.
It sends any bytes and reads replies strictly; it never repairs or retries anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.doors.s3p import request
from tests.support.node import HOST, Node

TIMEOUT_S = 30.0
OK = "OK"
# Of the node that the spec is held against: low enough to be met.
LIMITS = {
    "s3p-name-bytes-max": 32,
    "s3p-count-default": 5,
    "s3p-count-max": 20,
    "s3p-block-ms-max": 20_000,
    "s3p-records-max": 10,
    "s3p-record-bytes-max": 1_000,
    "s3p-append-bytes-max": 3_000,
}


class Ended(Exception):
    """The server closed or reset the connection before the reply was complete."""


class NotS3p(Exception):
    """The server sent something that is no S3P reply."""


@dataclass(frozen=True, slots=True)
class Error:
    code: str
    message: str


Reply = str | bytes | Error | list["bytes"]


@contextmanager
def s3p_node(directory: Path, memory: bool = False, flags: Sequence[str] = ()) -> Iterator[Node]:
    """A ready node with its S3P door open on a port of its own."""
    with Node.started(directory, memory, flags=("--s3p", f"{HOST}:0", *flags)) as node:
        yield node


def s3p_port(node: Node) -> int:
    """Where the node serves S3P, as its log says."""
    for line in node.stderr().splitlines():
        if '"s3p ready"' in line:
            return int(json.loads(line)["address"].rpartition(":")[2])
    raise AssertionError(f"the node does not say where S3P is\n{node.output()}")


class Client:
    """One connection. Usable as a context manager; closing is idempotent."""

    def __init__(
        self,
        port: int,
        timeout_s: float = TIMEOUT_S,
        receive_buffer_bytes: int | None = None,
        source: str | None = None,
    ) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if receive_buffer_bytes is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.settimeout(timeout_s)
            if source is not None:
                self.socket.bind((source, 0))
            self.socket.connect((HOST, port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self.socket.close()
            raise
        self._buffer = bytearray()

    @classmethod
    def of(cls, node: Node) -> Client:
        return cls(s3p_port(node))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(self, *elements: bytes | list[bytes]) -> Reply:
        """One command and its reply."""
        self.send(request(*elements))
        return self.reply()

    def create(self, name: bytes) -> Reply:
        return self.call(b"CREATE", name, [])

    def append(self, name: bytes, *records: bytes, ms: int | None = None) -> Reply:
        return self.call(b"APPEND", name, [] if ms is None else [b"ID", b"%d" % ms], list(records))

    def read(self, name: bytes, **options: int | str) -> list[tuple[str, bytes]] | Error:
        """The records of a READ with their ids, or the error."""
        self.send(read_request(name, **options))
        return self.records()

    def trim(self, name: bytes, min_id: str) -> Reply:
        return self.call(b"TRIM", name, [b"MIN_ID", min_id.encode()])

    def delete(self, name: bytes) -> Reply:
        return self.call(b"DELETE", name, [])

    def records(self) -> list[tuple[str, bytes]] | Error:
        reply = self.reply()
        if isinstance(reply, Error):
            return reply
        if not isinstance(reply, list) or len(reply) % 2:
            raise NotS3p(f"not pairs: {reply!r:.200}")
        return [(record_id.decode("ascii"), record) for record_id, record in zip(reply[::2], reply[1::2], strict=True)]

    def reply(self) -> Reply:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("ascii")
        if kind == b"-":
            code, _, message = rest.decode("ascii").partition(" ")
            return Error(code, message)
        if kind == b"$":
            return self._bulk(rest)
        if kind == b"*":
            return [self._bulk(self._line(b"$")[1:]) for _ in range(_length(rest))]
        raise NotS3p(f"{line[:80]!r}")

    def raw(self, count: int) -> bytes:
        """The next `count` bytes, whatever they are."""
        while len(self._buffer) < count:
            self._fill()
        return self._taken(count)

    def ended(self) -> bool:
        """Whether the server closes without sending anything more. Blocks until one or the other."""
        if self._buffer:
            return False
        try:
            self._fill()
        except Ended:
            return True
        return False

    def _bulk(self, digits: bytes) -> bytes:
        size = _length(digits)
        if not size:
            raise NotS3p("a zero-length bulk string")
        value = self.raw(size + 2)
        if value[size:] != b"\r\n":
            raise NotS3p(f"no CRLF after {size} bytes")
        return value[:size]

    def _line(self, kind: bytes = b"") -> bytes:
        searched = 0
        while (at := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            self._fill()
        line = self._taken(at + 1)
        if not line.endswith(b"\r\n") or not line.startswith(kind) or not line[:-2].isascii():
            raise NotS3p(f"line {line[:80]!r}")
        return line[:-2]

    def _taken(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _fill(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            raise Ended(bytes(self._buffer))
        self._buffer += data


def refused(node: Node, data: bytes) -> Error:
    """The error that ends a connection which sends `data`, seen to end it."""
    with Client.of(node) as client:
        client.send(data)
        reply = client.reply()
        assert isinstance(reply, Error), reply
        assert client.ended(), "the connection stays open"
        return reply


def still_open(client: Client) -> bool:
    return isinstance(client.read(b"no such stream"), Error)


def append_request(name: bytes, *records: bytes) -> bytes:
    return request(b"APPEND", name, [], list(records))


def read_request(name: bytes, **options: int | str) -> bytes:
    pairs = [part for key, value in options.items() for part in (key.upper().encode(), str(value).encode())]
    return request(b"READ", name, pairs)


def id_of(text: str | bytes) -> tuple[int, int]:
    """An id as numbers, so that ids can be compared."""
    ms, _, n = (text if isinstance(text, str) else text.decode("ascii")).partition("-")
    return int(ms), int(n)


def _length(digits: bytes) -> int:
    if not digits.isdigit() or (digits[:1] == b"0" and len(digits) > 1):
        raise NotS3p(f"length {digits!r}")
    return int(digits)
