"""S3P commands for groups of another member: the same command to its owner, its reply back in its turn.

Owns the connections to other members that one client connection needs: one for each, in the order of its commands,
closed with the client's. Never looks into a reply: it only finds where one ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from headwater.doors.s3p.commands import Append, Command, Create, Delete, Read, Trim

LINE_BYTES_MAX = 1024


class Replied(Protocol):
    """Who waits for the reply to a forwarded command."""

    def replied(self, data: bytes) -> None: ...

    def lost(self, sent: bool) -> None:
        """The owner went away; `sent`: it may have had the command."""
        ...


def encode(command: Command) -> bytes:
    """A command as a client would send it."""
    name = _bulk(command.name)
    if isinstance(command, Append):
        options = [b"ID", b"%d" % command.ms] if command.ms is not None else []
        records = b"".join(map(_bulk, command.records))
        return b"*4\r\n$6\r\nAPPEND\r\n%b%b*%d\r\n%b" % (name, _array(options), len(command.records), records)
    if isinstance(command, Create):
        return b"*3\r\n$6\r\nCREATE\r\n%b*0\r\n" % name
    if isinstance(command, Delete):
        return b"*3\r\n$6\r\nDELETE\r\n%b*0\r\n" % name
    if isinstance(command, Trim):
        options = [b"MIN_ID", b"%d-%d" % (command.min_ms, command.min_n)]
        return b"*3\r\n$4\r\nTRIM\r\n%b%b" % (name, _array(options))
    if isinstance(command, Read):
        options = [b"COUNT", b"%d" % command.count, b"MIN_ID", b"%d-%d" % (command.min_ms, command.min_n)]
        if command.block_ms:
            options += [b"BLOCK", b"%d" % command.block_ms]
        return b"*3\r\n$4\r\nREAD\r\n%b%b" % (name, _array(options))
    raise RuntimeError(f"{command!r} is no command")


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _array(values: list[bytes]) -> bytes:
    return b"*%d\r\n%b" % (len(values), b"".join(map(_bulk, values)))


class ReplyFraming:
    """Where one reply ends: `take` bytes until it is `complete`. Sans-IO."""

    __slots__ = ("_left", "_line", "_values", "complete")

    def __init__(self) -> None:
        self._values = 1
        """Values that are still to come."""
        self._left = 0
        """Bytes of the present bulk string that are still to come, its line break included."""
        self._line = b""
        self.complete = False

    def take(self, data: bytes) -> int:
        """How many of these bytes belong to this reply. Raises ValueError for what is no reply."""
        at, size = 0, len(data)
        while at < size and not self.complete:
            if self._left:
                took = min(self._left, size - at)
                self._left -= took
                at += took
            else:
                newline = data.find(b"\n", at)
                if newline < 0:
                    self._line += data[at:]
                    if len(self._line) > LINE_BYTES_MAX:
                        raise ValueError("a line does not end")
                    return size
                line = self._line + data[at : newline + 1]
                self._line = b""
                at = newline + 1
                self._begin(line)
            if not self._left and not self._values:
                self.complete = True
        return at

    def _begin(self, line: bytes) -> None:
        self._values -= 1
        kind = line[:1]
        if kind == b"$":
            self._left = int(line[1:]) + 2
        elif kind == b"*":
            self._values += int(line[1:])
        elif kind not in (b"+", b"-"):
            raise ValueError("no reply begins like this")


class Upstream(asyncio.Protocol):
    """One connection to an owner, on behalf of one client connection."""

    def __init__(self, path: str) -> None:
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[Replied] = deque()
        self._framing = ReplyFraming()
        self._held: list[bytes] = []
        self.over = False
        self._connecting = asyncio.get_running_loop().create_task(self._connect(path))

    def send(self, command: Command, waiter: Replied) -> None:
        self._waiting.append(waiter)
        data = encode(command)
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.over = True
        self._waiting.clear()
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
        except OSError:
            self._lose(sent=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._transport.write(b"".join(unsent))  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        try:
            while data and self._waiting:
                took = self._framing.take(data)
                self._held.append(data[:took])
                data = data[took:]
                if self._framing.complete:
                    self._framing = ReplyFraming()
                    held, self._held = self._held, []
                    self._waiting.popleft().replied(held[0] if len(held) == 1 else b"".join(held))
        except ValueError:
            self._lose(sent=True)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(sent=True)

    def _lose(self, sent: bool) -> None:
        self.over = True
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.lost(sent)
