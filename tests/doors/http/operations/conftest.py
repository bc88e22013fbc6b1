"""The one node that the tests of the operations share, checkpointing often, with short waits and lives.
It checks at the end that no request ended in a trace and that the node stops cleanly."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.doors.http.extensions.surface import TEXT, Stream, fresh_name
from tests.support.node import Node

FLAGS = ("--checkpoint-interval-ms", "50", "--long-poll-timeout-ms", "150", "--body-bytes-max", "40MiB")

New = Callable[..., Stream]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=FLAGS) as node:
        yield node
        assert node.running, node.output()
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture
def new(node: Node) -> New:
    """Makes a stream of a fresh name: `new(headers, body, stream_ttl="5")`."""

    def make(headers: dict[str, str] = TEXT, body: bytes | None = None, **more: str) -> Stream:
        stream = Stream(node, f"/v1/stream/ops/{fresh_name('s')}", headers)
        answer = stream.create(body, **more)
        assert answer.status == 201, answer
        return stream

    return make


@pytest.fixture
def nowhere(node: Node) -> Stream:
    """A stream that was never created."""
    return Stream(node, f"/v1/stream/ops/{fresh_name('never')}", TEXT)
