"""Bytes that are not HTTP, or not quite, and paths that name nothing, through raw sockets.
It asserts the status, the one shape of error bodies, and that the server lives on; never which words it uses."""

from __future__ import annotations

import pytest

from tests.doors.hostile.shapes import PATH, TEXT, assert_alive, assert_well_shaped, raw, send
from tests.support.http import encode_request
from tests.support.node import Node

# --- bytes that are not HTTP, or not quite ------------------------------------------------------------------

# A request line and a host, to be followed by more headers.
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/stream/bad/text HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
HOST = b"Host: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

NOT_HTTP: dict[str, tuple[bytes, set[int]]] = {
    "http/0.9": (b"GET /v1/stream/a\r\n\r\n", {400, 505}),
    "http/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    "http/2.0": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", {400, 505}),
    "http/9.9": (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", {400, 505}),
    "version garbage": (b"GET / HTTQ/1.1\r\n" + HOST + b"\r\n", {400}),
    "no version number": (b"GET / HTTP/\r\n" + HOST + b"\r\n", {400, 505}),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60, {400, 505}),
    "binary": (bytes(range(256)), {400}),
    "NUL bytes": (b"\0" * 64, {400}),
    "method unknown": (b"BREW /v1/stream/a HTTP/1.1\r\n" + HOST + b"\r\n", {400, 405, 501}),
    "method empty": (b" / HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    "method lower case": (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", {400, 405, 501}),
    "method not ASCII": (b"G\xc3\x89T / HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    "method CONNECT": (b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404, 405, 501}),
    "method TRACE": (b"TRACE /v1/stream/bad/text HTTP/1.1\r\n" + HOST + b"\r\n", {405, 501}),
    "method PATCH": (b"PATCH /v1/stream/bad/text HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n", {405}),
    "target absent": (b"GET HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    "target with a space": (b"GET /v1/stream/a b HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    "target relative": (b"GET v1/stream/a HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404}),
    "target star": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404}),
    "header without a colon": (GET + b"Nonsense\r\n\r\n", {400}),
    "header name empty": (GET + b": x\r\n\r\n", {400}),
    "header name with a space": (GET + b"X Y: z\r\n\r\n", {400}),
    "header space before the colon": (GET + b"Content-Length : 3\r\n\r\nabc", {400}),
    "header name with NUL": (GET + b"X\0Y: z\r\n\r\n", {400}),
    "header value with NUL": (GET + b"X: a\0b\r\n\r\n", {400}),
    "header value with a bare CR": (GET + b"X: a\rY: b\r\n\r\n", {400}),
    "header folded": (GET + b"X: a\r\n b\r\n\r\n", {400, 404}),
    "length negative": (POST + b"Content-Length: -1\r\n\r\n", {400}),
    "length with a plus": (POST + b"Content-Length: +1\r\n\r\na", {400}),
    "length in hex": (POST + b"Content-Length: 0x5\r\n\r\nabcde", {400}),
    "length a word": (POST + b"Content-Length: ten\r\n\r\n", {400}),
    "length empty": (POST + b"Content-Length: \r\n\r\n", {400}),
    "length twice": (
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        {400},
    ),
    "length twice the same": (
        POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        {400},
    ),
    "length as a list": (
        POST + b"Content-Length: 3, 3\r\n\r\nabc",
        {400},
    ),
    "length beside chunked": (
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        {400},
    ),
    "chunked beside length": (
        POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        {400},
    ),
    "encoding unknown": (
        POST + b"Transfer-Encoding: gzip\r\n\r\nabc",
        {400, 501},
    ),
    "encoding chunked twice": (
        POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        {400, 404, 501},
    ),
    "encoding not chunked at its end": (
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        {400, 501},
    ),
    "chunk size a word": (
        POST + CHUNKED + b"\r\nxyz\r\nabc\r\n",
        {400},
    ),
    "chunk size negative": (
        POST + CHUNKED + b"\r\n-3\r\nabc\r\n",
        {400},
    ),
    "chunk size enormous": (
        POST + CHUNKED + b"\r\nfffffffffffffffff\r\nabc\r\n",
        {400, 413},
    ),
    "chunk longer than its size": (
        POST + CHUNKED + b"\r\n2\r\nabcdef\r\n0\r\n\r\n",
        {400},
    ),
    "expectation unknown": (
        POST + b"Content-Length: 1\r\nExpect: tea\r\n\r\na",
        {417},
    ),
    "header beyond all bounds": (GET + b"X: " + b"a" * 2_000_000 + b"\r\n\r\n", {431}),
    "a million headers": (GET + b"X: a\r\n" * 1_000_000 + b"\r\n", {431}),
    "more headers than allowed": (GET + b"X: a\r\n" * 500 + b"\r\n", {431}),
}


@pytest.mark.parametrize("name", NOT_HTTP)
def test_bytes_that_are_not_http_are_refused_in_one_shape(node: Node, name: str) -> None:
    data, statuses = NOT_HTTP[name]
    answer = raw(node, data)
    assert answer.status in statuses, answer
    assert_well_shaped(answer)
    assert_alive(node)


def test_what_follows_a_malformed_request_is_never_taken_for_a_request(node: Node) -> None:
    smuggled = encode_request("POST", PATH, TEXT, b"smuggled")
    for data in (
        b"POST /v1/stream/bad/text HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\n" + smuggled,
        b"POST /v1/stream/bad/text HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"
        + smuggled,
        b"GET /v1/stream/bad/text HTTP/1.1\r\nHost: x\r\nX: a\0\r\n\r\n" + smuggled,
    ):
        with node.connect() as connection:
            send(connection, data)
            assert connection.read_response().status == 400
            assert connection.ended(), "a second answer followed a malformed request"
    assert node.request("GET", f"{PATH}?offset=-1").body == b"hello"


def test_a_head_cut_in_two_before_a_large_body_is_not_taken_for_a_large_head(node: Node) -> None:
    path = "/v1/stream/bad/cut"
    assert node.request("PUT", path, TEXT).status == 201
    body = b"b" * 200_000
    whole = encode_request("POST", path, TEXT, body)
    head_bytes = len(whole) - len(body)
    for cut in range(1, head_bytes + 2, 7):
        with node.connect() as connection:
            connection.send(whole[:cut])
            assert_alive(node)  # By now the server has read the first piece, so that the rest comes as another.
            connection.send(whole[cut:])
            answer = connection.read_response("POST")
            assert answer.status == 204, (cut, answer)


def test_what_stands_behind_a_chunked_body_is_not_taken_for_a_header(node: Node) -> None:
    path = "/v1/stream/bad/trailer"
    assert node.request("PUT", path, TEXT).status == 201
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n".encode()
    for size in (3, 100_000):
        chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (size, b"t" * size)
        answer = raw(node, head + chunks + b"Stream-Closed: true\r\n\r\n", "POST")
        # Ignored or refused, but never obeyed: nobody in between looks for headers there.
        assert answer.status in (204, 400), answer
        assert_well_shaped(answer)
        assert node.request("HEAD", path).header("stream-closed") is None, answer


# --- paths --------------------------------------------------------------------------------------------------

PATHS: dict[str, tuple[str, set[int]]] = {
    "root": ("/", {404}),
    "no stream": ("/v1/stream", {400, 404}),
    "empty stream": ("/v1/stream/", {400, 404}),
    "unknown version": ("/v9/stream/a", {400, 404}),
    "parent": ("/v1/stream/../../etc/passwd", {400, 404}),
    "parent inside": ("/v1/stream/a/../b", {400}),
    "parent encoded": ("/v1/stream/%2e%2e/%2e%2e/etc/passwd", {400}),
    "NUL encoded": ("/v1/stream/a%00b", {400}),
    "percent alone": ("/v1/stream/%", {400, 404}),
    "percent and one digit": ("/v1/stream/a%4", {400, 404}),
    "percent and a word": ("/v1/stream/%zz", {400, 404}),
    "invalid UTF-8 encoded": ("/v1/stream/%ff%fe", {400}),
    "overlong UTF-8 encoded": ("/v1/stream/%c0%af", {400}),
    "surrogate encoded": ("/v1/stream/%ed%a0%80", {400}),
    "CR and LF encoded": ("/v1/stream/a%0d%0aX-Injected:%20yes", {400, 404}),
    "double slash": ("/v1/stream//a", {400, 404}),
    "only slashes": ("/v1/stream////", {400, 404}),
    "too long": ("/v1/stream/" + "a" * 5_000, {400, 414}),
    "too long once decoded": ("/v1/stream/" + "%61" * 5_000, {400, 414}),
    "very deep": ("/v1/stream/" + "a/" * 400 + "b", {400, 404}),
    "admin without a tail": ("/__headwater/", {404}),
}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_names_no_stream_is_refused(node: Node, name: str, method: str) -> None:
    path, statuses = PATHS[name]
    # Names that are merely unusual may be created: what matters is that they are then ordinary streams.
    allowed = statuses | {405} | ({201, 200, 204} if 404 in statuses and "/v1/stream/" in path else set())
    answer = node.request(method, path, TEXT, b"x" if method in ("PUT", "POST") else None)
    assert answer.status in allowed, answer
    assert_well_shaped(answer, has_body=method != "HEAD")
    assert answer.header("x-injected") is None
    if answer.status == 201:
        assert node.request("DELETE", path).status == 204


def test_raw_bytes_in_a_path_are_refused_or_are_a_name(node: Node) -> None:
    for name in (b"\xff\xfe", b"\xc3\xa9", b"\xed\xa0\x80", b"\x80", b"a\x7fb", b"a\tb"):
        answer = raw(node, b"GET /v1/stream/" + name + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.status in (400, 404), (name, answer)
        assert_well_shaped(answer)
