"""Connecting to another node whose answer comes at the worst moment: whoever is told that there is no connection may
say that nothing was sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cluster import peers
from headwater.cluster.introduction import ACCEPTED, Introducing
from headwater.cluster.membership import HTTP
from headwater.cluster.peers import Peers

INTRODUCTION = b"hello"


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.protocol: Any = None
        self.ended = False

    def write(self, data: Any) -> None:
        self.written += data

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None)


class Asking(asyncio.Protocol):
    """Writes as soon as it may, as a request that waits for its connection does."""

    def __init__(self) -> None:
        self.heard = b""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"APPEND")

    def data_received(self, data: bytes) -> None:
        self.heard += data


def introducing() -> tuple[Introducing, Wire, Asking]:
    wire, asking = Wire(), Asking()
    made = Introducing(INTRODUCTION, asking)
    made.connection_made(wire)
    assert wire.written == INTRODUCTION
    return made, wire, asking


def test_a_connection_is_handed_over_with_what_came_behind_the_answer() -> None:
    async def body() -> None:
        made, wire, asking = introducing()
        for at in range(len(ACCEPTED)):
            made.data_received(ACCEPTED[at : at + 1])
        made.data_received(b"early")
        await made.done
        assert wire.written == INTRODUCTION
        made.hand_over()
        assert wire.protocol is asking
        assert (wire.written, asking.heard) == (INTRODUCTION + b"APPEND", b"early")

    asyncio.run(body())


@pytest.mark.parametrize("how", ["lost", "closing"])
def test_a_connection_that_ended_after_the_answer_is_not_handed_over(how: str) -> None:
    async def body() -> None:
        made, wire, _ = introducing()
        made.data_received(ACCEPTED)
        await made.done
        if how == "lost":
            made.connection_lost(None)
        else:
            wire.abort()
        with pytest.raises(ConnectionRefusedError):
            made.hand_over()
        assert wire.written == INTRODUCTION

    asyncio.run(body())


@pytest.mark.parametrize("late_in", ["connecting", "introducing"])
def test_a_time_limit_that_passes_as_the_answer_comes_leaves_nothing_sent(
    late_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that stood still for longer than the limit has both before it in one turn."""
    wire, asking = Wire(), Asking()

    async def connect(factory: Any, *_: Any, **__: Any) -> Any:
        made = factory()
        made.connection_made(wire)
        loop = asyncio.get_running_loop()
        if late_in == "connecting":
            made.data_received(ACCEPTED)
            await asyncio.sleep(0.01)  # the limit passes in here
        else:
            # In the turn in which the limit passes, whichever of the two comes first.
            loop.call_at(loop.time(), made.data_received, ACCEPTED)
        return wire, made

    async def body() -> None:
        node = SimpleNamespace(address="127.0.0.1:1", id="a", run="a-1")
        view: Any = SimpleNamespace(
            me=0, groups_count=1, on_change=[], owner=None, groups_of=None, alive=[], node_of=lambda _: node
        )
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect, raising=False)
        try:
            await Peers(view, b"secret").connect(1, HTTP, asking)
        except OSError:
            assert b"APPEND" not in wire.written
        else:
            assert wire.written.endswith(b"APPEND") and not wire.ended

    monkeypatch.setattr(peers, "CONNECT_S_MAX", 0.0)
    asyncio.run(body())
