"""The server that tests of topics and queues run against: a fake of the contract, or a real node.
Which one is said by the environment: TEST_TOPICS=node pytest tests/client tests/cli/test_topic.py"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.client.fake_topics import fake_topics
from tests.support.node import Node


@contextmanager
def topics_server(directory: Path) -> Iterator[str]:
    """Its URL; it holds nothing."""
    if os.environ.get("TEST_TOPICS") == "node":
        with Node.started(directory, memory=True) as node:
            yield node.url
    else:
        with fake_topics() as url:
            yield url
