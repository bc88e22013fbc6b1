"""Headers and query parameters into values: what the protocol allows is understood, the rest is refused by name.
No stream and no connection is looked at here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.doors.http import headers as parse
from headwater.errors import BadContentType, BadHeader, BadName, BadQuery
from headwater.model.commands import Durability, Fork, Producer, Retention

NUMBER_MAX = 2**53 - 1


def refused(name: str, act) -> None:
    with pytest.raises(BadHeader) as caught:
        act()
    assert caught.value.name == name and caught.value.reason


# ---- numbers and texts --------------------------------------------------------------------------------------------


@given(st.integers(0, NUMBER_MAX))
def test_a_whole_number_is_understood(value: int) -> None:
    assert parse.number("X", b"%d" % value) == value


@pytest.mark.parametrize(
    "text",
    [b"", b"-1", b"+1", b"01", b"00", b"1.0", b"1e3", b" 1", b"1 ", b"1_0", b"0x1", "٣".encode(), b"\xff", b"9" * 400,
     b"9007199254740992"],
)  # fmt: skip
def test_anything_else_is_no_number(text: bytes) -> None:
    refused("X", lambda: parse.number("X", text))


@given(st.binary(max_size=12))
def test_a_number_is_refused_or_exactly_what_was_written(raw: bytes) -> None:
    try:
        assert b"%d" % parse.number("X", raw) == raw
    except BadHeader:
        assert not (raw.isdigit() and str(int(raw)).encode() == raw and int(raw) <= NUMBER_MAX)


def test_a_text_is_utf8_of_a_bounded_size() -> None:
    assert parse.text("X", "é".encode(), 2) == "é"
    refused("X", lambda: parse.text("X", b"abc", 2))
    refused("X", lambda: parse.text("X", b"\xff", 2))


# ---- producers ----------------------------------------------------------------------------------------------------

PRODUCER = {b"producer-id": b"p", b"producer-epoch": b"0", b"producer-seq": b"7"}


def test_the_three_producer_headers_go_together() -> None:
    assert parse.producer(PRODUCER, 10) == Producer("p", 0, 7)
    assert parse.producer({}, 10) is None
    for missing in PRODUCER:
        refused("Producer-Id", lambda missing=missing: parse.producer(without(PRODUCER, missing), 10))


def without(given_: dict[bytes, bytes], name: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in given_.items() if key != name}


@pytest.mark.parametrize(
    ("header", "value", "name"),
    [
        (b"producer-id", b"", "Producer-Id"),
        (b"producer-id", b"x" * 11, "Producer-Id"),
        (b"producer-id", b"\xff", "Producer-Id"),
        (b"producer-epoch", b"-1", "Producer-Epoch"),
        (b"producer-epoch", b"9007199254740992", "Producer-Epoch"),
        (b"producer-seq", b"1.5", "Producer-Seq"),
        (b"producer-seq", b"", "Producer-Seq"),
    ],
)
def test_a_bad_producer_header_is_named(header: bytes, value: bytes, name: str) -> None:
    refused(name, lambda: parse.producer(PRODUCER | {header: value}, 10))


# ---- flags and classes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "set_"), [(b"true", True), (b"TRUE", True), (b"false", False), (b"1", False), (b"", False)]
)
def test_only_true_is_true(value: bytes, set_: bool) -> None:
    assert parse.flag({b"stream-closed": value}, b"stream-closed") is set_
    assert parse.flag({}, b"stream-closed") is False


def test_durability_has_three_names() -> None:
    assert parse.durability({}) is None
    for name, value in ((b"fsync", Durability.FSYNC), (b"Disk", Durability.DISK), (b"MEMORY", Durability.MEMORY)):
        assert parse.durability({b"stream-durability": name}) is value
    refused("Stream-Durability", lambda: parse.durability({b"stream-durability": b"quorum"}))


# ---- windows and deadlines ----------------------------------------------------------------------------------------


def test_a_ttl_is_whole_seconds() -> None:
    assert parse.expiry({b"stream-ttl": b"3600"}) == (3_600_000, None)
    assert parse.expiry({b"stream-ttl": b"0"}) == (0, None)
    assert parse.expiry({}) == (None, None)
    for bad in (b"+3600", b"03600", b"3600.0", b"3.6e3", b"-1", b"", b" 1", b"1" * 40, b"abc"):
        refused("Stream-TTL", lambda bad=bad: parse.expiry({b"stream-ttl": bad}))


def test_a_ttl_and_a_deadline_exclude_each_other() -> None:
    both = {b"stream-ttl": b"1", b"stream-expires-at": b"2030-01-01T00:00:00Z"}
    refused("Stream-TTL", lambda: parse.expiry(both))


zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1), timezones=zones), st.sampled_from(["T", "t"]))
def test_a_deadline_is_the_moment_it_names(moment: datetime, letter: str) -> None:
    moment = moment.replace(microsecond=0)
    text = moment.isoformat(timespec="milliseconds").replace("T", letter)
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse.expiry({b"stream-expires-at": text.encode()}) == (None, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"2030-01-31T12:00:00Z", 1_896_091_200_000),
        (b"2030-01-31t12:00:00z", 1_896_091_200_000),
        (b"2030-01-31T12:00:00.5Z", 1_896_091_200_500),
        (b"2030-01-31T12:00:00.123456789Z", 1_896_091_200_123),
        (b"2030-01-31T12:00:00+02:00", 1_896_084_000_000),
    ],
)
def test_deadlines_in_every_spelling_of_the_standard(text: bytes, expected: int) -> None:
    assert parse.expiry({b"stream-expires-at": text}) == (None, expected)


@pytest.mark.parametrize(
    "text",
    [b"", b"tomorrow", b"2030-01-31", b"2030-01-31T12:00:00", b"2030-01-31 12:00:00Z", b"2030-13-01T00:00:00Z",
     b"2030-02-30T00:00:00Z", b"2030-01-31T25:00:00Z", b"2030-01-31T12:00:00+99:00", b"0000-01-01T00:00:00Z",
     b"1896091200", b"2030-W05-4T12:00:00Z", b"\xff"],
)  # fmt: skip
def test_a_deadline_that_is_no_timestamp_is_refused(text: bytes) -> None:
    refused("Stream-Expires-At", lambda: parse.expiry({b"stream-expires-at": text}))


@pytest.mark.parametrize(
    "text",
    [b"9999-12-31T23:59:59-23:59", b"9999-12-31T23:59:59.999-00:01", b"0001-01-01T00:00:00+23:59",
     b"0001-01-01T00:00:00Z", b"1969-12-31T23:59:59.999Z"],
)  # fmt: skip
def test_a_deadline_that_could_not_be_shown_in_utc_is_refused(text: bytes) -> None:
    refused("Stream-Expires-At", lambda: parse.expiry({b"stream-expires-at": text}))


def test_the_first_and_the_last_deadline_are_taken() -> None:
    assert parse.expiry({b"stream-expires-at": b"1970-01-01T00:00:00Z"}) == (None, 0)
    assert parse.expiry({b"stream-expires-at": b"9999-12-31T23:59:59.999Z"}) == (None, 253_402_300_799_999)


# ---- content types ------------------------------------------------------------------------------------------------


def test_a_content_type_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(BadContentType):
        parse.content_type('text/plain; title="é"'.encode(), 100)


# ---- retention and forks ------------------------------------------------------------------------------------------


def test_retention_has_three_bounds_of_which_each_may_be_left_out() -> None:
    age, size, records = b"stream-retention-age", b"stream-retention-bytes", b"stream-retention-records"
    assert parse.retention({}) is None
    assert parse.retention({age: b"60"}) == Retention(age_ms=60_000)
    assert parse.retention({size: b"10", records: b"5"}) == Retention(bytes=10, records=5)
    refused("Stream-Retention-Records", lambda: parse.retention({records: b"0"}))
    refused("Stream-Retention-Age", lambda: parse.retention({age: b"1h"}))


def test_a_fork_names_its_source_by_path_and_its_point_by_offset() -> None:
    source, offset, sub = b"stream-forked-from", b"stream-fork-offset", b"stream-fork-sub-offset"
    assert parse.fork({}, 100) is None
    assert parse.fork({source: b"/v1/stream/a"}, 100) == Fork("_default/a")
    full = {source: b"/v1/stream/a/b%20c", offset: b"%020d" % 7, sub: b"2"}
    assert parse.fork(full, 100) == Fork("a/b c", 7, 2)
    assert parse.fork({source: b"/docs/one", offset: b"-1"}, 100) == Fork("docs/one", 0)
    assert parse.fork({source: b"/ds/docs/one", offset: b"now"}, 100) == Fork("docs/one", None)
    refused("Stream-Fork-Offset", lambda: parse.fork({source: b"/v1/stream/a", offset: b"7"}, 100))
    refused("Stream-Forked-From", lambda: parse.fork({source: b"/v1/stream/"}, 100))
    refused("Stream-Forked-From", lambda: parse.fork({source: b"nowhere"}, 100))
    refused("Stream-Fork-Sub-Offset", lambda: parse.fork({source: b"/v1/stream/a", sub: b"-1"}, 100))
    for alone in ({offset: b"-1"}, {sub: b"0"}):
        with pytest.raises(BadHeader):
            parse.fork(alone, 100)


# ---- paths and queries --------------------------------------------------------------------------------------------


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_percent_encoded_path_is_the_text_it_encodes(text: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in text.encode()).encode()
    assert parse.path_text(encoded) == text
    assert parse.path_text(encoded.lower()) == text


def test_a_path_that_is_not_utf8_is_refused() -> None:
    for path in (b"%ff", b"\xff", b"a%C3"):
        with pytest.raises(BadName):
            parse.path_text(path)


def test_query_parameters_are_decoded_and_unknown_ones_kept() -> None:
    assert parse.query(b"", ("offset",)) == {}
    assert parse.query(b"offset=-1&live=sse&x=a%26b+c&flag", ("offset",)) == {
        "offset": "-1",
        "live": "sse",
        "x": "a&b c",
        "flag": "",
    }


def test_a_parameter_that_may_stand_once_is_refused_twice_and_others_are_not() -> None:
    with pytest.raises(BadQuery) as caught:
        parse.query(b"offset=1&offset=2", ("offset",))
    assert caught.value.name == "offset"
    assert parse.query(b"x=1&x=2", ("offset",)) == {"x": "2"}


@given(st.binary(max_size=40))
def test_any_query_is_understood_or_refused_as_such(raw: bytes) -> None:
    try:
        found = parse.query(raw, ("offset",))
    except BadQuery:
        return
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in found.items())
