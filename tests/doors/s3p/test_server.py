"""The S3P door of a real node around its commands: large replies, limits, time-outs, shutdown, JSON, hostile bytes.
What the commands mean is in `test_spec_server`; how long anything takes is the benchmarks' matter."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doors.s3p import request
from tests.doors.s3p.client import OK, Client, Ended, Error, NotS3p, append_request, read_request, s3p_node, s3p_port
from tests.support.node import Node, NotReady

MIB = 1 << 20
STALLED_READERS = 20
STALLED_BYTES = 16 * MIB
# Each asks for 4 MiB again and again: without back-pressure they would hold hundreds of MiB.
STALLED_GROWTH_BYTES_MAX = 32 * MIB


# ---- large replies --------------------------------------------------------------------------------


def test_readers_that_stall_hold_no_memory_and_nobody_up(tmp_path: Path) -> None:
    with s3p_node(tmp_path, memory=True) as node, Client.of(node) as writer:
        writer.create(b"s")
        for _ in range(STALLED_BYTES // MIB):
            writer.append(b"s", *[b"x" * 64 * 1024] * 16)
        before = node.rss_bytes()
        stalled = [Client(s3p_port(node), receive_buffer_bytes=4096) for _ in range(STALLED_READERS)]
        for reader in stalled:
            reader.send(read_request(b"s", count=10_000) * 50)
        writer.create(b"t")
        for n in range(50):
            assert isinstance(writer.append(b"t", b"%d" % n), bytes)
        assert node.rss_bytes() - before < STALLED_GROWTH_BYTES_MAX
        assert len(stalled[0].records()) == 4 * MIB // (64 * 1024)
        for reader in stalled:
            reader.close()


def test_a_large_record_goes_in_and_comes_out(plain_node: Node) -> None:
    record = bytes(range(256)) * (16 * MIB // 256)
    with Client.of(plain_node) as client:
        client.create(b"large")
        assert isinstance(client.append(b"large", record), bytes)
        [(_, got)] = client.read(b"large")
        assert got == record
        client.send(read_request(b"large") + request(b"DELETE", b"large", []))
        [(_, got)] = client.records()
        assert got == record
        assert client.reply() == OK


# ---- limits of connections --------------------------------------------------------------------------------


def test_connections_beyond_the_limit_are_cut_and_room_is_given_back(tmp_path: Path) -> None:
    with s3p_node(tmp_path, memory=True, flags=("--s3p-connections-max", "2")) as node:
        first, second = Client.of(node), Client.of(node)
        assert first.create(b"a") == OK and second.create(b"b") == OK
        with Client.of(node) as third:
            assert third.ended()
        first.close()
        while True:
            with Client.of(node) as fourth:
                try:
                    assert fourth.create(b"c") == OK
                    break
                except (Ended, OSError):
                    continue
        assert second.create(b"d") == OK
        metrics = node.request("GET", "/__headwater/metrics").json()
        assert metrics["s3p_connections_refused"] >= 1
        second.close()


def test_idle_connections_are_closed_and_blocked_ones_are_not(tmp_path: Path) -> None:
    with s3p_node(tmp_path, memory=True, flags=("--s3p-idle-timeout-ms", "50")) as node:
        with Client.of(node) as client:
            client.create(b"s")
        with Client.of(node) as idle, Client.of(node) as dripping, Client.of(node) as blocked:
            blocked.send(read_request(b"s", block=30_000))
            dripping.send(b"*3\r\n$6\r\nCRE")
            assert idle.ended()
            assert dripping.ended()
            with Client.of(node) as writer:
                writer.append(b"s", b"x", ms=1)
            assert blocked.records() == [("1-0", b"x")]


def test_the_reply_to_a_broken_command_arrives_although_the_client_goes_on_sending(plain_node: Node) -> None:
    with Client.of(plain_node) as client:
        try:
            for _ in range(200):
                client.send(b"this is not S3P\r\n" * 4_096)
        except OSError:
            pass
        assert client.reply().code == "ERR_BAD_FORMAT"
        assert client.ended()


def test_a_port_in_use_is_refused_clearly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NotReady) as refused, Node.started(tmp_path, memory=True, flags=("--s3p", address)):
            pass
    assert refused.value.exit_code == 1
    assert f"error: cannot listen on {address}: " in refused.value.stderr
    assert "choose another --s3p, or --s3p off" in refused.value.stderr


# ---- shutdown --------------------------------------------------------------------------------


def test_a_stopping_node_answers_what_is_under_way_and_refuses_what_is_not(tmp_path: Path) -> None:
    with s3p_node(tmp_path) as node:
        with Client.of(node) as idle, Client.of(node) as blocked:
            blocked.create(b"s")
            blocked.send(read_request(b"s", block=60_000) + append_request(b"s", b"late") + read_request(b"s"))
            while node.request("GET", "/__headwater/metrics").json()["s3p_reads_blocked"] != 1:
                pass
            assert node.terminate() == 0, node.output()
            assert blocked.records() == []
            refused = Error("ERR_UNAVAILABLE", "the node is shutting down; retry")
            assert [blocked.reply(), blocked.reply()] == [refused, refused]
            assert blocked.ended() and idle.ended()
        node.start()
        assert node.request("GET", "/v1/stream/s").body == b""


# ---- JSON streams -----------------------------------------------------------------------------------------


def test_a_json_stream_takes_only_json_records(plain_node: Node) -> None:
    path = "/v1/stream/json"
    assert plain_node.request("PUT", path, {"Content-Type": "application/json"}).status == 201
    with Client.of(plain_node) as client:
        assert client.append(b"json", b'{"a":1}', b" [1, 2] ", b'"x"', ms=1) == b"1-2"
        refused = Error("ERR_CONFLICT", "stream json holds application/json, and a record is not JSON")
        for bad in ([b"{"], [b"1", b"x"], [b"1,2"], [b'"a', b'b",1'], [b"[1", b"2]"], [b" "], [b'"\xff"'], [b"1]"]):
            assert client.append(b"json", *bad) == refused, bad
        client.send(append_request(b"json", b"7") + append_request(b"json", b"{") + append_request(b"json", b"8"))
        replies = [client.reply() for _ in range(3)]
        assert isinstance(replies[0], bytes) and replies[1] == refused and isinstance(replies[2], bytes)
        assert [record for _, record in client.read(b"json")] == [b'{"a":1}', b" [1, 2] ", b'"x"', b"7", b"8"]
    assert plain_node.request("GET", path).json() == [{"a": 1}, [1, 2], "x", 7, 8]


def test_a_closed_stream_refuses_records_and_stays_readable(plain_node: Node) -> None:
    headers = {"Content-Type": "application/octet-stream", "Stream-Closed": "true"}
    assert plain_node.request("PUT", "/v1/stream/closed", headers, b"all").status == 201
    with Client.of(plain_node) as client:
        assert client.append(b"closed", b"more").code == "ERR_CONFLICT"
        assert [record for _, record in client.read(b"closed")] == [b"all"]
        assert client.read(b"closed", min_id="99999999999999-0", block=50) == []


# ---- hostile bytes ----------------------------------------------------------------------------------------

fragments = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            *(b"*4\r\n$6\r\nAPPEND\r\n", b"$4\r\nfuzz\r\n", b"*0\r\n", b"*1\r\n", b"$5\r\nhello\r\n", b"\r\n", b"\n"),
            *(b"$99999999999\r\n", b"$-1\r\n", b"$+5\r\n", b"$ 5\r\n", b"*1\r\n" * 50),
            request(b"CREATE", b"fuzz", []),
            request(b"DELETE", b"fuzz", []),
            append_request(b"fuzz", b"hello", b"world"),
            read_request(b"fuzz"),
            read_request(b"fuzz", block=5, count=2),
            request(b"TRIM", b"fuzz", [b"MIN_ID", b"1-0"]),
        ]
    ),
)


@settings(max_examples=150)
@given(st.lists(fragments, max_size=12), st.lists(st.integers(1, 40), max_size=8))
def test_any_bytes_in_any_chunks_are_answered_or_end_the_connection(
    plain_node: Node, pieces: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(pieces)
    with Client.of(plain_node) as client:
        at = 0
        try:
            for cut in [*cuts, len(data)]:
                client.send(data[at : at + cut])
                at += cut
            client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        closing = False
        try:
            while True:
                reply = client.reply()
                assert not closing, f"{reply} after the end"
                closing = isinstance(reply, Error) and reply.code in ("ERR_BAD_FORMAT", "ERR_LIMITS")
        except Ended as ended:
            assert not ended.args[0], f"half a reply: {ended.args[0]!r}"
        except NotS3p as bad:
            raise AssertionError(f"{bad} for {data!r}") from bad
    with Client.of(plain_node) as client:
        assert client.read(b"no such stream").code == "ERR_UNKNOWN_STREAM"
