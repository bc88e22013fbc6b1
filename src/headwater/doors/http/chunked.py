"""A chunked body out of bytes, however they are cut: sans-IO.

Owns the syntax of chunks and trailers, and how much of it there may be. Never holds payload.
"""

from __future__ import annotations

import re

from headwater.errors import BadRequest, BodyTooLarge, HeadTooLarge, TooManyHeaders

# Nothing but this: a length with two spellings is one that two implementations in a row may read differently.
_SIZE = re.compile(rb"([0-9A-Fa-f]+)(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_SIZE_LINE_BYTES = 18
"""A line with the size of a chunk and nothing else. What is longer counts as a header does."""
_PART = "trailers and chunk extensions"

_AT_SIZE, _AT_CHUNK_END, _AT_TRAILER = 0, 1, 2


class ChunkedBody:
    """Feed it bytes until it is `done`. After it raised a Failure it takes no more."""

    __slots__ = ("_chunks_room", "_left", "_limits", "_line", "_lines_room", "_step", "_trailers_room", "done")

    def __init__(self, body_bytes_max: int, setting: str, head_bytes_max: int, header_count_max: int) -> None:
        """`setting` is the one that limits the body."""
        self._limits = body_bytes_max, setting, head_bytes_max, header_count_max
        self._chunks_room = body_bytes_max
        """How large the chunks that follow may be, together."""
        self._lines_room = head_bytes_max
        """How long the trailers and extensions that follow may be, together."""
        self._trailers_room = header_count_max
        self._line = b""
        self._left = 0
        """Bytes of the present chunk that have not come yet."""
        self._step = _AT_SIZE
        self.done = False

    def take(self, data: bytes, at: int, payload: list[bytes]) -> int:
        """Takes bytes from `at` on, adds what is payload to `payload`, and returns where it stopped. Raises Failure."""
        end = len(data)
        while at < end and not self.done:
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                payload.append(part)
                if data[at : at + 2] == b"\r\n":
                    # The usual end of a chunk; one that is cut is seen to below.
                    at += 2
                    self._step = _AT_SIZE
                continue
            newline = data.find(b"\n", at) + 1
            line = self._line + data[at : newline or end]
            at = newline or end
            # A line that goes too far is refused before its end has come, as the same fault that it would be then.
            if self._step == _AT_CHUNK_END and line != b"\r" and line != b"\r\n":
                raise BadRequest("a chunk is longer than its size")
            if len(line) > self._lines_room + (0 if self._step == _AT_TRAILER else _SIZE_LINE_BYTES):
                raise HeadTooLarge(self._limits[2], _PART)
            if newline:
                self._line = b""
                self._take_line(line)
            else:
                self._line = line
        return at

    def _take_line(self, line: bytes) -> None:
        if self._step == _AT_SIZE:
            self._take_size(line)
        elif self._step == _AT_CHUNK_END:
            self._step = _AT_SIZE
        elif line == b"\r\n":
            self.done = True
        else:
            # Nothing that a trailer says counts: its request is what its head says it is.
            if _TRAILER.fullmatch(line) is None:
                raise BadRequest("a trailer is a name, a colon and a value")
            self._lines_room -= len(line)
            self._trailers_room -= 1
            if self._trailers_room < 0:
                raise TooManyHeaders(self._limits[3], "trailers")

    def _take_size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise BadRequest("the size of a chunk is hexadecimal digits and stands on a line of its own")
        if len(line) > _SIZE_LINE_BYTES or b";" in line:
            self._lines_room -= len(line)
            if self._lines_room < 0:
                raise HeadTooLarge(self._limits[2], _PART)
        size = int(found[1], 16)
        if size > self._chunks_room:
            raise BodyTooLarge(*self._limits[:2])
        self._chunks_room -= size
        self._left = size
        self._step = _AT_CHUNK_END if size else _AT_TRAILER
