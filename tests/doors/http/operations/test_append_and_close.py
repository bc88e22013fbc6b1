"""Operations spec, "Append to Stream" and "Close Stream": every sentence of the two sections.
Conditional and batched appends, which the spec does not have, are in files of their own."""

from __future__ import annotations

import pytest

from tests.doors.http.extensions.surface import BYTES, JSON, TEXT, Stream, next_offset, token
from tests.doors.http.operations.conftest import New
from tests.support.http import Response
from tests.support.node import Node

NUMBER_MAX = 2**53 - 1


def post(stream: Stream, body: bytes | None = b"x", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stream.node.request("POST", stream.path, stream.headers | named, body)


def produce(stream: Stream, epoch: object, seq: object, body: bytes | None = b"x", **headers: str) -> Response:
    return post(stream, body, producer_id="p", producer_epoch=str(epoch), producer_seq=str(seq), **headers)


# --- bodies and content types -------------------------------------------------------------------------------


def test_an_append_is_204_with_the_new_tail__append_to_stream(new: New) -> None:
    stream = new()
    answer = post(stream, b"abc")
    assert (answer.status, next_offset(answer), answer.body) == (204, token(3), b"")
    assert answer.header("stream-closed") is None
    assert next_offset(post(stream, b"de")) == token(5)


@pytest.mark.parametrize("pieces", [[b"a"], [b"ab", b"c"], [b"x" * 70_000, b"y" * 70_000, b"z"]])
def test_a_chunked_body_is_appended_as_one_message__append_to_stream(new: New, node: Node, pieces: list[bytes]) -> None:
    stream = new()
    with node.connect() as connection:
        answer = connection.request("POST", stream.path, TEXT, pieces)
    assert (answer.status, next_offset(answer)) == (204, token(sum(map(len, pieces))))
    assert stream.read().body == b"".join(pieces)


def test_an_empty_body_is_400__append_to_stream(new: New, node: Node) -> None:
    stream = new()
    assert post(stream, b"").status == 400
    assert post(stream, None).status == 400
    with node.connect() as connection:
        assert connection.request("POST", stream.path, TEXT, []).status == 400
    assert next_offset(stream.head()) == token(0)


def test_a_body_without_a_content_type_is_400__append_to_stream(new: New, node: Node) -> None:
    stream = new()
    assert node.request("POST", stream.path, {}, b"x").status == 400
    assert stream.read().body == b""


@pytest.mark.parametrize("other", [JSON, BYTES, {"Content-Type": "text/html"}])
def test_another_content_type_is_409__append_to_stream(new: New, node: Node, other: dict[str, str]) -> None:
    stream = new()
    assert node.request("POST", stream.path, other, b"1").status == 409
    assert stream.read().body == b""


def test_parameters_and_case_of_a_content_type_do_not_matter__append_to_stream(new: New, node: Node) -> None:
    stream = new(JSON)
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/json;v=1"):
        assert node.request("POST", stream.path, {"Content-Type": kind}, b"1").status == 204
    assert stream.read().json() == [1, 1, 1]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[1,]", b"01", b"'a'", b"nul", b"\xff", b'"\xff"', b"1 2"])
def test_a_body_that_is_not_json_is_400_on_a_json_stream__append_to_stream(new: New, body: bytes) -> None:
    stream = new(JSON)
    assert post(stream, body).status == 400
    assert stream.read().json() == []


def test_a_body_over_the_limit_is_413__append_to_stream(new: New, node: Node) -> None:
    stream = new()
    with node.connect() as connection:
        connection.send(f"POST {stream.path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n".encode())
        connection.send(b"Content-Length: %d\r\n\r\n" % (40 * 1024 * 1024 + 1))
        assert connection.read_response("POST").status == 413
    assert stream.read().body == b""


def test_an_unknown_stream_is_404__append_to_stream(nowhere: Stream) -> None:
    assert post(nowhere).status == 404
    assert post(nowhere, None, stream_closed="true").status == 404


# --- Stream-Seq ---------------------------------------------------------------------------------------------


def test_stream_seq_must_grow_strictly_and_as_text__append_to_stream(new: New) -> None:
    stream = new()
    assert post(stream, b"1", stream_seq="a").status == 204
    for late in ("a", "A", "", "Z"):
        assert post(stream, b"-", stream_seq=late).status in (400, 409)
    # As text "10" comes before "9": the order is lexicographic, not numeric.
    assert post(stream, b"2", stream_seq="b9").status == 204
    refused = post(stream, b"-", stream_seq="b10")
    assert refused.status == 409
    assert "sequence" in refused.json()["error"]["message"]  # what the official client looks for
    assert post(stream, b"3").status == 204
    assert post(stream, b"4", stream_seq="c").status == 204
    assert stream.read().body == b"1234"


# --- idempotent producers -----------------------------------------------------------------------------------


def test_new_data_of_a_producer_is_200_and_echoes_its_tuple__append_to_stream(new: New) -> None:
    stream = new()
    for seq in range(3):
        answer = produce(stream, 0, seq)
        assert (answer.status, next_offset(answer)) == (200, token(seq + 1))
        assert (answer.header("producer-epoch"), answer.header("producer-seq")) == ("0", str(seq))


def test_a_duplicate_is_204_with_the_highest_accepted_sequence__append_to_stream(new: New) -> None:
    stream = new()
    for seq in range(3):
        assert produce(stream, 0, seq).status == 200
    for seq in range(3):
        answer = produce(stream, 0, seq)
        assert (answer.status, answer.header("producer-seq")) == (204, "2")
    assert stream.read().body == b"xxx"


def test_a_gap_is_409_with_what_was_expected_and_received__append_to_stream(new: New) -> None:
    stream = new()
    assert produce(stream, 0, 0).status == 200
    answer = produce(stream, 0, 7)
    assert answer.status == 409
    assert (answer.header("producer-expected-seq"), answer.header("producer-received-seq")) == ("1", "7")
    assert stream.read().body == b"x"


def test_a_stale_epoch_is_403_with_the_current_one__append_to_stream(new: New) -> None:
    stream = new()
    assert produce(stream, 5, 0).status == 200
    answer = produce(stream, 4, 0)
    assert (answer.status, answer.header("producer-epoch")) == (403, "5")
    assert produce(stream, 6, 0).status == 200
    assert produce(stream, 5, 1).status == 403


def test_a_new_epoch_starts_at_zero__append_to_stream(new: New) -> None:
    stream = new()
    assert produce(stream, 0, 0).status == 200
    assert produce(stream, 1, 1).status == 400
    assert produce(stream, 1, 0).status == 200


@pytest.mark.parametrize("missing", ["producer_id", "producer_epoch", "producer_seq"])
def test_the_three_producer_headers_go_together__append_to_stream(new: New, missing: str) -> None:
    stream = new()
    headers = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    del headers[missing]
    assert post(stream, b"x", **headers).status == 400
    assert stream.read().body == b""


@pytest.mark.parametrize("value", ["-1", str(NUMBER_MAX + 1), "1.0", "", "x", "01"])
@pytest.mark.parametrize("name", ["producer_epoch", "producer_seq"])
def test_epoch_and_sequence_are_integers_up_to_2_to_the_53_minus_1__append_to_stream(
    new: New, name: str, value: str
) -> None:
    stream = new()
    headers = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"} | {name: value}
    assert post(stream, b"x", **headers).status == 400


def test_the_largest_epoch_is_accepted__append_to_stream(new: New) -> None:
    stream = new()
    answer = produce(stream, NUMBER_MAX, 0)
    assert (answer.status, answer.header("producer-epoch")) == (200, str(NUMBER_MAX))


def test_producers_of_one_stream_do_not_know_each_other__append_to_stream(new: New) -> None:
    stream = new()
    for name in ("a", "b", "é"):
        assert post(stream, b"x", producer_id=name, producer_epoch="0", producer_seq="0").status == 200
    assert post(stream, b"x", producer_id="b", producer_epoch="0", producer_seq="1").status == 200
    assert stream.read().body == b"xxxx"


# --- Close Stream -------------------------------------------------------------------------------------------


def test_a_close_is_204_keeps_the_tail_and_says_so__close_stream(new: New, node: Node) -> None:
    stream = new(TEXT, b"abc")
    answer = node.request("POST", stream.path, {"Stream-Closed": "true"})
    assert (answer.status, next_offset(answer), answer.header("stream-closed")) == (204, token(3), "true")


def test_closing_again_is_204__close_stream(new: New, node: Node) -> None:
    stream = new()
    for _ in range(3):
        answer = node.request("POST", stream.path, {"Stream-Closed": "true"})
        assert (answer.status, answer.header("stream-closed")) == (204, "true")


def test_append_and_close_is_one_step__append_to_stream(new: New) -> None:
    stream = new()
    answer = post(stream, b"the end", stream_closed="true")
    assert (answer.status, next_offset(answer), answer.header("stream-closed")) == (204, token(7), "true")
    refused = post(stream, b"more")
    assert (refused.status, refused.header("stream-closed")) == (409, "true")
    assert next_offset(refused) == token(7)
    assert post(stream, b"the end", stream_closed="true").status == 409
    assert stream.read().body == b"the end"


def test_a_producers_close_can_be_repeated_and_keeps_the_first_body__append_to_stream(new: New) -> None:
    stream = new()
    assert produce(stream, 0, 0, b"end", stream_closed="true").status == 200
    answer = produce(stream, 0, 0, b"other", stream_closed="true")
    assert (answer.status, answer.header("stream-closed")) == (204, "true")
    assert produce(stream, 0, 1, b"more").status == 409
    assert stream.read().body == b"end"


@pytest.mark.parametrize("value", ["false", "1", "yes", ""])
def test_only_true_closes__close_stream(new: New, value: str) -> None:
    stream = new()
    assert post(stream, b"x", stream_closed=value).status == 204
    assert post(stream, None, stream_closed=value).status == 400
    assert stream.head().header("stream-closed") is None


def test_closing_an_unknown_stream_is_404__close_stream(nowhere: Stream) -> None:
    assert nowhere.node.request("POST", nowhere.path, {"Stream-Closed": "true"}).status == 404
