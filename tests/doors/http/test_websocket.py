"""WebSockets on a transport and a clock that the test moves: every rule of RFC 6455 that the door relies on.
Sections are those of the RFC. Real sockets and clients that are not ours are in test_websocket_clients.py, pace and
end in test_websocket_pace.py."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from headwater.doors.http import websocket
from headwater.doors.http.connection import BODY_RATE_BYTES_PER_S, EARLY_BYTES_MAX
from tests.support.websockets import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Got,
    Rig,
    close,
    frame,
    request,
)

GET = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"
LATER = b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n"


def answered(rig: Rig) -> tuple[int, dict[str, list[str]], dict[str, str]]:
    """Status, headers and error of the one answer that was written."""
    head, _, body = bytes(rig.written).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, _, value = line.partition(": ")
        headers.setdefault(name.lower(), []).append(value)
    return int(lines[0].split()[1]), headers, json.loads(body)["error"]


def failed(rig: Rig, code: int) -> None:
    """The WebSocket was failed with this code (7.1.7): a Close, then the end of what the server sends."""
    assert rig.close_code() == code, rig.frames()
    assert rig.eof and rig.echo.closed_count == 1
    assert rig.sockets.open_count == 0 and rig.bodies.held == 0


# ---- the opening handshake (4.2) ------------------------------------------------------------------------------------


def test_a_handshake_is_answered_with_the_key_that_proves_it_was_read() -> None:
    rig = Rig.opened()
    assert b"\r\nSec-WebSocket-Accept: " + ACCEPT.encode() + b"\r\n" in rig.head()
    assert b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" in rig.head()
    assert b"Sec-WebSocket-Extensions" not in rig.head() and b"Content-Length" not in rig.head()
    assert rig.sockets.open_count == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"connection": "keep-alive, Upgrade"},
        {"connection": "UPGRADE", "upgrade": "WebSocket"},
        {"upgrade": "h2c, websocket"},
        {"connection": "Upgrade\r\nConnection: keep-alive"},
        {"origin": "https://elsewhere.example"},
        {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"},
    ],
)
def test_headers_may_be_written_in_every_way_that_http_allows(changed: dict[str, str]) -> None:
    rig = Rig()
    rig.send(request(**changed))
    assert rig.head().startswith(b"HTTP/1.1 101 ") and b"Extensions" not in rig.head()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"upgrade": None}, "Upgrade"),
        ({"upgrade": "h2c"}, "Upgrade"),
        ({"connection": None}, "Connection"),
        ({"connection": "keep-alive"}, "Connection"),
        ({"sec_websocket_version": None}, "Version"),
        ({"sec_websocket_version": "8"}, "Version"),
        ({"version": "1.0"}, "HTTP/1.0"),
    ],
)
def test_a_request_that_opens_no_websocket_is_told_how_to(changed: dict[str, str | None], word: str) -> None:
    rig = Rig()
    rig.send(request(**changed))  # type: ignore[arg-type]
    status, headers, error = answered(rig)
    assert (status, error["code"]) == (426, "upgrade_required") and word in error["message"]
    # 4.4: the version that is spoken; RFC 9110, 15.5.22 and 7.8: the protocol, and that it is a matter of this hop.
    assert headers["sec-websocket-version"] == ["13"] and headers["upgrade"] == ["websocket"]
    assert "Upgrade" in headers["connection"]


@pytest.mark.parametrize("key", [None, "", "eA==", "x" * 24, "dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25jZQ==="])
def test_a_key_that_is_not_16_bytes_in_base64_is_refused(key: str | None) -> None:
    rig = Rig()
    rig.send(request(sec_websocket_key=key))
    status, _, error = answered(rig)
    assert (status, error["code"]) == (400, "bad_request") and "Sec-WebSocket-Key" in error["message"]
    assert rig.closed and not rig.echoes


@pytest.mark.parametrize("name", ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"])
def test_a_header_that_stands_once_is_refused_when_it_stands_twice(name: str) -> None:
    rig = Rig()
    rig.send(request(origin="a\r\n" + name))  # 11.3.1 and 11.3.5
    assert answered(rig)[0] == 400


def test_another_method_is_refused() -> None:
    rig = Rig()
    rig.send(request(method="POST"))
    status, headers, _ = answered(rig)
    assert status == 405 and headers["allow"] == ["GET, OPTIONS"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 101), ("https://app.example", 101), ("http://a.example", 101), ("https://bad.example", 403), ("null", 403)],
)
def test_pages_of_other_origins_are_kept_out_when_a_setting_names_one(origin: str | None, status: int) -> None:
    rig = Rig(cors_origin="https://app.example")  # 10.2
    rig.send(request(origin=origin))
    assert rig.head().startswith(b"HTTP/1.1 %d " % status)


def test_a_request_that_another_process_sent_on_is_refused() -> None:
    rig = Rig(internal=True)
    rig.send(request())
    status, _, error = answered(rig)
    assert status == 400 and "process that accepted" in error["message"]


def test_a_refused_handshake_ends_its_connection_and_frames_behind_it_are_thrown_away() -> None:
    rig = Rig()
    rig.send(request(sec_websocket_key="eA==") + frame(TEXT, b"early"))
    status, headers, _ = answered(rig)
    assert status == 400 and headers["connection"] == ["close"]
    # The end of what is sent, not of the connection: closing it with bytes on their way would wipe out the answer.
    assert rig.eof and not rig.closed
    rig.send(frame(TEXT, b"more"))
    assert len(rig.exchanges) == 1 and not rig.echoes


def test_an_upgrade_where_there_is_no_websocket_is_ignored_and_the_connection_stays() -> None:
    rig = Rig()
    rig.send(request(path="/elsewhere") + GET)
    assert rig.written.count(b"HTTP/1.1 200 OK") == 2 and not rig.closed


# ---- its place among other requests ---------------------------------------------------------------------------------


def test_an_upgrade_waits_for_the_answers_in_front_of_it_and_loses_no_byte_meanwhile() -> None:
    rig = Rig()
    rig.send(GET + LATER + request() + frame(TEXT, b"one")[:3], frame(TEXT, b"one")[3:], frame(TEXT, b"two"))
    assert len(rig.exchanges) == 2 and not rig.echoes
    rig.exchanges[1].empty(200, [])
    assert rig.echo.messages == ["one", "two"]
    answers = bytes(rig.written).split(b"\r\n\r\n")
    assert [answer[:13] for answer in answers[:3]] == [b"HTTP/1.1 200 ", b"HTTP/1.1 200 ", b"HTTP/1.1 101 "]
    assert answers[3] == b"\x81\x03one\x81\x03two"


def test_what_comes_before_an_upgrade_is_answered_is_bounded() -> None:
    rig = Rig()
    rig.send(request(path="/v0/later/ws"))
    rig.send(b"x" * EARLY_BYTES_MAX)
    assert rig.reading
    rig.send(b"x")
    assert not rig.reading
    rig.exchanges[0].empty(200, [])
    assert rig.eof and rig.reading  # it is read to be thrown away


def test_early_bytes_that_stopped_the_reading_are_handed_on_and_it_goes_on() -> None:
    rig = Rig()
    early = frame(TEXT, b"x" * EARLY_BYTES_MAX)
    rig.send(LATER + request() + early)
    assert not rig.reading
    rig.exchanges[0].empty(200, [])
    assert rig.reading and rig.echo.messages == ["x" * EARLY_BYTES_MAX]


def test_a_body_of_the_request_is_no_frame() -> None:
    rig = Rig()
    rig.send(request(**{"Content-Length": "5"}) + b"hello" + frame(TEXT, b"a"))
    assert rig.texts() == ["a"]


# ---- messages (5.4, 5.6, 8.1) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
def test_a_message_of_every_length_of_length_arrives_and_is_sent(size: int) -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"x" * size))
    assert rig.texts() == ["x" * size]


def test_bytes_may_come_one_at_a_time() -> None:
    rig = Rig()
    text = "zwölf Boxkämpfer €𝄞"
    sent = request() + frame(TEXT, text.encode()) + frame(PING, b"p") + frame(TEXT, b"", fin=False) + frame(CONT, b"z")
    rig.send(*(bytes([byte]) for byte in sent + close(1000)))
    assert rig.frames() == [Got(TEXT, text.encode()), Got(PONG, b"p"), Got(TEXT, b"z"), Got(CLOSE, b"\x03\xe8")]


@examples(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=300), max_size=6),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    pieces=st.lists(st.integers(1, 700), min_size=1, max_size=30),
)
def test_messages_are_the_same_however_they_are_fragmented_and_cut(
    texts: list[str], cuts: list[int], pieces: list[int]
) -> None:
    sent, turn = b"", 0
    for text in texts:
        data, opcode = text.encode(), TEXT
        while True:  # 5.4: fragments may end inside a character, and control frames may stand between them
            size = cuts[turn % len(cuts)] * 5
            turn += 1
            sent += frame(opcode, data[:size], fin=len(data) <= size)
            if len(data) <= size:
                break
            sent += frame(PING, b"between") if turn % 3 == 0 else b""
            data, opcode = data[size:], CONT
    rig = Rig.opened()
    at, turn = 0, 0
    while at < len(sent):
        size = pieces[turn % len(pieces)]
        rig.send(sent[at : at + size])
        rig.pass_turns()
        at, turn = at + size, turn + 1
    assert rig.echo.messages == rig.texts() == texts
    assert rig.bodies.held == 0 and rig.reading


@pytest.mark.parametrize("data", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"])
def test_text_that_is_not_utf8_is_refused(data: bytes) -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, data))  # 8.1
    failed(rig, 1007)
    assert rig.echo.messages == []


def test_a_binary_message_is_refused_also_as_a_fragment() -> None:
    for sent in (frame(BINARY, b"\x00"), frame(BINARY, b"\x00", fin=False) + frame(CONT, b"a")):
        rig = Rig.opened()
        rig.send(frame(TEXT, b"before") + sent + frame(TEXT, b"after"))
        failed(rig, 1003)
        assert rig.echo.messages == ["before"]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(TEXT, b"a", mask=None), id="5.1 a client masks"),
        *(pytest.param(frame(TEXT, b"a", reserved=1 << bit), id=f"5.2 reserved bit {bit}") for bit in range(3)),
        *(pytest.param(frame(opcode, b""), id=f"5.2 opcode {opcode}") for opcode in (3, 7, 0xB, 0xF)),
        pytest.param(frame(PING, b"x" * 126), id="5.5 a control frame is short"),
        pytest.param(frame(CLOSE, b"\x03\xe8" + b"x" * 124), id="5.5 a Close is short"),
        pytest.param(frame(PING, b"", fin=False), id="5.5 a control frame is whole"),
        pytest.param(frame(CONT, b"a"), id="5.4 a continuation of nothing"),
        pytest.param(frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), id="5.4 a message inside another"),
        pytest.param(frame(CLOSE, b"\x03"), id="5.5.1 half a code"),
        *(pytest.param(close(code), id=f"7.4 code {code}") for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000)),
    ],
)
def test_what_the_rfc_forbids_ends_the_websocket_with_1002(sent: bytes) -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"before") + sent + frame(TEXT, b"after"))
    failed(rig, 1002)
    assert rig.echo.messages == ["before"]  # 7.1.7: nothing after it is looked at


def test_a_reason_that_is_not_utf8_is_refused() -> None:
    rig = Rig.opened()
    rig.send(close(1000, b"\xff"))
    failed(rig, 1007)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_message_beyond_the_limit_is_refused_by_its_head_alone_or_by_its_fragments() -> None:
    whole = frame(TEXT, b"x" * 2049)
    fragments = frame(TEXT, b"x" * 2048, fin=False) + frame(CONT, b"x")
    for sent in (whole[:8], fragments):
        rig = Rig.opened(body_bytes_max=2048)
        rig.send(sent)
        failed(rig, 1009)
    rig = Rig.opened(body_bytes_max=2048)
    rig.send(frame(TEXT, b"x" * 2048), frame(TEXT, b"x" * 2047, fin=False), frame(CONT, b"x"))
    assert [len(text) for text in rig.texts()] == [2048, 2048]


def test_what_arrives_counts_as_request_bodies_do_until_it_is_handed_on() -> None:
    rig = Rig.opened(bodies_bytes_max=10_000)
    message = frame(TEXT, b"x" * 5_000)
    rig.send(message[:4_000])
    assert rig.bodies.held > 3_900
    rig.send(message[4_000:])
    assert rig.bodies.held == 0
    rig.send(frame(TEXT, b"x" * 8_000, fin=False))
    assert rig.bodies.held == 8_000
    rig.bodies.held += 1_500  # others'
    rig.send(frame(CONT, b"x" * 600))
    assert rig.close_code() == 1013 and rig.bodies.held == 1_500
    rig = Rig.opened()
    rig.send(message[:4_000])
    rig.connection.connection_lost(None)
    assert rig.bodies.held == 0


def test_a_message_that_arrives_too_slowly_ends_the_websocket() -> None:
    rig = Rig.opened(body_timeout_ms=10_000)
    for _ in range(60):  # at the rate of a body it may take any time
        rig.send(frame(CONT if rig.bodies.held else TEXT, b"x" * BODY_RATE_BYTES_PER_S, fin=False))
        rig.pass_time(1)
    assert rig.close_code() is None
    for _ in range(20):
        rig.send(frame(CONT, b"x", fin=False))
        rig.pass_time(1)
    assert rig.close_code() == 1008 and rig.echo.closed_count == 1


def test_many_small_messages_are_handed_on_with_turns_for_others_in_between() -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"") * 1_000)
    assert len(rig.echo.messages) <= websocket.TURN_FRAMES and not rig.reading
    assert rig.pass_turns() >= 1_000 // websocket.TURN_FRAMES
    assert len(rig.echo.messages) == 1_000 and rig.reading
