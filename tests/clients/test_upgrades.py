"""Clients that ask for HTTP/2 on a plain connection unless told otherwise: curl with --http2, and the JDK's HttpClient.
The node does not speak it, and serves what they sent in HTTP/1.1: whole, once, and on a connection that stays."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import encode_request
from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "eA==",
    "Sec-WebSocket-Version": "13",
}
JDK = Path(__file__).with_name("upgrades.java")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), memory=True) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()
        assert node.terminate() == 0, node.output()


def read(node: Node, path: str) -> tuple[bytes, bool]:
    """What a stream holds, and whether it is closed."""
    answer = node.request("GET", f"{path}?offset=-1")
    assert answer.status == 200, answer
    return answer.body, answer.header("stream-closed") == "true"


# ---- by hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_a_request_that_asks_for_an_upgrade_is_served_whole_and_its_connection_stays(
    node: Node, asked: dict[str, str]
) -> None:
    path = f"/v1/stream/upgrades/{asked['Upgrade']}"
    with node.connect() as connection:
        assert connection.request("PUT", path, TEXT | asked, b"a").status == 201
        assert connection.request("POST", path, TEXT | asked, b"b").status == 204
        assert connection.request("POST", path, TEXT | asked, [b"c", b"d"]).status == 204
        waits = TEXT | asked | {"Expect": "100-continue"}
        answer = connection.request("POST", path, waits, b"e")
        assert (answer.status, answer.informational) == (204, (100,))
        assert connection.request("GET", f"{path}?offset=-1", asked).body == b"abcde"
        assert connection.request("HEAD", path, asked).status == 200
        assert connection.request("POST", path, TEXT | asked | {"Stream-Closed": "true"}, b"f").status == 204
        assert connection.unread() == b""
    assert read(node, path) == (b"abcdef", True)


def test_pipelined_requests_that_ask_for_an_upgrade_are_answered_one_by_one(node: Node) -> None:
    path = "/v1/stream/upgrades/pipelined"
    bodies: list[bytes | list[bytes]] = [b"a", [b"b", b"c"], b"d"]
    data = encode_request("PUT", path, TEXT | H2C) + b"".join(
        encode_request("POST", path, TEXT | H2C, body) for body in bodies
    )
    with node.connect() as connection:
        connection.send(data + encode_request("GET", f"{path}?offset=-1", H2C))
        assert [connection.read_response().status for _ in range(4)] == [201, 204, 204, 204]
        assert connection.read_response().body == b"abcd"
        assert connection.request("GET", path).status == 200


def test_connect_is_refused_and_nothing_behind_it_is_looked_at(node: Node) -> None:
    with node.connect() as connection:
        connection.send(
            b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n" + encode_request("GET", "/")
        )
        answer = connection.read_response()
        assert answer.status == 405 and answer.closes and "GET" in (answer.header("allow") or "")
        assert answer.json()["error"]["code"] == "method_not_allowed"
        assert connection.ended()


# ---- curl ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curl() -> str:
    found = shutil.which("curl")
    if found is None:
        pytest.skip("curl is not installed; tools/system-packages.sh says how")
    if "HTTP2" not in subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("this curl was built without HTTP/2: it cannot ask for it")
    return found


def test_curl_that_asks_for_http_2_stores_what_it_sends(node: Node, curl: str, tmp_path: Path) -> None:
    assert node.request("PUT", "/curls").status == 201
    path = "/curls/stream"

    def send(method: str, url: str, *more: str) -> int:
        show = [
            "--silent",
            "--show-error",
            "--output",
            str(tmp_path / "out"),
            "--write-out",
            "%{http_code} %{http_version}",
        ]
        command = [curl, "--http2", "--max-time", "60", *show, "--request", method, *more, f"{node.url}{url}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        status, version = done.stdout.split()
        assert version == "1.1"
        return int(status)

    text = ("--header", "Content-Type: text/plain", "--data-binary")
    large = tmp_path / "large"
    large.write_bytes(b"x" * 3_000_000)
    assert send("PUT", path, *text, "one,") == 201
    assert send("POST", path, *text, "two,") == 204
    assert send("POST", path, "--header", "Transfer-Encoding: chunked", *text, f"@{large}") == 204
    assert send("POST", path, "--header", "Expect: 100-continue", *text, ",four,") == 204
    snapshot = f"/curls/other/snapshot/{2:020d}"
    assert send("PUT", "/curls/other", *text, "ab") == 201
    assert send("PUT", snapshot, "--header", "Content-Type: application/json", "--data-binary", '{"n":1}') == 204
    assert send("POST", path, "--header", "Stream-Closed: true", *text, "last") == 204
    assert read(node, path) == (b"one,two," + large.read_bytes() + b",four,last", True)
    assert json.loads(node.request("GET", snapshot).body) == {"n": 1}


# ---- the JDK ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_client_of_the_jdk_stores_what_it_sends(node: Node, tmp_path: Path) -> None:
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("a JDK (java and javac, 17 or newer) is not installed; tools/system-packages.sh says how")
    assert node.request("PUT", "/jdks").status == 201
    large = b"x" * 300_000
    subprocess.run(["javac", "-d", str(tmp_path), str(JDK)], check=True, timeout=300)
    command = ["java", "-cp", str(tmp_path), "upgrades", node.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    whole = b"one,two," + large + b",last"
    assert done.stdout.split("\n") == ["PUT 201", *["POST 204"] * 3, "PUT 201", "PUT 204", str(len(whole)), ""]
    assert read(node, "/jdks/stream") == (whole, True)
    assert json.loads(node.request("GET", f"/jdks/other/snapshot/{2:020d}").body) == {"n": 1}
