"""Who is served, who is refused and how: versions, names, plain HTTP, garbage, and both doors."""

from __future__ import annotations

import socket
import ssl
import time

import pytest

from tests.doors.tls.conftest import SecureNode
from tests.support.http import Connection, EventStream, encode_request
from tests.support.node import HOST

TEXT = {"Content-Type": "text/plain"}
WAIT_S = 30.0


def test_streams_are_written_read_and_followed_over_tls(secure: SecureNode) -> None:
    """With several workers most streams live in another process than the one that has the connection."""
    with secure.connect() as connection:
        for n in range(8):
            path = f"/v1/stream/followed-{n}"
            answer = connection.request("PUT", path, TEXT)
            assert (answer.status, answer.header("location")) == (201, f"{secure.url}{path}")
            assert answer.header("strict-transport-security") == "max-age=3600"
            assert connection.request("POST", path, TEXT, b"one;").status == 204
            assert connection.request("GET", path).body == b"one;"
    with secure.connect() as connection:
        events = iter(feed := EventStream.open(connection, "/v1/stream/followed-0?offset=-1&live=sse"))
        assert [next(events).name, next(events).name] == ["data", "control"]
        with secure.connect() as other:
            assert other.request("POST", "/v1/stream/followed-0", TEXT, b"two;").status == 204
            assert next(events).data == "two;"
            next(events)
            assert other.request("POST", "/v1/stream/followed-0", {"Stream-Closed": "true"}).status == 204
        assert [event.json()["streamClosed"] for event in events] == [True]
        assert feed.ended_cleanly


def test_large_bodies_pass_both_ways_and_slow_readers_get_all(secure: SecureNode) -> None:
    body = bytes(range(256)) * 12_000
    with secure.connect() as connection:
        connection.request("PUT", "/v1/stream/large", {"Content-Type": "application/octet-stream"})
        for _ in range(2):
            answer = connection.request("POST", "/v1/stream/large", {"Content-Type": "application/octet-stream"}, body)
            assert answer.status == 204
    with Connection(HOST, secure.node.port, receive_buffer_bytes=8192, tls=secure.authority.trusting()) as connection:
        # The last answer of its connection: the node has closed long before it has all been read.
        connection.send(encode_request("GET", "/v1/stream/large?offset=-1", {"Host": "a", "Connection": "close"}))
        time.sleep(1.5)
        answer = connection.read_response()
        assert (answer.status, answer.body) == (200, body)


def test_http_is_agreed_on_and_a_client_of_http_2_alone_is_told(secure: SecureNode) -> None:
    context = secure.authority.trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Connection(HOST, secure.node.port, tls=context) as connection:
        assert isinstance(connection.socket, ssl.SSLSocket)
        assert connection.socket.selected_alpn_protocol() == "http/1.1"
        assert connection.socket.version() == "TLSv1.3"
    with secure.connect() as connection:
        connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert connection.read_response().status == 505


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_tls_1_2_is_spoken_with_forward_secrecy_and_nothing_older(secure: SecureNode) -> None:
    context = secure.authority.trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Connection(HOST, secure.node.port, tls=context) as connection:
        assert isinstance(connection.socket, ssl.SSLSocket)
        cipher = connection.socket.cipher()
        assert cipher is not None and "ECDHE" in cipher[0] and ("GCM" in cipher[0] or "POLY1305" in cipher[0])
    for weak in ("AES128-SHA", "ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES128-SHA256"):
        context = secure.authority.trusting()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{weak}:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Connection(HOST, secure.node.port, tls=context)
    context = secure.authority.trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Connection(HOST, secure.node.port, tls=context)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"x", b"\r\n", b"POST /v1/a HTTP/1.1\r\n"])
def test_who_speaks_plain_http_is_told_to_use_https(secure: SecureNode, sent: bytes) -> None:
    with Connection(HOST, secure.node.port) as connection:
        connection.send(sent)
        answer = connection.read_response()
        assert (answer.status, answer.closes) == (400, True)
        assert "https://" in answer.json()["error"]["message"]
        assert connection.ended()


def test_s3p_is_served_with_tls_too_and_plain_commands_are_told(secure: SecureNode) -> None:
    with socket.create_connection((HOST, secure.s3p_port), WAIT_S) as plain:
        plain.sendall(b"*2\r\n$6\r\nCREATE\r\n$1\r\na\r\n")
        assert plain.recv(4096).startswith(b"-ERR_BAD_FORMAT") and plain.recv(4096) == b""
    plain = socket.create_connection((HOST, secure.s3p_port), WAIT_S)
    with secure.authority.trusting().wrap_socket(plain, server_hostname=HOST) as client:
        client.sendall(b"*3\r\n$6\r\nCREATE\r\n$5\r\ns-tls\r\n*0\r\n")
        assert client.recv(4096) == b"+OK\r\n"
        client.sendall(b"nonsense\r\n")
        assert client.recv(4096).startswith(b"-ERR_BAD_FORMAT")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16" + b"\x03\x01\xff\xff" + b"a" * 100,
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x00",
        b"\x16\x03\x03\x00\x02\x01\x00" * 1000,
    ],
)
def test_garbage_in_place_of_a_handshake_ends_and_harms_nobody(secure: SecureNode, garbage: bytes) -> None:
    with socket.create_connection((HOST, secure.node.port), WAIT_S) as sock:
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        while True:
            try:
                if not sock.recv(4096):
                    break
            except ConnectionError:
                break
    with secure.connect() as connection:
        assert connection.request("GET", "/healthz").status == 200


def test_a_client_that_ends_its_half_is_done_and_leaves_no_line_in_the_log(secure: SecureNode) -> None:
    with secure.connect() as connection:
        connection.request("PUT", "/v1/stream/half", TEXT)
        connection.send(encode_request("GET", "/v1/stream/half?offset=now&live=long-poll", {"Host": "a"}))
        assert isinstance(connection.socket, ssl.SSLSocket)
        connection.socket.unwrap()
    with secure.connect() as connection:
        deadline_s = time.monotonic() + WAIT_S
        while connection.request("GET", "/__headwater/metrics").json()["long_polls_open"]:
            assert time.monotonic() < deadline_s
