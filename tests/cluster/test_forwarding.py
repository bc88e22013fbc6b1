"""Requests that another member answers, over real sockets: what its client gets, and what the owner hears."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from headwater.cluster.forwarding import HELD_BYTES_MAX, PLACED, Upstream
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.wire import Request
from headwater.histogram import Histogram
from tests.cluster.owners import CHUNKED, DONE, World, found, get, in_a_world, post, refusal, until, within

# ---- whole answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (post(1, b"some"), DONE),
        (get(1), found(b"hello")),
        (get(1), b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 9\r\n\r\n"),
        (get(1, method=b"HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"),
        (get(1), CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"),
        (post(1, b"some"), b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}"),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_an_answer_comes_back_byte_for_byte_and_the_connection_serves_on(request_: bytes, answer: bytes, cut) -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        for _ in range(3):  # from the second time on its head is known, from the third time on what became of it
            writer.write(request_)
            asked = await world.owners[1].next()
            assert asked.body == request_.partition(b"\r\n\r\n")[2]
            for part in [answer[at : at + 1] for at in range(len(answer))] if cut else [answer]:
                asked.answer(part)
                if cut:
                    await asyncio.sleep(0)
            assert await within(reader.readexactly(len(answer))) == answer
        writer.write(post(2, b"other"))
        (await world.owners[2].next()).answer(DONE)
        assert await within(reader.readexactly(len(DONE))) == DONE
        assert world.forwarder.forwarded_count == 4
        assert len(world.owners[1].connections) == len(world.owners[2].connections) == 1

    in_a_world(body)


def test_an_owner_gets_the_request_as_it_was_but_for_how_its_body_came() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        extra = b"X-Kept: yes\r\nHeadwater-Placed: 9/9\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(b"POST /1 HTTP/1.1\r\nHost: a\r\n" + extra + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        asked = await world.owners[1].next()
        assert asked.head == b"POST /1 HTTP/1.1\r\nhost: a\r\nx-kept: yes\r\ncontent-length: 3\r\n\r\n"
        assert asked.body == b"abc"
        asked.answer(DONE)
        await within(reader.readexactly(len(DONE)))
        # The mark of a placement is this node's own word: never what a client says.
        writer.write(b"GET /placed HTTP/1.1\r\nHost: a\r\nHeadwater-Placed: 9/9\r\n\r\n")
        assert (await world.owners[1].next()).head.endswith(b"\r\n%b: 3/7\r\n\r\n" % PLACED)

    in_a_world(body)


def test_a_long_body_arrives_whole() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        long = bytes(range(256)) * 4096
        writer.write(post(1, long))
        asked = await world.owners[1].next()
        assert asked.body == long
        asked.answer(DONE)
        assert await within(reader.readexactly(len(DONE))) == DONE

    in_a_world(body)


def test_pipelined_requests_are_answered_in_order_whatever_order_their_owners_answer_in() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        here = b"POST /here HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        writer.write(post(1, b"a") + post(2, b"b") + here + post(1, b"c") + get(2))
        first, third = await world.owners[1].next(), await world.owners[1].next()
        second = await world.owners[2].next()
        assert (first.body, second.body, third.body) == (b"a", b"b", b"c")
        second.answer(found(b"two"))
        first.answer(found(b"one") + found(b"three"))
        # The read is sent only now that everything before it was answered.
        (await world.owners[2].next()).answer(found(b"four"))
        read = b""
        while not read.endswith(b"four"):
            read += await within(reader.read(1 << 16))
        places = [read.index(word) for word in (b"one", b"two", b"HTTP/1.1 204", b"three", b"four")]
        assert places == sorted(places)
        assert read.count(b"HTTP/1.1 ") == 5

    in_a_world(body)


# ---- answers that take their time --------------------------------------------------------------------------------


def test_a_long_answer_is_streamed_and_a_slow_client_holds_its_owner_back() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(get(1))
        asked = await world.owners[1].next()
        piece = b"x" * 65_536
        pieces_count = 256

        async def give() -> None:
            asked.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * pieces_count))
            for _ in range(pieces_count):
                asked.answer(piece)
                await asked.writer.drain()

        giving = asyncio.get_running_loop().create_task(give())
        await until(lambda: world.upstream._transport is not None and not world.upstream._transport.is_reading())
        assert not giving.done()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await within(reader.readuntil(b"\r\n\r\n"))
        assert await within(reader.readexactly(len(piece) * pieces_count)) == piece * pieces_count
        await within(giving)
        writer.write(post(1, b"next"))
        (await world.owners[1].next()).answer(DONE)
        assert await within(reader.readexactly(len(DONE))) == DONE

    in_a_world(body)


class Held:
    """A client's connection that takes nothing more after the first part of an answer."""

    def __init__(self) -> None:
        self.exchanges: deque[Any] = deque()
        self.responder = Responder("*", keeps_nothing=True)
        self.streamer: Any = None
        self.paused = False
        self.written = b""
        self.finished = False

    def stream(self, streamer: Any) -> None:
        self.streamer = streamer

    def write(self, data: bytes) -> None:
        self.written += data
        self.paused = True

    def finish(self, exchange: Exchange) -> None:
        self.streamer = None
        self.finished = True


def test_an_owner_is_read_again_after_an_answer_whose_last_part_the_client_had_no_room_for() -> None:
    async def body(world: World) -> None:
        line = Held()
        exchange = Exchange(line, Request(b"GET", b"/1", {}, "1.1"))  # type: ignore[arg-type]
        line.exchanges.append(exchange)
        upstream = Upstream(line, 1, world.members, Histogram())  # type: ignore[arg-type]
        upstream.send(exchange, b"GET /1 HTTP/1.1\r\n\r\n", b"")
        asked = await world.owners[1].next()
        answer = found(b"x" * 2 * HELD_BYTES_MAX)
        asked.answer(answer[:100])
        await until(lambda: line.written == answer[:100])
        asked.answer(answer[100:])
        while not line.finished:
            await asyncio.sleep(0.005)
            if line.streamer is not None:
                line.streamer.drained()
        assert line.written == answer
        assert upstream._transport is not None and upstream._transport.is_reading()
        upstream.close()

    in_a_world(body)


def test_an_event_stream_passes_as_it_comes() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(get(1))
        asked = await world.owners[1].next()
        asked.answer(CHUNKED)
        assert await within(reader.readexactly(len(CHUNKED))) == CHUNKED
        for event in (b"6\r\ndata:1\r\n", b"6\r\ndata:2\r\n", b"0\r\n\r\n"):
            asked.answer(event)
            assert await within(reader.readexactly(len(event))) == event
        writer.write(get(1))
        (await world.owners[1].next()).answer(found(b"after"))
        assert (await within(reader.readuntil(b"after"))).endswith(b"after")

    in_a_world(body)


def test_an_owner_hears_that_the_client_of_an_event_stream_is_gone() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(get(1))
        asked = await world.owners[1].next()
        asked.answer(CHUNKED)
        await within(reader.readexactly(len(CHUNKED)))
        writer.transport.abort()
        await until(asked.reader.at_eof)

    in_a_world(body)


@pytest.mark.parametrize("begun", [False, True], ids=["long-poll", "event stream"])
def test_an_owner_hears_that_a_client_has_half_closed_and_its_last_words_arrive(begun: bool) -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(get(1))
        asked = await world.owners[1].next()
        if begun:
            asked.answer(CHUNKED)
            await within(reader.readexactly(len(CHUNKED)))
        writer.write_eof()
        await until(asked.reader.at_eof)
        last = b"4\r\nbye.\r\n0\r\n\r\n" if begun else DONE
        asked.answer(last)
        asked.writer.close()
        assert await within(reader.read()) == last

    in_a_world(body)


def test_a_client_that_half_closed_before_its_owner_was_reached_is_answered() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(post(1, b"a") + get(1))
        writer.write_eof()
        (await world.owners[1].next()).answer(DONE)
        asked = await world.owners[1].next()
        await until(asked.reader.at_eof)
        asked.answer(found(b"read"))
        asked.writer.close()
        assert await within(reader.read()) == DONE + found(b"read")

    in_a_world(body)


# ---- connections that end with their answer ----------------------------------------------------------------------


def test_a_connection_that_is_to_close_closes_after_its_answer() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(post(1, b"a", b"Connection: close\r\n"))
        asked = await world.owners[1].next()
        assert b"connection: close\r\n" in asked.head
        asked.answer(found(b"done", b"Connection: close\r\n"))
        assert (await within(reader.read())).endswith(b"done")

    in_a_world(body)


def test_an_answer_to_http_1_0_ends_with_its_connection() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(get(1, b"1.0"))
        asked = await world.owners[1].next()
        assert asked.head.startswith(b"GET /1 HTTP/1.0\r\n")
        asked.answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsome ", b"more")
        asked.writer.close()
        assert (await within(reader.read())).endswith(b"\r\n\r\nsome more")

    in_a_world(body)


# ---- owners that go away -----------------------------------------------------------------------------------------


def test_a_request_whose_owner_cannot_be_reached_is_refused_and_was_not_sent() -> None:
    async def body(world: World) -> None:
        await world.owners[1].close()
        Path(world.path_of(1)).unlink(missing_ok=True)
        reader, writer = await world.client()
        for request in (post(1, b"a"), get(1)):
            writer.write(request)
            head, said = await refusal(reader)
            assert head.startswith(b"HTTP/1.1 503 ") and b"member_unavailable" in said.lower(), said
        writer.write(get(1, method=b"HEAD"))
        assert (await refusal(reader, head_only=True))[0].startswith(b"HTTP/1.1 503 ")
        # It is back: the same client's connection reaches it.
        await world.owners[1].open(world.path_of(1))
        writer.write(post(1, b"b"))
        (await world.owners[1].next()).answer(DONE)
        assert await within(reader.readexactly(len(DONE))) == DONE

    in_a_world(body)


def test_when_an_owner_goes_after_a_request_was_sent_a_write_is_of_unknown_outcome_and_a_read_is_not() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(post(1, b"a") + post(1, b"b"))
        await world.owners[1].next()
        (await world.owners[1].next()).writer.transport.abort()
        for _ in range(2):
            head, said = await refusal(reader)
            assert head.startswith(b"HTTP/1.1 503 ") and b"outcome_unknown" in said.lower(), said
        writer.write(get(1))
        (await world.owners[1].next()).writer.transport.abort()
        head, said = await refusal(reader)
        assert head.startswith(b"HTTP/1.1 503 ") and b"member_unavailable" in said.lower(), said
        writer.write(post(1, b"c"))
        (await world.owners[1].next()).answer(DONE)
        assert await within(reader.readexactly(len(DONE))) == DONE

    in_a_world(body)


def test_an_answer_that_its_owner_cannot_end_is_cut_off() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(get(1))
        asked = await world.owners[1].next()
        part = CHUNKED + b"5\r\nhello\r\n"
        asked.answer(part)
        assert await within(reader.readexactly(len(part))) == part
        asked.writer.transport.abort()
        try:
            assert await within(reader.read()) == b""
        except ConnectionResetError:
            pass
        await until(lambda: not world.front.connections)

    in_a_world(body)


def test_an_owner_that_does_not_speak_http_is_left() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        writer.write(post(1, b"a"))
        asked = await world.owners[1].next()
        asked.answer(b"nonsense\r\n\r\n")
        head, said = await refusal(reader)
        assert head.startswith(b"HTTP/1.1 503 ") and b"outcome_unknown" in said.lower(), said
        await until(asked.reader.at_eof)
        writer.write(post(1, b"b"))
        (await world.owners[1].next()).answer(DONE)
        assert await within(reader.readexactly(len(DONE))) == DONE
        assert len(world.owners[1].connections) == 2

    in_a_world(body)


def test_a_client_that_goes_takes_its_connections_to_owners_along() -> None:
    async def body(world: World) -> None:
        reader, writer = await world.client()
        readers = []
        for member in (1, 2):
            writer.write(post(member, b"a"))
            asked = await world.owners[member].next()
            readers.append(asked.reader)
            asked.answer(DONE)
            await within(reader.readexactly(len(DONE)))
        writer.transport.abort()
        for of_owner in readers:
            await until(of_owner.at_eof)
        assert not world.front.connections

    in_a_world(body)


def test_an_append_whose_client_is_gone_is_answered_to_nobody() -> None:
    async def body(world: World) -> None:
        writer = (await world.client())[1]
        writer.write(post(1, b"a"))
        asked = await world.owners[1].next()
        writer.transport.abort()
        asked.answer(DONE)
        await until(asked.reader.at_eof)
        assert not world.front.connections

    in_a_world(body)
