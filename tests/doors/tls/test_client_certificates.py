"""Mutual TLS, optional and required: who shows no certificate, a good one, or one of nobody who is trusted."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Pair
from tests.support.http import Connection, ConnectionEnded, Response
from tests.support.node import HOST, Node

CUT_OFF = (ssl.SSLError, ConnectionError, ConnectionEnded)


@pytest.fixture(scope="module", params=["optional", "required"])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[tuple[Node, str]]:
    pair = authority.server(f"asks-{request.param}")
    flags = ("--tls-client-ca", str(authority.file), "--tls-client-certificates", request.param)
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=(*pair.flags, *flags)) as node:
        yield node, request.param
        assert "Traceback" not in node.stderr(), node.output()


def asked(node: Node, context: ssl.SSLContext) -> Response:
    with Connection(HOST, node.port, tls=context) as connection:
        return connection.request("GET", "/healthz")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_shows_a_certificate_of_the_authority_is_served_and_others_as_the_setting_says(
    node: tuple[Node, str], authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    server, wanted = node

    def context(client: Pair | None) -> ssl.SSLContext:
        found = authority.trusting(client)
        found.maximum_version = version
        return found

    assert asked(server, context(authority.client("reader"))).status == 200
    if wanted == "optional":
        assert asked(server, context(None)).status == 200
    else:
        with pytest.raises(CUT_OFF):
            asked(server, context(None))
    stranger = Authority(tmp_path, "another authority").client("reader")
    with pytest.raises(CUT_OFF):
        asked(server, context(stranger))
    with pytest.raises(CUT_OFF):
        asked(server, context(authority.server("no-client")))  # a server's certificate is none for a client
