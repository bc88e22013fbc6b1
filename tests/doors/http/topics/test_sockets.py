"""Topics over a WebSocket: contract "GET /v0/ws", topics architecture §8 (a small outbound queue, room before JSON).
The client is that of the `websockets` package; a slow one, and what no client would send, is written by hand."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from headwater.doors.http.topics.following import TOPICS_MAX
from headwater.doors.http.topics.sockets import ID_BYTES_MAX, MESSAGE_BYTES_MAX, WRITES_MAX
from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, new_topic, told
from tests.support.node import Node
from tests.support.websockets import TEXT, frame, parse, request

WITHIN_S = 30


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps(message))

    def next(self, op: str) -> dict[str, Any]:
        """The next message without its op, which has to be this one."""
        found: dict[str, Any] = json.loads(self.connection.recv(WITHIN_S))
        assert found.pop("op") == op, (op, found)
        return found

    def ask(self, answer: str, **message: Any) -> dict[str, Any]:
        """The answer to a message, which has to be the next one."""
        self.send(**message)
        return self.next(answer)

    def refused(self, message: Any) -> tuple[str, dict[str, Any]]:
        """The code of the error that answers a message, which may be text, and the answer."""
        self.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
        found = self.next("error")
        error = found["error"]
        assert set(error) == {"code", "message", "detail"} and error["message"]
        return error["code"], found

    def works(self) -> bool:
        return self.ask("pong", op="ping", id="alive") == {"id": "alive"}


@contextmanager
def opened(node: Node, path: str = "/v0/ws", **options: Any) -> Iterator[Socket]:
    with connect(f"ws://127.0.0.1:{node.port}{path}", open_timeout=WITHIN_S, **options) as connection:
        yield Socket(connection)


@pytest.fixture
def ws(node: Node) -> Iterator[Socket]:
    with opened(node) as found:
        yield found


def data(message: dict[str, Any]) -> list[Any]:
    return [one["data"] for one in message["records"]]


# ---- following --------------------------------------------------------------------------------------------------


def test_several_topics_are_followed_from_cursors_or_from_now(ws: Socket, new: New) -> None:
    a, b = new(), new()
    a.write(1, 2)
    b.write("old")
    wish = {"op": "subscribe", "topics": {a.name: 1, b.name: "now"}}
    assert ws.ask("subscribed", **wish, id=[7]) == {"id": [7], "topics": {a.name: 1, b.name: 1}}
    first = ws.next("records")
    assert (first["topic"], data(first), first["next_seq"], first["cursor"]) == (a.name, [2], 2, {a.name: 2})
    b.write("new", tag="t", meta={"m": 1})
    second = ws.next("records")
    assert (second["topic"], second["cursor"]) == (b.name, {b.name: 2})
    assert {name: second["records"][0][name] for name in ("seq", "data", "tag", "meta")} == {
        "seq": 2,
        "data": "new",
        "tag": "t",
        "meta": {"m": 1},
    }


def test_the_path_of_a_topic_begins_with_it(node: Node, topic: Topic) -> None:
    topic.write(1, 2)
    with opened(node, f"{topic.path}/ws?from_seq=1&node=me") as ws:
        assert ws.next("subscribed") == {"topics": {topic.name: 1}}
        assert data(ws.next("records")) == [2]
        topic.write(3, node="me")
        topic.write(4)
        assert data(ws.next("records")) == [4]
    with opened(node, f"{topic.path}/ws") as ws:
        assert ws.next("subscribed") == {"topics": {topic.name: 4}}
    with opened(node, f"/v0/topics/{fresh_name('none')}/ws") as ws:
        assert ws.next("error")["error"]["code"] == "topic_not_found"
        assert ws.works()


def test_a_topic_can_be_followed_anew_and_not_any_more(ws: Socket, new: New) -> None:
    a, b = new(), new()
    a.write(1)
    for _ in range(2):
        assert ws.ask("subscribed", op="subscribe", topics={a.name: 0})["topics"] == {a.name: 0}
        assert data(ws.next("records")) == [1]
    ws.ask("subscribed", op="subscribe", topics={b.name: 0})
    assert ws.ask("unsubscribed", op="unsubscribe", topics=[a.name], id=1) == {"id": 1, "topics": [a.name]}
    a.write(2)
    b.write(3)
    assert ws.next("records")["topic"] == b.name


def test_records_of_the_sockets_own_node_are_skipped(ws: Socket, new: New) -> None:
    a, b = new(), new()
    ws.ask("subscribed", op="subscribe", topics={a.name: 0}, node="me")
    assert ws.refused({"op": "subscribe", "topics": {b.name: 0}, "node": "other"})[0] == "bad_request"
    ws.ask("subscribed", op="subscribe", topics={b.name: 0}, node="me")
    a.write(1, node="me")
    b.write(2, node="me")
    a.write(3)
    message = ws.next("records")
    assert (data(message), message["next_seq"]) == ([3], 2)


def test_what_was_lost_and_what_is_gone_is_told(ws: Socket, new: New) -> None:
    topic = new(cap_records=2)
    topic.write(1, 2, 3, 4)
    ws.ask("subscribed", op="subscribe", topics={topic.name: 0})
    assert ws.next("tombstone") == {"topic": topic.name, "gap_from": 1, "gap_to": 2}
    assert data(ws.next("records")) == [3, 4]
    assert topic.request("DELETE").status == 200
    assert ws.next("gone") == {"topic": topic.name}
    assert ws.works()


def test_a_subscribe_begins_with_all_of_its_topics_or_with_none(ws: Socket, topic: Topic) -> None:
    none = fresh_name("none")
    code, answer = ws.refused({"op": "subscribe", "topics": {topic.name: 0, none: 0}, "id": None})
    assert (code, answer["id"], answer["topic"]) == ("topic_not_found", None, none)
    topic.write(1)
    assert ws.works()  # and nothing of the topic before


def test_a_socket_follows_a_bounded_number_of_topics(ws: Socket, new: New) -> None:
    many = {f"t{n}": 0 for n in range(TOPICS_MAX + 1)}
    assert ws.refused({"op": "subscribe", "topics": many})[0] == "bad_request"
    assert ws.refused({"op": "unsubscribe", "topics": list(many)})[0] == "bad_request"
    one = new()
    ws.ask("subscribed", op="subscribe", topics={one.name: 0})
    many.popitem()
    code, answer = ws.refused({"op": "subscribe", "topics": many})
    assert (code, str(TOPICS_MAX) in answer["error"]["message"]) == ("bad_request", True)


def test_sockets_and_deliveries_are_counted(node: Node, ws: Socket, topic: Topic) -> None:
    def readings() -> dict[str, float]:
        found: dict[str, float] = node.request("GET", "/__headwater/metrics").json()
        return found

    ws.ask("subscribed", op="subscribe", topics={topic.name: "now"})
    before = readings()
    assert before["websockets_open"] >= 1
    topic.write(1)
    ws.next("records")
    after = readings()
    assert after["deliveries"] > before["deliveries"] and after["deliveries_failed"] == 0
    assert after["delivery_wait_longest_seconds"] <= after["delivery_wait_seconds"]
    assert after["delivery_topics_deferred"] <= after["delivery_topics_ready"]
    assert 0 <= after["delivery_pressure"] <= 1 and after["topic_writes_throttled"] == 0


# ---- writing ----------------------------------------------------------------------------------------------------


def test_writes_are_answered_with_their_ids_and_stand_in_the_order_they_came(ws: Socket, new: New) -> None:
    topic = new()
    for n in range(100):
        ws.send(op="write", id=n, topic=topic.name, records=[{"data": n, "tag": "t"}], node="me")
    answers = [ws.next("written") for _ in range(100)]
    assert {answer["id"]: answer["seqs"] for answer in answers} == {n: [n + 1] for n in range(100)}
    found = topic.diff(limit=1000)["records"]
    assert [(one["data"], one["tag"], one["node"]) for one in found] == [(n, "t", "me") for n in range(100)]


def test_a_write_means_what_it_means_as_a_request(ws: Socket, new: New) -> None:
    full, text = new(cap_records=1, discard="reject"), new(content_type="text/plain")
    producer = {"id": "p", "epoch": 0, "seq": 0}
    write = {"op": "write", "topic": full.name, "records": [{"data": 1}], "producer": producer}
    assert ws.ask("written", **write) == {"seqs": [1], "head_seq": 1, "duplicates": []}
    assert ws.ask("written", **write)["duplicate"] is True
    assert ws.refused({"op": "write", "topic": full.name, "records": [{"data": 2}]})[0] == "topic_full"
    assert ws.ask("written", op="write", topic=text.name, records=[{"data": "ü"}])["seqs"] == [1]
    assert text.data() == ["ü"]
    assert ws.refused({"op": "write", "topic": fresh_name("none"), "records": [{"data": 1}]})[0] == "topic_not_found"


def test_who_writes_and_follows_gets_what_it_wrote(ws: Socket, topic: Topic) -> None:
    ws.ask("subscribed", op="subscribe", topics={topic.name: "now"})
    ws.send(op="write", topic=topic.name, records=[{"data": 1}, {"data": 2}])
    messages = [json.loads(ws.connection.recv(WITHIN_S)) for _ in range(2)]
    assert sorted(message["op"] for message in messages) == ["records", "written"]


# ---- what no message is -----------------------------------------------------------------------------------------

NAMES = ["../a", "", "x" * 5_000, "\ud800"]


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        "null",
        "[]",
        '"ping"',
        "{}",
        '{"op":null}',
        '{"op":"fly"}',
        '{"op":["ping"]}',
        '{"op":"ping","more":1}',
        "[" * 100_000,
        '{"op":"ping","id":' + "[" * 100_000,
        {"op": "subscribe"},
        {"op": "subscribe", "topics": {}},
        {"op": "subscribe", "topics": ["a"]},
        {"op": "subscribe", "topics": {"a": -1}},
        {"op": "subscribe", "topics": {"a": "then"}},
        {"op": "subscribe", "topics": {"a": True}},
        {"op": "subscribe", "topics": {"a": 1 << 60}},
        {"op": "subscribe", "topics": {"a": 1 << 200}},
        {"op": "subscribe", "topics": {"a": 0}, "node": ",".join(map(str, range(100)))},
        {"op": "unsubscribe", "topics": "a"},
        {"op": "write", "topic": "a"},
        {"op": "write", "topic": 1, "records": []},
        {"op": "ping", "id": "x" * ID_BYTES_MAX},
        *({"op": "subscribe", "topics": {name: 0}} for name in NAMES),
        *({"op": "unsubscribe", "topics": [name]} for name in NAMES),
        *({"op": "write", "topic": name, "records": [{"data": 1}]} for name in NAMES),
    ],
    ids=lambda message: str(message)[:60],
)
def test_what_is_no_message_is_an_error_and_the_socket_stays(ws: Socket, message: Any) -> None:
    assert ws.refused(message)[0] == "bad_request"
    assert ws.works()


@pytest.mark.parametrize(
    "fields",
    [
        {"records": []},
        {"records": {}},
        {"records": None},
        {"records": [{}]},
        {"records": [{"data": 1, "more": 2}]},
        {"records": [{"data": 1, "tag": "\x00"}]},
        {"records": [{"data": 1}], "node": 7},
        {"records": [{"data": 1}], "producer": {"id": "p"}},
        {"records": [{"data": 1}], "disable_backpressure": "yes"},
    ],
    ids=str,
)
def test_a_write_that_is_none_is_an_error_with_its_id(ws: Socket, topic: Topic, fields: dict[str, Any]) -> None:
    code, answer = ws.refused({"op": "write", "id": {"n": 1}, "topic": topic.name, **fields})
    assert (code, answer["id"]) == ("bad_request", {"n": 1})
    assert topic.state()["head_seq"] == 0
    assert ws.works()


def test_too_many_records_of_one_write_are_refused(ws: Socket, topic: Topic) -> None:
    records = [{"data": 1}] * 10_001
    assert ws.refused({"op": "write", "topic": topic.name, "records": records})[0] == "too_many_records"


def test_a_message_that_is_too_long_ends_the_socket(ws: Socket) -> None:
    ws.connection.send(json.dumps({"op": "ping", "id": "x" * MESSAGE_BYTES_MAX}))
    with pytest.raises(ConnectionClosed) as end:
        ws.connection.recv(WITHIN_S)
    assert end.value.rcvd is not None and end.value.rcvd.code == 1009


def test_a_request_that_asks_for_no_websocket_is_told_how(node: Node, topic: Topic) -> None:
    for path in ("/v0/ws", f"{topic.path}/ws"):
        answer = node.request("GET", path)
        assert (answer.status, answer.json()["error"]["code"]) == (426, "upgrade_required")
        assert node.request("POST", path, (), b"").status == 405
    assert node.request("GET", "/v0/ws/more").status == 404
    assert node.request("GET", f"{topic.path}/ws?from_seq=x").status == 400


# ---- a client that does not read --------------------------------------------------------------------------------


def test_a_slow_client_gets_everything_later_and_others_meanwhile(node: Node, new: New) -> None:
    """By hand: the client of the package reads by itself."""
    topic, size, count = new(), 100_000, 200
    with socket.create_connection(("127.0.0.1", node.port)) as slow, opened(node) as quick:
        slow.settimeout(WITHIN_S)
        slow.sendall(request(path=f"{topic.path}/ws?from_seq=0"))
        quick.ask("subscribed", op="subscribe", topics={topic.name: 0})
        for n in range(count):
            topic.write(f"{n:04}" + "x" * size)
        got: list[int] = []
        while len(got) < count:
            got += [int(text[:4]) for text in data(quick.next("records"))]
        assert got == list(range(count))
        assert numbers(slow, count) == list(range(count))


def numbers(sock: socket.socket, count: int) -> list[int]:
    """What the records of a raw WebSocket begin with, up to so many."""
    held = bytearray()
    while b"\r\n\r\n" not in held:
        held += sock.recv(65_536)
    assert held.startswith(b"HTTP/1.1 101 ")
    rest = bytes(held).partition(b"\r\n\r\n")[2]
    found: list[int] = []
    while len(found) < count:
        frames, rest = parse(rest)
        for got in frames:
            message = json.loads(got.payload)
            if message["op"] == "records":
                found += [int(text[:4]) for text in data(message)]
        if len(found) < count:
            more = sock.recv(1 << 20)
            assert more
            rest += more
    return found


def test_a_client_that_never_reads_its_answers_is_not_read_and_its_writes_stop(node: Node, topic: Topic) -> None:
    """Each answer is large: the socket takes no more messages long before all are sent."""
    write = json.dumps({"op": "write", "id": "i" * 1000, "topic": topic.name, "records": [{"data": 1}]}).encode()
    with socket.create_connection(("127.0.0.1", node.port)) as raw:
        raw.settimeout(1.0)
        raw.sendall(request())
        sent = 0
        try:
            for _ in range(200):
                raw.sendall(frame(TEXT, write) * 100)
                sent += 100
        except TimeoutError:
            pass
        assert sent < 20_000
    assert told(topic.request("GET"))["state"]["head_seq"] < 20_000


def test_more_writes_than_may_be_under_way_are_all_made(ws: Socket, topic: Topic) -> None:
    for n in range(WRITES_MAX * 20):
        ws.send(op="write", id=n, topic=topic.name, records=[{"data": n}])
    assert sorted(ws.next("written")["id"] for _ in range(WRITES_MAX * 20)) == list(range(WRITES_MAX * 20))
    assert topic.data(limit=1000) == list(range(WRITES_MAX * 20))


# ---- workers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ("--workers", "3", "--groups", "6")
    with Node.started(tmp_path_factory.mktemp("workers"), flags=flags) as node:
        yield node
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


def test_one_socket_follows_and_writes_topics_of_all_workers(workers: Node) -> None:
    topics = [new_topic(workers) for _ in range(12)]
    with opened(workers, f"{topics[0].path}/ws") as ws:
        ws.next("subscribed")
        ws.ask("subscribed", op="subscribe", topics={topic.name: 0 for topic in topics[1:6]})
        ws.ask("subscribed", op="subscribe", topics={topic.name: 0 for topic in topics[6:]})
        for n in range(3):
            for topic in topics:
                ws.send(op="write", id=[topic.name, n], topic=topic.name, records=[{"data": n}])
        written: list[Any] = []
        records: dict[str, list[int]] = {topic.name: [] for topic in topics}
        while len(written) < 36 or sum(map(len, records.values())) < 36:
            message = json.loads(ws.connection.recv(WITHIN_S))
            if message["op"] == "written":
                written.append(message["id"])
            else:
                assert message["op"] == "records", message
                records[message["topic"]] += data(message)
        assert sorted(written) == sorted([topic.name, n] for topic in topics for n in range(3))
        assert records == {topic.name: [0, 1, 2] for topic in topics}


def test_topics_of_other_workers_are_left_lost_and_gone_like_any(workers: Node) -> None:
    topics = [new_topic(workers, cap_records=2) for _ in range(6)]
    for topic in topics:
        topic.write(1, 2, 3)
    with opened(workers) as ws:
        none = fresh_name("none")
        for _ in range(6):
            code, answer = ws.refused({"op": "subscribe", "topics": {topics[0].name: 0, none: 0}})
            assert (code, answer["topic"]) == ("topic_not_found", none)
            none = fresh_name("none")
        for topic in topics:
            ws.ask("subscribed", op="subscribe", topics={topic.name: 0})
            assert ws.next("tombstone") == {"topic": topic.name, "gap_from": 1, "gap_to": 1}
            assert data(ws.next("records")) == [2, 3]
        ws.ask("unsubscribed", op="unsubscribe", topics=[topic.name for topic in topics[:3]])
        for topic in topics:
            topic.write(4)
        assert sorted(ws.next("records")["topic"] for _ in range(3)) == sorted(topic.name for topic in topics[3:])
        for topic in topics:
            assert topic.request("DELETE").status == 200
        assert sorted(ws.next("gone")["topic"] for _ in range(3)) == sorted(topic.name for topic in topics[3:])
        assert ws.works()
        assert ws.refused({"op": "write", "topic": topics[0].name, "records": [{"data": 1}]})[0] == "topic_not_found"
