"""The pace of WebSockets in both directions, their keep-alive, and how they end, on a clock that the test moves.
Sections are those of RFC 6455. The rules of frames are in test_websocket.py."""

from __future__ import annotations

import pytest

from headwater.doors.http import websocket
from tests.support.websockets import CLOSE, PING, PONG, TEXT, Got, Rig, close, frame, request

KEEPALIVE_S = 15.0


# ---- pace -----------------------------------------------------------------------------------------------------------


def test_a_client_that_takes_nothing_fills_a_queue_of_four_messages_and_then_send_refuses() -> None:
    rig = Rig.opened()
    rig.connection.pause_writing()
    echo, socket = rig.echo, rig.echo.socket
    assert [socket.send(str(number)) for number in range(6)] == [True] * 4 + [False] * 2
    assert rig.texts() == [] and echo.writable_count == 0
    rig.connection.resume_writing()
    assert rig.texts() == ["0", "1", "2", "3"] and echo.writable_count == 1
    assert socket.send("6") and rig.texts()[-1] == "6"
    rig.connection.pause_writing()
    rig.connection.resume_writing()
    assert echo.writable_count == 1  # nothing was refused this time


def test_messages_are_sent_in_order_also_when_the_socket_fills_again_while_it_drains() -> None:
    rig = Rig.opened()
    rig.connection.pause_writing()
    for number in range(4):
        rig.echo.socket.send(str(number))
    write = rig.write

    def write_one(data: bytes) -> None:
        write(data)
        rig.connection.pause_writing()

    rig.write = write_one  # type: ignore[method-assign]
    for count in range(1, 5):
        rig.connection.resume_writing()
        assert rig.texts() == [str(number) for number in range(count)]
        assert rig.echo.socket.send(f"more {count}")
        assert rig.echo.socket.send("beyond") is False
    assert rig.echo.writable_count == 0
    for _ in range(4):
        rig.connection.resume_writing()
    assert rig.texts() == ["0", "1", "2", "3", *(f"more {count}" for count in range(1, 5))]


def test_nothing_is_read_and_no_message_handed_on_while_the_client_takes_no_answers() -> None:
    rig = Rig.opened()
    write = rig.write

    def fill(data: bytes) -> None:
        write(data)
        if data == b"\x81\x01b":
            rig.connection.pause_writing()

    rig.write = fill  # type: ignore[method-assign]
    rig.send(b"".join(frame(TEXT, name) for name in (b"a", b"b", b"c", b"d")) + frame(PING, b"e"))
    assert rig.echo.messages == ["a", "b"] and not rig.reading
    rig.pass_turns()
    rig.pass_time(4 * KEEPALIVE_S)  # it is not read, so its silence says nothing
    assert rig.echo.messages == ["a", "b"] and rig.close_code() is None
    rig.connection.resume_writing()
    assert rig.texts() == ["a", "b", "c", "d"] and rig.frames()[-1] == Got(PONG, b"e") and rig.reading


def test_a_handler_that_holds_gets_its_messages_when_it_releases() -> None:
    rig = Rig.opened()
    socket = rig.echo.socket
    socket.hold()
    assert not rig.reading
    rig.send(frame(TEXT, b"a") + frame(TEXT, b"b"))
    rig.connection.pause_writing()
    rig.connection.resume_writing()
    rig.pass_turns()
    assert rig.echo.messages == [] and not rig.reading and rig.bodies.held == 2
    socket.release()
    rig.pass_turns()
    assert rig.echo.messages == ["a", "b"] and rig.reading and rig.bodies.held == 0


# ---- ping and pong (5.5.2, 5.5.3) -----------------------------------------------------------------------------------


def test_a_ping_is_answered_with_its_own_content_and_a_pong_with_nothing() -> None:
    rig = Rig.opened()
    rig.send(frame(PING, b"x" * 125) + frame(PONG, b"unasked"))
    assert rig.frames() == [Got(PONG, b"x" * 125)] and rig.echo.messages == []


def test_a_silent_client_is_pinged_and_one_that_answers_stays() -> None:
    rig = Rig.opened(sse_keepalive_ms=int(KEEPALIVE_S * 1000))
    for _ in range(5):
        before = len(rig.frames())
        rig.pass_time(KEEPALIVE_S + 1.5)
        assert rig.frames()[before:] == [Got(PING, b"")]
        rig.send(frame(PONG))
    assert rig.echo.closed_count == 0


def test_a_client_that_answers_no_ping_is_given_up() -> None:
    rig = Rig.opened(sse_keepalive_ms=int(KEEPALIVE_S * 1000))
    rig.pass_time(2 * KEEPALIVE_S + 2)
    assert rig.close_code() == 1011 and rig.echo.closed_count == 1 and not rig.aborted
    rig.pass_time(websocket.CLOSE_S + 1)
    assert rig.aborted and rig.echo.closed_count == 1 and rig.sockets.open_count == 0


# ---- the end (5.5.1, 7) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x0f\xa0bye", b"\x0b\xb8"])
def test_a_close_is_answered_with_its_own_code_and_the_server_ends_the_connection(payload: bytes) -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"a") + frame(CLOSE, payload) + frame(TEXT, b"b"))
    assert rig.frames() == [Got(TEXT, b"a"), Got(CLOSE, payload)]  # 1.4: what follows a Close is discarded
    assert rig.eof and rig.echo.closed_count == 1 and rig.echo.messages == ["a"]
    assert rig.connection.eof_received() is False


def test_a_client_that_stays_after_the_end_is_cut_off() -> None:
    rig = Rig.opened()
    rig.send(close(1000))
    assert rig.eof and not rig.closed
    rig.pass_time(7)
    assert rig.aborted


def test_a_handler_closes_after_what_it_sent_and_waits_for_the_answer() -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"leave") + frame(TEXT, b"unheard") + frame(PING, b"p"))
    assert rig.echo.messages == ["leave"] and rig.echo.closed_count == 1
    pong, sent = rig.frames()
    assert pong == Got(PONG, b"p") and sent.opcode == CLOSE and sent.payload[:2] == b"\x0f\xa0"
    assert sent.payload[2:].decode() == "é" * 61 and len(sent.payload) <= 125  # 5.5, and no half character
    assert rig.echo.socket.send("too late") is False
    rig.pass_turns()
    assert not rig.eof
    rig.send(close(4000))
    assert rig.eof and not rig.aborted and rig.echo.closed_count == 1


def test_a_close_that_the_client_does_not_answer_ends_the_connection_in_bounded_time() -> None:
    rig = Rig.opened()
    rig.echo.socket.close()
    for _ in range(20):
        rig.send(frame(PING, b"still here") if not rig.aborted else b"")
        rig.pass_time(0.5)
    assert rig.aborted and rig.echo.closed_count == 1


def test_messages_that_wait_leave_before_a_close() -> None:
    rig = Rig.opened()
    rig.connection.pause_writing()
    for number in range(4):
        rig.echo.socket.send(str(number))
    rig.echo.socket.close(1000, "done")
    assert rig.texts() == ["0", "1", "2", "3"] and rig.close_code() == 1000


def test_a_server_that_stops_says_so_and_waits_for_the_client() -> None:
    rig = Rig.opened()
    rig.closing = True
    rig.connection.shut_down()
    assert rig.close_code() == 1001 and rig.echo.closed_count == 1 and not rig.closed
    rig.send(close(1001))
    assert rig.eof


def test_a_websocket_that_opens_while_the_server_stops_is_closed_at_once() -> None:
    rig = Rig()
    rig.closing = True
    rig.send(request())
    rig.pass_turns()
    assert rig.close_code() == 1001 and rig.echo.closed_count == 1


def test_a_client_that_ends_without_a_close_is_gone() -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"half")[:4])
    assert rig.connection.eof_received() is False
    assert rig.echo.closed_count == 1 and rig.bodies.held == 0 and rig.frames() == []
    rig.connection.connection_lost(None)
    assert rig.echo.closed_count == 1 and rig.sockets.open_count == 0


def test_a_fault_of_the_handler_ends_its_websocket_alone_and_names_the_report() -> None:
    rig = Rig.opened()
    rig.send(frame(TEXT, b"raise") + frame(TEXT, b"unheard"))
    assert rig.close_code() == 1011 and rig.eof and rig.echo.closed_count == 1
    assert rig.echo.messages == ["raise"] and rig.frames()[-1].payload[2:]


def test_a_handler_that_cannot_be_made_ends_the_websocket() -> None:
    rig = Rig()

    def make(socket: object) -> object:
        raise ValueError("a fault of the handler")

    rig.make = make  # type: ignore[method-assign,assignment]
    rig.send(request() + frame(TEXT, b"early"))
    assert rig.head().startswith(b"HTTP/1.1 101 ") and rig.close_code() == 1011 and rig.eof
    assert rig.sockets.open_count == 0
