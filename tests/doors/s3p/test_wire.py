"""The S3P parser and encoders where the spec is silent: chunking, memory, early refusal, the quick way's edges.
Run as a module it prints how fast the parser is; as tests it never looks at a clock."""

import gc
import tracemalloc
import weakref
from collections.abc import Iterator

import msgspec
import pytest

from headwater import errors
from headwater.doors.s3p import replies
from headwater.doors.s3p.commands import Append, Command, Create, Limits, Read
from headwater.doors.s3p.replies import Code, Failure
from headwater.doors.s3p.wire import Parser
from tests.doors.s3p import LIMITS, StrictParser, array, bulk, parsed, refusal, request

WIDE = Limits(
    name_bytes_max=1024,
    count_default=100,
    count_max=1000,
    block_ms_max=60_000,
    records_max=1_000_000,
    record_bytes_max=1 << 20,
    append_bytes_max=8 << 20,
)
APPEND_HEAD = request(b"APPEND", b"s", [])[4:]


def fed(parser: Parser, data: bytes, chunk_bytes: int) -> list[Command | Failure]:
    cuts = range(0, len(data), chunk_bytes)
    return [result for cut in cuts for result in parser.feed(data[cut : cut + chunk_bytes])]


# ---- chunking ---------------------------------------------------------------------------------------------

SESSION = (
    request(b"CREATE", b"s", [])
    + request(b"APPEND", b"s", [], [b"one"])
    + request(b"APPEND", b"s", [], [b"record %d" % i for i in range(20)])
    + request(b"APPEND", b"s", [], [b"with\r\nCRLF" if i == 15 else b"r" for i in range(20)])
    + request(b"APPEND", b"a\rb", [b"ID", b"17"], [b"\r\n", b"\r", b"\n"])
    + request(b"READ", b"s", [b"COUNT", b"5", b"MIN_ID", b"1-2"])
    + request(b"APPEND", b"s", [], [b"two"])
)


@pytest.mark.parametrize(
    "ending", [b"", b"*0\r\n", b"*3\r\n$6\nCREATE", b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$0\r\n"]
)
@pytest.mark.parametrize("kind", [Parser, StrictParser])
def test_any_chunk_size_gives_what_one_feed_gives(kind, ending):
    data = SESSION + ending
    whole = parsed(data)
    assert len(whole) == 7 + bool(ending)
    for chunk_bytes in range(1, 70):
        assert fed(kind(LIMITS), data, chunk_bytes) == whole


def test_any_cut_in_two_gives_what_one_feed_gives():
    whole = parsed(SESSION)
    for cut in range(len(SESSION)):
        parser = Parser(LIMITS)
        assert parser.feed(SESSION[:cut]) + parser.feed(SESSION[cut:]) == whole


def test_command_comes_out_with_its_last_byte_and_not_before():
    data = request(b"APPEND", b"s", [], [b"a", b"b"])
    parser = Parser(LIMITS)
    assert [parser.feed(data[i : i + 1]) for i in range(len(data) - 1)] == [[]] * (len(data) - 1)
    assert parser.feed(data[-1:]) == [Append(b"s", [b"a", b"b"], None)]
    assert parser.buffered_bytes == 0


def test_feeding_nothing_changes_nothing():
    parser = Parser(LIMITS)
    assert parser.feed(b"") == []
    assert parser.feed(b"*3\r\n$6\r\nCRE") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"ATE\r\n$1\r\ns\r\n*0\r\n") == [Create(b"s")]


# ---- the quick way's edges --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 7, 8, 9, 49, 50])
@pytest.mark.parametrize("odd", [b"\r\n", b"\r\n\r\n", b"x\r\n$1\r\ny", b"\r", b"\n", b"r" * 200, b"$1\r\nr"])
def test_record_that_looks_like_framing_is_a_record_wherever_it_stands(count, odd):
    for position in range(count):
        records = [b"r"] * count
        records[position] = odd
        data = request(b"APPEND", b"s", [], records)
        assert parsed(data + data) == [Append(b"s", records, None)] * 2


@pytest.mark.parametrize("length", [5, 7, 600])
@pytest.mark.parametrize("records", [[b"r"], [b"r"] * 20])
def test_name_of_an_append_that_is_not_as_long_as_it_says_is_refused(length, records):
    data = request(b"APPEND", b"orders", [], records).replace(b"$6\r\norders", b"$%d\r\norders" % length)
    assert refusal(data).startswith("ERR_LIMITS " if length > LIMITS.name_bytes_max else "ERR_BAD_FORMAT ")


@pytest.mark.parametrize("name", [b"s\r\n*0\r\n*1\r\n$1\r\n", b"s\r\n*0\r\n*20\r\n$1\r\nr\r\n", b"\r\n", b"\r", b"s\r"])
def test_name_that_looks_like_framing_is_a_name(name):
    data = request(b"APPEND", name, [], [b"r"]) + request(b"APPEND", name, [], [b"r"] * 20)
    assert parsed(data) == [Append(name, [b"r"], None), Append(name, [b"r"] * 20, None)]


def test_record_over_either_limit_is_refused_alone_and_in_a_batch():
    tight = msgspec.structs.replace(LIMITS, append_bytes_max=100)
    over = [b"r" * 101]
    assert refusal(request(b"APPEND", b"s", [], over), tight) == (
        "ERR_LIMITS aggregate of records in APPEND command too large"
    )
    batch = [b"r" * 50] * 20 + [b"r" * (LIMITS.record_bytes_max + 1)]
    assert refusal(request(b"APPEND", b"s", [], batch)) == "ERR_LIMITS individual record too large"


def test_aggregate_limit_is_met_at_the_same_record_by_both_ways():
    records = [b"r" * 300] * 40
    data = request(b"APPEND", b"s", [], records)
    assert parsed(data) == StrictParser(LIMITS).feed(data)
    assert refusal(data) == "ERR_LIMITS aggregate of records in APPEND command too large"


def test_records_much_longer_than_the_first_are_taken_too():
    records = [b"r"] + [b"x" * 500] * 15
    assert parsed(request(b"APPEND", b"s", [], records)) == [Append(b"s", records, None)]


def test_bad_record_deep_in_a_batch_is_refused():
    data = request(b"APPEND", b"s", [], [b"r"] * 20)
    for bad in (b"$0\r\n\r\n", b"$01\r\nr\r\n", b"$1\r\nrr\r\n", b"+r\r\n", b"$1\nr\r\n", b"*0\r\n"):
        cut = data.rindex(b"$1\r\nr\r\n", 0, -30)
        assert refusal(data[:cut] + bad + data[cut:]).startswith("ERR_BAD_FORMAT ")


# ---- refused at once --------------------------------------------------------------------------------------


def bytes_until_refused(data: Iterator[bytes]) -> int:
    """How many bytes, fed one at a time, the parser takes before it refuses."""
    parser = Parser(LIMITS)
    for count, byte in enumerate(data, 1):
        if any(isinstance(result, Failure) for result in parser.feed(byte)):
            return count
    raise AssertionError("never refused")


def each(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (b"P", b"P"),
        (b"*3\n", b"*3\n"),
        (b"*3\r\r", b"*3\r\r"),
        (b"*-1\r\n", b"*-"),
        (b"*03\r\n", b"*03"),
        (b"*3\r\n$+6\r\n", b"*3\r\n$+"),
        (b"*3\r\n$ 6\r\n", b"*3\r\n$ "),
        (b"*3\r\n$6\r\nCREATE\n", b"*3\r\n$6\r\nCREATE\n"),
        (b"*3\r\n$6\r\nCREATE\r$1", b"*3\r\n$6\r\nCREATE\r$"),
        (b"*3\r\n*3\r\n", b"*3\r\n*"),
        (b"*4\r\n" + APPEND_HEAD + b"*1\r\n*1\r\n", b"*4\r\n" + APPEND_HEAD + b"*1\r\n*"),
    ],
)
def test_wrong_byte_is_refused_without_waiting_for_another(data, taken):
    assert bytes_until_refused(each(data)) == len(taken)


@pytest.mark.parametrize("begun", [b"*", b"*3\r\n$", b"*4\r\n" + APPEND_HEAD + b"*1\r\n$"])
def test_length_line_that_never_ends_is_refused_within_32_bytes(begun):
    endless = b"9" * 1000
    assert bytes_until_refused(each(begun + endless)) - begun.rindex(begun[-1:]) <= 32


def test_arrays_nested_a_million_deep_are_refused_at_the_first_that_no_schema_has():
    for opening in (b"*1\r\n", b"*3\r\n", b"*4\r\n"):
        parser = Parser(LIMITS)
        [failure] = parser.feed(opening * 1_000_000)
        assert failure.code is Code.BAD_FORMAT
        assert parser.buffered_bytes == 0
    assert bytes_until_refused(each(b"*3\r\n" * 10)) == len(b"*3\r\n*")


# ---- the end of a parser ----------------------------------------------------------------------------------


def test_after_a_failure_it_returns_nothing_and_holds_nothing():
    parser = Parser(LIMITS)
    [failure] = parser.feed(b"*4\r\n" + APPEND_HEAD + b"*2\r\n" + bulk(b"kept") + b"$0\r\n")
    assert failure.code.closes_connection
    assert parser.buffered_bytes == 0
    assert fed(parser, SESSION, 7) == []
    assert parser.buffered_bytes == 0


def test_closed_parser_returns_nothing_and_is_freed_without_the_garbage_collector():
    class Watched(Parser):
        pass

    parser = Watched(LIMITS)
    parser.feed(b"*4\r\n" + APPEND_HEAD + b"*2\r\n" + bulk(b"kept") + b"$900\r\nbegun")
    assert parser.buffered_bytes > 0
    parser.close()
    assert parser.buffered_bytes == 0
    assert parser.feed(SESSION) == []
    alive = weakref.ref(parser)
    gc.disable()
    try:
        del parser
        assert alive() is None
    finally:
        gc.enable()


# ---- memory and work --------------------------------------------------------------------------------------


def test_buffered_bytes_count_what_an_unfinished_command_holds():
    parser = Parser(LIMITS)
    parser.feed(b"*4\r\n" + APPEND_HEAD + b"*3\r\n" + bulk(b"r" * 400) + bulk(b"r" * 300) + b"$500\r\n" + b"r" * 450)
    assert 1150 <= parser.buffered_bytes <= 1150 + 64
    parser.feed(b"r" * 50 + b"\r\n")
    assert parser.buffered_bytes == 0


def test_record_dripped_two_bytes_at_a_time_costs_about_its_size():
    size = 200_000
    parser = Parser(WIDE)
    parser.feed(b"*4\r\n" + APPEND_HEAD + b"*1\r\n$%d\r\n" % size)
    tracemalloc.start()
    try:
        for _ in range(size // 2):
            parser.feed(b"ab")
        held_bytes, _peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * size
    assert parser.feed(b"\r\n") == [Append(b"s", [b"ab" * (size // 2)], None)]


def test_record_is_not_looked_at_again_while_it_cannot_be_complete():
    parser = Parser(WIDE)
    parser.feed(b"*4\r\n" + APPEND_HEAD + b"*1\r\n$50000\r\n")
    looks = 0
    reading = parser._reading

    def counted():
        nonlocal looks
        for need_bytes in reading:
            looks += 1
            yield need_bytes

    parser._reading = counted()
    for _ in range(50_000):
        parser.feed(b"x")
    assert looks <= 2
    assert parser.feed(b"\r\n") == [Append(b"s", [b"x" * 50_000], None)]


# ---- replies ----------------------------------------------------------------------------------------------


def test_client_bytes_cannot_break_out_of_an_error_line():
    name = b"a\r\n+OK\r\n\x00\xff\x1b[2J"
    reply = replies.error(Code.UNKNOWN_STREAM, f"stream {replies.printable(name)} does not exist")
    assert reply == b"-ERR_UNKNOWN_STREAM stream a??+OK?????[2J does not exist\r\n"
    assert replies.error(Code.CONFLICT, "é\r\n-x") == b"-ERR_CONFLICT ???-x\r\n"


def test_unknown_command_and_option_are_quoted_harmlessly():
    assert refusal(request(b"GET\r\n\xff", b"s", [])) == "ERR_BAD_FORMAT unknown command GET???"
    assert refusal(request(b"CREATE", b"s", [b"A\r\nB", b"1"])) == "ERR_BAD_FORMAT unknown option A??B"


def test_error_line_has_a_greatest_length():
    reply = replies.error(Code.CONFLICT, "x" * 10_000)
    assert len(reply) == 1 + replies.ERROR_CHARS_MAX + 2
    assert reply.endswith(b"xxx...\r\n")
    assert replies.printable(b"y" * 64) == "y" * 64
    assert replies.printable(b"y" * 65) == "y" * 61 + "..."


def test_records_reply_is_flat_and_keeps_payloads_as_they_are():
    reply = replies.records([(5, 0, b"a\r\nb"), (5, 1, b"\x00")])
    assert reply == array([b"5-0", b"a\r\nb", b"5-1", b"\x00"])


def test_every_code_in_the_table_of_errors_is_a_code_of_this_door():
    assert {row.s3p for row in errors.TABLE.values()} <= set(Code)


# ---- values -----------------------------------------------------------------------------------------------


def test_commands_and_limits_are_frozen():
    for value, field in ((Create(b"s"), "name"), (Read(b"s", 1, 0, 0, 0), "count"), (LIMITS, "count_max")):
        with pytest.raises(AttributeError):
            setattr(value, field, 1)


@pytest.mark.parametrize("field", ["name_bytes_max", "count_default", "count_max", "records_max", "append_bytes_max"])
def test_limits_that_leave_no_request_are_refused(field):
    with pytest.raises(ValueError):
        msgspec.structs.replace(LIMITS, **{field: 0})


def test_default_count_above_the_greatest_is_refused():
    with pytest.raises(ValueError):
        msgspec.structs.replace(LIMITS, count_default=LIMITS.count_max + 1)


def print_timings() -> None:
    from timeit import repeat

    record = b"x" * 100
    shapes = (
        ("APPEND of one record, commands", request(b"APPEND", b"orders", [], [record]), 1),
        ("APPEND of 100, records", request(b"APPEND", b"orders", [], [record] * 100), 100),
        ("READ with two options, commands", request(b"READ", b"orders", [b"COUNT", b"10", b"MIN_ID", b"0-0"]), 1),
    )
    for kind in (Parser, StrictParser):
        for title, command, items in shapes:
            commands = 10_000 // items
            for way, commands_per_feed in (("pipelined", 500 // items), ("a feed each", 1)):
                feed, data = kind(WIDE).feed, command * commands_per_feed
                seconds = min(repeat(lambda: feed(data), number=commands // commands_per_feed, repeat=7))  # noqa: B023
                print(f"{kind.__name__:14}{title:34}{way:14}{commands * items / seconds / 1000:8,.0f} k/s")


if __name__ == "__main__":
    print_timings()
