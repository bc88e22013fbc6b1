"""The node that all files here share, checkpointing so often that every test spans several; it is killed and started
again by some. It checks at the end that no request ended in a trace and that the node stops cleanly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic
from tests.support.node import Node

FLAGS = ("--checkpoint-interval-ms", "50", "--s3p", "127.0.0.1:0")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=FLAGS) as node:
        yield node
        assert node.running, node.output()
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


@pytest.fixture
def new(node: Node) -> New:
    """Makes a topic of a fresh name: `new(cap_records=3)`."""
    return lambda **config: new_topic(node, **config)


@pytest.fixture
def topic(node: Node) -> Topic:
    """An empty JSON topic."""
    return new_topic(node)
