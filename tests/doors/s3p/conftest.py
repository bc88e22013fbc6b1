"""The node that the sections of the spec are held against: every limit low enough to be met, data on disk.
It checks at the end of each module that the server is alive and never failed inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.s3p.client import LIMITS, Client, s3p_node
from tests.support.node import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = [text for name, value in LIMITS.items() for text in (f"--{name}", str(value))]
    with s3p_node(tmp_path_factory.mktemp("node"), flags=flags) as node:
        yield node
        assert node.running, node.output()
        assert '"request failed"' not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


@pytest.fixture(scope="module")
def plain_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node in memory with the limits it has by default."""
    with s3p_node(tmp_path_factory.mktemp("node"), memory=True) as node:
        yield node
        assert node.running, node.output()
        assert '"request failed"' not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


@pytest.fixture(scope="module")
def lake_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with data on disk, whose records can settle."""
    with s3p_node(tmp_path_factory.mktemp("node")) as node:
        yield node
        assert '"request failed"' not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    """A connection to a node on which the stream `orders` does not exist."""
    with Client.of(node) as client:
        client.delete(b"orders")
        yield client
