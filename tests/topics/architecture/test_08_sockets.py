"""Topics architecture §8, the JSON WebSocket: "uses the same diff/write engine paths as SSE/HTTP".
A client that speaks just enough of the protocol, from the frames of `tests.support.websockets`."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any

from tests.doors.http.topics.conftest import New
from tests.support.node import HOST, Node
from tests.support.websockets import TEXT, frame, parse, request
from tests.topics.architecture.looks import floors

WITHIN_S = 30.0


class Socket:
    def __init__(self, node: Node, path: str = "/v0/ws") -> None:
        self._socket = socket.create_connection((HOST, node.port), WITHIN_S)
        self._socket.sendall(request(path=path))
        head, self._data = b"", b""
        while b"\r\n\r\n" not in head:
            head += self._received()
        head, _, self._data = head.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        self._messages: list[dict[str, Any]] = []

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 16)
        assert data, "the server ended the socket"
        return data

    def send(self, **message: Any) -> None:
        self._socket.sendall(frame(TEXT, json.dumps(message).encode()))

    def next(self, op: str) -> dict[str, Any]:
        """The next message, which has to be of that kind."""
        message = self.next_any()
        assert message["op"] == op, message
        return message

    def next_any(self) -> dict[str, Any]:
        while not self._messages:
            found, self._data = parse(self._data)
            self._messages += [json.loads(one.payload) for one in found if one.opcode == TEXT]
            if not self._messages:
                self._data += self._received()
        return self._messages.pop(0)


def test_a_socket_follows_several_topics_and_writes_as_http_does(node: Node, new: New) -> None:
    """§8: "uses the same diff/write engine paths as SSE/HTTP"."""
    first, second = new(), new()
    first.write(1, 2)
    with Socket(node) as client:
        client.send(op="subscribe", topics={first.name: 1, second.name: "now"})
        assert client.next("subscribed")["topics"] == {first.name: 1, second.name: 0}
        records = client.next("records")
        assert ([one["data"] for one in records["records"]], records["cursor"]) == ([2], {first.name: 2})
        assert records["records"] == first.diff(from_seq=1)["records"]
        second.write("by http", tag="t")
        assert [one["data"] for one in client.next("records")["records"]] == ["by http"]
        client.send(op="write", id=7, topic=first.name, records=[{"data": 3, "tag": "t"}])
        answers = sorted((client.next_any() for _ in range(2)), key=lambda one: str(one["op"]))
        assert (answers[0]["op"], answers[0]["next_seq"]) == ("records", 3)
        assert (answers[1]["op"], answers[1]["id"], answers[1]["seqs"]) == ("written", 7, [3])
    assert first.data() == [1, 2, 3]


def test_a_socket_is_told_of_losses_and_not_of_deletions(node: Node, new: New) -> None:
    """Principle 1 and §8: the tombstone is in-band here too, and "a purely-deleted gap ... is silent"."""
    topic = new(cap_records=3)
    topic.write(1, 2, 3, 4, 5, tag="a")
    topic.diff()
    topic.delete(match=["tag", "Eq", "a"], before_seq=5)
    assert floors(topic) == (3, 5)
    with Socket(node) as client:
        client.send(op="subscribe", topics={topic.name: 0})
        client.next("subscribed")
        gap = client.next("tombstone")
        assert (gap["topic"], gap["gap_from"], gap["gap_to"]) == (topic.name, 1, 2)
        assert [one["seq"] for one in client.next("records")["records"]] == [5]
