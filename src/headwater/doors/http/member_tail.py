"""The tail of another process's groups, as one that serves a client reads it: over the member's own socket.

Owns that connection and the bytes of an append that has not arrived whole. Never buffers for a slow client: it stops to
read until what it holds was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from headwater.cluster.membership import HTTP, Membership
from headwater.errors import MemberUnavailable

OPEN_TIMEOUT_S = 30.0
_OPEN = b"event: open\nid: "
_LAST = b"event: data\nid: "
"""Begins the last event of an append: only that one has an id."""
_COMMENT = b":\n"


class Refused(Exception):
    """The member refused: its answer is the client's."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


def positions_of(token: str) -> dict[int, int] | None:
    """Positions by group, as an event's id tells them; None when it is none."""
    found: dict[int, int] = {}
    for part in token.split(","):
        group, _, position = part.partition(":")
        for number in (group, position):
            if not (number.isascii() and number.isdigit() and len(number) <= 20):
                return None
        if int(group) in found:
            return None
        found[int(group)] = int(position)
    return found


class MemberTail(asyncio.Protocol):
    """Appends of one member's groups, each whole, in the order of its events."""

    def __init__(self, member: int) -> None:
        self._member = member
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[dict[int, int]] = asyncio.get_running_loop().create_future()
        self._head: bytes | None = None
        self._buffer = bytearray()
        self._begin = 0
        """Where the first append begins that was not taken."""
        self._event = 0
        """Where the event begins that was not looked at."""
        self._searched = 0
        self._reading = True
        self._wake: Callable[[], None] | None = None
        self._ended: Callable[[], None] | None = None
        self.over = False

    async def open(self, members: Membership, target: bytes) -> dict[int, int]:
        """Connects and asks; returns the positions that it begins at, by group. Nothing is read until `attach`.

        Raises MemberUnavailable, or Refused.
        """
        try:
            await members.connect(self._member, HTTP, self)
            if self._transport is not None:
                # HTTP/1.0: the answer has no chunks, and ends with the connection.
                self._transport.write(b"GET %b HTTP/1.0\r\nhost: member\r\n\r\n" % target)
            return await asyncio.wait_for(self._opened, OPEN_TIMEOUT_S)
        except (OSError, TimeoutError):
            self.close()
            raise MemberUnavailable(self._member) from None
        except BaseException:
            self.close()
            raise

    def attach(self, wake: Callable[[], None], ended: Callable[[], None]) -> None:
        """`wake` is called when there may be something to take, `ended` when the member is gone."""
        self._wake = wake
        self._ended = ended

    def take(self) -> Iterator[tuple[dict[int, int], bytes, bytes]]:
        """Appends that have arrived: their positions, their text up to the id's line, and their text behind it.

        Stop at any time: what was not taken is offered again.
        """
        buffer = self._buffer
        del buffer[: self._begin]
        self._event -= self._begin
        self._searched -= self._begin
        self._begin = 0
        while True:
            at = self._event
            if buffer.startswith(_COMMENT, at) and at == self._begin:
                self._begin = self._event = at + len(_COMMENT)
                continue
            end = buffer.find(b"\n\n", max(at, self._searched))
            if end < 0:
                self._searched = max(at, len(buffer) - 1)
                return
            begin, self._event = self._begin, end + 2
            if buffer.startswith(_LAST, at):
                id_at = at + len(_LAST)
                id_end = buffer.index(b"\n", id_at)
                self._begin = end + 2
                positions = _trusted(buffer[id_at:id_end].decode())
                yield positions, bytes(buffer[begin : id_at - 4]), bytes(buffer[id_end : end + 2])

    def pause(self) -> None:
        if self._reading and self._transport is not None and not self.over:
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._reading and self._transport is not None and not self.over:
            self._reading = True
            self._transport.resume_reading()

    def close(self) -> None:
        self.over = True
        self._wake = self._ended = None
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio calls these ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._wake is not None:
            self._wake()
        elif not self._opened.done():
            self._take_opening()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        ended, self._wake, self._ended = self._ended, None, None
        if not self._opened.done():
            if self._head is None or self._head[9:12] == b"200":
                self._opened.set_exception(MemberUnavailable(self._member))
            else:
                self._opened.set_exception(_refusal(self._head, bytes(self._buffer)))
        if ended is not None:
            ended()

    # ---- inside -------------------------------------------------------------------------------------------------

    def _take_opening(self) -> None:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._buffer[: end + 4])
            del self._buffer[: end + 4]
        end = self._buffer.find(b"\n\n")
        if end < 0 or self._head[9:12] != b"200":
            return
        opening = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 2]
        self.pause()
        self._opened.set_result(_trusted(opening[len(_OPEN) : opening.index(b"\n", len(_OPEN))].decode()))


def _trusted(token: str) -> dict[int, int]:
    found = positions_of(token)
    if found is None:
        raise RuntimeError(f"another member gave an event the id {token!r}")
    return found


def _refusal(head: bytes, body: bytes) -> Refused:
    headers: list[tuple[str, str]] = []
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        if name.lower() in ("content-type", "cache-control", "retry-after", "headwater-request-id"):
            headers.append((name, value.strip()))
    return Refused(int(head[9:12]), headers, body)
