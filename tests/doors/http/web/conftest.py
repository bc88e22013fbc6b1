"""The node that these tests share. A client that comes from PROXY is a trusted proxy; every other one is not.
It checks at the end that nothing ended in a trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.node import Node

PROXY = "127.0.0.2"
ORIGINS = ("https://app.example", "https://other.example")
FLAGS = ("--trusted-proxies", PROXY, "--cors-origin", ",".join(ORIGINS), "--cors-credentials")


@pytest.fixture(scope="package", params=["1", "3"], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = (*FLAGS, "--workers", request.param)
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=flags) as node:
        yield node
        assert node.running, node.output()
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()
