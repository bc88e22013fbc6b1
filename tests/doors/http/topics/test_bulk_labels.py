"""What a record carries beside its data, when it comes with many others in a bulk append: the same as from a write to
its topic, with the same limits, in JSON and msgpack."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, told
from tests.support.node import Node

PATH = "/__headwater/append"
META = {"trace": {"id": "x7", "n": [1, 2.50]}}


def append(node: Node, *entries: dict[str, Any]) -> list[dict[str, Any]]:
    answer = node.request("POST", PATH, body=msgspec.json.encode(entries))
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json()
    return found


def append_packed(node: Node, *entries: dict[str, Any]) -> list[dict[str, Any]]:
    answer = node.request("POST", PATH, [("Content-Type", "application/msgpack")], msgspec.msgpack.encode(entries))
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json()
    return found


def labels_of(topic: Topic) -> list[dict[str, Any]]:
    return [{name: one[name] for name in one.keys() - {"seq", "ts"}} for one in topic.diff()["records"]]


def test_labels_come_with_records(node: Node, topic: Topic) -> None:
    labels = [{"tag": "é", "node": "n1", "meta": META, "key": "k"}, None, {"tag": "b"}, {}]
    (one,) = append(node, {"stream": topic.name, "records": [1, 2, 3, 4], "labels": labels})
    assert one["status"] == 204
    assert labels_of(topic) == [{"data": 1, **(labels[0] or {})}, {"data": 2}, {"data": 3, "tag": "b"}, {"data": 4}]
    assert told(topic.delete(match=["tag", "Eq", "b"]))["deleted"] == 1


def test_labels_come_with_packed_records(node: Node, new: New) -> None:
    topic = new(content_type="application/octet-stream")
    labels = [{"tag": "a", "meta": msgspec.json.encode(META).decode()}, {"meta": None}]
    entry = {
        "stream": topic.name,
        "content_type": "application/octet-stream",
        "binary": [b"\0", b"\1"],
        "labels": labels,
    }
    assert append_packed(node, entry)[0]["status"] == 204
    first, second = (base64.b64encode(data).decode() for data in (b"\0", b"\1"))
    assert labels_of(topic) == [{"data_base64": first, "tag": "a", "meta": META}, {"data_base64": second}]


def test_a_long_request_with_labels_is_read_in_slices(node: Node, topic: Topic) -> None:
    labels = [{"tag": f"t{n % 7}", "node": "n"} for n in range(5_000)]
    (one,) = append(node, {"stream": topic.name, "records": list(range(5_000)), "labels": labels})
    assert one["status"] == 204
    assert told(topic.delete(match=["tag", "Eq", "t0"]))["deleted"] == 715
    entry = {"stream": topic.name, "content_type": "application/json", "binary": [b"1"] * 5_000, "labels": labels}
    assert append_packed(node, entry)[0]["status"] == 204
    assert topic.state()["count"] == 10_000 - 715


def test_a_repetition_by_a_producer_is_known_with_its_labels(node: Node, topic: Topic) -> None:
    producer = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    entry = {"stream": topic.name, "records": [1], "labels": [{"tag": "a"}], **producer}
    assert [append(node, entry)[0]["status"] for _ in range(2)] == [200, 204]
    assert labels_of(topic) == [{"data": 1, "tag": "a"}]


def test_a_job_that_is_there_is_left_out(node: Node, new: New) -> None:
    queue = new(queue={})
    labels = [{"key": "a"}, {"key": "b"}, {"key": "a"}]
    (first,) = append(node, {"stream": queue.name, "records": [1, 2, 3], "labels": labels})
    assert first["status"] == 204
    entry = {"stream": queue.name, "records": [4], "labels": [{"key": "b"}]}
    (again,) = append(node, entry)
    assert (again["duplicate"], again["stream_next_offset"]) == (True, first["stream_next_offset"])
    (noted,) = append(node, {**entry, "producer_id": "p", "producer_epoch": 0, "producer_seq": 0})
    assert noted["status"] in (200, 204)
    (known,) = append(node, {**entry, "producer_id": "p", "producer_epoch": 0, "producer_seq": 0})
    assert known["duplicate"]
    assert [one["data"] for one in labels_of(queue)] == [1, 2]


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        ([{"tag": ""}], "empty"),
        ([{"tag": "a\n"}], "control"),
        ([{"tag": "x" * 1_025}], "1024"),
        ([{"node": "\x00"}], "control"),
        ([{"key": ""}], "empty"),
        ([{"meta": [1]}], "object"),
        ([{"meta": "text"}], "object"),
        ([{"meta": {"a": "x" * 17_000}}], "16384"),
        ([{"delay_ms": -1}], "delay_ms"),
        ([{"deliver_at": 1 << 60}], "deliver_at"),
        ([{"tag": "a"}, {"tag": "b"}], "2 for 1"),
        ([], "0 for 1"),
    ],
)
def test_what_a_topic_refuses_is_refused_and_the_other_entries_go_on(
    node: Node, topic: Topic, labels: list[Any], word: str
) -> None:
    bad, good = append(
        node, {"stream": topic.name, "records": [1], "labels": labels}, {"stream": topic.name, "records": [2]}
    )
    assert (bad["status"], bad["error"]["code"]) == (400, "bad_body") and word in bad["error"]["message"]
    assert good["status"] == 204
    assert labels_of(topic) == [{"data": 2}]


@pytest.mark.parametrize("meta", ["{", "[1]", "7", '{"a":NaN}', "", '{"a":' * 5_000 + "1" + "}" * 5_000])
def test_packed_meta_is_the_text_of_an_object(node: Node, topic: Topic, meta: str) -> None:
    entry = {"stream": topic.name, "content_type": "application/json", "text": ["1"], "labels": [{"meta": meta}]}
    (told_,) = append_packed(node, entry)
    assert (told_["status"], told_["error"]["code"]) == (400, "bad_body")


@pytest.mark.parametrize("labels", [7, "a", {"tag": "a"}, [7], [{"color": "red"}], [{"tag": 7}], [[]]])
def test_labels_of_another_form_refuse_the_request(node: Node, topic: Topic, labels: Any) -> None:
    body = msgspec.json.encode([{"stream": topic.name, "records": [1], "labels": labels}])
    answer = node.request("POST", PATH, body=body)
    assert (answer.status, answer.header("x-error-code") or answer.json()["error"]["code"]) == (400, "bad_body")


def test_more_labels_than_records_may_be_are_not_read(node: Node, topic: Topic) -> None:
    body = msgspec.json.encode([{"stream": topic.name, "records": [1], "labels": [None] * 200_000}])
    assert node.request("POST", PATH, body=body).status == 413
    packed = msgspec.msgpack.encode([{"stream": topic.name, "text": ["1"], "labels": [None] * 200_000}])
    assert node.request("POST", PATH, [("Content-Type", "application/msgpack")], packed).status == 413
