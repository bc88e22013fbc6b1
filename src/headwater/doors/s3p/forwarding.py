"""S3P commands for groups of another member: the same command to its owner, its reply back.

Owns the bytes of a command that is sent on, where a reply ends, and one connection to an owner on behalf of one client
connection. Never looks into a reply. `routed` says what is forwarded and keeps the order of replies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from headwater.cluster.membership import S3P, Membership
from headwater.doors.s3p.commands import Append, Command, Create, Delete, Read, Trim
from headwater.engine.placements import Placement

LINE_BYTES_MAX = 1024
COPIED_BYTES_MAX = 64 * 1024
"""A record up to this size is copied into one piece with its neighbours; a longer one is written as it is."""


class Waiting(Protocol):
    """Who waits for the reply to a forwarded command."""

    def piece(self, data: bytes, is_last: bool) -> None:
        """The next bytes of the reply."""
        ...

    def lost(self, member: int, sent: bool) -> None:
        """The owner went away before the reply was complete; `sent`: it may have had the command."""
        ...


def encode(command: Command, placement: Placement | None = None) -> list[bytes]:
    """A command as a client would send it, in pieces; with a placement it is for another member alone."""
    name = command.name
    values = [] if placement is None else [b"PLACED", b"%d/%d" % (placement.group, placement.version)]
    if isinstance(command, Append):
        records, count = command.records, len(command.records)
        if command.ms is not None:
            values += [b"ID", b"%d" % command.ms]
        options = _array(values) if values else b"*0\r\n"
        head = b"*4\r\n$6\r\nAPPEND\r\n$%d\r\n%b\r\n%b*%d\r\n" % (len(name), name, options, count)
        if count == 1 and len(records[0]) <= COPIED_BYTES_MAX:
            return [b"%b$%d\r\n%b\r\n" % (head, len(records[0]), records[0])]
        pieces = [head]
        for record in records:
            if len(record) <= COPIED_BYTES_MAX:
                pieces.append(_bulk(record))
            else:
                pieces += (b"$%d\r\n" % len(record), record, b"\r\n")
        return pieces
    if isinstance(command, Create):
        return [b"*3\r\n$6\r\nCREATE\r\n%b%b" % (_bulk(name), _array(values))]
    if isinstance(command, Delete):
        return [b"*3\r\n$6\r\nDELETE\r\n%b%b" % (_bulk(name), _array(values))]
    if isinstance(command, Trim):
        values += [b"MIN_ID", b"%d-%d" % (command.min_ms, command.min_n)]
        return [b"*3\r\n$4\r\nTRIM\r\n%b%b" % (_bulk(name), _array(values))]
    if isinstance(command, Read):
        values += [b"COUNT", b"%d" % command.count, b"MIN_ID", b"%d-%d" % (command.min_ms, command.min_n)]
        if command.block_ms:
            values += [b"BLOCK", b"%d" % command.block_ms]
        return [b"*3\r\n$4\r\nREAD\r\n%b%b" % (_bulk(name), _array(values))]
    raise RuntimeError(f"{command!r} is no command")


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _array(values: list[bytes]) -> bytes:
    return b"*%d\r\n%b" % (len(values), b"".join(map(_bulk, values)))


class ReplyFraming:
    """Where replies end, one after the other. Sans-IO."""

    __slots__ = ("_left", "_line", "_values", "complete")

    def __init__(self) -> None:
        self._values = 1
        """Values that are still to come."""
        self._left = 0
        """Bytes of the present bulk string that are still to come, its line break included."""
        self._line = b""
        self.complete = False
        """The last bytes taken ended a reply."""

    def take(self, data: bytes, at: int = 0) -> int:
        """Up to where the bytes from `at` on belong to the present reply. Raises ValueError for what is no reply."""
        if self.complete:
            self.complete = False
            self._values = 1
        size = len(data)
        while at < size:
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
                break
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
    """One connection to an owner. How much is under way on it the client connection's own limits bound."""

    def __init__(self, member: int, members: Membership) -> None:
        self._loop = asyncio.get_running_loop()
        self._member = member
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[Waiting] = deque()
        self._framing = ReplyFraming()
        self.over = False
        """It takes no more commands."""
        self._ending = False
        self._closed = False
        self._connecting = self._loop.create_task(self._connect(members))

    def send(self, command: Command, placement: Placement | None, waiter: Waiting) -> None:
        """Sends a command; those of one turn of the event loop leave together."""
        self._waiting.append(waiter)
        if not self._unsent and self._transport is not None:
            self._loop.call_soon(self._flush)
        self._unsent += encode(command, placement)

    def end(self) -> None:
        """Sends no more: the owner replies to what it has, and no READ waits there for records."""
        self.over = self._ending = True
        self._flush()

    def close(self) -> None:
        """The client is gone: nobody waits for replies any more."""
        self.over = self._closed = True
        self._waiting.clear()
        self._connecting.cancel()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        """Takes no more of the reply for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _flush(self) -> None:
        transport, unsent = self._transport, self._unsent
        if transport is None or transport.is_closing():
            return
        if unsent:
            self._unsent = []
            if max(map(len, unsent)) > COPIED_BYTES_MAX:
                transport.writelines(unsent)
            else:
                transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        if self._ending:
            self._ending = False
            if transport.can_write_eof():  # TLS has no half that could be ended: replies come as they would have
                transport.write_eof()

    # ---- asyncio calls these ------------------------------------------------------------------------------------

    async def _connect(self, members: Membership) -> None:
        try:
            await members.connect(self._member, S3P, self)
        except OSError:
            self._lose(sent=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class
        if self._closed:
            self.close()
        else:
            self._flush()

    def data_received(self, data: bytes) -> None:
        waiting, framing = self._waiting, self._framing
        at, size = 0, len(data)
        while at < size and waiting:
            try:
                end = framing.take(data, at)
            except ValueError:
                self._lose(sent=True)
                self.close()
                return
            waiter = waiting.popleft() if framing.complete else waiting[0]
            waiter.piece(data if end - at == size else data[at:end], framing.complete)
            at = end

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(sent=True)

    def _lose(self, sent: bool) -> None:
        self.over = True
        waiting = list(self._waiting)
        self._waiting.clear()
        for waiter in waiting:
            waiter.lost(self._member, sent)
