"""The tests of the S3P door, and the few ways they share to write a request down.
Nothing here parses: what a request means is for the tests to say."""

from headwater.doors.s3p.commands import Command, Limits
from headwater.doors.s3p.replies import Failure
from headwater.doors.s3p.wire import Parser

LIMITS = Limits(
    name_bytes_max=64,
    count_default=100,
    count_max=1000,
    block_ms_max=60_000,
    records_max=50,
    record_bytes_max=1_000,
    append_bytes_max=10_000,
)


class StrictParser(Parser):
    """The parser without its quick way."""

    def _skim(self) -> tuple[bytes, int] | None:
        return None

    def _skim_records(self, records: list[bytes], count: int, room_bytes: int) -> int:
        return room_bytes


def request(*elements: bytes | list[bytes]) -> bytes:
    """A command array of bulk strings and of arrays of bulk strings."""
    return b"*%d\r\n" % len(elements) + b"".join(
        bulk(element) if isinstance(element, bytes) else array(element) for element in elements
    )


def array(values: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join(map(bulk, values))


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def id_reply(ms: int, n: int) -> bytes:
    """The reply to an append: the id of its last record."""
    return bulk(b"%d-%d" % (ms, n))


def parsed(data: bytes, limits: Limits = LIMITS) -> list[Command | Failure]:
    return Parser(limits).feed(data)


def refusal(data: bytes, limits: Limits = LIMITS) -> str:
    """The code and message of the only thing that the parser returns for `data`."""
    results = parsed(data, limits)
    if len(results) != 1 or not isinstance(results[0], Failure):
        raise AssertionError(f"expected one failure, not {results}")
    return f"{results[0].code} {results[0].message}"
