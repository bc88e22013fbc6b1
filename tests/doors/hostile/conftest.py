"""The node that hostile requests are sent to: short timeouts, so that half a request is soon refused.
It checks at the end of each module that the server is alive and never crashed inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.hostile.shapes import JSON, JSON_PATH, PATH, TEXT, assert_alive
from tests.support.node import Node

FLAGS = ("--head-timeout-ms", "250", "--body-timeout-ms", "250", "--long-poll-timeout-ms", "50")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A memory node with a text stream that holds `hello` and an empty JSON stream."""
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=FLAGS) as node:
        for path, headers in ((PATH, TEXT), (JSON_PATH, JSON)):
            assert node.request("PUT", path, headers).status == 201
        assert node.request("POST", PATH, TEXT, b"hello").status == 204
        yield node
        assert node.running, node.output()
        assert_alive(node)
        assert node.request("GET", f"{PATH}?offset=-1").body == b"hello"
        assert node.terminate() == 0, node.output()
