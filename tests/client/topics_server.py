"""The server that tests of topics and queues run against: a node that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.node import Node


@contextmanager
def topics_server(directory: Path) -> Iterator[str]:
    """Its URL; it holds nothing."""
    with Node.started(directory, memory=True) as node:
        yield node.url
