"""Any bytes, in any chunking, beside a slow and obvious model: the S3P parser agrees, never raises, never hoards.
The model reads a whole buffer twice over, keeps no state and knows nothing of the parser's insides."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater.doors.s3p import replies
from headwater.doors.s3p.commands import Append, Command, Create, Delete, Limits, Read, Trim
from headwater.doors.s3p.replies import Code, Failure
from headwater.doors.s3p.wire import Parser
from tests.doors.s3p import StrictParser, array, request

# Small, so that the limits are met often; more records than the parser takes one by one.
LIMITS = Limits(
    name_bytes_max=20,
    count_default=10,
    count_max=100,
    block_ms_max=5000,
    records_max=24,
    record_bytes_max=80,
    append_bytes_max=200,
)
# What the grammar itself lets an unfinished command hold: its options, its own name and the line it is at.
GRAMMAR_BYTES_MAX = 128 * 64 + 32 + 64
UINT64_MAX = 2**64 - 1


# ---- the model --------------------------------------------------------------------------------------------


class Bad(Exception):
    pass


class Unfinished(Exception):
    pass


def line(data: bytes, pos: int) -> tuple[bytes, int, int]:
    """The type, the number and the end of the length line at `pos`."""
    end = data.find(b"\n", pos)
    if end < 0:
        raise Unfinished
    text = data[pos:end]
    digits = text[1:-1].decode("latin-1")
    if text[-1:] != b"\r" or text[:1] not in (b"$", b"*") or not (digits.isascii() and digits.isdigit()):
        raise Bad
    if str(int(digits)) != digits or len(digits) > 20:
        raise Bad
    return text[:1], int(digits), end + 1


def value(data: bytes, pos: int, depth: int) -> tuple[bytes | list, int]:
    kind, number, pos = line(data, pos)
    if kind == b"*":
        if depth == 2 or number > 1000:
            raise Bad
        items = []
        for _ in range(number):
            item, pos = value(data, pos, depth + 1)
            items.append(item)
        return items, pos
    if number < 1 or number > 1000:
        raise Bad
    if len(data) < pos + number + 2:
        raise Unfinished
    if data[pos + number : pos + number + 2] != b"\r\n":
        raise Bad
    return data[pos : pos + number], pos + number + 2


def check(holds: bool) -> None:
    if not holds:
        raise Bad


def number_in(text: bytes, least: int, most: int) -> int:
    check(text.isdigit() and least <= int(text) <= most)
    return int(text)


def id_of(text: bytes) -> tuple[int, int]:
    ms, dash, n = text.partition(b"-")
    check(dash == b"-")
    return number_in(ms, 0, UINT64_MAX), number_in(n, 0, UINT64_MAX)


def meaning(elements: bytes | list) -> Command:
    check(isinstance(elements, list) and len(elements) in (3, 4))
    verb, name, pairs, *rest = elements
    check(isinstance(verb, bytes) and isinstance(name, bytes) and isinstance(pairs, list))
    check(len(name) <= LIMITS.name_bytes_max and len(pairs) % 2 == 0 and len(pairs) <= 128)
    check(all(isinstance(item, bytes) and len(item) <= 64 for item in pairs))
    options = {key.upper(): text for key, text in zip(pairs[::2], pairs[1::2], strict=True)}
    match verb.upper(), rest:
        case b"CREATE", []:
            check(not options)
            return Create(name)
        case b"DELETE", []:
            check(not options)
            return Delete(name)
        case b"READ", []:
            check(options.keys() <= {b"COUNT", b"BLOCK", b"MIN_ID"})
            count = number_in(options.get(b"COUNT", b"10"), 1, LIMITS.count_max)
            block_ms = number_in(options.get(b"BLOCK", b"0"), 0, LIMITS.block_ms_max)
            return Read(name, count, block_ms, *id_of(options.get(b"MIN_ID", b"0-0")))
        case b"TRIM", []:
            check(options.keys() == {b"MIN_ID"})
            return Trim(name, *id_of(options[b"MIN_ID"]))
        case b"APPEND", [list(records)]:
            check(options.keys() <= {b"ID"})
            check(1 <= len(records) <= LIMITS.records_max and all(isinstance(record, bytes) for record in records))
            check(all(len(record) <= LIMITS.record_bytes_max for record in records))
            check(sum(map(len, records)) <= LIMITS.append_bytes_max)
            return Append(name, records, number_in(options[b"ID"], 0, UINT64_MAX) if options else None)
    raise Bad


def modelled(data: bytes) -> tuple[list[Command], type[Exception] | None]:
    """The commands at the front of `data`, and whether what follows them is nothing, unfinished or bad."""
    commands: list[Command] = []
    pos = 0
    try:
        while pos < len(data):
            elements, pos = value(data, pos, 0)
            commands.append(meaning(elements))
    except (Bad, Unfinished) as why:
        return commands, type(why)
    return commands, None


# ---- what clients send ------------------------------------------------------------------------------------

names = st.binary(min_size=1, max_size=21) | st.sampled_from([b"s", b"orders", b"s\r\n*0\r\n*1\r\n$1\r\n"])
payloads = st.binary(min_size=1, max_size=20) | st.sampled_from(
    [b"\r\n", b"a\r\nb", b"$1\r\nx\r\n", b"r" * 8, b"r" * 80, b"r" * 81]
)
numbers = st.integers(0, 120).map(b"%d".__mod__) | st.sampled_from([b"5000", b"5001", b"0", b"007", b"x", b"-1", b"+1"])
ids = st.builds(b"%d-%d".__mod__, st.tuples(st.integers(0, UINT64_MAX), st.integers(0, 9))) | st.sampled_from(
    [b"0-0", b"1"]
)


def in_any_case(word: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([word, word.lower(), word.title()])


def pairs(**values: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    one = st.one_of([st.tuples(in_any_case(key.encode()), value) for key, value in values.items()])
    return st.lists(one, max_size=4).map(lambda chosen: [item for pair in chosen for item in pair])


nothing: st.SearchStrategy[list[bytes]] = st.just([])
records = st.lists(payloads, min_size=1, max_size=4) | st.lists(st.just(b"r") | payloads, min_size=8, max_size=25)
requests = st.one_of(
    st.builds(request, in_any_case(b"CREATE"), names, nothing),
    st.builds(request, in_any_case(b"APPEND"), names, nothing, records),
    st.builds(request, in_any_case(b"APPEND"), names, pairs(ID=numbers), records),
    st.builds(request, in_any_case(b"READ"), names, pairs(COUNT=numbers, BLOCK=numbers, MIN_ID=ids)),
    st.builds(request, in_any_case(b"TRIM"), names, pairs(MIN_ID=ids)),
    st.builds(request, in_any_case(b"DELETE"), names, nothing),
)
sessions = st.lists(requests, max_size=6).map(b"".join)


def alike(name: bytes, payload: bytes, spelled: bytes) -> bytes:
    """An APPEND that begins as its neighbours do; `spelled` stands in front of its record's length."""
    whole = request(b"APPEND", name, [], [payload])
    return whole.replace(b"*1\r\n$", b"*1\r\n$" + spelled, 1)


lengths = st.sampled_from([b""] * 9 + [b"0", b"00", b"+", b" ", b"-", b"9999999999", b"\xb2"])
too_long = st.just(b"x" * (LIMITS.record_bytes_max + 1))
repeats = st.lists(st.builds(alike, st.sampled_from([b"s", b"s", b"t"]), payloads | too_long, lengths), max_size=8).map(
    b"".join
)


@st.composite
def evens(draw: st.DrawFn) -> bytes:
    """An APPEND of many records of one length, perhaps too long or too many, perhaps with a few bytes changed."""
    size, count = draw(st.integers(1, 30) | st.just(LIMITS.record_bytes_max + 1)), draw(st.integers(8, 26))
    data = bytearray(request(b"APPEND", b"s", [], [b"r" * size] * count))
    for _ in range(draw(st.integers(0, 2))):
        # Near the frame of some record: the few bytes in front of it or behind it.
        at = len(data) - draw(st.integers(0, count)) * (len(b"$%d\r\n\r\n" % size) + size) - draw(st.integers(1, 8))
        data[max(0, at)] = draw(st.sampled_from(b"r\r\n$0123456789"))
    return bytes(data)


TOKENS = [
    *(b"*0\r\n", b"*1\r\n", b"*2\r\n", b"*3\r\n", b"*4\r\n", b"$1\r\n", b"$2\r\n", b"$4\r\n", b"$5\r\n", b"$6\r\n"),
    *(b"CREATE\r\n", b"APPEND\r\n", b"READ\r\n", b"TRIM\r\n", b"DELETE\r\n", b"COUNT\r\n", b"MIN_ID\r\n", b"ID\r\n"),
    *(b"$0\r\n", b"$-1\r\n", b"$+5\r\n", b"$ 5\r\n", b"$05\r\n", b"$99999999999\r\n", b"*-1\r\n", b"*99999999999\r\n"),
    *(b"s\r\n", b"12\r\n", b"0-0\r\n", b"*", b"$", b"\r", b"\n", b"\r\n", b"+OK\r\n", b":1\r\n", b"*3\n", b"$1\n"),
]
soups = st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A session with some stretches of bytes replaced, doubled or lost."""
    data = draw(sessions | repeats)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 4)))
        patch = draw(st.binary(max_size=4) | st.sampled_from(TOKENS) | st.just(data[start:end] * 2))
        data = data[:start] + patch + data[end:]
    return data


inputs = st.one_of(sessions, repeats, damaged(), soups, st.binary(max_size=200))


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


cuts = st.lists(st.integers(0, 5000), max_size=12)


# ---- what holds -------------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(inputs, cuts)
@example(b"$99999999999\r\n", [])
@example(b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$99999999999\r\n", [3])
@example(b"*3\r\n$-1\r\n", [])
@example(b"*3\r\n$+5\r\n", [])
@example(b"*3\r\n$ 5\r\n", [])
@example(b"*3\n$6\nCREATE\n$1\ns\n*0\n", [7])
@example(b"*1\r\n" * 1_000_000, [1, 2, 3])
@example(b"*3\r\n" * 1_000_000, [5])
@example(alike(b"s", b"hello", b"") + alike(b"s", b"hello", b"0"), [])
@example(alike(b"s", b"hello", b"") + alike(b"s", b"h" * 81, b""), [])
def test_any_bytes_in_any_chunking_mean_the_same_to_either_way(data, cuts):
    whole = Parser(LIMITS).feed(data)
    for kind in (Parser, StrictParser):
        parser = kind(LIMITS)
        assert [result for chunk in chunks(data, cuts) for result in parser.feed(chunk)] == whole


@settings(max_examples=500)
@given(evens(), cuts, st.sampled_from([LIMITS, replace(LIMITS, append_bytes_max=3000)]))
def test_records_of_one_length_mean_the_same_to_either_way(data, cuts, limits):
    for pieces in ([data], chunks(data, cuts)):
        quick, strict = Parser(limits), StrictParser(limits)
        for piece in pieces:
            assert quick.feed(piece) == strict.feed(piece)


@settings(max_examples=200)
@given(inputs)
def test_one_byte_at_a_time_means_the_same(data):
    parser = Parser(LIMITS)
    dripped = [result for i in range(len(data)) for result in parser.feed(data[i : i + 1])]
    assert dripped == Parser(LIMITS).feed(data)


@settings(max_examples=400)
@given(inputs)
def test_agrees_with_the_model(data):
    expected, end = modelled(data)
    results = Parser(LIMITS).feed(data)
    failures = [result for result in results if isinstance(result, Failure)]
    assert [result for result in results if not isinstance(result, Failure)] == expected
    if end is Bad:
        assert len(failures) == 1
    elif end is None:
        assert failures == []


@settings(max_examples=200)
@given(sessions, cuts)
def test_whole_requests_are_all_answered_and_leave_nothing_held(data, cuts):
    expected, end = modelled(data)
    parser = Parser(LIMITS)
    results = []
    for chunk in chunks(data, cuts):
        results += parser.feed(chunk)
        assert end is Bad or not any(isinstance(result, Failure) for result in results)
    assert results[: len(expected)] == expected
    assert parser.buffered_bytes == 0


@settings(max_examples=300)
@given(inputs, cuts)
def test_a_failure_is_last_and_closes_and_leaves_nothing_held(data, cuts):
    parser = Parser(LIMITS)
    results = [result for chunk in chunks(data, cuts) for result in parser.feed(chunk)]
    assert not any(isinstance(result, Failure) for result in results[:-1])
    if results and isinstance(results[-1], Failure):
        assert results[-1].code in (Code.BAD_FORMAT, Code.LIMITS)
        assert parser.buffered_bytes == 0
        assert parser.feed(request(b"CREATE", b"s", [])) == []


@settings(max_examples=300)
@given(inputs, cuts)
def test_what_is_held_is_bounded_by_the_limits_after_every_chunk(data, cuts):
    parser = Parser(LIMITS)
    for chunk in chunks(data, cuts):
        parser.feed(chunk)
        assert parser.buffered_bytes <= LIMITS.append_bytes_max + LIMITS.name_bytes_max + GRAMMAR_BYTES_MAX


@given(st.integers(1, 64), st.sampled_from(TOKENS))
def test_endless_repetition_of_anything_holds_no_more_than_the_limits(start, token):
    """However a client begins, no token repeated for ever makes the parser grow."""
    begun = request(b"APPEND", b"s", [b"ID", b"1"], [b"r"] * 20)[:start]
    parser = Parser(LIMITS)
    parser.feed(begun)
    for _ in range(50):
        parser.feed(token * 200)
        assert parser.buffered_bytes <= LIMITS.append_bytes_max + LIMITS.name_bytes_max + GRAMMAR_BYTES_MAX


# ---- replies ----------------------------------------------------------------------------------------------


@given(st.sampled_from(Code), st.text())
def test_error_is_one_printable_line_that_begins_with_its_code(code, message):
    reply = replies.error(code, message)
    assert reply.startswith(b"-%b" % code.encode())
    assert reply.endswith(b"\r\n")
    assert all(0x20 <= byte <= 0x7E for byte in reply[:-2])
    assert len(reply) <= 1 + replies.ERROR_CHARS_MAX + 2


@given(st.binary())
def test_failure_messages_need_no_more_cleaning(data):
    for result in Parser(LIMITS).feed(b"*3\r\n$6\r\nCREATE\r\n$1\r\ns\r\n*2\r\n$5\r\n" + data):
        assert isinstance(result, Failure)
        assert replies.error(result.code, result.message) == f"-{result.code} {result.message}\r\n".encode("ascii")


@given(st.lists(st.tuples(st.integers(0, UINT64_MAX), st.integers(0, UINT64_MAX), st.binary(min_size=1))))
def test_records_reply_is_one_array_of_ids_and_payloads(entries):
    expected = array([part for ms, n, payload in entries for part in (f"{ms}-{n}".encode(), payload)])
    assert replies.records(entries) == expected
