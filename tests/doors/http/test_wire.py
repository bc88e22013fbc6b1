"""The request parser: however the bytes are cut it sees the same requests and the same fault, and nothing else.
The oracle is the same parser fed everything at once; what that must see is written down as requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.doors.http.wire import Budget, Continue, Heads, Request, RequestParser
from headwater.errors import (
    BadRequest,
    BodyTooLarge,
    EncodedBody,
    ExpectationFailed,
    Failure,
    HeadTooLarge,
    MethodNotAllowed,
    Overloaded,
    TooManyHeaders,
    TransferCodingUnknown,
    VersionNotSupported,
)

HEAD_MAX, HEADERS_MAX, BODY_MAX = 2_000, 12, 3_000


def parser(heads: Heads | None = None, budget: Budget | None = None) -> RequestParser:
    return RequestParser(HEAD_MAX, HEADERS_MAX, BODY_MAX, 2 * BODY_MAX, heads, budget)


def seen(chunks: list[bytes], heads: Heads | None = None) -> tuple[list[object], tuple[str, str] | None]:
    """What a connection gets to know: requests and continues in order, then the fault that ends it, if any."""
    machine = parser(heads)
    found: list[object] = []
    fault: Failure | None = None
    for chunk in chunks:
        try:
            found += machine.feed(chunk)
            fault = machine.failure
        except Failure as failure:
            fault = failure
        if fault is not None:
            break
    return [plain(one) for one in found], None if fault is None else (type(fault).__name__, str(fault))


def plain(one: object) -> object:
    if isinstance(one, Continue):
        return "continue"
    assert isinstance(one, Request)
    return one.method, one.target, one.headers, one.version, one.body, one.keep_alive


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


# ---- requests, as clients write them ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    chunks: list[int] | None
    """Where a chunked body is cut; None sends it with a Content-Length."""
    expect: bool
    trailer: bool = False
    extension: bool = False
    upgrade: tuple[tuple[bytes, bytes], ...] = ()

    def wire(self) -> bytes:
        headers = [(b"Host", b"a.example"), *self.upgrade, *self.headers]
        if self.expect:
            headers.append((b"Expect", b"100-continue"))
        body = self.body or b""
        if self.chunks is not None:
            headers.append((b"Transfer-Encoding", b"chunked"))
            mark = b";name=value" if self.extension else b""
            body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), mark, part) for part in cut(body, self.chunks))
            body += b"0\r\n" + (b"Stream-Closed: true\r\n" if self.trailer else b"") + b"\r\n"
        elif self.body is not None:
            headers.append((b"Content-Length", b"%d" % len(body)))
        head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
        return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (self.method, self.target, head, body)

    def expected(self) -> list[object]:
        headers = {b"host": b"a.example"}
        headers |= {name.lower(): value for name, value in (*self.upgrade, *self.headers)}
        if self.expect:
            headers[b"expect"] = b"100-continue"
        if self.chunks is not None:
            headers[b"transfer-encoding"] = b"chunked"
        elif self.body is not None:
            headers[b"content-length"] = b"%d" % len(self.body)
        request = self.method, self.target, headers, "1.1", self.body or b"", True
        return ["continue", request] if self.expect else [request]


# As curl --http2, the JDK's HttpClient and browsers write them. None of these protocols is spoken.
UPGRADES = (
    (),
    ((b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c"), (b"HTTP2-Settings", b"AAMAAABk")),
    ((b"Connection", b"Upgrade"), (b"Upgrade", b"h2c")),
    ((b"Connection", b"keep-alive, Upgrade"), (b"Upgrade", b"websocket"), (b"Sec-WebSocket-Version", b"13")),
)
tokens = st.text("abcXYZ-019", min_size=1, max_size=8).map(str.encode)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12).map(str.encode)
targets = st.builds(b"/v1/stream/%b?offset=%b".__mod__, st.tuples(tokens, tokens))
bodies = st.binary(max_size=300)
requests = st.builds(
    Sent,
    method=st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS"]),
    target=targets,
    headers=st.lists(st.tuples(tokens.map(b"X-".__add__), values), max_size=4, unique_by=lambda pair: pair[0].lower()),
    body=st.none() | bodies,
    chunks=st.none() | st.lists(st.integers(0, 300), max_size=4),
    expect=st.sampled_from([False, False, True]),
    trailer=st.booleans(),
    extension=st.booleans(),
    upgrade=st.sampled_from(UPGRADES),
)
places = st.lists(st.integers(0, 5_000), max_size=12)


@settings(max_examples=150)
@given(st.lists(requests, min_size=1, max_size=4), places)
def test_pipelined_requests_are_the_same_however_they_are_cut(sent: list[Sent], where: list[int]) -> None:
    data = b"".join(one.wire() for one in sent)
    expected = ([item for one in sent for item in one.expected()], None)
    assert seen([data]) == expected
    assert seen(cut(data, where)) == expected
    heads = Heads()
    each = [one.wire() for one in sent]
    # Blocks that were seen before are not parsed again, and mean the same.
    assert seen(each, heads) == expected
    assert seen(each, heads) == expected
    assert seen(cut(data, where), heads) == expected


@settings(max_examples=25)
@given(st.lists(requests, min_size=1, max_size=2))
def test_requests_that_arrive_byte_by_byte_are_the_same(sent: list[Sent]) -> None:
    data = b"".join(one.wire() for one in sent)
    assert seen([data[at : at + 1] for at in range(len(data))]) == seen([data])


FRAGMENTS = (
    *(b"GET ", b"POST ", b"PRI * HTTP/2.0", b"/", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/3.0\r\n"),
    *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Expect: 100-continue\r\n"),
    *(b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b" folded\r\n", b"Bad Name: x\r\n"),
    *(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n", b"1;x=" + b"e" * 900 + b"\r\n", b"0\r\n", b"T: 1\r\n"),
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    *(b"Expect: tea\r\n", b": x\r\n", b"\r\n", b"\n", b"\r", b"3\r\nabc\r\n", b"0\r\n\r\n", b"zz\r\n", b"\x00"),
    *(b"\xff\xfe", b"a" * 700, b"X-A: " + b"v" * 900 + b"\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
)


@settings(max_examples=400)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=6), max_size=14).map(b"".join), places)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", [40, 60])
@example(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", [55])
@example(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", [30])
@example(b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", [1, 2, 3])
def test_any_bytes_give_the_same_requests_and_the_same_fault_however_they_are_cut(
    data: bytes, where: list[int]
) -> None:
    assert seen(cut(data, where)) == seen([data])
    assert seen([data[at : at + 1] for at in range(len(data))]) == seen([data])


@settings(max_examples=200)
@given(st.binary(max_size=200), places)
def test_noise_is_refused_or_waited_for_and_never_crashes(data: bytes, where: list[int]) -> None:
    found, fault = seen(cut(data, where))
    assert found == [] or b"/1." in data
    assert fault is None or fault[1]


# ---- limits -------------------------------------------------------------------------------------------------------


@dataclass
class Limited:
    data: bytes
    fault: type[Failure]
    places: list[list[int]] = field(default_factory=lambda: [[], [10], list(range(0, 6_000, 7))])


HEAD = b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "limited",
    [
        Limited(HEAD + b"X-A: %b\r\n\r\n" % (b"v" * 3_000), HeadTooLarge),
        Limited(HEAD + b"".join(b"X-%d: %b\r\n" % (n, b"v" * 500) for n in range(6)) + b"\r\n", HeadTooLarge),
        Limited(HEAD + b"".join(b"X-%d: v\r\n" % n for n in range(HEADERS_MAX)) + b"\r\n", TooManyHeaders),
        Limited(HEAD + b"X-A: v\r\n" * HEADERS_MAX + b"\r\n", TooManyHeaders),
        Limited(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"p" * 3_000), HeadTooLarge),
        Limited(HEAD + b"Content-Length: %d\r\n\r\n" % (BODY_MAX + 1), BodyTooLarge),
        Limited(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1_024 + b"\r\n400\r\n" + b"x" * 1_024
                + b"\r\n400\r\n" + b"x" * 1_024, BodyTooLarge),
        Limited(HEAD + b"Expect: something\r\nContent-Length: 1\r\n\r\nx", ExpectationFailed),
        Limited(b"GET / HTTP/1.1\r\n\r\n", BadRequest),
        Limited(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", VersionNotSupported),
        Limited(HEAD + b"Stream-Seq: a\r\nStream-Seq: b\r\n\r\n", BadRequest),
        Limited(HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BadRequest),
        Limited(CHUNKED + b"0\r\nX: " + b"t" * 3_000 + b"\r\n\r\n", HeadTooLarge),
        Limited(CHUNKED + b"0\r\nX: " + b"t" * 3_000, HeadTooLarge),
        Limited(CHUNKED + b"0\r\n" + (b"X: " + b"t" * 300 + b"\r\n") * 7 + b"\r\n", HeadTooLarge),
        Limited(CHUNKED + b"0\r\n" + b"X: t\r\n" * (HEADERS_MAX + 1) + b"\r\n", TooManyHeaders),
        Limited(CHUNKED + b"0\r\nno colon\r\n\r\n", BadRequest),
        Limited(CHUNKED + b"0\r\nX: a\x00b\r\n\r\n", BadRequest),
        Limited(CHUNKED + b"1;" + b"e" * 3_000 + b"\r\nx\r\n0\r\n\r\n", HeadTooLarge),
        Limited(CHUNKED + b"1;" + b"e" * 3_000, HeadTooLarge),
        Limited(CHUNKED + (b"1;" + b"e" * 300 + b"\r\nx\r\n") * 8 + b"0\r\n\r\n", HeadTooLarge),
        Limited(CHUNKED + b"0" * 3_000 + b"1\r\nx\r\n0\r\n\r\n", HeadTooLarge),
        *(Limited(CHUNKED + size + b"\r\nx\r\n0\r\n\r\n", BadRequest)
          for size in (b"", b" 1", b"1 ", b"+1", b"-1", b"0x1", b"1_0", b"1\r", b"1;a\x00", b"\xb2")),
        Limited(CHUNKED + b"1\nx\r\n0\r\n\r\n", BadRequest),
        Limited(CHUNKED + b"1\r\nx\n0\r\n\r\n", BadRequest),
        Limited(CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", BadRequest),
        Limited(HEAD + b"Content-Length: " + b"9" * 1_000 + b"\r\n\r\n", BodyTooLarge),
        Limited(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", EncodedBody),
        Limited(HEAD + b"Content-Encoding: identity, br\r\nContent-Length: 1\r\n\r\nx", EncodedBody),
        Limited(HEAD + b"Transfer-Encoding: gzip\r\n\r\nx", TransferCodingUnknown),
        Limited(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", TransferCodingUnknown),
        Limited(HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BadRequest),
        Limited(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BadRequest),
        Limited(b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\nanything", MethodNotAllowed),
        Limited(b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 1\r\n\r\nx", MethodNotAllowed),
        *(Limited(b"GET / HTTP/1.1\r\nHost:%b\r\n\r\n" % host, BadRequest)
          for host in (b"", b" ", b"a b", b" a/b", b"a:b", b"http://a", b" a@b", b" [::1", b" \xe9", b"a\r\nHost: a")),
        *(Limited(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target, BadRequest)
          for target in (b"/#b", b"/?b#c", b"http://a/b#c", b"http:///a", b"http://u@a", b"ftp://a/b", b"*", b"a:80")),
        Limited(b"GET http://a/ HTTP/1.1\r\n\r\n", BadRequest),
    ],
    ids=lambda limited: f"{limited.fault.__name__}-{crc32(limited.data)}",
)  # fmt: skip
def test_what_goes_beyond_a_limit_is_refused_by_its_own_name_however_it_is_cut(limited: Limited) -> None:
    for where in limited.places:
        found, fault = seen(cut(limited.data, where))
        assert found == [] and fault is not None and fault[0] == limited.fault.__name__


def test_what_stays_within_every_limit_is_taken_however_it_is_cut() -> None:
    headers = b"".join(b"X-%d: %b\r\n" % (n, b"v" * 140) for n in range(HEADERS_MAX - 2))
    data = HEAD + headers + b"Content-Length: %d\r\n\r\n" % BODY_MAX + b"b" * BODY_MAX
    for where in ([], [10], [len(HEAD) + 5, len(HEAD) + 900], list(range(0, len(data), 3))):
        (request,), fault = seen(cut(data, where))
        assert fault is None and isinstance(request, tuple) and len(request[4]) == BODY_MAX


def test_a_snapshot_may_be_larger_than_another_body() -> None:
    head = b"PUT /alpha/a/snapshot/1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    assert seen([head % (BODY_MAX + 1) + b"x" * (BODY_MAX + 1)])[1] is None
    too_large = BodyTooLarge(2 * BODY_MAX, "snapshot_bytes_max")
    assert seen([head % (2 * BODY_MAX + 1)])[1] == ("BodyTooLarge", str(too_large))


def test_a_refused_body_is_not_kept() -> None:
    machine = parser()
    machine.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(BodyTooLarge):
        for _ in range(10):
            machine.feed(b"400\r\n" + b"x" * 1_024 + b"\r\n")
    assert machine._held <= BODY_MAX


def test_bodies_that_are_still_arriving_share_a_budget_and_give_it_back() -> None:
    budget = Budget(1_000)
    first, second = parser(budget=budget), parser(budget=budget)
    head = HEAD + b"Content-Length: 900\r\n\r\n"
    first.feed(head + b"x" * 600)
    assert budget.held == 600
    with pytest.raises(Overloaded):
        second.feed(head + b"x" * 600)
    (request,) = first.feed(b"x" * 300)
    assert isinstance(request, Request) and len(request.body) == 900 and budget.held == 0
    third = parser(budget=budget)
    third.feed(head + b"x" * 10)
    third.close()
    assert budget.held == 0


def test_a_parser_that_refused_takes_no_more() -> None:
    machine = parser()
    with pytest.raises(BadRequest):
        machine.feed(b"nonsense\r\n\r\n")
    with pytest.raises(Failure):
        machine.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")


def test_requests_in_front_of_a_fault_are_answered_first() -> None:
    machine = parser()
    (request,) = machine.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\n")
    assert isinstance(request, Request) and isinstance(machine.failure, BadRequest)


def test_the_last_request_of_a_connection_says_so() -> None:
    for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"):
        (request,), _ = seen([head])
        assert isinstance(request, tuple) and request[5] is False


def test_a_trailer_changes_nothing_about_its_request() -> None:
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nStream-Closed: true\r\nHost: b\r\n\r\n"
    (request,), fault = seen([data])
    assert fault is None and isinstance(request, tuple)
    assert b"stream-closed" not in request[2] and request[2][b"host"] == b"a"


def only(data: bytes) -> tuple[bytes, bytes, dict[bytes, bytes], str, bytes, bool]:
    """The one request that the bytes are, whole and byte by byte."""
    for chunks in ([data], [data[at : at + 1] for at in range(len(data))]):
        (request,), fault = seen(chunks)
        assert fault is None and isinstance(request, tuple)
    return request


def test_what_stays_within_the_limits_of_trailers_and_extensions_is_taken() -> None:
    extensions = b"1;" + b"e" * (HEAD_MAX // 2) + b"\r\nx\r\n"
    trailers = b"X: t\r\n" * HEADERS_MAX
    assert only(CHUNKED + extensions + b"0\r\n" + trailers + b"\r\n")[4] == b"x"
    assert only(CHUNKED + b"1\r\nx\r\n" * 900 + b"0\r\n\r\n")[4] == b"x" * 900, "small chunks are no extensions"


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://b.example:80/a/b?c=d", b"/a/b?c=d", b"b.example:80"),
        (b"HTTPS://b/a", b"/a", b"b"),
        (b"http://[::1]:80", b"/", b"[::1]:80"),
        (b"http://b?c", b"/?c", b"b"),
        (b"//b/a", b"//b/a", b"a"),
    ],
)
def test_the_authority_of_an_absolute_target_takes_the_place_of_host(target: bytes, path: bytes, host: bytes) -> None:
    request = only(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
    assert request[1] == path and request[2][b"host"] == host


def test_an_absolute_target_decides_like_a_path_whether_its_body_is_a_snapshot() -> None:
    head = b"PUT http://a/alpha/a/snapshot/1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    body = b"x" * (BODY_MAX + 1)
    assert only(head % len(body) + body)[4] == body


def test_a_length_may_have_any_count_of_zeros_in_front_of_it() -> None:
    # More digits than Python makes an integer of; longer heads are allowed than in the other tests.
    data = HEAD + b"Content-Length: " + b"0" * 5_000 + b"3\r\n\r\nabc"
    (request,) = RequestParser(10_000, HEADERS_MAX, BODY_MAX, BODY_MAX).feed(data)
    assert isinstance(request, Request) and request.body == b"abc"


def test_identity_is_no_encoding() -> None:
    assert only(HEAD + b"Content-Encoding: Identity\r\nContent-Length: 1\r\n\r\nx")[4] == b"x"
    assert only(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n\r\n")[4] == b""


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    request = only(HEAD + b"Stream-Closed: \t true \t\r\nContent-Length: 1 \r\n\r\nx")
    assert request[2][b"stream-closed"] == b"true" and request[4] == b"x"


def test_a_connection_of_http_1_0_ends_after_its_first_request() -> None:
    data = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert only(data)[5] is False


@pytest.mark.parametrize(
    "body", [b"Content-Length: 1\r\n\r\nx", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"\r\n"]
)
@pytest.mark.parametrize("upgrade", UPGRADES[:2])
def test_what_follows_the_last_request_of_a_connection_is_not_looked_at(
    body: bytes, upgrade: tuple[tuple[bytes, bytes], ...]
) -> None:
    known, heads = HEAD + b"Content-Length: 1\r\n\r\ny", Heads()
    seen([known], heads)
    extra = b"".join(b"%b: %b\r\n" % pair for pair in upgrade)
    closing = extra.replace(b"Upgrade,", b"close, Upgrade,") or b"Connection: close\r\n"
    last = HEAD + closing + body
    for chunks in ([last + known], [last, known], [last, b"nonsense"]):
        found, fault = seen(chunks, heads)
        assert len(found) == 1 and fault is None
