"""The forms that a request may have beside the usual one: absolute targets, HTTP/1.0, codings, many headers, trailers.
How their bytes are read is in `tests/doors/http/test_wire`; here is what a client is told."""

from __future__ import annotations

import gzip

import pytest

from tests.doors.http.extensions.surface import TEXT, fresh_name
from tests.doors.http.operations.conftest import New
from tests.support.http import Connection, Response
from tests.support.node import Node


def raw(node: Node, data: bytes, method: str = "GET") -> Response:
    with node.connect() as connection:
        connection.send(data)
        return connection.read_response(method)


def refused(answer: Response, status: int, code: str) -> str:
    """What the refusal says."""
    assert answer.status == status and answer.closes, answer
    error = answer.json()["error"]
    assert error["code"] == code, error
    return str(error["message"])


def test_an_absolute_target_is_served_and_its_authority_is_where_the_stream_is(node: Node) -> None:
    path = f"/v1/stream/forms/{fresh_name('s')}"
    head = f"PUT http://b.example:8080{path} HTTP/1.1\r\nHost: a.example\r\nContent-Type: text/plain\r\n"
    with node.connect() as connection:
        connection.send(f"{head}Content-Length: 5\r\n\r\nhello".encode())
        answer = connection.read_response()
        assert answer.status == 201 and answer.header("location") == f"http://b.example:8080{path}"
        connection.send(f"GET HTTP://a{path}?offset=-1 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert connection.read_response().body == b"hello"


@pytest.mark.parametrize("host", ["", " ", "a b", "/", "a\r\nHost: b"])
def test_a_host_that_is_none_makes_no_location(node: Node, host: str) -> None:
    path = f"/v1/stream/forms/{fresh_name('s')}"
    answer = raw(node, f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: text/plain\r\n\r\n".encode())
    refused(answer, 400, "bad_request")
    assert node.request("HEAD", path).status == 404


def test_a_creation_without_host_is_told_the_path(node: Node) -> None:
    path = f"/v1/stream/forms/{fresh_name('s')}"
    answer = raw(node, f"PUT {path} HTTP/1.0\r\nContent-Type: text/plain\r\n\r\n".encode())
    assert answer.status == 201 and answer.header("location") == path and answer.closes


def test_a_fragment_is_never_part_of_a_name(node: Node, new: New) -> None:
    stream = new()
    answer = raw(node, f"GET {stream.path}#part?offset=-1 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert "fragment" in refused(answer, 400, "bad_request")


def test_an_encoded_body_is_refused_and_not_stored(node: Node, new: New) -> None:
    stream = new()
    body = gzip.compress(b"hello")
    answer = node.request("POST", stream.path, TEXT | {"Content-Encoding": "gzip"}, body)
    assert "Content-Encoding" in refused(answer, 415, "encoded_body")
    assert answer.header("accept-encoding") == "identity"
    refused(node.request("PUT", f"{stream.path}-2", TEXT | {"Content-Encoding": "br"}, body), 415, "encoded_body")
    assert node.request("HEAD", f"{stream.path}-2").status == 404
    assert node.request("POST", stream.path, TEXT | {"Content-Encoding": "identity"}, b"plain").status == 204
    assert node.request("GET", f"{stream.path}?offset=-1").body == b"plain"


def test_a_transfer_coding_that_is_not_understood_is_not_implemented(node: Node, new: New) -> None:
    stream = new()
    head = f"POST {stream.path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: "
    for coding in ("gzip", "gzip, chunked", "identity"):
        answer = raw(node, f"{head}{coding}\r\n\r\n5\r\nhello\r\n0\r\n\r\n".encode(), "POST")
        assert "chunked" in refused(answer, 501, "transfer_coding_unknown")
    assert node.request("GET", f"{stream.path}?offset=-1").body == b""


def test_too_many_headers_are_not_called_too_large(node: Node, new: New) -> None:
    head = f"GET {new().path} HTTP/1.1\r\nHost: a\r\n".encode()
    answer = raw(node, head + b"".join(b"X-%d: 1\r\n" % n for n in range(100)) + b"\r\n")
    assert "header_count_max: 100" in refused(answer, 431, "too_many_headers")
    answer = raw(node, head + b"X: " + b"a" * 40_000 + b"\r\n\r\n")
    assert "head_bytes_max: 32768" in refused(answer, 431, "head_too_large")


def test_trailers_are_limited_like_headers(node: Node, new: New) -> None:
    stream = new()
    head = f"POST {stream.path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = head.encode() + b"5\r\nhello\r\n0\r\n"
    refused(raw(node, body + b"X: 1\r\n" * 101 + b"\r\n", "POST"), 431, "too_many_headers")
    with node.connect() as connection:
        # It does not end: the limit is not waited for.
        connection.send(body + b"X: " + b"a" * 33_000)
        assert "trailers" in refused(connection.read_response("POST"), 431, "head_too_large")
    assert node.request("GET", f"{stream.path}?offset=-1").body == b""
    assert raw(node, body + b"X: 1\r\n" * 100 + b"\r\n", "POST").status == 204


def test_short_chunk_extensions_count_as_much_as_long_ones(node: Node, new: New) -> None:
    stream = new()
    head = f"POST {stream.path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"1;xxxxxxxxxxxx\r\na\r\n" * 3_000
    assert "trailers" in refused(raw(node, head.encode() + chunks + b"0\r\n\r\n", "POST"), 431, "head_too_large")
    plain = b"0000000001\r\na\r\n" * 3_000
    assert raw(node, head.encode() + plain + b"0\r\n\r\n", "POST").status == 204


@pytest.mark.parametrize("protocol", ["RTSP/1.0", "ICE/1.0", "HTTQ/1.1", "HTTP/2.0"])
@pytest.mark.parametrize("cut", [None, 1, 7])
def test_another_protocol_is_not_taken_for_http(node: Node, new: New, protocol: str, cut: int | None) -> None:
    stream = new()
    head = f"POST {stream.path} {protocol}\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n"
    data = head.encode() + b"x"
    with node.connect() as connection:
        for at in range(0, len(data), cut or len(data)):
            connection.send(data[at : at + (cut or len(data))])
        assert connection.read_response("POST").status in (400, 505)
    assert node.request("GET", f"{stream.path}?offset=-1").body == b""


@pytest.mark.parametrize(("digits", "status"), [("0" * 5_000 + "5", 204), ("9" * 5_001, 413), ("1" + "0" * 18, 413)])
def test_a_length_of_many_digits_is_taken_or_refused_in_the_servers_words(
    node: Node, new: New, digits: str, status: int
) -> None:
    head = f"POST {new().path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: {digits}\r\n\r\n"
    answer = raw(node, head.encode() + b"hello", "POST")
    assert answer.status == status
    if status == 413:
        assert "body_bytes_max" in refused(answer, 413, "body_too_large")


# ---- HTTP/1.0 -----------------------------------------------------------------------------------------------------


def ask(connection: Connection, target: str) -> bytes:
    """Everything that comes for a request in HTTP/1.0 until the connection ends."""
    connection.send(f"GET {target} HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n".encode())
    head = connection.read_head()
    assert head.status == 200 and head.closes and not head.chunked and head.header("content-type") is not None
    return b"".join(connection.body_pieces(head))


def test_sse_over_http_1_0_ends_with_its_connection(node: Node, new: New) -> None:
    stream = new(TEXT, b"hello", stream_closed="true")
    with node.connect() as connection:
        body = ask(connection, f"{stream.path}?offset=-1&live=sse").decode()
    assert body.startswith("event: data\ndata:hello\n\nevent: control\ndata:{")
    assert body.endswith("}\n\n") and '"streamClosed":true' in body


def test_followers_over_http_1_0_and_1_1_are_told_the_same(node: Node, new: New) -> None:
    stream = new(TEXT, b"one")
    with node.connect() as old, node.connect() as present:
        for connection, version in ((old, "1.0"), (present, "1.1")):
            connection.send(f"GET {stream.path}?offset=-1&live=sse HTTP/{version}\r\nHost: a\r\n\r\n".encode())
        heads = [connection.read_head() for connection in (old, present)]
        assert [head.chunked for head in heads] == [False, True]
        stream.append(b"two")
        assert node.request("POST", stream.path, {"Stream-Closed": "true"}).status == 204
        bodies = [
            b"".join(connection.body_pieces(head)) for connection, head in zip((old, present), heads, strict=True)
        ]
    assert b"data:one" in bodies[0] and b"data:two" in bodies[0] and b"streamClosed" in bodies[0]
    assert b"\r" not in bodies[0] and bodies[0].count(b"event: data") == bodies[1].count(b"event: data")


def test_one_connection_over_many_streams_is_served_in_http_1_0(node: Node, new: New) -> None:
    stream = new(TEXT, b"hello")
    name = stream.path.removeprefix("/v1/stream/")
    with node.connect() as connection:
        connection.send(f"GET /__headwater/tail?stream={name}&from=start HTTP/1.0\r\n\r\n".encode())
        head = connection.read_head()
        assert head.status == 200 and head.closes and not head.chunked
        received = b""
        for piece in connection.body_pieces(head):
            received += piece
            if b'"data":"hello"' in received:
                break
    assert received.startswith(b"event: open\n") and b"\r" not in received


def test_a_connection_of_http_1_0_is_closed_after_one_answer_and_says_so(node: Node, new: New) -> None:
    stream = new(TEXT, b"hello")
    with node.connect() as connection:
        assert ask(connection, f"{stream.path}?offset=-1") == b"hello"
        assert connection.ended()
