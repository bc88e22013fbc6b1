"""Buckets that are full: every way to write to them says 507, and what is there can still be read and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headwater.client import Full, Headwater
from tests.doors.s3p.client import Client, Error, s3p_port
from tests.support.guarded import code
from tests.support.http import Response
from tests.support.node import HOST, Node
from tests.support.waiting import until

STREAMS, BYTES = 4, 1024
FLAGS = ("--bucket-streams-max", str(STREAMS), "--bucket-bytes-max", str(BYTES), "--checkpoint-interval-ms", "50")
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module", params=["1", "3"], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = (*FLAGS, "--workers", request.param, "--groups", "3", "--s3p", f"{HOST}:0")
    with Node.started(tmp_path_factory.mktemp("node"), flags=flags) as node:
        yield node
        assert node.running and "Traceback" not in node.stderr(), node.output()


def full(answer: Response) -> bool:
    if answer.status != 507:
        return False
    assert code(answer) == "bucket_full" and answer.header("retry-after") == "60"
    return True


def streams(node: Node, bucket: str) -> int:
    found: int = node.request("GET", f"/__headwater/buckets/{bucket}").json()["streams"]
    return found


def test_a_bucket_is_full_for_whoever_makes_streams(node: Node) -> None:
    """Of several workers each has a share, so a few more may be taken."""
    made = 0
    for number in range(3 * STREAMS):
        answer = node.request("PUT", f"/v1/stream/many/{number}", TEXT)
        made += answer.status == 201
        assert answer.status == 201 or full(answer)
    until(lambda: full(node.request("PUT", "/v1/stream/many/x", TEXT)) or full(node.request("PUT", "/many/y", TEXT)))
    assert node.request("PUT", "/v1/stream/many/0", TEXT).status in (200, 201)
    assert node.request("PUT", "/v1/stream/few/0", TEXT).status == 201
    assert node.request("DELETE", "/v1/stream/many/0").status in (204, 404)
    assert made >= 2


def test_a_bucket_is_full_for_whoever_appends_through_any_door(node: Node) -> None:
    assert node.request("PUT", "/v1/stream/heavy/1", TEXT, b"x" * 2 * BYTES).status == 201
    assert node.request("PUT", "/v1/stream/light/1", TEXT).status == 201

    def is_full() -> bool:
        return full(node.request("POST", "/v1/stream/heavy/1", TEXT, b"more"))

    until(is_full)
    assert is_full() and is_full()  # a head that was seen before
    entries = [{"stream": f"{name}/1", "text": ["x"], "content_type": "text/plain"} for name in ("heavy", "light")]
    answer = node.request("POST", "/__headwater/append", JSON, json.dumps(entries).encode())
    assert [one["status"] for one in answer.json()] == [507, 204], answer.json()
    answer = node.request("POST", "/v0/topics/heavy/1/records", JSON, b'{"records":[{"data_base64":"eHh4"}]}')
    assert answer.status == 507 and answer.json()["error"]["code"] == "bucket_full"
    if '"s3p ready"' in node.stderr():
        with Client(s3p_port(node)) as client:
            reply = client.append(b"heavy/1", b"more")
            assert isinstance(reply, Error) and "bucket_bytes_max" in reply.message
            assert client.append(b"light/1", b"more")
    assert len(node.request("GET", "/v1/stream/heavy/1?offset=-1").body) >= 2 * BYTES
    assert node.request("POST", "/v1/stream/heavy/1", {"Stream-Closed": "true"}).status == 204
    assert node.request("DELETE", "/v1/stream/heavy/1").status == 204
    until(lambda: node.request("PUT", "/v1/stream/heavy/2", TEXT, b"x").status == 201)


def test_a_bucket_is_as_full_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Node.started(tmp_path_factory.mktemp("again"), flags=FLAGS) as node:
        assert node.request("PUT", "/v1/stream/shop/1", TEXT, b"x" * BYTES).status == 201
        assert node.terminate() == 0
        node.start()
        assert full(node.request("POST", "/v1/stream/shop/1", TEXT, b"more"))
        with Headwater(node.url) as client, pytest.raises(Full, match="1024 bytes"):
            client.stream("shop/1").append(b"more")
        node.kill()
        node.start()
        until(lambda: full(node.request("POST", "/v1/stream/shop/1", TEXT, b"more")))
