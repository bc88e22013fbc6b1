"""Questions between members: to oneself a plain call, to others over their sockets, refusals as if raised here."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.cluster.calls import PREFIX, Calls
from headwater.cluster.members import Members
from headwater.errors import BucketNotEmpty, MemberUnavailable, OutcomeUnknown


class Counted(msgspec.Struct):
    member: int
    sum: int


def calls_of(me: int, directory: Path) -> Calls:
    calls = Calls(Members(me, 2, 4, directory))

    async def add(*numbers: int) -> Counted:
        return Counted(me, sum(numbers))

    async def refuse(count: int) -> None:
        raise BucketNotEmpty(count)

    calls.register("add", add)
    calls.register("refuse", refuse)
    return calls


@asynccontextmanager
async def answering(calls: Calls, path: str, cut: bool = False) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A member's socket: answers like the HTTP door, or ends the connection where an answer would be.

    What it gives ends all connections; on return the other ends have heard of it.
    """
    writers: list[asyncio.StreamWriter] = []

    async def cut_all() -> None:
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                target = head.split(" ")[1]
                size = int(next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))[15:])
                body = await reader.readexactly(size)
                if cut:
                    break
                status, answer = await calls.answer(target.removeprefix(f"{PREFIX}/"), body)
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(answer), answer))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield cut_all


def asked(what: Any, cut: bool = False) -> None:
    async def body() -> None:
        with tempfile.TemporaryDirectory() as folder:
            first, second = calls_of(0, Path(folder)), calls_of(1, Path(folder))
            async with answering(second, Members(1, 2, 4, Path(folder)).http_path(1), cut):
                try:
                    await what(first)
                finally:
                    first.close()

    asyncio.run(body())


def test_every_member_answers_once_in_their_order() -> None:
    async def what(calls: Calls) -> None:
        for _ in range(3):  # over the same connection
            assert await calls.ask_all("add", 1, 2, into=Counted) == [Counted(0, 3), Counted(1, 3)]
        assert await calls.ask_owner(3, "add", 5, into=Counted) == Counted(1, 5)
        assert await calls.ask_owner(2, "add", 5, into=Counted) == Counted(0, 5)

    asked(what)


def test_a_refusal_of_another_member_is_raised_with_its_facts() -> None:
    async def what(calls: Calls) -> None:
        for member in (0, 1):
            with pytest.raises(BucketNotEmpty) as refused:
                await calls.ask(member, "refuse", 7)
            assert vars(refused.value) == vars(BucketNotEmpty(7))

    asked(what)


def test_a_member_that_was_started_again_is_asked_as_before() -> None:
    async def body() -> None:
        with tempfile.TemporaryDirectory() as folder:
            first, second = calls_of(0, Path(folder)), calls_of(1, Path(folder))
            for _ in range(2):
                async with answering(second, Members(1, 2, 4, Path(folder)).http_path(1)) as cut_all:
                    assert await first.ask(1, "add", 2, into=Counted) == Counted(1, 2)
                    await cut_all()
            first.close()

    asyncio.run(body())


def test_a_member_that_is_not_there_had_no_part_in_it() -> None:
    async def body() -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.raises(MemberUnavailable):
            await calls_of(0, Path(folder)).ask(1, "add", 1)

    asyncio.run(body())


def test_what_a_member_did_before_it_went_away_is_not_known() -> None:
    async def what(calls: Calls) -> None:
        with pytest.raises(OutcomeUnknown):
            await calls.ask(1, "add", 1)

    asked(what, cut=True)
