"""EventSource and fetch in headless Chromium against a real node, from a page of another origin.
Connections live so briefly here that every scenario is taken through several of them."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients.packages import Script, installed, running
from tests.support.node import Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]

HERE = Path(__file__).resolve().parent
FLAGS = ("--sse-lifetime-ms", "700", "--sse-keepalive-ms", "100", "--checkpoint-interval-ms", "100")
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed; tools/system-packages.sh says how")
    return found


@pytest.fixture(scope="module")
def folder() -> Path:
    return installed(HERE)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=FLAGS) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()


def start(folder: Path, chromium: str, node: Node, scenario: str, **plan: Any) -> Any:
    return running(folder, "browser.mjs", {"chromium": chromium, "url": node.url, "scenario": scenario, **plan})


def write_for_a_while(node: Node, path: str, script: Script, headers: dict[str, str], last: bytes) -> list[bytes]:
    """Append now and then until several connections have come and gone, and then `last`."""
    assert script.wait_line() == {"ready": True}
    bodies = [b'"%d;"' % n for n in range(20)]
    for body in bodies:
        assert node.request("POST", path, headers, body).status == 204
        time.sleep(0.15)
    assert node.request("POST", path, headers, last).status == 204
    return [*bodies, last]


def test_an_event_source_gets_data_and_control_events_and_comes_back_by_itself(
    node: Node, folder: Path, chromium: str
) -> None:
    path = "/v1/stream/browser/listened"
    assert node.request("PUT", path, TEXT, b"first;").status == 201
    with start(folder, chromium, node, "listen", path=path, untilText="last;") as script:
        write_for_a_while(node, path, script, TEXT, b"last;")
        facts = script.facts()
    assert facts["origin"] != node.url
    assert facts["opens"] >= 2, "the server ends a connection at its age, and the browser opens the next"
    events = facts["events"]
    assert events[0]["data"].startswith("first;")
    for data, following in pairwise(events):
        if data["name"] == "data":
            assert following["name"] == "control"
            assert json.loads(following["data"])["streamNextOffset"]


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_page_that_keeps_its_offset_sees_everything_once(node: Node, folder: Path, chromium: str, kind: str) -> None:
    path = f"/v1/stream/browser/followed-{kind[:4]}"
    headers = {"Content-Type": kind}
    assert node.request("PUT", path, headers).status == 201
    with start(folder, chromium, node, "follow", path=path, untilText="last;") as script:
        bodies = write_for_a_while(node, path, script, headers, b'"last;"')
        facts = script.facts()
    assert facts["lives"] >= 3
    if kind == "application/json":
        seen = [message for data in facts["datas"] for message in json.loads(data)]
        assert seen == [json.loads(body) for body in bodies]
    else:
        assert "".join(facts["datas"]).encode() == b"".join(bodies)
    assert facts["offset"] == node.request("HEAD", path).header("stream-next-offset")


def test_a_browser_resumes_many_streams_with_the_last_event_id_alone(node: Node, folder: Path, chromium: str) -> None:
    names = ["browser/one", "browser/two"]
    for name in names:
        assert node.request("PUT", f"/v1/stream/{name}", JSON).status == 201
    query = "&".join(f"stream={name}" for name in names)
    with start(folder, chromium, node, "tail", query=f"{query}&from=start", untilText="last;") as script:
        assert script.wait_line() == {"ready": True}
        expected = []
        for n in range(40):
            name = names[n % 2]
            assert node.request("POST", f"/v1/stream/{name}", JSON, b"%d" % n).status == 204
            expected.append([name, n])
            time.sleep(0.15)
        assert node.request("POST", f"/v1/stream/{names[0]}", JSON, b'"last;"').status == 204
        expected.append([names[0], "last;"])
        facts = script.facts()
    assert facts["opens"] >= 2
    assert facts["seen"] == expected


def test_a_page_of_another_origin_reads_the_headers_of_the_protocol(node: Node, folder: Path, chromium: str) -> None:
    with start(folder, chromium, node, "fetches", path="/v1/stream/browser/fetched") as script:
        facts = script.facts()
    assert (facts["created"]["status"], facts["created"]["Stream-Next-Offset"]) == (201, f"{0:020d}")
    assert (facts["appended"]["status"], facts["appended"]["Stream-Next-Offset"]) == (200, f"{5:020d}")
    assert (facts["appended"]["Producer-Seq"], facts["appended"]["Stream-Durability"]) == ("0", "fsync")
    assert (facts["gap"]["status"], facts["gap"]["Producer-Expected-Seq"]) == (409, "1")
    assert (facts["read"]["text"], facts["read"]["Stream-Up-To-Date"]) == ("hello", "true")
    assert facts["head"]["ETag"] and facts["head"]["Stream-TTL"] == "3600"
    assert facts["refused"]["status"] == 412
    assert facts["missing"]["status"] == 404
    assert (facts["closed"]["status"], facts["closed"]["Stream-Closed"]) == (204, "true")
    assert facts["deleted"]["status"] == 204


def test_an_origin_that_is_named_may_do_the_same_and_others_may_not(
    tmp_path: Path, folder: Path, chromium: str
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Node.started(tmp_path, memory=True, flags=("--cors-origin", f"http://127.0.0.1:{port}")) as node:
        with start(folder, chromium, node, "fetches", path="/v1/stream/mine", pagePort=port) as script:
            facts = script.facts()
        assert (facts["read"]["text"], facts["read"]["Stream-Next-Offset"]) == ("hello", f"{5:020d}")
        headers = {"Stream-TTL": "5"}
        with start(folder, chromium, node, "preflights", path="/v1/stream/theirs", headers=headers) as script:
            assert script.facts()["refused"] == ["Stream-TTL"]
        assert node.request("HEAD", "/v1/stream/theirs").status == 404


EVERY_HEADER = {
    "Content-Type": "text/plain",
    "Stream-TTL": "3600",
    "Stream-Expires-At": "2099-01-01T00:00:00Z",
    "Stream-Closed": "true",
    "Stream-Seq": "a",
    "Stream-Durability": "fsync",
    "Stream-Forked-From": "/v1/stream/none",
    "Stream-Fork-Offset": "-1",
    "Stream-Fork-Sub-Offset": "0",
    "Producer-Id": "p",
    "Producer-Epoch": "0",
    "Producer-Seq": "0",
    "If-Match": '"x"',
    "If-None-Match": '"x"',
    "Authorization": "Bearer x",
}
POLICY_HEADERS = {
    "Stream-Retention-Age": "60",
    "Stream-Retention-Bytes": "60",
    "Stream-Retention-Records": "60",
}


@pytest.mark.parametrize("headers", [EVERY_HEADER, POLICY_HEADERS])
def test_a_preflight_allows_every_request_header_that_the_server_reads(
    node: Node, folder: Path, chromium: str, headers: dict[str, str]
) -> None:
    with start(folder, chromium, node, "preflights", path="/v1/stream/browser/flown", headers=headers) as script:
        assert script.facts()["refused"] == []
