"""A refusal while the client still sends its body: the answer arrives, at every client and however large the body is.
A reset that wiped the answer out would be a connection error here."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.doors.hostile.shapes import assert_alive
from tests.support.http import encode_request
from tests.support.node import Node

MIB = 1 << 20
PATH = "/v1/stream/refused"
TEXT = {"Content-Type": "text/plain"}
BODY = b"x" * (64 * MIB)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=("--body-bytes-max", "1MiB")) as node:
        assert node.request("PUT", PATH, TEXT).status == 201
        yield node
        assert node.request("GET", f"{PATH}?offset=-1").body == b""
        assert "Traceback" not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


def pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 65_536):
        yield data[at : at + 65_536]


def by_http_client(node: Node, headers: dict[str, str], body: bytes, chunked: bool) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=120)
    connection.request("POST", PATH, pieces(body) if chunked else body, headers, encode_chunked=chunked)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def by_urllib(node: Node, headers: dict[str, str], body: bytes, chunked: bool) -> tuple[int, bytes]:
    data = pieces(body) if chunked else body
    request = urllib.request.Request(f"{node.url}{PATH}", data, headers, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=120)
    with refused.value as answer:
        return answer.code, answer.read()


def by_httpx(node: Node, headers: dict[str, str], body: bytes, chunked: bool) -> tuple[int, bytes]:
    content = pieces(body) if chunked else body
    answer = httpx.post(f"{node.url}{PATH}", headers=headers, content=content, timeout=120, trust_env=False)
    return answer.status_code, answer.content


CLIENTS: dict[str, Callable[[Node, dict[str, str], bytes, bool], tuple[int, bytes]]] = {
    "http.client": by_http_client,
    "urllib": by_urllib,
    "httpx": by_httpx,
}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_body_that_is_too_large_is_answered_413_though_it_is_sent_to_its_end(
    node: Node, client: str, chunked: bool
) -> None:
    headers = TEXT | ({"Transfer-Encoding": "chunked"} if chunked and client == "http.client" else {})
    for size in (2 * MIB, 64 * MIB):
        status, body = CLIENTS[client](node, headers, BODY[:size], chunked)
        assert status == 413 and b"body_bytes_max: 1048576" in body


@pytest.mark.parametrize("client", CLIENTS)
def test_a_body_that_is_refused_for_its_encoding_is_answered_415(node: Node, client: str) -> None:
    status, body = CLIENTS[client](node, TEXT | {"Content-Encoding": "gzip"}, BODY[: 16 * MIB], False)
    # Its encoding is not looked at before its length.
    assert status == 413
    status, body = CLIENTS[client](node, TEXT | {"Content-Encoding": "gzip"}, BODY[:MIB], False)
    assert status == 415 and b"Content-Encoding" in body


@pytest.mark.parametrize(
    "more", [[], ["--http1.0"], ["--header", "Transfer-Encoding: chunked"], ["--header", "Expect:"]]
)
def test_curl_reads_the_413(node: Node, tmp_path: Path, more: list[str]) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed; tools/system-packages.sh says how")
    large = tmp_path / "large"
    large.write_bytes(BODY)
    command = [curl, "--silent", "--show-error", "--max-time", "120", "--write-out", "\n%{http_code}", *more]
    command += ["--header", "Content-Type: text/plain", "--data-binary", f"@{large}", f"{node.url}{PATH}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.endswith("\n413") and "body_bytes_max" in done.stdout, (done.returncode, done.stderr)


def test_the_answer_stays_when_requests_follow_the_refused_one(node: Node) -> None:
    refused = encode_request("POST", PATH, TEXT, BODY[: 8 * MIB])
    with node.connect() as connection:
        connection.send(encode_request("HEAD", PATH) + refused + encode_request("POST", PATH, TEXT, b"smuggled"))
        assert connection.read_response("HEAD").status == 200
        answer = connection.read_response()
        assert answer.status == 413 and answer.closes
        assert connection.ended()
    assert_alive(node)
