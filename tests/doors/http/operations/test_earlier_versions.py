"""A data directory in which an earlier version let clients store anything: it is served, and nothing breaks out of it.
The earlier version is this one with its checks taken out, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.model import content_types, moments
from tests.support.here import Here
from tests.support.http import Response

BREAKING = "application/json; a=b\r\nX-Injected: yes\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
FAR_MS = 253_402_300_799_999 + 23 * 3_600_000
PATH = "/_default/s"


def plain(answer: Response, status: int = 200) -> Response:
    assert answer.status == status, answer
    assert answer.header("x-injected") is None
    assert all(value.isascii() and value.isprintable() for _, value in answer.headers), answer
    return answer


def store_anything(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, Here.started(data=str(data)) as node:
        patched.setattr(content_types, "check", lambda text, bytes_max=0: content_types.normalise(text))
        patched.setattr(moments, "parse", lambda _: FAR_MS)
        entry = {"stream": "s", "content_type": BREAKING, "records": [1, 2], "create": True}
        body = json.dumps([entry, {**entry, "stream": "t", "content_type": "é\x00\x1b[31m", "records": None}])
        body = body.replace('"records": null', '"text": ["x"]')
        told = node.request("POST", "/__headwater/append", (), body.encode()).json()
        assert [one["status"] for one in told] == [204, 204], told
        far = {"Content-Type": "text/plain", "Stream-Expires-At": "9999-12-31T23:59:59-23:59"}
        assert node.request("PUT", "/_default/far", far).status == 201


def read_all(node: Here) -> None:
    with node.connect() as connection:  # one connection: what is sent too much is met by the next answer
        for _ in range(2):
            assert plain(connection.request("HEAD", PATH)).header("content-type") == "application/json"
            read = plain(connection.request("GET", PATH))
            assert read.header("content-type") == "application/json" and read.json() == [1, 2]
            plain(connection.request("GET", f"{PATH}?offset=-1&live=long-poll"))
            parts = plain(connection.request("GET", f"{PATH}/bootstrap")).body
            assert b"X-Injected" not in parts and b"Content-Type: application/json\r\n\r\n1" in parts
            other = plain(connection.request("GET", "/_default/t"))
            assert other.header("content-type") == "application/octet-stream" and other.body == b"x"
            far = plain(connection.request("HEAD", "/_default/far"))
            assert far.header("stream-expires-at") == "9999-12-31T23:59:59.999Z"
            # What is listed is JSON: there the stored value is told as it is.
            listed = {one["stream_id"]: one for one in connection.request("GET", "/_default/streams").json()["streams"]}
            assert listed["s"]["content_type"] == BREAKING
        fork = {"Stream-Forked-From": "/v1/stream/s"}
        plain(connection.request("PUT", "/_default/fork", fork), 201)
        assert plain(connection.request("HEAD", "/_default/fork")).header("content-type") == "application/json"
        append = connection.request("POST", PATH, {"Content-Type": "text/plain"}, b"x")
        assert plain(append, 409).json()["error"]["code"] == "content_type_mismatch"
        assert plain(connection.request("DELETE", "/_default/fork"), 204)


def test_what_an_earlier_version_stored_cannot_break_out_of_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_anything(tmp_path, monkeypatch)
    with Here.started(data=str(tmp_path)) as node:
        read_all(node)
        assert plain(node.request("POST", "/__headwater/flush", (), b"")).json()["flushed_bytes"]
        read_all(node)
    with Here.started(data=str(tmp_path)) as node:
        read_all(node)
