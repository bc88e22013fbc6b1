"""The authority and the nodes that these tests share: one with one worker, one with three.
At the end nothing has ended in a trace, and each node stops cleanly and soon, whoever is still connected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Pair
from tests.support.http import Connection
from tests.support.node import HOST, Node

FLAGS = ("--s3p", f"{HOST}:0", "--tls-handshake-timeout-ms", "1000", "--tls-hsts-s", "3600")
S3P_READY = re.compile(r'"address": "127\.0\.0\.1:(\d+)", "event": "s3p ready"')


class SecureNode:
    """A node and what its clients need to know of it."""

    def __init__(self, node: Node, pair: Pair, authority: Authority) -> None:
        self.node = node
        self.pair = pair
        self.authority = authority

    @property
    def s3p_port(self) -> int:
        found = S3P_READY.search(self.node.stderr())
        assert found is not None, self.node.output()
        return int(found[1])

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.node.port}"

    def connect(self) -> Connection:
        return Connection(HOST, self.node.port, tls=self.authority.trusting())

    def metric(self, name: str) -> float:
        with self.connect() as connection:
            return float(connection.request("GET", "/__headwater/metrics").json()[name])


@pytest.fixture(scope="package")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="package", params=["1", "3"], ids=["one worker", "three workers"])
def secure(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[SecureNode]:
    directory: Path = tmp_path_factory.mktemp("node")
    pair = authority.server(f"node-{request.param}")
    flags = (*FLAGS, *pair.flags, "--workers", request.param)
    with Node.started(directory, memory=True, flags=flags) as node:
        secure = SecureNode(node, pair, authority)
        kept = secure.connect()  # an idle client that says no goodbye
        assert kept.request("GET", "/healthz").status == 200
        yield secure
        assert node.running, node.output()
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr() and "has no effect when using ssl" not in node.stderr(), node.output()
        kept.close()
