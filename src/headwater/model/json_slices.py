"""A long JSON array into its elements, in slices: each step parses a bounded piece, so that others have a turn between.

Owns the walk over the text and the count of elements. Never decodes a value: their bytes pass through unchanged.

The parser (msgspec) has no way to stop and go on, so it is only ever given pieces:

    one value      parsed out of a window of the text; the parser's complaint about what follows says where it ends
    many values    the text up to a comma, closed with a bracket: if that parses, the comma stands at this level
    a longer one   an array or object that does not end within the window is entered, and its items are walked instead

Each piece is at most PIECE_BYTES long. A string or number longer than that is parsed in one go, at 3 ms a MiB or less.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator

import msgspec

from headwater.errors import BadBody, TooManyRecords
from headwater.model.json_faults import fault

PIECE_BYTES = 128 * 1024
"""What is parsed in one step: 0.4 ms at the slowest (2.7 ms a MiB for [1,1,…], msgspec 0.22)."""
STEP_BYTES = 512
"""What a step costs beside its bytes, in bytes: 2 µs for a value that is parsed alone."""
TOGETHER_MAX = 2_000
"""Elements taken in one step, about: 0.25 µs each."""
INNER_ALONE_MAX = 20_000
"""Items inside elements that are parsed one by one; then elements longer than a piece are parsed in one go (2.7 ms a
MiB). Text whose commas are never where they are looked for would otherwise cost a hundred times as much as other."""

_values = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value = msgspec.json.Decoder(msgspec.Raw).decode
_SPACE = re.compile(rb"[ \t\r\n]*")
_BLANK = b" \t\r\n"
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_BYTE = re.compile(r"\(byte (\d+)\)")
_CLOSERS = {b"[": b"]", b"{": b"}"}
_OPENERS = {b"]": b"[", b"}": b"{"}
_PATTERN_BYTES_MAX = 16
_REACH_BYTES_MIN = 1024

Slices = Generator[None, None, list[bytes]]
"""A walk: one slice is done at each step, and the elements are its result."""


def elements(body: bytes, at: int, count_max: int) -> Slices:
    """The elements of the array that begins at `at` and ends `body`.

    Raises TooManyRecords as soon as more than `count_max` were found, BadBody when it is not JSON.
    """
    yield from check_utf8(body)
    yield from (walk := _Walk(body, at, count_max)).run()
    return walk.found


def check_utf8(body: bytes) -> Generator[None, None, None]:
    """Raises BadBody when `body` is not UTF-8. The parser lets that through inside strings; a reader could not."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    whole = True  # no character is cut in two
    try:
        for at in range(0, len(body), PIECE_BYTES):
            piece = body[at : at + PIECE_BYTES]
            if not whole or not piece.isascii():
                decode(piece, at + PIECE_BYTES >= len(body))
                whole = False
            yield
    except UnicodeDecodeError:
        raise BadBody("the JSON is not valid UTF-8") from None


class _Walk:
    def __init__(self, body: bytes, at: int, count_max: int) -> None:
        self.found: list[bytes] = []
        self._body = body
        self._view = memoryview(body)
        self._at = self._skip(at + 1)
        self._count_max = count_max
        self._closers = [b"]"]
        """Of the arrays and objects that are entered, the outermost first."""
        self._entered_at = 0
        """Where the element begins that was entered."""
        self._between = b""
        """The bytes around the comma between the last two items: where to look for another one."""
        self._reach = PIECE_BYTES
        """How far to look for the last of many items: less after a wrong guess, more after a right one."""
        self._inner_alone_count = 0
        """Items inside an element that were parsed one by one."""
        self._item_bytes = PIECE_BYTES
        """Length of the items last seen, about."""

    def run(self) -> Generator[None, None, None]:
        if self._peek() == b"]":
            self._at += 1
            self._closers.pop()
        done_bytes = 0
        while self._closers:
            start = self._at
            if self._take_many() or self._take_one():
                self._leave()
            if len(self.found) > self._count_max:
                raise TooManyRecords(self._count_max)
            done_bytes += self._at - start + STEP_BYTES
            if done_bytes >= PIECE_BYTES:
                done_bytes = 0
                yield
        if self._skip(self._at) != len(self._body):
            raise BadBody(f"not valid JSON (JSON is malformed: trailing characters (byte {self._at}))")

    def _take_many(self) -> bool:
        """Takes the items up to a comma within reach, if the guess which comma stands at this level is right."""
        if not self._between:
            return False
        outermost = len(self._closers) == 1
        while self._reach >= _REACH_BYTES_MIN:
            reach = min(self._reach, self._item_bytes * TOGETHER_MAX) if outermost else self._reach
            window = self._body[self._at : self._at + reach]
            place = window.rfind(self._between)
            comma = window.rfind(b",") if place < 0 else window.index(b",", place)
            if comma > 0 and self._take_until(comma, window[:comma], outermost):
                self._reach = min(self._reach * 2, PIECE_BYTES)
                return True
            self._reach //= 4
        # Not found: one item is taken alone, and the next look reaches over a few of its length.
        self._reach = min(PIECE_BYTES, max(4 * self._item_bytes, _REACH_BYTES_MIN))
        return False

    def _take_until(self, comma: int, items: bytes, outermost: bool) -> bool:
        closer = self._closers[-1]
        text = b"%b%b%b" % (_OPENERS[closer], items, closer)
        try:
            if outermost:
                taken = _values(text)
                self.found += map(bytes, taken)
                self._item_bytes = comma // len(taken) + 1
            else:
                _value(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        self._at += comma
        return True

    def _take_one(self) -> bool:
        """Takes one item. False when it is too long for that: then it is entered."""
        start = self._at
        if self._closers[-1] == b"}":
            if self._peek() != b'"':
                raise self._bad("expected a name")
            self._at = self._skip(self._end_of_value())
            if self._peek() != b":":
                raise self._bad("expected ':'")
            self._at = self._skip(self._at + 1)
        first = self._at
        end = self._end_of_value()
        if end < 0:
            if len(self._closers) == 1:
                self._entered_at = first
            closer = _CLOSERS[self._peek()]
            self._closers.append(closer)
            self._between = b""
            self._at = self._skip(first + 1)
            return self._peek() == closer
        if len(self._closers) == 1:
            self.found.append(self._body[first:end])
        else:
            self._inner_alone_count += 1
        self._item_bytes = end - start + 1
        self._at = end
        return True

    def _leave(self) -> None:
        """Goes after the comma after an item, or after the brackets that end here."""
        last = self._at
        while self._closers:
            self._at = self._skip(self._at)
            found = self._peek()
            if found == b",":
                self._at = self._skip(self._at + 1)
                around = self._body[max(last - 1, 0) : self._at + 1]
                self._between = around if len(around) <= _PATTERN_BYTES_MAX else b","
                return
            if found != self._closers.pop():
                raise self._bad("expected ',' or an end")
            self._at += 1
            last = self._at
            if len(self._closers) == 1:
                self.found.append(self._body[self._entered_at : self._at])

    def _end_of_value(self) -> int:
        """Where the value that begins here ends; -1 when it is an array or object that is longer than a piece."""
        start, size = self._at, len(self._body)
        reach = PIECE_BYTES
        while True:
            stop = min(start + reach, size)
            try:
                _value(self._view[start:stop])
                cut = True  # a number may go on after the window
            except RecursionError as error:
                raise BadBody(f"not valid JSON ({fault(error, b'')})") from None
            except msgspec.DecodeError as error:
                complaint = str(error)
                trailing = _TRAILING.search(complaint)
                if trailing is not None:
                    end = start + int(trailing[1]) - 1
                    if self._body[end - 1] in _BLANK:
                        end = start + len(self._body[start:end].rstrip(_BLANK))
                    return end
                place = _BYTE.search(complaint)
                cut = place is None or int(place[1]) >= stop - start
                if not cut or stop == size:
                    told = fault(error, self._body[start : start + PIECE_BYTES])
                    raise BadBody(f"not valid JSON ({_moved(told, start)})") from None
            if stop == size:
                raise BadBody("not valid JSON (Input data was truncated)")
            if self._peek() in _CLOSERS and self._inner_alone_count < INNER_ALONE_MAX:
                return -1
            reach *= 8

    def _peek(self) -> bytes:
        return self._body[self._at : self._at + 1]

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._body, at)
        return at if found is None else found.end()

    def _bad(self, wanted: str) -> BadBody:
        if self._at >= len(self._body):
            return BadBody("not valid JSON (Input data was truncated)")
        return BadBody(f"not valid JSON (JSON is malformed: {wanted} (byte {self._at}))")


def _moved(complaint: str, by: int) -> str:
    """The parser's complaint with the place in the whole text instead of in the piece it was given."""
    return _BYTE.sub(lambda place: f"(byte {int(place[1]) + by})", complaint)
