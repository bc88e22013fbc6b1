"""Answers that go on for long end when their credential does: through every door, wherever the stream lives.

Nothing else would end them: their natural ends are set hours away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from headwater.doors.s3p.caller import RULES
from headwater.doors.s3p.commands import Command
from tests.doors.http.access.waiting import until
from tests.doors.s3p import request
from tests.doors.s3p.client import Client, Error, s3p_node, s3p_port
from tests.support.guarded import Guarded, bearer, guarded
from tests.support.http import Connection, encode_request
from tests.support.node import HOST

NAMES = [f"shop/live-{number}" for number in range(4)]
LONG = ("--sse-lifetime-ms", "86400000", "--long-poll-timeout-ms", "3600000", "--sse-keepalive-ms", "3600000")
WITHIN_S = 60.0


@pytest.fixture(scope="module", params=[1, 3], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    flags = ("--workers", str(request.param), "--s3p", f"{HOST}:0", "--s3p-block-ms-max", "3600000", *LONG)
    with guarded(tmp_path_factory.mktemp("node"), flags=flags) as made:
        for name in NAMES:
            made.call("PUT", f"/v0/topics/{name}", {})
        yield made


def opened(node: Guarded, path: str, headers: dict[str, str]) -> Connection:
    connection = node.node.connect(WITHIN_S)
    connection.send(encode_request("GET", path, headers, None, connection.authority))
    return connection


LIVE = {
    "server-sent events": "/v1/stream/{}?offset=now&live=sse",
    "a long-poll": "/v1/stream/{}?offset=now&live=long-poll",
    "a tail over many streams": "/__headwater/tail?stream=shop/live-0&stream=shop/live-1&stream={}",
    "a tail over a bucket": "/__headwater/tail?bucket=shop",
    "a topic's events": "/v0/topics/{}/sse",
    "events of several topics": "/v0/sse?topics=shop/live-0,shop/live-1,{}",
}


@pytest.mark.parametrize("what", LIVE)
def test_a_live_read_ends_when_its_key_is_revoked(node: Guarded, what: str) -> None:
    ended, stays = node.made("read:shop"), node.key("read:shop")
    paths = [LIVE[what].format(name) for name in NAMES]
    reads = [opened(node, path, bearer(ended["token"])) for path in paths]
    others = [opened(node, path, bearer(stays)) for path in paths]
    if "long-poll" not in what:
        for one in (*reads, *others):
            assert one.read_head().status == 200
    node.call("DELETE", f"/__headwater/tokens/{ended['id']}")
    for one in reads:
        # To its proper end: an answer to a long-poll, or the last chunk.
        if "long-poll" in what:
            assert one.read_head().status in (204, 401)  # it may come after the revocation
        else:
            while True:
                line = one._take_until(b"\r\n")
                if line == b"0":
                    break
        one.close()
    for one in others:
        one.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            while True:
                one._fill()  # it still waits
        one.close()


def test_a_live_read_by_a_signed_url_ends_with_it(node: Guarded) -> None:
    body = json.dumps({"stream": NAMES[0], "expires_in_s": 2}).encode()
    signed = json.loads(node.ask(node.key("read:shop"), "POST", "/__headwater/sign", body).body)["query"]
    with opened(node, f"/v1/stream/{NAMES[0]}?offset=now&live=sse&{signed}", {}) as read:
        head = read.read_head()
        assert head.status == 200
        assert b"".join(read.body_pieces(head)).startswith(b"event: control")


def test_jobs_come_no_more_to_a_worker_whose_key_is_revoked(node: Guarded) -> None:
    node.call("PUT", "/v0/topics/shop/jobs", {"queue": {}})
    made = node.made("read,append:shop/jobs")
    with opened(node, "/v0/topics/shop/jobs/work", bearer(made["token"])) as read:
        head = read.read_head()
        assert head.status == 200
        node.call("DELETE", f"/__headwater/tokens/{made['id']}")
        assert b"".join(read.body_pieces(head)).startswith(b"event: open")
    waits = node.made("read,append:shop/jobs")
    with node.node.connect(WITHIN_S) as claim:
        headers = {"Content-Type": "application/json", **bearer(waits["token"])}
        claim.send(encode_request("POST", "/v0/topics/shop/jobs/claim", headers, b'{"wait_ms":60000}', claim.authority))
        node.call("DELETE", f"/__headwater/tokens/{waits['id']}")
        assert claim.read_response("POST").status in (200, 401)


def test_a_websocket_is_judged_message_by_message_and_ends_with_its_key(node: Guarded) -> None:
    made = node.made("read:shop/live-0", "append:shop/live-1")
    url = f"ws://{HOST}:{node.node.port}/v0/ws"
    with connect(url, open_timeout=WITHIN_S, additional_headers=bearer(made["token"])) as socket:

        def said(**message: Any) -> Any:
            socket.send(json.dumps(message))
            return json.loads(socket.recv(WITHIN_S))

        assert said(op="subscribe", topics={"shop/live-0": "now"})["op"] == "subscribed"
        assert said(op="subscribe", topics={"shop/live-1": "now"})["error"]["code"] == "forbidden"
        assert said(op="write", topic="shop/live-0", records=[{"data": 1}])["error"]["code"] == "forbidden"
        assert said(op="write", topic="shop/live-1", records=[{"data": 1}])["op"] == "written"
        assert said(op="unsubscribe", topics=["shop/live-0"])["op"] == "unsubscribed"
        assert said(op="subscribe", topics={"shop/live-0": "now"})["op"] == "subscribed"
        node.call("DELETE", f"/__headwater/tokens/{made['id']}")
        with pytest.raises(ConnectionClosed):
            while True:
                socket.recv(WITHIN_S)
    assert node.ask(None, "GET", "/v0/topics/shop/live-0/ws").status == 401
    assert node.ask(node.key("append:shop"), "GET", "/v0/topics/shop/live-0/ws").status == 403


COMMANDS: dict[str, tuple[bytes | list[bytes], ...]] = {
    "read": (b"READ", b"shop/live-0", []),
    "append": (b"APPEND", b"shop/live-0", [], [b"1"]),
    "create": (b"CREATE", b"shop/made", []),
    "manage": (b"TRIM", b"shop/live-0", [b"MIN_ID", b"0-0"]),
}


def test_every_command_of_s3p_has_a_rule() -> None:
    assert set(RULES) == set(get_args(Command))


def test_every_command_of_s3p_is_judged_and_a_blocked_read_ends(node: Guarded) -> None:
    port = s3p_port(node.node)

    def said(client: Client, *elements: bytes | list[bytes]) -> str:
        reply = client.call(*elements)
        return reply.code if isinstance(reply, Error) else ""

    def auth(client: Client, token: str) -> str:
        return said(client, b"AUTH", token.encode())

    expired = node.made("admin", expires_in_s=1)["token"]
    until(lambda: node.ask(expired, "GET", "/__headwater/tokens").status == 401)
    for action, command in COMMANDS.items():
        with Client(port) as client:
            assert said(client, *command) == "ERR_UNAUTHENTICATED"
            for wrong in ("x", node.admin[:-1], "hw_" + "a" * 16 + "_" + "A" * 43, expired):
                assert auth(client, wrong) == said(client, *command) == "ERR_UNAUTHENTICATED"
            others = ",".join(one for one in COMMANDS if one != action)
            for narrow in (f"{others}:shop", f"{action}:shop/live-1", f"{action}:shops"):
                assert auth(client, node.key(narrow)) == ""
                assert said(client, *command) == "ERR_FORBIDDEN"
            assert auth(client, node.key(f"{action}:shop/live-0", f"{action}:shop/made")) == ""
            assert said(client, *command) in ("", "ERR_STREAM_EXISTS")
            assert auth(client, node.admin) == said(client, *COMMANDS["read"]) == ""
            # Pipelined, each is done in the name that the AUTH before it gave.
            sent = [(b"AUTH", node.key("read:shops").encode()), COMMANDS["read"], (b"AUTH", node.admin.encode())]
            client.send(b"".join(request(*elements) for elements in (*sent, COMMANDS["read"])))
            replies = [client.reply() for _ in range(4)]
            assert [isinstance(reply, Error) for reply in replies] == [False, True, False, False]
    made = node.made("read:shop")
    blocked = []
    for name in NAMES:
        client = Client(port, WITHIN_S)
        assert auth(client, made["token"]) == ""
        client.send(request(b"READ", name.encode(), [b"BLOCK", b"3600000", b"MIN_ID", b"9999999999999-0"]))
        blocked.append(client)
    node.call("DELETE", f"/__headwater/tokens/{made['id']}")
    for client in blocked:
        assert client.reply() == []
        assert said(client, *COMMANDS["read"]) == "ERR_UNAUTHENTICATED"
        client.close()


def test_without_authentication_there_is_no_such_command(tmp_path: Path) -> None:
    with s3p_node(tmp_path, memory=True) as open_node, Client.of(open_node) as client:
        reply = client.call(b"AUTH", b"hw_x")
        assert isinstance(reply, Error) and reply.code == "ERR_BAD_FORMAT" and "no command has 2" in reply.message
