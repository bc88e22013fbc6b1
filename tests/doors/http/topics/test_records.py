"""Writing to a topic. Topics architecture §2 (write path: a write that was acked is in the log, seqs are given out in
order), §3.3 (discard: reject, before anything is written), contract "POST …/records"."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any

import pytest

from headwater.doors.http.topics.records import Writes
from headwater.errors import BadBody
from tests.doors.http.topics.conftest import New
from tests.doors.http.topics.surface import Topic, body_of, refused, told
from tests.support.http import Connection, encode_request
from tests.support.node import Node

MIB = 1024 * 1024


def test_numbers_are_given_out_from_one_in_the_order_of_the_records(topic: Topic) -> None:
    first = told(topic.post([{"data": 1}, {"data": 2}, {"data": 3}]))
    assert first == {"seqs": [1, 2, 3], "head_seq": 3, "duplicates": []}
    assert told(topic.post([{"data": 4}])) == {"seqs": [4], "head_seq": 4, "duplicates": []}
    assert topic.data() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "text",
    [b"null", b"true", b"0", b"-1.5e300", b'""', b'"\\u00e9\\ud83d\\ude00"', b"[]", b"{}", b'{"b" : 1,\n "a":[ 1 ]}'],
)
def test_a_json_value_is_kept_as_the_bytes_that_came(topic: Topic, text: bytes) -> None:
    assert topic.request("POST", "/records", b'{"records":[ {"data" : ' + text + b" } ]}").status == 200
    answer = topic.request("GET", "/diff")
    assert b'"data":' + text + b"}" in answer.body and answer.json()["records"][0]["data"] == json.loads(text)
    assert topic.node.request("GET", f"/v1/stream/{topic.name}").body == b"[" + text + b"]"


def test_everything_that_a_record_carries_comes_back_with_it(topic: Topic) -> None:
    record = {"data": 1, "tag": "é", "node": "n", "meta": {"a": [1, {"b": None}]}, "key": "k", "deliver_at": 5}
    assert topic.post([record, {"data": 2}]).status == 200
    first, second = topic.diff()["records"]
    assert first == {"seq": 1, "ts": first["ts"], **record}
    assert second == {"seq": 2, "ts": second["ts"], "data": 2} and second["ts"] >= first["ts"]


def test_a_delay_counts_from_now(topic: Topic) -> None:
    topic.write(1, delay_ms=60_000)
    (record,) = topic.diff()["records"]
    assert 59_999 <= record["deliver_at"] - record["ts"] < 120_000


def test_the_node_of_a_write_is_that_of_records_that_name_none(topic: Topic) -> None:
    assert topic.post([{"data": 1}, {"data": 2, "node": "b"}], node="a").status == 200
    assert [one["node"] for one in topic.diff()["records"]] == ["a", "b"]


def test_labels_are_invisible_and_kept_at_other_doors(topic: Topic, node: Node) -> None:
    topic.write({"a": 1}, tag="t", node="n", meta={"m": 1}, key="k")
    assert node.request("GET", f"/v1/stream/{topic.name}").body == b'[{"a": 1}]'
    assert node.request("POST", "/__headwater/flush").status == 200
    (record,) = topic.diff()["records"]
    assert (record["tag"], record["node"], record["meta"], record["key"]) == ("t", "n", {"m": 1}, "k")


# ---- topics that hold no JSON ---------------------------------------------------------------------------------------


def test_text_comes_and_goes_as_a_string(new: New) -> None:
    topic = new(content_type="text/plain")
    assert topic.write("line\n", '"é\0') == [1, 2]
    assert topic.data() == ["line\n", '"é\0']
    raw = {"data_base64": base64.b64encode(b"\xff").decode()}
    assert topic.post([raw]).status == 200
    assert topic.diff(from_seq=2)["records"][0]["data_base64"] == raw["data_base64"]


def test_bytes_come_as_either_and_go_as_base64(new: New) -> None:
    topic = new(content_type="application/octet-stream")
    assert topic.post([{"data": "abc"}, {"data_base64": "AP8="}]).status == 200
    assert [base64.b64decode(one["data_base64"]) for one in topic.diff()["records"]] == [b"abc", b"\0\xff"]
    assert topic.node.request("GET", f"/v1/stream/{topic.name}").body == b"abc\0\xff"


@pytest.mark.parametrize(
    "record",
    [
        *({}, {"data": 1}, {"data": None}, {"data": {}}, {"data": ""}, {"tag": "x"}, {"data_base64": ""}),
        *({"data_base64": text} for text in ("a", "AP8", "AP8=\n", "é")),
        {"data": "x", "data_base64": "AP8="},
    ],
    ids=str,
)
def test_what_is_no_text_and_no_base64_is_refused(new: New, record: dict[str, Any]) -> None:
    topic = new(content_type="text/plain")
    assert refused(topic.post([{"data": "fine"}, record])) == (400, "bad_request")
    assert topic.state()["head_seq"] == 0


# ---- what is refused ------------------------------------------------------------------------------------------------

NAMES = ["tag", "node", "key"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [5, True, [], {}, "", "a\0", "a\n", "\x1b", "\x7f", "\x85", "x" * 1_025, "é" * 513])
def test_a_label_that_is_no_short_text_is_refused_and_named(topic: Topic, name: str, value: Any) -> None:
    answer = topic.post([{"data": 1}, {"data": 2, name: value}])
    assert refused(answer) == (400, "bad_request")
    assert f"records[1].{name}" in answer.json()["error"]["message"]
    assert topic.state()["head_seq"] == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["x" * 1_024, "é" * 512, " ", '"\\/', "\u2028", "None", "null"])
def test_any_other_text_is_a_label(topic: Topic, name: str, value: str) -> None:
    topic.write(1, **{name: value})
    assert topic.diff()["records"][0][name] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("meta", 5),
        ("meta", []),
        ("meta", "{}"),
        ("meta", True),
        ("meta", {"a": "x" * 16_384}),
        ("deliver_at", -1),
        ("deliver_at", "5"),
        ("deliver_at", 1.5),
        ("deliver_at", 1 << 90),
        ("delay_ms", -1),
        ("delay_ms", 1 << 60),
        ("delay_ms", "x"),
        ("colour", 1),
        ("seq", 1),
    ],
    ids=str,
)
def test_any_other_field_that_is_wrong_or_unknown_is_named(topic: Topic, field: str, value: Any) -> None:
    answer = topic.post([{"data": 1, field: value}])
    assert refused(answer) == (400, "bad_request")
    assert field in answer.json()["error"]["message"]


def test_a_field_that_is_null_is_one_that_is_not_given(topic: Topic) -> None:
    names = ("tag", "node", "meta", "key", "deliver_at", "delay_ms", "data_base64")
    assert topic.post([{"data": None, **dict.fromkeys(names)}], node=None, producer=None).status == 200
    (record,) = topic.diff()["records"]
    assert set(record) == {"seq", "ts", "data"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"records":[]}',
        b'{"records":{}}',
        b'{"records":[1]}',
        b'{"records":[{}]}',
        b'{"records":[{"data":1}],"more":1}',
        b'{"records":[{"data":1}],"node":5}',
        b'{"records":[{"data":1}],"node":"a\\u0000"}',
        b'{"records":[{"data":1}],"node":""}',
        b'{"records":[{"data":1}],"disable_backpressure":1}',
        b'{"records":[{"data":1}],"producer":{}}',
        b'{"records":[{"data":1}],"producer":{"id":"","epoch":0,"seq":0}}',
        b'{"records":[{"data":1}],"producer":{"id":"p","epoch":-1,"seq":0}}',
        b'{"records":[{"data":1}],"producer":{"id":"p","epoch":0,"seq":9007199254740992}}',
        b'{"records":[{"data":1}],"producer":{"id":"p","epoch":0,"seq":0,"x":1}}',
        b'{"records":[{"data":1}]}x',
        b'{"records":[{"data":1}]',
        b'{"records":[{"data":}]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":1,"tag":"\\ud800"}]}',
        b'{"records":[{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
        b'{"records":[{"data":1,"delay_ms":1,"deliver_at":1}]}',
        b"\0" * 100,
    ],
    ids=lambda body: str(body[:50]),
)
def test_a_body_that_is_no_write_is_refused_and_nothing_is_written(topic: Topic, body: bytes) -> None:
    assert refused(topic.request("POST", "/records", body)) == (400, "bad_request")
    assert topic.state()["head_seq"] == 0


def test_the_last_of_a_repeated_field_counts(topic: Topic) -> None:
    assert topic.request("POST", "/records", b'{"records":[{"data":1,"data":2}]}').status == 200
    assert topic.data() == [2]


def test_more_records_than_a_write_may_bring_are_refused(topic: Topic) -> None:
    assert refused(topic.post([{"data": 1}] * 10_001)) == (413, "too_many_records")
    assert told(topic.post([{"data": 1}] * 10_000))["head_seq"] == 10_000


def test_a_body_that_is_too_large_is_refused_as_topics_refuse(topic: Topic) -> None:
    body = body_of({"records": [{"data": "x" * (9 * MIB)}]})
    assert refused(topic.request("POST", "/records", body)) == (413, "body_too_large")


# ---- long bodies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["records first", "records last", "brackets behind"])
def test_a_long_body_is_read_like_a_short_one(topic: Topic, shape: str) -> None:
    records = [{"data": {"n": n, "pad": "x" * 400, "in": [[n], {"a": [n]}]}, "tag": f"t{n % 3}"} for n in range(2_000)]
    others: dict[str, Any] = {"node": "]}[{", "disable_backpressure": True}
    write = {**others, "records": records} if shape == "records last" else {"records": records, **others}
    if shape == "records first":
        write["node"] = "n"
    assert told(topic.request("POST", "/records", write))["head_seq"] == 2_000
    first = topic.diff(limit=1)["records"][0]
    assert (first["data"], first["tag"], first["node"]) == (records[0]["data"], "t0", write["node"])
    assert topic.diff(from_seq=1_999)["records"][0]["data"] == records[-1]["data"]


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [(b'{"data":1,"tag":5}', "tag"), (b'{"data":}', "JSON"), (b"5", "records[3000]"), (b'{"data":"\xff"}', "UTF-8")],
)
def test_a_fault_far_into_a_long_body_is_found_and_nothing_is_written(topic: Topic, spoilt: bytes, named: str) -> None:
    one = body_of({"data": "x" * 200})
    body = b'{"records":[' + b",".join([one] * 3_000 + [spoilt] + [one] * 10) + b"]}"
    answer = topic.request("POST", "/records", body)
    assert refused(answer) == (400, "bad_request")
    assert named in answer.json()["error"]["message"]
    assert topic.state()["head_seq"] == 0


@pytest.mark.parametrize("behind", [b',"node":"\xff"}', b',"x":1}', b',"node":5}', b"}x", b"", b',"node":"a\n"}'])
def test_a_fault_behind_the_records_of_a_long_body_is_found(topic: Topic, behind: bytes) -> None:
    body = b'{"records":[' + b",".join([body_of({"data": "x" * 200})] * 3_000) + b"]" + behind
    assert refused(topic.request("POST", "/records", body)) == (400, "bad_request")
    assert topic.state()["head_seq"] == 0


def test_a_long_body_with_too_many_records_is_refused(topic: Topic) -> None:
    body = b'{"records":[' + b",".join([b'{"data":1}'] * 200_000) + b"]}"
    assert refused(topic.request("POST", "/records", body)) == (413, "too_many_records")


def test_writes_behind_a_long_one_on_its_connection_come_after_it(topic: Topic) -> None:
    long = encode_request("POST", f"{topic.path}/records", (), body_of({"records": [{"data": "x" * 300}] * 3_000}))
    short = encode_request("POST", f"{topic.path}/records", (), body_of({"records": [{"data": 1}]}))
    with topic.node.connect() as connection:
        connection.send(long + short)
        assert told(connection.read_response())["seqs"][-1] == 3_000
        assert told(connection.read_response())["seqs"] == [3_001]


# ---- producers ------------------------------------------------------------------------------------------------------


def producer(seq: int, epoch: int = 0) -> dict[str, Any]:
    return {"producer": {"id": "p", "epoch": epoch, "seq": seq}}


def test_a_write_that_is_repeated_is_told_so_and_not_written_again(topic: Topic) -> None:
    assert told(topic.post([{"data": 1}, {"data": 2}], **producer(0)))["seqs"] == [1, 2]
    again = told(topic.post([{"data": 1}, {"data": 2}], **producer(0)))
    assert again == {"seqs": [], "head_seq": 2, "duplicates": [], "duplicate": True}
    assert told(topic.post([{"data": 3}], **producer(1)))["seqs"] == [3]


def test_a_gap_and_an_older_epoch_of_a_producer_are_refused_with_what_was_expected(topic: Topic) -> None:
    assert topic.post([{"data": 1}], **producer(0, epoch=1)).status == 200
    answer = topic.post([{"data": 1}], **producer(5, epoch=1))
    assert refused(answer) == (409, "producer_seq_conflict")
    assert answer.json()["error"]["detail"]["producer_expected_seq"] == "1"
    assert refused(topic.post([{"data": 1}], **producer(1, epoch=0))) == (403, "stale_epoch")


# ---- caps -----------------------------------------------------------------------------------------------------------


def test_a_full_topic_that_rejects_takes_nothing_of_a_write_that_does_not_fit(new: New) -> None:
    topic = new(cap_records=3, discard="reject")
    topic.write(1, 2)
    answer = topic.post([{"data": 3}, {"data": 4}])
    assert refused(answer) == (422, "topic_full")
    assert answer.json()["error"]["detail"] == {"retryable": False, "cap": "cap_records", "limit": 3, "held": 2}
    assert topic.write(3) == [3]
    assert refused(topic.post([{"data": 4}])) == (422, "topic_full")
    assert topic.data() == [1, 2, 3] and topic.state()["evict_floor"] == 1


def test_a_full_topic_by_bytes_rejects_too(new: New) -> None:
    topic = new(cap_bytes=10, discard="reject")
    topic.write("12345678")
    assert refused(topic.post([{"data": "1"}])) == (422, "topic_full")


def test_a_full_topic_that_discards_lets_go_of_the_oldest(new: New) -> None:
    topic = new(cap_records=2)
    topic.write(1, 2, 3)
    state = topic.state()
    assert (state["head_seq"], state["earliest_seq"], state["evict_floor"], state["count"]) == (3, 2, 2, 2)


# ---- bytes on a socket ----------------------------------------------------------------------------------------------


def test_a_write_that_is_cut_anywhere_is_the_same_write(topic: Topic) -> None:
    whole = encode_request("POST", f"{topic.path}/records", (), b'{"records":[{"data":"\xc3\xa9","tag":"t"}]}')
    with topic.node.connect() as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(1, len(whole), 7):
            connection.send(whole[:at])
            connection.send(whole[at:])
            assert told(connection.read_response())["seqs"] == [at // 7 + 1]
        for byte in whole:
            connection.send(bytes([byte]))
        assert connection.read_response().status == 200
    assert {one["data"] for one in topic.diff(limit=1_000)["records"]} == {"é"}


def test_writes_in_one_piece_are_answered_in_their_order(topic: Topic) -> None:
    one = encode_request("POST", f"{topic.path}/records", (), b'{"records":[{"data":1}]}')
    bad = encode_request("POST", f"{topic.path}/records", (), b'{"records":[{"data":x}]}')
    with topic.node.connect() as connection:
        connection.send(one * 5 + bad + one * 5)
        answers = [connection.read_response() for _ in range(11)]
    assert [answer.status for answer in answers] == [200] * 5 + [400] + [200] * 5
    assert [answer.json()["seqs"] for answer in answers if answer.status == 200] == [[n] for n in range(1, 11)]


def test_a_head_that_comes_again_is_judged_by_the_topic_that_is_there_then(topic: Topic) -> None:
    one = encode_request("POST", f"{topic.path}/records", (), b'{"records":[{"data":1}]}')

    def sent(connection: Connection) -> tuple[int, list[int]]:
        connection.send(one)
        answer = connection.read_response()
        return answer.status, answer.json().get("seqs", [])

    with topic.node.connect() as connection:
        assert [sent(connection) for _ in range(3)] == [(200, [n]) for n in (1, 2, 3)]
        assert topic.request("DELETE").status == 200
        assert sent(connection)[0] == 404
        assert topic.put(content_type="text/plain").status == 201
        assert sent(connection)[0] == 400
        assert topic.request("DELETE").status == 200 and topic.put().status == 201
        assert sent(connection) == (200, [1])


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v0/topics/a/records HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /v0/topics/a/records HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v0/topics/a/records HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"PATCH /v0/topics/a HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"GET /v0/topics/a HTTP/1.1\r\n\r\n",
        b"GET /v0/topics/a HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /v0/topics/a HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
        b"GET /v0/topics/a HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /v0/topics/a%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v0/topics/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"BREW /v0/topics/a HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=lambda raw: str(raw[:60]),
)
def test_a_request_that_cannot_be_read_is_refused_as_topics_refuse(node: Node, raw: bytes) -> None:
    with node.connect() as connection:
        connection.send(raw)
        answer = connection.read_response()
    if raw.startswith((b"BREW", b"GET /v0/topics/\xff")):
        assert 400 <= answer.status < 500  # its parser may give up before it has seen a path
    else:
        assert 400 <= refused(answer)[0] < 600 and answer.status != 500


def test_what_follows_a_request_about_a_topic_is_refused_by_its_own_route(node: Node) -> None:
    with node.connect() as connection:
        connection.send(b"GET /v0/topics/none HTTP/1.1\r\nHost: x\r\n\r\n\x01\x02 garbage\r\n\r\n")
        assert refused(connection.read_response()) == (404, "topic_not_found")
        answer = connection.read_response()
    assert answer.status == 400 and "detail" not in answer.json()["error"]


# ---- slices ---------------------------------------------------------------------------------------------------------


def test_a_long_body_is_read_in_many_steps() -> None:
    writes = Writes.__new__(Writes)
    writes._records_max = 10_000
    body = b'{"records":[' + b",".join([b'{"data":"' + b"x" * 1_000 + b'"}'] * 5_000) + b'],"node":"n"}'
    steps = list(writes.in_slices(body))
    assert len(steps) > 20 and steps[:-1] == [None] * (len(steps) - 1)
    last = steps[-1]
    assert last is not None and last.node == "n" and len(last.records) == 5_000


def test_text_between_records_that_is_no_json_is_found() -> None:
    writes = Writes.__new__(Writes)
    writes._records_max = 10_000
    for middle in (b",,", b" ", b"]", b"],", b'],"x":['):
        one = b'{"data":"' + b"x" * 200 + b'"}'
        body = b'{"records":[' + b",".join([one] * 2_000) + middle + one + b"]}"
        with pytest.raises(BadBody):
            list(writes.in_slices(body))
