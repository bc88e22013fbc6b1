"""What the tests of topics share: topics by name, and their requests and answers as JSON.
It asserts only what it needs to go on; what an answer must be stands in the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tests.doors.http.extensions.surface import fresh_name
from tests.support.http import EventStream, Headers, Response
from tests.support.node import Node

PERFORMANCE = {"queue_ms", "fsync_ms", "throttle_wait_ms", "total_ms"}


def body_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def told(answer: Response, status: int = 200) -> dict[str, Any]:
    """The body of an answer that has to have that status, without its performance block, which has to be there."""
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/json"
    found = answer.json()
    performance = found.pop("performance")
    assert set(performance) == PERFORMANCE and all(ms >= 0 for ms in performance.values())
    return found


def refused(answer: Response) -> tuple[int, str]:
    """Status and code of a refusal, whose body has to have the shape that all have here."""
    assert answer.status >= 400, answer
    assert answer.header("content-type") == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "detail"} and error["message"]
    assert type(error["detail"]["retryable"]) is bool
    return answer.status, error["code"]


@dataclass
class Topic:
    node: Node
    name: str

    @property
    def path(self) -> str:
        return f"/v0/topics/{quote(self.name)}"

    def request(self, method: str, verb: str = "", body: Any = None, headers: Headers = ()) -> Response:
        """`verb` may hold a query."""
        return self.node.request(method, self.path + verb, headers, None if body is None else body_of(body))

    def put(self, **config: Any) -> Response:
        return self.request("PUT", body=config)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = told(self.request("GET"))["state"]
        return found

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = told(self.request("GET"))["config"]
        return found

    def post(self, records: Any, **fields: Any) -> Response:
        return self.request("POST", "/records", {"records": records, **fields})

    def write(self, *data: Any, **labels: Any) -> list[int]:
        """Records with the same labels; their numbers."""
        found: list[int] = told(self.post([{"data": one, **labels} for one in data]))["seqs"]
        return found

    def diff(self, **query: Any) -> dict[str, Any]:
        return told(self.request("GET", f"/diff?{urlencode(query)}"))

    def data(self, **query: Any) -> list[Any]:
        return [one["data"] for one in self.diff(**query)["records"]]

    def delete(self, **body: Any) -> Response:
        return self.request("POST", "/delete", body)

    @contextmanager
    def tail(self, query: str = "", headers: Headers = ()) -> Iterator[Tail]:
        with tail_of(self.node, f"{self.path}/sse{query}", headers) as tail:
            yield tail


class Tail:
    """Events of one connection. The first, `open`, is taken at once."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self._events = iter(stream)
        first = next(self._events)
        assert first.name == "open"
        self.id = first.id

    def next(self, name: str = "records") -> dict[str, Any]:
        """The data of the next event, which has to be one of that name."""
        found, data = self.any()
        assert found == name, (found, data)
        return data

    def any(self) -> tuple[str, dict[str, Any]]:
        """The next event: its name and its data."""
        event = next(self._events)
        self.id = event.id
        return event.name, event.json()

    def ended(self) -> bool:
        """Whether the server ends it, without another event."""
        return next(self._events, None) is None and self.stream.ended_cleanly


@contextmanager
def tail_of(node: Node, target: str, headers: Headers = ()) -> Iterator[Tail]:
    with node.connect() as connection:
        stream = EventStream.open(connection, target, headers)
        assert stream.head.status == 200, stream.head
        assert stream.head.header("content-type") == "text/event-stream"
        yield Tail(stream)


def new_topic(node: Node, **config: Any) -> Topic:
    topic = Topic(node, fresh_name("topic"))
    assert topic.put(**config).status == 201
    return topic
