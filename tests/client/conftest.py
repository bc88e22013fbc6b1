"""Servers that the client's tests run against, for all tests of a file.

Owns what each test connects to; which server has the topics is told in `topics_server`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headwater.client import AsyncHeadwater, Headwater, Retries
from tests.client.awaited import Awaited
from tests.client.faulty_proxy import Proxy, faulty_proxy
from tests.client.topics_server import topics_server
from tests.support.node import Node

IMPATIENT = Retries(total_s=30.0, pause_s_first=0.001, pause_s_max=0.01)
"""Pauses that no test has to wait for."""
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=["--long-poll-timeout-ms", "50"]) as started:
        yield started


@pytest.fixture(scope="module")
def topics_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with topics_server(tmp_path_factory.mktemp("topics")) as url:
        yield url


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of either kind, all with the methods of `Headwater`; they are closed after the test."""
    with ExitStack() as closing:
        if request.param == "sync":
            yield lambda url, **more: closing.enter_context(Headwater(url, **{"retries": IMPATIENT, **more}))
        else:
            runner = closing.enter_context(asyncio.Runner())
            yield lambda url, **more: _awaited(runner, url, {"retries": IMPATIENT, **more}, closing)


def _awaited(runner: asyncio.Runner, url: str, more: dict[str, Any], closing: ExitStack) -> Any:
    client = AsyncHeadwater(url, **more)
    closing.callback(lambda: runner.run(client.close()))
    return Awaited(runner, client)


@pytest.fixture
def hw(connect: Connect, topics_url: str) -> Any:
    return connect(topics_url)


@pytest.fixture
def lossy(topics_url: str) -> Iterator[Proxy]:
    """A proxy in front of the topics."""
    with faulty_proxy(topics_url) as proxy:
        yield proxy


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a stream, topic or queue of this test alone."""
    return re.sub(r"\W+", "-", request.node.name)
