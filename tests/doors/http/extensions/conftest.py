"""The one node that the tests of the extension spec share, checkpointing so often that every test spans several.
It checks at the end that no request ended in a trace and that the node stops cleanly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.http.extensions.surface import SURFACES, Stream, make_bucket, make_stream
from tests.support.node import Node

FLAGS = ("--checkpoint-interval-ms", "50", "--long-poll-timeout-ms", "100")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=FLAGS) as node:
        yield node
        assert node.running, node.output()
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture(params=SURFACES, ids=["ds", "plain"])
def surface(request: pytest.FixtureRequest) -> str:
    """What stands before `/{bucket}`: both surfaces keep the same rules unless a test says otherwise."""
    return request.param


@pytest.fixture
def bucket(node: Node) -> str:
    return make_bucket(node)


@pytest.fixture
def stream(node: Node, bucket: str) -> Stream:
    """An empty text stream."""
    return make_stream(node, bucket)
