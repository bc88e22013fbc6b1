"""Owns the grammar of S3P v0.2.0: a client's bytes become commands, or the failure that ends its connection.
Never does I/O, never asks for the time and never looks at a stream."""

import re
from collections.abc import Generator
from enum import Enum
from typing import Final, NoReturn, TypeVar, assert_never

import msgspec

from headwater.doors.s3p import commands
from headwater.doors.s3p.commands import Append, Auth, Command, Create, Delete, Limits, Placed, Read, Trim
from headwater.doors.s3p.replies import Code, Failure, printable

_CRLF: Final = b"\r\n"
_UINT64_MAX: Final = 2**64 - 1

# Bounds of the grammar rather than settings: no request that makes sense comes near them.
_COMMAND_BYTES_MAX: Final = 32
_OPTION_KEY_BYTES_MAX: Final = 64
_OPTION_VALUE_BYTES_MAX: Final = 64  # the longest useful one is an id of two 20-digit numbers
_OPTION_ELEMENTS_MAX: Final = 128  # a repeated key is legal (the last wins), a million of them are an attack

# A length is digits, then CRLF. No sign, no space, and no leading zero, although the non-normative ABNF
# would let one through: a length with two spellings is one that two implementations in a row may read
# differently, and section 15 wants no such doubt. Twenty digits write every 64-bit number; a longer line is
# refused as it comes.
_LENGTH: Final = rb"(?:0|[1-9][0-9]{0,19})"
_BULK_LINE: Final = re.compile(rb"\$(%b)\r\n" % _LENGTH)
_ARRAY_LINE: Final = re.compile(rb"\*(%b)\r\n" % _LENGTH)
# What may still become such a line: it has to reach the end of the input.
_BULK_LINE_BEGUN: Final = re.compile(rb"(?:\$(?:%b\r?)?)?\Z" % _LENGTH)
_ARRAY_LINE_BEGUN: Final = re.compile(rb"(?:\*(?:%b\r?)?)?\Z" % _LENGTH)

# Option values frame nothing, so leading zeros do no harm there. A negative number is well formed, so that it
# can be told that it is lower than its limit (section 8.3).
_NUMBER: Final = re.compile(rb"[0-9]+|-0*[1-9][0-9]*")
_ID: Final = re.compile(rb"([0-9]+)-([0-9]+)")
# Group and version of a placement: an option of every command, between members only.
_PLACED: Final = b"PLACED"
_PLACEMENT: Final = re.compile(rb"([0-9]{1,9})/([0-9]{1,19})")

# The quick way for the common APPEND: all of it before its first record, if it has no options and no CR in
# its name. Measured on CPython 3.11, records of 100 bytes, in thousands a second:
#                                  quick   strict
#   APPEND of one record, commands  1,500      170      (820 when each comes in a feed of its own; 1,090 and 690
#                                                        without `_skim_alike`)
#   APPEND of 100, records          6,900      950      (3,800 without `_skim_even`, 1,700 without `_skim_batch`)
#   READ, two options, commands                110      (has no quick way: answering it costs far more)
# Again: python -m tests.doors.s3p.test_wire
_APPEND_HEAD: Final = re.compile(
    rb"\*4\r\n\$6\r\n(?i:APPEND)\r\n\$([1-9][0-9]{0,8})\r\n([^\r]+)\r\n\*0\r\n"
    rb"\*([1-9][0-9]{0,8})\r\n\$([1-9][0-9]{0,8})\r\n"
)
_DIGITS_MAX: Final = 9
_ZERO: Final = ord("0")
_BATCH_RECORDS_MIN: Final = 8  # below it one by one is as quick
_BATCH_FIRST_BYTES_MAX: Final = 1024
_LINE_OF_SIZE: Final = {size: b"$%d" % size for size in range(1, 2 * _BATCH_FIRST_BYTES_MAX)}


class _Verb(Enum):
    CREATE = b"CREATE"
    APPEND = b"APPEND"
    READ = b"READ"
    TRIM = b"TRIM"
    DELETE = b"DELETE"


class _Schema(msgspec.Struct, frozen=True):
    verb: _Verb
    elements: int
    options: frozenset[bytes]


_SCHEMAS: Final = {
    schema.verb.value: schema
    for schema in (
        _Schema(_Verb.CREATE, 3, frozenset()),
        _Schema(_Verb.APPEND, 4, frozenset({b"ID"})),
        _Schema(_Verb.READ, 3, frozenset({b"COUNT", b"BLOCK", b"MIN_ID"})),
        _Schema(_Verb.TRIM, 3, frozenset({b"MIN_ID"})),
        _Schema(_Verb.DELETE, 3, frozenset()),
    )
}


class _Refused(Exception):
    def __init__(self, code: Code, message: str) -> None:
        self.failure = Failure(code, message)


def _refuse(message: str, code: Code = Code.BAD_FORMAT) -> NoReturn:
    raise _Refused(code, message)


_T = TypeVar("_T")
# A reading that may run out of input: it yields how many bytes, from the position reached, it needs to go on.
_Reading = Generator[int, None, _T]
Taken = Command | Auth | Placed | Failure


class Parser:
    """Bytes in, commands out, in order; how the bytes were cut into `feed` calls makes no difference.

    A Failure is the last thing it ever returns, and its code always closes the connection. Between calls it
    holds at most one unfinished command, and of that no more than the limits allow: a declared length is
    judged when its line is complete, before the first of its bytes is awaited. Call `close` when done.
    """

    __slots__ = (
        "_between",
        "_buf",
        "_from_member",
        "_head",
        "_head_name",
        "_held_bytes",
        "_limits",
        "_need_bytes",
        "_out",
        "_pending",
        "_placement",
        "_pos",
        "_reading",
    )

    def __init__(self, limits: Limits, from_member: bool = False) -> None:
        """`from_member`: another member is the client, and may say where the stream of a command is placed."""
        self._limits = limits
        self._from_member = from_member
        self._placement: bytes | None = None
        # The input at hand, the position reached in it and what it has completed: only during a feed.
        self._buf = b""
        self._pos = 0
        self._out: list[Taken] = []
        # The unfinished token. A bytearray: it grows in amortised time, and two dripped bytes cost two bytes.
        self._pending = bytearray()
        self._need_bytes = 0  # with fewer pending bytes than this another look cannot help
        self._held_bytes = 0  # values of the unfinished command
        # The last APPEND of one record, up to the length of that record: the next one mostly begins in the same way.
        self._head = b""
        self._head_name = b""
        self._between = False  # no command is begun
        self._reading: _Reading[None] | None = self._commands()

    @property
    def buffered_bytes(self) -> int:
        """Client bytes held for a command that is not complete yet."""
        return len(self._pending) + self._held_bytes

    def feed(self, data: bytes) -> list[Taken]:
        """Everything that `data` completes. No bytes make it raise; after a Failure or `close` always []."""
        if self._reading is None:
            return []
        if self._pending:
            self._pending += data
            if len(self._pending) < self._need_bytes:
                return []
            data = bytes(self._pending)
            self._pending = bytearray()
        out: list[Taken] = []
        self._buf, self._pos, self._out = data, 0, out
        if self._between:
            self._skim_alike()
            if self._pos == len(data):
                self._buf, self._out = b"", []
                return out
        try:
            self._need_bytes = next(self._reading)
            if self._pos < len(data):
                self._pending += data[self._pos :]
        except _Refused as refused:
            out.append(refused.failure)
            self.close()
        self._buf, self._out = b"", []
        return out

    def close(self) -> None:
        """Lets go of everything held.

        The reading refers back to the parser: unless this is called, an unfinished command outlives its
        connection until the garbage collector comes by.
        """
        self._reading = None
        self._between = False
        self._pending = bytearray()
        self._held_bytes = 0

    def _commands(self) -> _Reading[None]:
        while True:
            self._held_bytes = 0
            # To wait here rather than inside a command lets the next one meet the quick way first.
            while self._pos == len(self._buf):
                self._between = True
                yield 1
            self._between = False
            if (skimmed := self._skim()) is not None:
                name, count = skimmed
                records = yield from self._records(count)
                self._out.append(Append(name, records, None))
            elif self._pos < len(self._buf):
                command = yield from self._command()
                self._out.append(
                    command if isinstance(command, Auth) or self._placement is None else self._placed(command)
                )

    # ---- the quick way: it takes only what is certainly right, and leaves every doubt to the strict way --

    def _skim(self) -> tuple[bytes, int] | None:
        """Takes complete APPENDs of one record.

        Stops before the first record of another well-formed APPEND, returning its name and record count, or
        before anything else, returning None.
        """
        buf, pos, out, limits = self._buf, self._pos, self._out, self._limits
        skimmed = None
        while head := _APPEND_HEAD.match(buf, pos):
            name_bytes, name, count, first_bytes = head.groups()
            if int(name_bytes) != len(name) or len(name) > limits.name_bytes_max:
                break
            start = head.end()
            size = int(first_bytes)
            end = start + size
            if (
                count == b"1"
                and size <= limits.record_bytes_max
                and size <= limits.append_bytes_max
                and buf[end : end + 2] == _CRLF
            ):
                out.append(Append(name, [buf[start:end]], None))
                self._head, self._head_name = buf[pos : head.start(4)], name
                self._pos = end + 2
                self._skim_alike()
                pos = self._pos
                continue
            if int(count) <= limits.records_max:
                pos = head.start(4) - 1
                self._held_bytes = len(name)
                skimmed = (name, int(count))
            break
        self._pos = pos
        return skimmed

    def _skim_alike(self) -> None:
        """Takes complete APPENDs of one record that begin as the last one did, byte for byte."""
        head, name = self._head, self._head_name
        if not head:
            return
        buf, pos, append = self._buf, self._pos, self._out.append
        head_bytes = len(head)
        record_bytes_max = min(self._limits.record_bytes_max, self._limits.append_bytes_max)
        while buf.startswith(head, pos):
            start = pos + head_bytes
            digits_end = buf.find(_CRLF, start, start + _DIGITS_MAX + 2)
            digits = buf[start:digits_end]
            if digits_end < 0 or not digits.isdigit() or digits[0] == _ZERO:
                break
            start = digits_end + 2
            end = start + int(digits)
            if end - start > record_bytes_max or buf[end : end + 2] != _CRLF:
                break
            append(Append(name, [buf[start:end]], None))
            pos = end + 2
        self._pos = pos

    def _skim_records(self, records: list[bytes], count: int, room_bytes: int) -> int:
        """Takes complete records within the limits, up to `count`; returns what is left of `room_bytes`."""
        if count - len(records) >= _BATCH_RECORDS_MIN:
            room_bytes = self._skim_batch(records, count, room_bytes)
        buf, pos, record_bytes_max = self._buf, self._pos, self._limits.record_bytes_max
        while len(records) < count and (line := _BULK_LINE.match(buf, pos)):
            size = int(line[1])
            start = line.end()
            end = start + size
            if not 1 <= size <= record_bytes_max or size > room_bytes or buf[end : end + 2] != _CRLF:
                break
            records.append(buf[start:end])
            room_bytes -= size
            pos = end + 2
        self._pos = pos
        return room_bytes

    def _skim_batch(self, records: list[bytes], count: int, room_bytes: int) -> int:
        """As `_skim_records`, many small ones at once or none.

        The input is cut at every CRLF; then each line has to be the one that announces the value after it. A
        CRLF inside a value breaks that, and then nothing is taken.
        """
        first = _BULK_LINE.match(self._buf, self._pos)
        if first is None or not 1 <= (first_bytes := int(first[1])) <= _BATCH_FIRST_BYTES_MAX:
            return room_bytes
        room_bytes = self._skim_even(records, count, room_bytes, first[0], first_bytes)
        buf, pos, missing = self._buf, self._pos, count - len(records)
        if missing < _BATCH_RECORDS_MIN:
            return room_bytes
        window_bytes = 2 * missing * (first_bytes + 8)
        tokens = buf[pos : pos + window_bytes].split(_CRLF, 2 * missing)
        # The last token is what follows the last CRLF; before it may be a line whose value is not all there.
        del tokens[(len(tokens) - 1) & ~1 :]
        values = tokens[1::2]
        sizes = [*map(len, values)]
        if not sizes or [*map(_LINE_OF_SIZE.get, sizes)] != tokens[::2]:
            return room_bytes
        values_bytes = sum(sizes)
        if values_bytes > room_bytes or max(sizes) > self._limits.record_bytes_max:
            return room_bytes
        records += values
        self._pos = pos + sum(map(len, tokens)) + len(_CRLF) * len(tokens)
        return room_bytes - values_bytes

    def _skim_even(self, records: list[bytes], count: int, room_bytes: int, line: bytes, record_bytes: int) -> int:
        """As `_skim_batch` for records that are all as long as the first, whose length line is `line`.

        Then the lines stand at equal distances, and each of their bytes is one slice over all of them.
        """
        buf, pos, limits = self._buf, self._pos, self._limits
        stride = len(line) + record_bytes + len(_CRLF)
        many = min(count - len(records), (len(buf) - pos) // stride, room_bytes // record_bytes)
        if many < _BATCH_RECORDS_MIN or record_bytes > limits.record_bytes_max:
            return room_bytes
        stop = pos + many * stride
        for offset, byte in (*enumerate(line), (stride - 2, _CRLF[0]), (stride - 1, _CRLF[1])):
            if buf[pos + offset : stop : stride].count(byte) != many:
                return room_bytes
        start = pos + len(line)
        records += [buf[at : at + record_bytes] for at in range(start, stop, stride)]
        self._pos = stop
        return room_bytes - many * record_bytes

    # ---- the strict way: the schema from top to bottom; arrays nest two deep because the code does -------

    def _command(self) -> _Reading[Command | Auth]:
        elements = yield from self._array("command")
        if elements == 0:
            _refuse("malformed command: empty array")
        if elements == 2 and self._limits.auth:
            return (yield from self._auth())
        if elements not in (3, 4):
            _refuse(f"malformed command: no command has {elements} elements")
        spelled = yield from self._bulk(
            "command name", _COMMAND_BYTES_MAX, Code.BAD_FORMAT, "unknown command: name too long"
        )
        schema = _SCHEMAS.get(spelled.upper())
        if schema is None:
            _refuse(f"unknown command {printable(spelled)}")
        if elements != schema.elements:
            _refuse(f"malformed command: {schema.verb.name} has {schema.elements} elements, not {elements}")

        limits = self._limits
        # Section 8 gives ERR_LIMITS to a name outside [1, max], but section 3 gives ERR_BAD_FORMAT to every
        # zero-length bulk string, anywhere, with a MUST: an empty name is the latter.
        too_long = f"stream name length not in range [1, {limits.name_bytes_max}]"
        name = yield from self._bulk("stream name", limits.name_bytes_max, Code.LIMITS, too_long)
        options = yield from self._options(schema.options | {_PLACED} if self._from_member else schema.options)
        self._placement = options.get(_PLACED)

        match schema.verb:
            case _Verb.CREATE:
                return Create(name)
            case _Verb.APPEND:
                ms = _uint64("ID", options[b"ID"]) if b"ID" in options else None
                count = yield from self._array("records")
                if count == 0:
                    _refuse("zero-length records array")
                if count > limits.records_max:
                    maximum = f"maximum {limits.records_max}, s3p_records_max"
                    _refuse(f"too many records in APPEND request ({maximum})", Code.LIMITS)
                records = yield from self._records(count)
                return Append(name, records, ms)
            case _Verb.READ:
                count, block_ms = limits.count_default, 0
                if b"COUNT" in options:
                    count = _ranged("COUNT", options[b"COUNT"], 1, limits.count_max)
                if b"BLOCK" in options:
                    block_ms = _ranged("BLOCK", options[b"BLOCK"], 0, limits.block_ms_max)
                min_ms, min_n = _record_id("MIN_ID", options.get(b"MIN_ID", b"0-0"))
                return Read(name, count, block_ms, min_ms, min_n)
            case _Verb.TRIM:
                if b"MIN_ID" not in options:
                    _refuse("missing option MIN_ID")
                min_ms, min_n = _record_id("MIN_ID", options[b"MIN_ID"])
                return Trim(name, min_ms, min_n)
            case _Verb.DELETE:
                return Delete(name)
            case _:
                assert_never(schema.verb)

    def _auth(self) -> _Reading[Auth]:
        spelled = yield from self._bulk("command name", _COMMAND_BYTES_MAX, Code.BAD_FORMAT, "unknown command")
        if spelled.upper() != b"AUTH":
            _refuse(f"malformed command: {printable(spelled)} has more elements than 2")
        return Auth((yield from self._bulk("token", commands.TOKEN_BYTES_MAX, Code.LIMITS, "the token is too long")))

    def _placed(self, command: Command) -> Placed:
        parts = _PLACEMENT.fullmatch(self._placement or b"")
        self._placement = None
        if parts is None:
            _refuse("malformed placement")
        return Placed(command, int(parts[1]), int(parts[2]))

    def _options(self, known: frozenset[bytes]) -> _Reading[dict[bytes, bytes]]:
        """The last value of each key, not yet interpreted.

        "The last occurrence's value MUST be used": so a value that is overridden has to be framed rightly,
        but it is never looked at, and nonsense in it is no error.
        """
        elements = yield from self._array("options")
        if elements % 2:
            _refuse("malformed options array: odd number of elements")
        if elements > _OPTION_ELEMENTS_MAX:
            _refuse(f"too many options (maximum {_OPTION_ELEMENTS_MAX // 2})", Code.LIMITS)
        options: dict[bytes, bytes] = {}
        for _ in range(elements // 2):
            spelled = yield from self._bulk(
                "option key", _OPTION_KEY_BYTES_MAX, Code.BAD_FORMAT, "unknown option: key too long"
            )
            key = spelled.upper()
            if key not in known:
                _refuse(f"unknown option {printable(spelled)}")
            options[key] = yield from self._bulk(
                "option value", _OPTION_VALUE_BYTES_MAX, Code.BAD_FORMAT, "invalid option value: too long"
            )
        return options

    def _records(self, count: int) -> _Reading[list[bytes]]:
        limits = self._limits
        records: list[bytes] = []
        room_bytes = limits.append_bytes_max
        head_bytes = self._held_bytes
        while True:
            room_bytes = self._skim_records(records, count, room_bytes)
            if len(records) == count:
                return records
            self._held_bytes = head_bytes + limits.append_bytes_max - room_bytes
            if room_bytes < limits.record_bytes_max:
                bytes_max, too_long = room_bytes, "aggregate of records in APPEND command too large"
            else:
                bytes_max, too_long = limits.record_bytes_max, "individual record too large"
            record = yield from self._bulk("record", bytes_max, Code.LIMITS, too_long)
            records.append(record)
            room_bytes -= len(record)

    # ---- tokens ------------------------------------------------------------------------------------------
    # The schema leaves one type at every place, so arrays of mixed types (section 3) are refused here. The
    # command array itself is mixed: that exception is section 8's own.

    def _array(self, noun: str) -> _Reading[int]:
        while (line := _ARRAY_LINE.match(self._buf, self._pos)) is None:
            yield self._bytes_for_line(_ARRAY_LINE_BEGUN, f"{noun} array")
        self._pos = line.end()
        return int(line[1])

    def _bulk(self, noun: str, bytes_max: int, too_long_code: Code, too_long: str) -> _Reading[bytes]:
        while (line := _BULK_LINE.match(self._buf, self._pos)) is None:
            yield self._bytes_for_line(_BULK_LINE_BEGUN, f"{noun} bulk string")
        self._pos = line.end()
        size = int(line[1])
        if size == 0:
            _refuse(f"invalid {noun} bulk string (length < 1)")
        if size > bytes_max:
            _refuse(too_long, too_long_code)
        while True:
            end = self._pos + size
            ending = self._buf[end : end + 2]
            if ending == _CRLF:
                break
            if ending not in (b"", b"\r"):
                _refuse(f"malformed {noun} bulk string: no CRLF after {size} bytes")
            yield size + len(ending) + 1
        value = self._buf[self._pos : end]
        self._pos = end + 2
        self._held_bytes += size
        return value

    def _bytes_for_line(self, begun: re.Pattern[bytes], noun: str) -> int:
        if begun.match(self._buf, self._pos) is None:
            _refuse(f"malformed command: expected {noun}")
        return len(self._buf) - self._pos + 1


def _uint64(key: str, value: bytes) -> int:
    if not value.isdigit() or int(value) > _UINT64_MAX:
        _refuse(f"invalid value for option {key}: {printable(value)} is not an unsigned 64-bit integer")
    return int(value)


def _record_id(key: str, value: bytes) -> tuple[int, int]:
    parts = _ID.fullmatch(value)
    if parts is None:
        _refuse(f"invalid value for option {key}: {printable(value)} is not of the form <ms>-<seq>")
    return _uint64(key, parts[1]), _uint64(key, parts[2])


def _ranged(key: str, value: bytes, least: int, most: int) -> int:
    if _NUMBER.fullmatch(value) is None:
        _refuse(f"invalid value for option {key}: {printable(value)} is not a number")
    number = int(value)
    if not least <= number <= most:
        _refuse(f"{key} not in range [{least}, {most}]", Code.LIMITS)
    return number
