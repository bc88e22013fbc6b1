"""Topics as they grow, over SSE. Topics architecture §8 (a slow consumer is its own trouble, and is told what it lost),
contract "GET …/sse" (composite cursor, tombstone, gone)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.extensions.surface import fresh_name
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Tail, Topic, new_topic, refused, tail_of, told
from tests.support.http import EventStream
from tests.support.node import Node


def data(event: dict[str, Any]) -> list[Any]:
    return [one["data"] for one in event["records"]]


# ---- one topic --------------------------------------------------------------------------------------------------


def test_who_says_nothing_follows_from_now_on(topic: Topic) -> None:
    topic.write(1, 2)
    for query in ("", "?from_seq=now"):
        with topic.tail(query) as tail:
            before = int(tail.id.rpartition(":")[2])
            topic.write("new")
            event = tail.next()
            assert (event["topic"], data(event), event["next_seq"]) == (topic.name, ["new"], before + 1)
            assert tail.id == f"{topic.name}:{before + 1}"


def test_a_follower_gets_what_lies_behind_its_cursor_and_then_what_comes(topic: Topic) -> None:
    topic.write(1, 2, 3)
    with topic.tail("?from_seq=1") as tail:
        assert tail.id == f"{topic.name}:1"
        assert data(tail.next()) == [2, 3]
        topic.write(4)
        assert data(tail.next()) == [4]
        topic.write(5, tag="t", meta={"a": "line\nbreak"})
        record = tail.next()["records"][0]
        assert (record["seq"], record["tag"], record["meta"]) == (5, "t", {"a": "line\nbreak"})


def test_an_event_has_no_more_records_than_were_asked_for(topic: Topic) -> None:
    topic.write(*range(5))
    with topic.tail("?from_seq=0&limit=2") as tail:
        assert [data(tail.next()) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_a_client_that_comes_back_goes_on_where_it_was(topic: Topic) -> None:
    with topic.tail() as tail:
        pass  # it has heard nothing but where it is
    topic.write(1, 2)
    with topic.tail("", {"Last-Event-ID": tail.id}) as tail:
        assert data(tail.next()) == [1, 2]
    topic.write(3)
    with topic.tail("?from_seq=0", {"Last-Event-ID": tail.id}) as tail:
        assert data(tail.next()) == [3]


def test_the_records_of_its_own_node_are_skipped(topic: Topic) -> None:
    with topic.tail("?from_seq=0&node=me,too") as tail:
        topic.write(1, node="me")
        topic.write(2, node="too")
        topic.write(3)
        assert (data(tail.next()), tail.id) == ([3], f"{topic.name}:3")


def test_what_was_lost_before_is_told_first(new: New) -> None:
    topic = new(cap_records=2)
    topic.write(1, 2, 3, 4)
    with topic.tail("?from_seq=1") as tail:
        assert tail.next("tombstone") == {"topic": topic.name, "gap_from": 2, "gap_to": 2}
        assert tail.id == f"{topic.name}:2"
        assert data(tail.next()) == [3, 4]


def test_the_deletion_of_a_topic_ends_its_tail(topic: Topic) -> None:
    with topic.tail() as tail:
        assert topic.request("DELETE").status == 200
        assert tail.next("gone") == {"topic": topic.name}
        assert tail.ended()


def test_json_that_spans_lines_stays_one_value(topic: Topic) -> None:
    with topic.tail() as tail:
        assert topic.request("POST", "/records", b'{"records":[{"data":{"a":\n [1,\r\n2]}}]}').status == 200
        assert data(tail.next()) == [{"a": [1, 2]}]


def test_text_and_bytes_are_told_as_readers_get_them(new: New) -> None:
    topic = new(content_type="text/plain")
    with topic.tail() as tail:
        topic.write("two\nlines")
        assert data(tail.next()) == ["two\nlines"]
    topic = new(content_type="image/png")
    with topic.tail() as tail:
        assert topic.post([{"data_base64": "AP8="}]).status == 200
        assert tail.next()["records"][0]["data_base64"] == "AP8="


@pytest.mark.parametrize(
    "query",
    [
        "from_seq=-1",
        "from_seq=x",
        "from_seq=",
        "limit=0",
        "limit=x",
        "from_seq=1&from_seq=2",
        "limit=10001",
        "node=%ff",
    ],
)
def test_a_query_that_cannot_be_understood_is_refused(topic: Topic, query: str) -> None:
    assert refused(topic.request("GET", f"/sse?{query}")) == (400, "bad_request")


@pytest.mark.parametrize("token", ["x", "a:", ":1", "a:b", "a:1:", "a:99999999999999999999", "%zz:1", "..:1", "a:\xff"])
def test_a_token_that_is_none_is_refused(topic: Topic, token: str) -> None:
    answer = topic.request("GET", "/sse", None, {"Last-Event-ID": token})
    assert refused(answer) == (400, "bad_request")
    assert answer.json()["error"]["message"].startswith(("bad header Last-Event-ID: ", "invalid name: "))


# ---- several ----------------------------------------------------------------------------------------------------


def several(node: Node, topics: list[Topic], *more: str) -> Any:
    names = ",".join(topic.name for topic in topics)
    return tail_of(node, "/v0/sse?" + "&".join([f"topics={names}", *more]))


def test_several_topics_are_one_stream_with_one_cursor(node: Node, new: New) -> None:
    first, second = new(), new()
    first.write(1)
    with several(node, [first, second], f"from={first.name}:0") as tail:
        assert tail.id == f"{first.name}:0,{second.name}:0"
        assert (tail.next()["topic"], tail.id) == (first.name, f"{first.name}:1,{second.name}:0")
        second.write(2)
        assert (data(tail.next()), tail.id) == ([2], f"{first.name}:1,{second.name}:1")
        token = tail.id
    first.write(3)
    second.write(4)
    resumed = {"Last-Event-ID": token}
    with tail_of(node, f"/v0/sse?topics={first.name},{second.name}", resumed) as tail:
        assert sorted(data(tail.next()) + data(tail.next())) == [3, 4]


def test_names_that_hold_commas_and_colons_are_percent_encoded(node: Node) -> None:
    bucket = fresh_name("odd")
    topic = Topic(node, f"{bucket}/a,b:c é%")
    assert topic.put().status == 201
    topic.write(1)
    inside = f"{bucket}/a%2Cb%3Ac%20%C3%A9%25"
    twice = inside.replace("%", "%25")
    with tail_of(node, f"/v0/sse?topics={twice}&from={twice}%3A0") as tail:
        assert tail.id == f"{inside}:0"
        assert (tail.next()["topic"], tail.id) == (topic.name, f"{inside}:1")
    topic.write(2)
    with tail_of(node, f"/v0/sse?topics={twice}", {"Last-Event-ID": tail.id}) as tail:
        assert data(tail.next()) == [2]


def test_a_topic_that_is_deleted_leaves_the_others(node: Node, new: New) -> None:
    first, second = new(), new()
    with several(node, [first, second]) as tail:
        assert first.request("DELETE").status == 200
        assert (tail.next("gone"), tail.id) == ({"topic": first.name}, f"{second.name}:0")
        second.write(1)
        assert data(tail.next()) == [1]
        assert second.request("DELETE").status == 200
        assert tail.next("gone") == {"topic": second.name} and tail.ended()


def test_a_topic_that_is_named_twice_is_followed_once(node: Node, topic: Topic) -> None:
    with several(node, [topic, topic]) as tail:
        topic.write(1)
        topic.write(2)
        assert [data(tail.next()) for _ in range(2)] == [[1], [2]]


def test_one_of_several_that_is_not_there_is_not_found(node: Node, topic: Topic) -> None:
    answer = node.request("GET", f"/v0/sse?topics={topic.name},{fresh_name('never')}")
    assert refused(answer) == (404, "topic_not_found")


@pytest.mark.parametrize(
    "query",
    [
        *("", "topics=", "topics=,", "topics=..", "topics=a&topics=b", "topics=%25zz", "topics=%ff"),
        *("topics=a&from=b", "topics=a&from=a:x", "topics=a&limit=0", "topics=a&from=:1"),
        "topics=" + ",".join(f"t{n}" for n in range(1_001)),
    ],
    ids=lambda query: query[:40],
)
def test_several_that_cannot_be_understood_are_refused(node: Node, query: str) -> None:
    assert refused(node.request("GET", f"/v0/sse?{query}")) == (400, "bad_request")


def test_many_topics_are_followed_at_once(node: Node, new: New) -> None:
    topics = [new(durability="memory") for _ in range(100)]
    with several(node, topics) as tail:
        for topic in reversed(topics):
            topic.write(topic.name)
        assert {tail.next()["topic"] for _ in topics} == {topic.name for topic in topics}


def test_more_topics_than_a_client_can_come_back_to_are_refused_at_once(node: Node, new: New) -> None:
    topic = new()
    names = [topic.name, *(f"town/{number:0200d}" for number in range(80))]
    several = f"/v0/sse?topics={','.join(names)}"
    assert len(several) < 20_000
    assert refused(node.request("GET", several)) == (400, "bad_request")


# ---- clients that are slow, and connections that end ------------------------------------------------------------


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Node]:
    """A node that buffers little."""
    with Node.started(tmp_path, flags=("--write-buffer-bytes-max", "4KiB")) as node:
        yield node
        assert "Traceback" not in node.stderr(), node.output()


def test_a_connection_is_kept_alive_and_ends_of_age(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=("--sse-lifetime-ms", "1500", "--sse-keepalive-ms", "10")) as node:
        topic = new_topic(node)
        with node.connect() as connection:
            connection.send(f"GET {topic.path}/sse HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            first, *rest = connection.body_pieces(connection.read_head())
            assert first == f"event: open\nid: {topic.name}:0\ndata:{{}}\n\n".encode()
            assert rest and set(rest) == {b":\n"}
            # It ended as its framing says: the connection can be used on.
            assert connection.request("GET", topic.path).status == 200


def test_a_client_that_does_not_read_is_told_what_it_lost_and_costs_no_memory(tight: Node) -> None:
    topic = new_topic(tight, cap_records=50, durability="memory")
    quick = new_topic(tight)
    with tight.connect(receive_buffer_bytes=4_096) as connection:
        stream = EventStream.open(connection, f"{topic.path}/sse?limit=1")
        tail = Tail(stream)
        for _ in range(300):
            topic.write(*["x" * 10_000] * 10)
        # Nobody else waits for it.
        with quick.tail() as other:
            quick.write(1)
            assert data(other.next()) == [1]
        got: list[int] = []
        lost: list[tuple[int, int]] = []
        while (got[-1] if got else 0) < 3_000:
            name, event = tail.any()
            if name == "tombstone":
                assert event["reason"] == "lagged"
                lost.append((event["gap_from"], event["gap_to"]))
            else:
                got += [one["seq"] for one in event["records"]]
    # Each was either sent or told of as lost, and none was both.
    seen = sorted(got + [seq for first, last in lost for seq in range(first, last + 1)])
    assert seen == list(range(1, 3_001)) and lost
    assert tail.id == f"{topic.name}:3000"


def test_a_node_that_stops_ends_its_tails_so_that_clients_resume(tight: Node) -> None:
    topic = new_topic(tight)
    topic.write(1)
    with topic.tail("?from_seq=0") as tail:
        assert data(tail.next()) == [1]
        assert tight.terminate() == 0
        assert tail.ended() and tail.id == f"{topic.name}:1"


def test_tails_and_waiting_reads_that_go_away_leave_nothing_behind(node: Node, topic: Topic) -> None:
    for _ in range(5):
        with topic.tail(), node.connect() as connection:
            connection.send(f"GET {topic.path}/diff?wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    topic.write(1)
    assert told(topic.request("DELETE"))["deleted"]
