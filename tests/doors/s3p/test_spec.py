"""S3P v0.2.0 section by section: each test names the section it holds, with every example byte for byte.
This half asks the parser and the encoders; it never opens a socket."""

import pytest

from headwater.doors.s3p import replies
from headwater.doors.s3p.commands import Append, Create, Delete, Read, Trim
from headwater.doors.s3p.replies import Code
from tests.doors.s3p import LIMITS, array, bulk, examples, parsed, refusal, request

UINT64_MAX = 2**64 - 1
CREATE_ORDERS = request(b"CREATE", b"orders", [])


# ---- 3. Data types and framing ----------------------------------------------------------------------------


def test_3_simple_string_reply():
    assert replies.ok() == b"+OK\r\n"


def test_3_error_reply():
    assert replies.error(Code.LIMITS, "too much") == b"-ERR_LIMITS too much\r\n"


def test_3_bulk_string_is_binary_safe_both_ways():
    name = bytes(range(256))[:64]
    assert parsed(request(b"CREATE", name, [])) == [Create(name)]
    assert replies.bulk(b"a\r\n\x00b") == b"$5\r\na\r\n\x00b\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"*3\r\n$0\r\n\r\n",
        b"*3\r\n$6\r\nCREATE\r\n$0\r\n\r\n*0\r\n",
        b"*3\r\n$4\r\nREAD\r\n$1\r\ns\r\n*2\r\n$0\r\n\r\n$1\r\n1\r\n",
        b"*3\r\n$4\r\nREAD\r\n$1\r\ns\r\n*2\r\n$5\r\nCOUNT\r\n$0\r\n\r\n",
        b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$0\r\n\r\n",
    ],
    ids=["command", "name", "option key", "option value", "record"],
)
def test_3_zero_length_bulk_string_is_refused_anywhere(data):
    assert refusal(data).startswith("ERR_BAD_FORMAT invalid ")
    assert refusal(data).endswith(" bulk string (length < 1)")


def test_3_no_reply_holds_a_zero_length_bulk_string():
    with pytest.raises(ValueError):
        replies.bulk(b"")
    with pytest.raises(ValueError):
        replies.records([(1, 0, b"")])


def test_3_arrays_may_be_empty():
    assert parsed(CREATE_ORDERS) == [Create(b"orders")]
    assert replies.records([]) == b"*0\r\n"


@pytest.mark.parametrize(
    "element", [b"*0\r\n", b"+text\r\n", b"-ERR text\r\n", b":1\r\n", b"_\r\n", b"$-1\r\n", b"*-1\r\n"]
)
def test_3_array_of_mixed_types_is_refused(element):
    records = request(b"APPEND", b"orders", [])[4:]
    assert refusal(b"*4\r\n" + records + b"*2\r\n" + bulk(b"hello") + element).startswith("ERR_BAD_FORMAT ")
    options = request(b"READ", b"orders")[4:]
    assert refusal(b"*3\r\n" + options + b"*2\r\n" + bulk(b"COUNT") + element).startswith("ERR_BAD_FORMAT ")


@pytest.mark.parametrize("data", [b":1\r\n", b"_\r\n", b"$-1\r\n", b"*-1\r\n", b"#t\r\n", b",1.5\r\n", b"%1\r\n"])
def test_3_unsupported_resp_types_are_refused(data):
    assert refusal(data).startswith("ERR_BAD_FORMAT ")


@pytest.mark.parametrize("separator", [b"\n", b"\r", b"\n\r", b"\r\r\n"])
def test_3_only_crlf_separates_lines(separator):
    assert refusal(CREATE_ORDERS.replace(b"\r\n", separator)).startswith("ERR_BAD_FORMAT ")


@pytest.mark.parametrize("position", range(CREATE_ORDERS.count(b"\r\n")))
@pytest.mark.parametrize("separator", [b"\n", b"\r"])
def test_3_one_line_without_its_crlf_is_enough_to_be_refused(separator, position):
    parts = CREATE_ORDERS.split(b"\r\n")
    data = b"\r\n".join(parts[: position + 1]) + separator + b"\r\n".join(parts[position + 1 :])
    # A lone CR at the very end might still become CRLF: what follows it decides.
    assert refusal(data + CREATE_ORDERS).startswith("ERR_BAD_FORMAT ")


@pytest.mark.parametrize(
    "length", [b"+6", b"-6", b" 6", b"6 ", b"06", b"0x6", b"6.0", b"6_0", b"", b"\xd9\xa6", b"1" * 21]
)
def test_3_length_is_digits_and_nothing_else(length):
    assert refusal(b"*3\r\n$" + length + b"\r\nCREATE\r\n").startswith("ERR_BAD_FORMAT ")
    assert refusal(b"*" + length + b"\r\n").startswith("ERR_BAD_FORMAT ")


def test_3_value_longer_or_shorter_than_its_length_is_refused():
    assert refusal(b"*3\r\n$6\r\nCREATES\r\n").startswith("ERR_BAD_FORMAT ")
    assert refusal(b"*3\r\n$6\r\nREAD\r\n$1").startswith("ERR_BAD_FORMAT ")


# ---- 4. General rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"+CREATE\r\n", b"$6\r\nCREATE\r\n", b"CREATE orders\r\n", b"-E\r\n", b"GET / HTTP/1.1\r\n"]
)
def test_4_command_must_be_a_top_level_array(data):
    assert refusal(data).startswith("ERR_BAD_FORMAT ")


def test_4_empty_top_level_array_is_refused():
    assert refusal(b"*0\r\n") == "ERR_BAD_FORMAT malformed command: empty array"


@pytest.mark.parametrize("elements", [1, 2, 5, 1_000_000])
def test_4_array_of_a_size_that_no_command_has_is_refused(elements):
    assert refusal(b"*%d\r\n" % elements).startswith("ERR_BAD_FORMAT ")


@pytest.mark.parametrize("name", [b"APPEND", b"CREATE", b"READ", b"TRIM", b"DELETE"])
def test_4_command_with_another_number_of_elements_than_its_schema_is_refused(name):
    elements = 3 if name == b"APPEND" else 4
    assert refusal(b"*%d\r\n" % elements + bulk(name)).startswith("ERR_BAD_FORMAT malformed command")


def test_4_elements_of_the_wrong_type_are_refused():
    assert refusal(b"*3\r\n*0\r\n").startswith("ERR_BAD_FORMAT ")
    assert refusal(b"*3\r\n" + bulk(b"CREATE") + b"*0\r\n").startswith("ERR_BAD_FORMAT ")
    assert refusal(b"*3\r\n" + bulk(b"CREATE") + bulk(b"s") + bulk(b"o")).startswith("ERR_BAD_FORMAT ")
    assert refusal(b"*4\r\n" + bulk(b"APPEND") + bulk(b"s") + array([]) + bulk(b"r")).startswith("ERR_BAD_FORMAT ")


def test_4_values_are_preserved_exactly():
    record = b"\x00\r\n$1\r\n*1\r\n+-: \xff"
    assert parsed(request(b"APPEND", b"Orders\r\n", [], [record])) == [Append(b"Orders\r\n", [record], None)]


def test_4_nothing_is_parsed_after_an_unrecoverable_error():
    assert [type(result).__name__ for result in parsed(CREATE_ORDERS + b"*0\r\n" + CREATE_ORDERS)] == [
        "Create",
        "Failure",
    ]


# ---- 5. IDs -----------------------------------------------------------------------------------------------


def test_5_smallest_and_largest_id():
    assert parsed(request(b"TRIM", b"s", [b"MIN_ID", b"0-0"])) == [Trim(b"s", 0, 0)]
    largest = b"18446744073709551615-18446744073709551615"
    assert parsed(request(b"TRIM", b"s", [b"MIN_ID", largest])) == [Trim(b"s", UINT64_MAX, UINT64_MAX)]
    assert replies.bulk(b"%d-%d" % (UINT64_MAX, UINT64_MAX)) == bulk(largest)
    assert replies.bulk(b"%d-%d" % (0, 0)) == b"$3\r\n0-0\r\n"


@pytest.mark.parametrize(
    "text",
    [
        b"0",
        b"-",
        b"1-",
        b"-1",
        b"+1-0",
        b"1-+0",
        b"1--1",
        b"1-0-0",
        b" 1-0",
        b"1-0 ",
        b"1-0\n",
        b"*",
        b"$",
        b"a-b",
        b"18446744073709551616-0",
        b"0-18446744073709551616",
        b"\xb2-0",
    ],
)
def test_5_anything_else_is_no_id(text):
    assert refusal(request(b"TRIM", b"s", [b"MIN_ID", text])).startswith(
        "ERR_BAD_FORMAT invalid value for option MIN_ID"
    )
    assert refusal(request(b"READ", b"s", [b"MIN_ID", text])).startswith(
        "ERR_BAD_FORMAT invalid value for option MIN_ID"
    )


# ---- 6. Stream naming -------------------------------------------------------------------------------------


def test_6_name_is_at_least_one_byte_and_at_most_the_limit():
    assert parsed(request(b"DELETE", b"x", [])) == [Delete(b"x")]
    longest = b"x" * LIMITS.name_bytes_max
    assert parsed(request(b"DELETE", longest, [])) == [Delete(longest)]
    assert refusal(request(b"DELETE", longest + b"x", [])) == "ERR_LIMITS stream name length not in range [1, 64]"
    assert (
        refusal(request(b"APPEND", longest + b"x", [], [b"r"])) == "ERR_LIMITS stream name length not in range [1, 64]"
    )


def test_6_name_is_binary_safe_and_case_sensitive():
    assert parsed(request(b"CREATE", b"\r\n\x00\xff", []) + request(b"CREATE", b"Orders", [])) == [
        Create(b"\r\n\x00\xff"),
        Create(b"Orders"),
    ]


# ---- 7. Options encoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"CREATE", b"READ", b"TRIM", b"DELETE", b"APPEND"])
def test_7_odd_number_of_elements_is_refused(name):
    data = request(name, b"s", [b"COUNT"], [b"r"]) if name == b"APPEND" else request(name, b"s", [b"COUNT"])
    assert refusal(data) == "ERR_BAD_FORMAT malformed options array: odd number of elements"


@pytest.mark.parametrize(
    ("name", "option"),
    [(b"CREATE", b"ID"), (b"DELETE", b"MIN_ID"), (b"READ", b"ID"), (b"TRIM", b"COUNT"), (b"APPEND", b"MIN_ID")],
)
def test_7_option_of_another_command_is_unknown(name, option):
    assert refusal(request(name, b"s", [option, b"1"], *([[b"r"]] if name == b"APPEND" else []))) == (
        f"ERR_BAD_FORMAT unknown option {option.decode()}"
    )


def test_7_last_value_of_a_key_wins():
    data = request(b"READ", b"s", [b"COUNT", b"5", b"MIN_ID", b"1-1", b"count", b"7", b"min_id", b"2-3"])
    assert parsed(data) == [Read(b"s", 7, 0, 2, 3)]
    assert parsed(request(b"APPEND", b"s", [b"ID", b"9", b"id", b"4"], [b"r"])) == [Append(b"s", [b"r"], 4)]


def test_7_value_that_is_overridden_is_not_judged_but_the_last_one_is():
    assert parsed(request(b"READ", b"s", [b"COUNT", b"many", b"COUNT", b"7"])) == [Read(b"s", 7, 0, 0, 0)]
    assert refusal(request(b"READ", b"s", [b"COUNT", b"7", b"COUNT", b"many"])).startswith("ERR_BAD_FORMAT ")


def test_7_unknown_command_is_refused():
    assert refusal(request(b"XADD", b"s", [])) == "ERR_BAD_FORMAT unknown command XADD"


# ---- 8.1 CREATE -------------------------------------------------------------------------------------------


def test_8_1_example_1_create():
    assert parsed(examples.CREATE_8_1_1.sent) == [Create(b"orders")]
    assert replies.ok() == examples.CREATE_8_1_1.reply


def test_8_1_example_2_unknown_option_closes():
    [failure] = parsed(examples.CREATE_UNKNOWN_OPTION_8_1_2.sent)
    assert replies.error(failure.code, failure.message) == examples.CREATE_UNKNOWN_OPTION_8_1_2.reply
    assert failure.code.closes_connection


def test_8_1_example_3_stream_exists_stays_open():
    assert parsed(examples.CREATE_EXISTING_8_1_3.sent) == [Create(b"orders")]
    reply = replies.error(Code.STREAM_EXISTS, "stream orders already exists")
    assert reply == examples.CREATE_EXISTING_8_1_3.reply
    assert not Code.STREAM_EXISTS.closes_connection


# ---- 8.2 APPEND -------------------------------------------------------------------------------------------


def test_8_2_example_1_two_records():
    assert parsed(examples.APPEND_8_2_1.sent) == [Append(b"orders", [b"hello", b"world"], None)]
    assert replies.bulk(b"%d-%d" % (1700000001234, 1)) == examples.APPEND_8_2_1.reply


def test_8_2_example_2_zero_length_record_closes():
    [failure] = parsed(examples.APPEND_EMPTY_RECORD_8_2_2.sent)
    assert replies.error(failure.code, failure.message) == examples.APPEND_EMPTY_RECORD_8_2_2.reply
    assert failure.code.closes_connection


def test_8_2_example_3_non_monotonic_id_stays_open():
    assert parsed(examples.APPEND_NON_MONOTONIC_8_2_3.sent) == [Append(b"orders", [b"payload"], 1700000001000)]
    message = "provided timestamp ID 1700000001000 is not greater than last appended ID 1700000001234"
    assert replies.error(Code.NON_MONOTONIC_ID, message) == examples.APPEND_NON_MONOTONIC_8_2_3.reply
    assert not Code.NON_MONOTONIC_ID.closes_connection


@pytest.mark.parametrize("value", [b"0", b"1", b"18446744073709551615", b"007"])
def test_8_2_id_is_an_unsigned_64_bit_integer(value):
    assert parsed(request(b"APPEND", b"s", [b"ID", value], [b"r"])) == [Append(b"s", [b"r"], int(value))]


@pytest.mark.parametrize("value", [b"18446744073709551616", b"-1", b"+1", b"1-0", b"1.0", b" 1", b"*", b"1_0", b"\xb2"])
def test_8_2_any_other_id_is_bad_format(value):
    data = request(b"APPEND", b"s", [b"ID", value], [b"r"])
    assert refusal(data).startswith("ERR_BAD_FORMAT invalid value for option ID")


def test_8_2_zero_length_records_array_is_bad_format():
    assert refusal(request(b"APPEND", b"s", [], [])) == "ERR_BAD_FORMAT zero-length records array"


def test_8_2_record_limits():
    full = [b"r" * LIMITS.record_bytes_max] * (LIMITS.append_bytes_max // LIMITS.record_bytes_max)
    many = [b"r"] * LIMITS.records_max
    for records in (full, many):
        assert parsed(request(b"APPEND", b"s", [], records)) == [Append(b"s", records, None)]
    assert refusal(request(b"APPEND", b"s", [], [full[0] + b"r"])) == "ERR_LIMITS individual record too large"
    assert refusal(request(b"APPEND", b"s", [], [*full, b"r"])) == (
        "ERR_LIMITS aggregate of records in APPEND command too large"
    )
    assert refusal(request(b"APPEND", b"s", [], [*many, b"r"])) == (
        f"ERR_LIMITS too many records in APPEND request (maximum {len(many)}, s3p_records_max)"
    )


def test_8_2_options_do_not_change_the_limits():
    options = [b"ID", b"5"]
    too_long = b"r" * (LIMITS.record_bytes_max + 1)
    assert refusal(request(b"APPEND", b"s", options, [too_long])) == "ERR_LIMITS individual record too large"


# ---- 8.3 READ ---------------------------------------------------------------------------------------------


def test_8_3_example():
    assert parsed(examples.READ_8_3.sent) == [Read(b"orders", 10, 0, 0, 0)]
    entries = [(1700000001234, 0, b"hello"), (1700000001235, 0, b"world")]
    assert replies.records(entries) == examples.READ_8_3.reply


def test_8_3_defaults():
    assert parsed(request(b"READ", b"s", [])) == [Read(b"s", LIMITS.count_default, 0, 0, 0)]


def test_8_3_all_options():
    options = [b"BLOCK", b"1500", b"MIN_ID", b"12-3", b"COUNT", b"1000"]
    assert parsed(request(b"READ", b"s", options)) == [Read(b"s", 1000, 1500, 12, 3)]


@pytest.mark.parametrize("value", [b"0", b"-1", b"1001", b"9" * 40])
def test_8_3_count_out_of_range_is_over_a_limit(value):
    assert refusal(request(b"READ", b"s", [b"COUNT", value])) == "ERR_LIMITS COUNT not in range [1, 1000]"


@pytest.mark.parametrize("value", [b"-1", b"-060", b"60001", b"9" * 40])
def test_8_3_block_out_of_range_is_over_a_limit(value):
    assert refusal(request(b"READ", b"s", [b"BLOCK", value])) == "ERR_LIMITS BLOCK not in range [0, 60000]"


@pytest.mark.parametrize("key", [b"COUNT", b"BLOCK"])
@pytest.mark.parametrize(
    "value", [b"+5", b" 5", b"5 ", b"5\n", b"-0", b"--5", b"1e3", b"1_0", b"0x1", b"five", b"9" * 65]
)
def test_8_3_count_and_block_that_are_no_decimals_are_bad_format(key, value):
    assert refusal(request(b"READ", b"s", [key, value])).startswith("ERR_BAD_FORMAT invalid ")


def test_8_3_count_and_block_at_their_limits():
    assert parsed(request(b"READ", b"s", [b"COUNT", b"1", b"BLOCK", b"60000"])) == [Read(b"s", 1, 60_000, 0, 0)]
    assert parsed(request(b"READ", b"s", [b"COUNT", b"1000", b"BLOCK", b"0"])) == [Read(b"s", 1000, 0, 0, 0)]


# ---- 8.4 TRIM ---------------------------------------------------------------------------------------------


def test_8_4_example():
    assert parsed(examples.TRIM_8_4.sent) == [Trim(b"orders", 1700000001235, 0)]
    assert replies.ok() == examples.TRIM_8_4.reply


def test_8_4_min_id_is_mandatory():
    assert refusal(request(b"TRIM", b"orders", [])) == "ERR_BAD_FORMAT missing option MIN_ID"


# ---- 8.5 DELETE -------------------------------------------------------------------------------------------


def test_8_5_example():
    assert parsed(examples.DELETE_8_5.sent) == [Delete(b"orders")]
    assert replies.ok() == examples.DELETE_8_5.reply


def test_8_5_has_no_options():
    assert refusal(request(b"DELETE", b"s", [b"FORCE", b"1"])) == "ERR_BAD_FORMAT unknown option FORCE"


# ---- 9. Error format --------------------------------------------------------------------------------------


def test_9_error_line_is_code_space_message():
    assert replies.error(Code.UNKNOWN_STREAM, "stream x does not exist") == (
        b"-ERR_UNKNOWN_STREAM stream x does not exist\r\n"
    )


def test_9_which_codes_close_the_connection():
    closing = {str(code) for code in Code if code.closes_connection}
    assert closing == {"ERR_BAD_FORMAT", "ERR_LIMITS"}
    assert {str(code) for code in Code} - closing == {
        *("ERR_STREAM_EXISTS", "ERR_UNKNOWN_STREAM", "ERR_NON_MONOTONIC_ID"),
        *("ERR_UNAVAILABLE", "ERR_CONFLICT", "ERR_INTERNAL"),  # the house's own
        *("ERR_UNAUTHENTICATED", "ERR_FORBIDDEN"),  # only where authentication is on
    }


# ---- 10. Case insensitivity -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"append", b"Append", b"aPPEND", b"APPEND"])
def test_10_command_names_in_any_case(name):
    assert parsed(request(name, b"Orders", [], [b"r"])) == [Append(b"Orders", [b"r"], None)]
    assert parsed(request(name, b"Orders", [b"iD", b"1"], [b"r", b"R"])) == [Append(b"Orders", [b"r", b"R"], 1)]


def test_10_option_keys_in_any_case():
    assert parsed(request(b"read", b"S", [b"count", b"3", b"Block", b"4", b"mIN_iD", b"5-6"])) == [
        Read(b"S", 3, 4, 5, 6)
    ]


def test_10_only_ascii_letters_have_a_case():
    # U+017F and U+212A fold to s and k in Unicode, not here.
    assert refusal(request("READ\u017f".encode(), b"s", [])).startswith("ERR_BAD_FORMAT unknown command READ")
    assert refusal(request(b"READ", b"s", ["BLOC\u212a".encode(), b"1"])).startswith("ERR_BAD_FORMAT unknown option")


# ---- 13. Pipelining ---------------------------------------------------------------------------------------


def test_13_pipelined_commands_come_out_in_order():
    sent = (
        request(b"CREATE", b"a", [])
        + request(b"APPEND", b"a", [], [b"1"])
        + request(b"APPEND", b"a", [], [b"2", b"3"])
        + request(b"APPEND", b"a", [b"ID", b"9"], [b"4"])
        + request(b"READ", b"a", [])
        + request(b"APPEND", b"a", [], [b"5"])
        + request(b"TRIM", b"a", [b"MIN_ID", b"1-0"])
        + request(b"DELETE", b"a", [])
    )
    assert parsed(sent) == [
        Create(b"a"),
        Append(b"a", [b"1"], None),
        Append(b"a", [b"2", b"3"], None),
        Append(b"a", [b"4"], 9),
        Read(b"a", LIMITS.count_default, 0, 0, 0),
        Append(b"a", [b"5"], None),
        Trim(b"a", 1, 0),
        Delete(b"a"),
    ]


# ---- 15. Security considerations --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begun", "code"),
    [
        (b"*99999999999\r\n", "ERR_BAD_FORMAT"),
        (b"*3\r\n$99999999999\r\n", "ERR_BAD_FORMAT"),
        (b"*3\r\n$6\r\nCREATE\r\n$99999999999\r\n", "ERR_LIMITS"),
        (b"*3\r\n$6\r\nCREATE\r\n$1\r\ns\r\n*99999999998\r\n", "ERR_LIMITS"),
        (b"*3\r\n$4\r\nREAD\r\n$1\r\ns\r\n*2\r\n$99999999999\r\n", "ERR_BAD_FORMAT"),
        (b"*3\r\n$4\r\nREAD\r\n$1\r\ns\r\n*2\r\n$5\r\nCOUNT\r\n$99999999999\r\n", "ERR_BAD_FORMAT"),
        (b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*99999999999\r\n", "ERR_LIMITS"),
        (b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$99999999999\r\n", "ERR_LIMITS"),
        (b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$18446744073709551616\r\n", "ERR_LIMITS"),
    ],
    ids=["command", "verb", "name", "options", "key", "value", "records", "record", "record over uint64"],
)
def test_15_huge_length_is_refused_when_its_line_is_complete(begun, code):
    assert parsed(begun[:-1]) == []
    assert refusal(begun).startswith(code + " ")
