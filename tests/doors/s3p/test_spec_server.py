"""S3P v0.2.0 section by section against a real node over a socket, with every example byte for byte.
Each test names the section it holds; what the parser alone decides is in `test_spec`."""

from __future__ import annotations

import re

import pytest

from tests.doors.s3p import examples, request
from tests.doors.s3p.client import LIMITS, OK, Client, Error, read_request, refused, still_open
from tests.doors.s3p.examples import Example
from tests.doors.s3p.hand import Door, played
from tests.support.node import Node

BLOCK_MS = 300
UNRECOVERABLE = ("ERR_BAD_FORMAT", "ERR_LIMITS")


def exchanged(client: Client, example: Example) -> bytes:
    """What comes back for an example: as many bytes as the spec prints."""
    client.send(example.sent)
    return client.raw(len(example.reply))


# ---- 3. Data types and framing ----------------------------------------------------------------------------


def test_3_zero_length_bulk_string_is_refused_and_closes(node: Node) -> None:
    assert refused(node, b"*3\r\n$6\r\nCREATE\r\n$0\r\n\r\n*0\r\n").code == "ERR_BAD_FORMAT"


@pytest.mark.parametrize("data", [b"*1\n", b"*3\r\n$6\r\nCREATE\n", b":1\r\n", b"PING\r\n", b"*3\r\n+CREATE\r\n"])
def test_3_anything_but_arrays_of_bulk_strings_with_crlf_closes(node: Node, data: bytes) -> None:
    assert refused(node, data).code == "ERR_BAD_FORMAT"


def test_3_records_are_binary_safe_both_ways(client: Client) -> None:
    record = bytes(range(256)) + b"\r\n$5\r\n*2\r\n"
    client.create(b"orders")
    client.append(b"orders", record)
    [(_, got)] = client.read(b"orders")
    assert got == record


def test_3_an_empty_result_is_an_empty_array(client: Client) -> None:
    client.create(b"orders")
    client.send(read_request(b"orders"))
    assert client.raw(4) == b"*0\r\n"


# ---- 4. General rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"*0\r\n",
        request(b"XADD", b"s", []),
        request(b"CREATE", b"s"),
        request(b"CREATE", b"s", [], []),
        request(b"READ", b"s", [b"COUNT"]),
        b"*3\r\n$99999999999\r\n",
        b"$5\r\nhello\r\n",
        b"*1\r\n" * 1_000,
    ],
    ids=["empty", "unknown", "short", "long", "odd options", "huge", "no array", "nested"],
)
def test_4_an_unrecoverable_error_closes_the_connection(node: Node, data: bytes) -> None:
    assert refused(node, data).code in UNRECOVERABLE


def test_4_a_recoverable_error_keeps_it_open(client: Client) -> None:
    assert client.append(b"orders", b"x") == Error("ERR_UNKNOWN_STREAM", "stream orders does not exist")
    assert client.create(b"orders") == OK
    assert client.create(b"orders") == Error("ERR_STREAM_EXISTS", "stream orders already exists")
    assert isinstance(client.append(b"orders", b"x"), bytes)


def test_4_replies_before_an_unrecoverable_error_still_come(node: Node, client: Client) -> None:
    client.create(b"orders")
    client.send(request(b"APPEND", b"orders", [], [b"kept"]) + read_request(b"orders") + b"oops\r\n")
    assert isinstance(client.reply(), bytes)
    assert [record for _, record in client.records()] == [b"kept"]
    assert client.reply().code == "ERR_BAD_FORMAT"
    assert client.ended()


def test_4_commands_behind_an_unrecoverable_error_are_not_run(node: Node, client: Client) -> None:
    with Client.of(node) as broken:
        broken.send(b"*0\r\n" + request(b"CREATE", b"orders", []))
        assert broken.reply().code == "ERR_BAD_FORMAT"
        assert broken.ended()
    assert client.read(b"orders") == Error("ERR_UNKNOWN_STREAM", "stream orders does not exist")


# ---- 5. Ids -----------------------------------------------------------------------------------------------


def test_5_the_largest_timestamp_is_taken_and_read_back(client: Client) -> None:
    largest = 2**64 - 1
    client.create(b"orders")
    assert client.append(b"orders", b"a", b"b", ms=largest) == b"%d-1" % largest
    assert client.append(b"orders", b"c") == b"%d-2" % largest
    assert client.read(b"orders", min_id=f"{largest}-1") == [(f"{largest}-1", b"b"), (f"{largest}-2", b"c")]
    assert client.read(b"orders", min_id=f"{largest}-{largest}") == []


def test_5_the_smallest_id_is_0_0(client: Client) -> None:
    client.create(b"orders")
    assert client.append(b"orders", b"a", ms=0) == b"0-0"
    assert client.read(b"orders", min_id="0-0") == [("0-0", b"a")]


# ---- 6. Stream naming -------------------------------------------------------------------------------------

NAMES = [b"/", b"a/", b"..", b"a/../b", b"\x00", b"\xff\xfe", b"\r\n", b" ", b"~ff", b"~~ff", b"__ds/x", b"%2F", b"*"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_6_any_bytes_are_a_name(client: Client, name: bytes) -> None:
    assert client.create(name) == OK
    assert isinstance(client.append(name, b"of " + name), bytes)
    assert [record for _, record in client.read(name)] == [b"of " + name]
    assert client.delete(name) == OK


def test_6_names_are_different_streams_when_their_bytes_differ(client: Client) -> None:
    names = [b"A", b"a", b"a ", *NAMES]
    for name in names:
        assert client.create(name) == OK, name
    for name in names:
        client.append(name, b"of " + name)
    for name in names:
        assert [record for _, record in client.read(name)] == [b"of " + name], name
        assert client.delete(name) == OK


# ---- 7. Options -------------------------------------------------------------------------------------------


def test_7_the_last_value_of_an_option_wins(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", *(b"%d" % n for n in range(5)))
    client.send(request(b"READ", b"orders", [b"COUNT", b"1", b"count", b"2", b"COUNT", b"3"]))
    assert len(client.records()) == 3


def test_7_unknown_options_close(node: Node) -> None:
    assert refused(node, request(b"READ", b"s", [b"LIMIT", b"1"])) == Error("ERR_BAD_FORMAT", "unknown option LIMIT")


# ---- 8.1 CREATE -------------------------------------------------------------------------------------------


def test_8_1_example_1(client: Client) -> None:
    assert exchanged(client, examples.CREATE_8_1_1) == examples.CREATE_8_1_1.reply


def test_8_1_example_2_closes(client: Client) -> None:
    assert exchanged(client, examples.CREATE_UNKNOWN_OPTION_8_1_2) == examples.CREATE_UNKNOWN_OPTION_8_1_2.reply
    assert client.ended()


def test_8_1_example_3_stays_open(client: Client) -> None:
    client.create(b"orders")
    assert exchanged(client, examples.CREATE_EXISTING_8_1_3) == examples.CREATE_EXISTING_8_1_3.reply
    assert still_open(client)


def test_8_1_an_existing_stream_keeps_its_records(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"kept")
    assert client.create(b"orders").code == "ERR_STREAM_EXISTS"
    assert [record for _, record in client.read(b"orders")] == [b"kept"]


# ---- 8.2 APPEND -------------------------------------------------------------------------------------------


def test_8_2_example_1(client: Client) -> None:
    client.create(b"orders")
    reply = exchanged(client, examples.APPEND_8_2_1)
    # The clock says which milliseconds; everything else is as printed.
    assert re.sub(rb"[0-9]{13}", b"1700000001234", reply) == examples.APPEND_8_2_1.reply


def test_8_2_example_1_at_the_time_of_the_spec() -> None:
    async def play() -> None:
        door = Door()
        door.clock.ms = 1_700_000_001_234
        peer = door.peer()
        peer.send(examples.CREATE_8_1_1.sent + examples.APPEND_8_2_1.sent)
        await door.synced()
        assert peer.taken() == examples.CREATE_8_1_1.reply + examples.APPEND_8_2_1.reply

    played(play)


def test_8_2_example_2_closes(client: Client) -> None:
    client.create(b"orders")
    assert exchanged(client, examples.APPEND_EMPTY_RECORD_8_2_2) == examples.APPEND_EMPTY_RECORD_8_2_2.reply
    assert client.ended()


def test_8_2_example_2_appends_none_of_its_records(node: Node, client: Client) -> None:
    client.create(b"orders")
    refused(node, examples.APPEND_EMPTY_RECORD_8_2_2.sent)
    assert client.read(b"orders") == []


def test_8_2_example_3_stays_open(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"a", b"b", ms=1_700_000_001_234)
    assert exchanged(client, examples.APPEND_NON_MONOTONIC_8_2_3) == examples.APPEND_NON_MONOTONIC_8_2_3.reply
    assert len(client.read(b"orders")) == 2


def test_8_2_the_reply_is_the_id_of_the_last_record(client: Client) -> None:
    client.create(b"orders")
    last = client.append(b"orders", b"a", b"b", b"c")
    assert client.read(b"orders")[-1] == (last.decode(), b"c")


def test_8_2_the_same_timestamp_goes_on_counting(client: Client) -> None:
    client.create(b"orders")
    assert client.append(b"orders", b"a", ms=7) == b"7-0"
    assert client.append(b"orders", b"b", b"c", ms=7) == b"7-2"
    assert client.append(b"orders", b"d", ms=8) == b"8-0"


@pytest.mark.parametrize(
    "data",
    [
        request(b"APPEND", b"s", [], []),
        request(b"APPEND", b"s", [b"ID", b"-1"], [b"r"]),
        request(b"APPEND", b"s", [b"ID", b"5-0"], [b"r"]),
        request(b"APPEND", b"s", [b"ID", b"18446744073709551616"], [b"r"]),
    ],
)
def test_8_2_bad_format_closes(node: Node, data: bytes) -> None:
    assert refused(node, data).code == "ERR_BAD_FORMAT"


# ---- 8.3 READ ---------------------------------------------------------------------------------------------


def test_8_3_example(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"hello", ms=1_700_000_001_234)
    client.append(b"orders", b"world", ms=1_700_000_001_235)
    assert exchanged(client, examples.READ_8_3) == examples.READ_8_3.reply


def test_8_3_min_id_is_inclusive(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"a", b"b", ms=5)
    client.append(b"orders", b"c", ms=9)
    everything = [("5-0", b"a"), ("5-1", b"b"), ("9-0", b"c")]
    for min_id, kept in (("0-0", 3), ("5-0", 3), ("5-1", 2), ("5-2", 1), ("6-0", 1), ("9-0", 1), ("9-1", 0)):
        assert client.read(b"orders", min_id=min_id) == everything[3 - kept :]


def test_8_3_count_bounds_what_is_returned(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", *(b"%d" % n for n in range(10)), ms=1)
    assert [record for _, record in client.read(b"orders", count=3)] == [b"0", b"1", b"2"]
    assert len(client.read(b"orders")) == LIMITS["s3p-count-default"]
    assert len(client.read(b"orders", count=20)) == 10


def test_8_3_block_waits_for_a_record_and_returns_it(node: Node, client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"old", ms=1)
    with Client.of(node) as reader:
        reader.send(read_request(b"orders", block=20_000, min_id="2-0"))
        client.append(b"orders", b"still old", ms=1)
        client.append(b"orders", b"new", ms=2)
        assert reader.records() == [("2-0", b"new")]


def test_8_3_block_returns_an_empty_array_when_none_comes(client: Client) -> None:
    client.create(b"orders")
    assert client.read(b"orders", block=BLOCK_MS) == []
    assert still_open(client)


def test_8_3_block_returns_at_once_what_is_there(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"a", ms=1)
    assert client.read(b"orders", block=20_000) == [("1-0", b"a")]


def test_8_3_a_stream_deleted_under_a_blocked_read_is_unknown(node: Node, client: Client) -> None:
    client.create(b"orders")
    with Client.of(node) as reader:
        reader.send(read_request(b"orders", block=20_000))
        # Its blocked READ is under way once another command of the same kind has been answered after it.
        client.read(b"orders")
        assert client.delete(b"orders") == OK
        assert reader.records() == Error("ERR_UNKNOWN_STREAM", "stream orders does not exist")
        assert still_open(reader)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([b"COUNT", b"0"], "ERR_LIMITS"),
        ([b"COUNT", b"21"], "ERR_LIMITS"),
        ([b"BLOCK", b"-1"], "ERR_LIMITS"),
        ([b"BLOCK", b"20001"], "ERR_LIMITS"),
        ([b"COUNT", b"x"], "ERR_BAD_FORMAT"),
        ([b"MIN_ID", b"5"], "ERR_BAD_FORMAT"),
    ],
)
def test_8_3_options_out_of_range_or_form_close(node: Node, options: list[bytes], code: str) -> None:
    assert refused(node, request(b"READ", b"s", options)).code == code


# ---- 8.4 TRIM ---------------------------------------------------------------------------------------------


def test_8_4_example(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"hello", ms=1_700_000_001_234)
    client.append(b"orders", b"world", ms=1_700_000_001_235)
    assert exchanged(client, examples.TRIM_8_4) == examples.TRIM_8_4.reply
    assert client.read(b"orders") == [("1700000001235-0", b"world")]


def test_8_4_trim_removes_strictly_smaller_ids_and_is_idempotent(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"a", b"b", b"c", ms=5)
    for min_id, left in (("0-0", b"abc"), ("5-1", b"bc"), ("5-1", b"bc"), ("5-0", b"bc"), ("6-0", b""), ("99-0", b"")):
        assert client.trim(b"orders", min_id) == OK
        assert b"".join(record for _, record in client.read(b"orders")) == left
    assert client.append(b"orders", b"d", ms=5) == b"5-3"
    assert client.read(b"orders") == [("5-3", b"d")]


def test_8_4_min_id_is_mandatory(node: Node) -> None:
    assert refused(node, request(b"TRIM", b"s", [])).code == "ERR_BAD_FORMAT"


def test_8_4_trim_of_an_unknown_stream_stays_open(client: Client) -> None:
    assert client.trim(b"orders", "1-0") == Error("ERR_UNKNOWN_STREAM", "stream orders does not exist")
    assert still_open(client)


# ---- 8.5 DELETE -------------------------------------------------------------------------------------------


def test_8_5_example(client: Client) -> None:
    client.create(b"orders")
    assert exchanged(client, examples.DELETE_8_5) == examples.DELETE_8_5.reply


def test_8_5_a_deleted_stream_is_unknown_until_it_is_created_anew(client: Client) -> None:
    client.create(b"orders")
    client.append(b"orders", b"a", ms=9)
    assert client.delete(b"orders") == OK
    unknown = Error("ERR_UNKNOWN_STREAM", "stream orders does not exist")
    for reply in (client.delete(b"orders"), client.append(b"orders", b"b"), client.read(b"orders")):
        assert reply == unknown
    assert client.create(b"orders") == OK
    assert client.read(b"orders") == []
    assert client.append(b"orders", b"c", ms=1) == b"1-0"
