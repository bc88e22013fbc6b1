"""Where a member's HTTP response ends, however its bytes are cut: sans-IO.

Owns the framing of responses. Never changes a byte of them, and never sees a socket. Only for answers of this very
server: it trusts that they are well formed, and says so when they are not.
"""

from __future__ import annotations

HEAD_BYTES_MAX = 64 * 1024

_LENGTH, _CHUNKED, _UNTIL_END = range(3)


class BadAnswer(Exception):
    """The other member sent something that is not a response."""


class ResponseFraming:
    """The framing of one response: `take` bytes until it is `complete`. What it leaves belongs to the next one."""

    __slots__ = ("_chunk_left", "_head", "_head_only", "_kind", "_left", "_line", "complete", "head", "size")

    def __init__(self, head_only: bool) -> None:
        """`head_only`: the answer to a HEAD, which has no body whatever its headers say."""
        self._head_only = head_only
        self._head = b""
        self._kind = _LENGTH
        self._left = 0
        self._chunk_left = -1
        self._line = b""
        self.head: bytes | None = None
        """Status line and headers, once they are whole."""
        self.size: int | None = None
        """Bytes of the body; None while that is not known, or never will be before its end."""
        self.complete = False

    def take(self, data: bytes) -> int:
        """How many of these bytes belong to this response. Raises BadAnswer."""
        at = 0
        if self.head is None:
            held = len(self._head)
            self._head += data
            end = self._head.find(b"\r\n\r\n", max(0, held - 3))
            if end < 0:
                if len(self._head) > HEAD_BYTES_MAX:
                    raise BadAnswer("its head does not end")
                return len(data)
            self.head = self._head[: end + 4]
            at = end + 4 - held
            self._head = b""
            self._begin_body(self.head)
        if self.complete or at == len(data):
            return at
        if self._kind == _LENGTH:
            took = min(self._left, len(data) - at)
            self._left -= took
            self.complete = not self._left
            return at + took
        if self._kind == _CHUNKED:
            return self._take_chunks(data, at)
        return len(data)

    def end(self) -> bool:
        """The connection ended. True when that completes the response."""
        if self.head is not None and self._kind == _UNTIL_END:
            self.complete = True
        return self.complete

    @property
    def status(self) -> int:
        if self.head is None:
            raise BadAnswer("it has no status yet")
        return int(self.head[9:12])

    def _begin_body(self, head: bytes) -> None:
        try:
            status = int(head[9:12])
        except ValueError:
            raise BadAnswer("it does not begin with a status line") from None
        if self._head_only or status in (204, 304) or status < 200:
            self.size = 0
            self.complete = True
            return
        lower = head.lower()
        if b"\r\ntransfer-encoding: chunked\r\n" in lower:
            self._kind = _CHUNKED
            return
        at = lower.find(b"\r\ncontent-length: ")
        if at < 0:
            self._kind = _UNTIL_END
            return
        digits = lower[at + 18 : lower.index(b"\r\n", at + 18)]
        if not digits.isdigit():
            raise BadAnswer("its length is no number")
        self.size = self._left = int(digits)
        self.complete = not self._left

    def _take_chunks(self, data: bytes, at: int) -> int:
        size = len(data)
        while at < size:
            if self._chunk_left > 0:
                took = min(self._chunk_left, size - at)
                self._chunk_left -= took
                at += took
                continue
            newline = data.find(b"\n", at)
            if newline < 0:
                self._line += data[at:]
                if len(self._line) > 1024:
                    raise BadAnswer("a chunk's size does not end")
                return size
            line = (self._line + data[at : newline + 1]).strip()
            self._line = b""
            at = newline + 1
            if self._chunk_left == -2:  # after the last chunk: its trailers, which end in an empty line
                if not line:
                    self.complete = True
                    return at
                continue
            try:
                length = int(line, 16)
            except ValueError:
                raise BadAnswer("a chunk has no size") from None
            self._chunk_left = length + 2 if length else -2
        return at
