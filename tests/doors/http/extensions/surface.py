"""What the tests of the bucketed surface share: unique names, streams by path, pages of listings, bootstrap parts.
It asserts only what it needs to go on; what an answer must be stands in the tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import policy
from email.parser import BytesParser
from typing import Any
from urllib.parse import quote

from tests.support.http import Connection, Headers, Response, encode_request
from tests.support.node import Node
from tests.support.waiting import Deadline

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}
BUCKETED = "/ds"
PLAIN = ""
SURFACES = (BUCKETED, PLAIN)
"""What stands before `/{bucket}` on the two bucketed surfaces."""
WAIT_S = 60.0

_numbers = itertools.count(1)


def fresh_name(kind: str = "bucket") -> str:
    return f"{kind}-{next(_numbers):04d}"


def token(offset: int) -> str:
    return f"{offset:020d}"


@dataclass
class Stream:
    """A stream by its path, on one node. `ends` are the offsets after each record written through it."""

    node: Node
    path: str
    headers: dict[str, str]
    ends: list[str] = field(default_factory=list)

    def create(self, body: bytes | None = None, **headers: str) -> Response:
        return self.node.request("PUT", self.path, self.headers | dashed(headers), body)

    def append(self, body: bytes, **headers: str) -> str:
        """Append, and return the offset after it."""
        answer = self.node.request("POST", self.path, self.headers | dashed(headers), body)
        assert answer.status in (200, 204), answer
        self.ends.append(next_offset(answer))
        return self.ends[-1]

    def read(self, offset: str = "-1", live: str = "") -> Response:
        query = f"?offset={offset}" + (f"&live={live}" if live else "")
        return self.node.request("GET", self.path + query)

    def head(self) -> Response:
        return self.node.request("HEAD", self.path)

    def delete(self) -> Response:
        return self.node.request("DELETE", self.path)

    def publish(self, offset: str, blob: bytes, headers: Headers = ()) -> Response:
        return self.node.request("PUT", f"{self.path}/snapshot/{offset}", headers, blob)

    def snapshot(self, offset: str = "") -> Response:
        return self.node.request("GET", f"{self.path}/snapshot" + (f"/{offset}" if offset else ""))

    def bootstrap(self) -> Response:
        return self.node.request("GET", f"{self.path}/bootstrap")


def dashed(headers: dict[str, str]) -> dict[str, str]:
    """`stream_ttl="5"` as a header: names in Python have no dashes."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


def next_offset(answer: Response) -> str:
    found = answer.header("stream-next-offset")
    assert found is not None, answer
    return found


def make_bucket(node: Node, name: str | None = None) -> str:
    name = name or fresh_name()
    assert node.request("PUT", f"{BUCKETED}/{name}").status == 201
    return name


def make_stream(
    node: Node, bucket: str, name: str | None = None, headers: dict[str, str] = TEXT, surface: str = BUCKETED
) -> Stream:
    stream = Stream(node, f"{surface}/{bucket}/{name or fresh_name('stream')}", headers)
    assert stream.create().status == 201
    return stream


def make_streams(node: Node, bucket: str, names: list[str], headers: dict[str, str] = TEXT) -> None:
    """Many at once, pipelined."""
    with node.connect() as connection:
        for part in (names[at : at + 200] for at in range(0, len(names), 200)):
            paths = [f"{BUCKETED}/{bucket}/{quote(name, safe='')}" for name in part]
            connection.send(b"".join(encode_request("PUT", path, headers, b"") for path in paths))
            for path in paths:
                answer = connection.read_response("PUT")
                assert answer.status == 201, (path, answer)


def listing(connection: Connection, bucket: str, surface: str = BUCKETED, **query: object) -> Any:
    """One page of a bucket's streams."""
    text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    answer = connection.request("GET", f"{surface}/{bucket}/streams" + (f"?{text}" if text else ""))
    assert answer.status == 200, answer
    return answer.json()


def all_pages(connection: Connection, bucket: str, limit: int, **query: object) -> Iterator[Any]:
    """Pages from the first to the one that says there is no more."""
    after: dict[str, object] = {}
    while True:
        page = listing(connection, bucket, limit=limit, **query, **after)
        yield page
        if not page["has_more"]:
            return
        assert page["streams"], f"a page without streams promises more: {page}"
        after = {"after": page["next_cursor"]}


def names_of(page: Any) -> list[str]:
    return [one["stream_id"] for one in page["streams"]]


def stream_count(node: Node, bucket: str) -> int:
    answer = node.request("GET", f"{BUCKETED}/{bucket}")
    assert answer.status == 200, answer
    return answer.json()["streams"]


def metric(node: Node, name: str) -> float:
    return node.request("GET", "/__headwater/metrics").json()[name]


def await_checkpoint(node: Node) -> None:
    """Return once everything acknowledged so far is in the catalog: a checkpoint that began later has ended."""
    # The next one may have begun before this call; the one after it has not. An idle node takes none, so nudge it.
    marker = fresh_name("marker")
    wanted = metric(node, "checkpoints") + 2
    deadline = Deadline(WAIT_S)
    turn = 0
    while metric(node, "checkpoints") < wanted:
        deadline.check(node.output)
        assert node.request("PUT", f"/v1/stream/{marker}-{turn}", TEXT).status == 201
        assert node.request("DELETE", f"/v1/stream/{marker}-{turn}").status == 204
        turn += 1
        time.sleep(0.01)


@dataclass(frozen=True)
class Part:
    content_type: str
    body: bytes


def parts_of(answer: Response) -> list[Part]:
    """A multipart body as Python's own MIME parser reads it."""
    head = f"MIME-Version: 1.0\r\nContent-Type: {answer.header('content-type')}\r\n\r\n".encode()
    message = BytesParser(policy=policy.HTTP).parsebytes(head + answer.body)
    assert message.is_multipart(), answer
    assert not message.defects, message.defects
    found = []
    for part in message.iter_parts():
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes) and not part.defects, (part.items(), part.defects)
        # Raw: the parser's own spelling of a value puts quotes around parameters.
        found.append(Part(dict(part.raw_items())["Content-Type"].strip(), payload))
    return found
