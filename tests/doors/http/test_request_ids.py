"""What requests are called, from the client through whoever they are sent on to, into answers and log lines; and which
of them are logged. One node with two workers serves all tests."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from headwater.config import Settings
from headwater.doors.http import request_ids
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.respond import Responder
from headwater.doors.http.watch import SLOW_LINES_AT_ONCE, Watch, Watched, waits
from headwater.doors.http.wire import Request, RequestParser, is_append
from headwater.engine.batch_times import SlowBatch
from tests.support.http import Connection, Response
from tests.support.node import Node

TEXT = {"Content-Type": "text/plain"}
ID = {"X-Request-Id": "run-7/step.3"}
SECRET = "5ecret"
BAD_IDS = ["a b", "x" * 129, "\x07", "é", "<script>", 'a"b', ""]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ["--workers", "2", "--groups", "3", "--access-log", "--slow-request-ms", "1", "--log-format", "json"]
    with Node.started(tmp_path_factory.mktemp("node"), flags=flags) as started:
        for number in range(8):
            started.request("PUT", f"/v1/stream/ids/{number}", TEXT, b"x")
        yield started


def lines(node: Node, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in node.stderr().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def name_of(answer: Response) -> str | None:
    return answer.header("x-request-id")


def test_every_answer_to_a_request_with_a_name_has_it_once_whoever_answers(node: Node) -> None:
    with Connection("127.0.0.1", node.port) as connection:  # stays with one worker: most of these are sent on
        for number in range(8):
            path = f"/v1/stream/ids/{number}"
            for method, body in (("GET", b""), ("HEAD", b""), ("POST", b"x"), ("DELETE", b""), ("GET", b"")):
                answer = connection.request(method, path, {**TEXT, **ID}, body)
                assert name_of(answer) == ID["X-Request-Id"], (method, answer)
            connection.request("PUT", path, TEXT, b"x")


def test_an_answer_to_a_request_without_a_name_has_none_unless_it_is_a_failure(node: Node) -> None:
    assert name_of(node.request("HEAD", "/v1/stream/ids/1")) is None
    assert name_of(node.request("POST", "/v1/stream/ids/1", TEXT, b"x")) is None
    first, second = (node.request("GET", "/v1/stream/ids/none") for _ in range(2))
    assert re.fullmatch("[0-9a-f]{16}", name_of(first) or "") and name_of(first) != name_of(second)
    assert "request_id" not in first.json()["error"]


def test_the_body_of_a_failure_says_the_name_that_its_client_gave(node: Node) -> None:
    assert node.request("GET", "/v1/stream/ids/none", ID).json()["error"]["request_id"] == ID["X-Request-Id"]
    told = node.request("GET", "/v0/topics/none", ID).json()["error"]
    assert told["detail"]["request_id"] == ID["X-Request-Id"] and "request_id" not in told


@pytest.mark.parametrize("given", BAD_IDS)
def test_a_name_that_cannot_stand_in_a_header_or_a_line_is_replaced_once(node: Node, given: str) -> None:
    for number in range(4):
        answer = node.request("GET", f"/v1/stream/ids/{number}", {"X-Request-Id": given.encode("utf-8")})
        assert re.fullmatch("[0-9a-f]{16}", name_of(answer) or "")


def test_an_event_stream_and_a_pipelined_append_have_their_names(node: Node) -> None:
    with Connection("127.0.0.1", node.port) as connection:
        head = b"POST /v1/stream/ids/2 HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n"
        connection.send(b"".join(head + b"X-Request-Id: n%d\r\n\r\nx" % number for number in range(5)))
        for number in range(5):
            assert name_of(connection.read_response("POST")) == f"n{number}"
    with Connection("127.0.0.1", node.port) as connection:
        connection.send(b"GET /v1/stream/ids/3?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\nX-Request-Id: live\r\n\r\n")
        assert connection.read_head().header("x-request-id") == "live"


def test_lines_name_the_request_and_nothing_of_its_query(node: Node) -> None:
    name = {"X-Request-Id": "logged-1"}
    node.request("GET", f"/v1/stream/ids/4?offset=-1&cursor={SECRET}", {**name, "Authorization": f"Bearer {SECRET}"})
    node.request("POST", "/v1/stream/ids/4", {**TEXT, "X-Request-Id": "append-1"}, b"x")
    node.request("GET", "/v1/stream/ids/%0a%1b[2J" + "y" * 300)
    node.request("POST", "/__headwater/flush", {"X-Request-Id": "slow-1"})
    deadline_s = time.monotonic() + 30
    while not [one for one in lines(node, "slow request") if one.get("request_id") == "slow-1"]:
        assert time.monotonic() < deadline_s, node.stderr()
        time.sleep(0.02)
    both = lines(node, "request") + lines(node, "slow request")
    (line,) = [one for one in both if one.get("request_id") == "logged-1" and not one.get("sent_on")]
    assert (line["method"], line["path"]) == ("GET", "/v1/stream/ids/4")
    assert line["ms"] >= 0 and SECRET not in node.stderr()
    assert all(len(one["path"]) <= 200 for one in both)


# ---- who is looked at, without a node ----------------------------------------------------------------------------


class Hands:
    def __init__(self) -> None:
        self.s = 10.0

    def __call__(self) -> float:
        return self.s


class Client:
    """A connection that keeps what is sent."""

    internal = False
    waiting: tuple[()] = ()

    def __init__(self) -> None:
        self.exchanges: Any = deque()
        self.responder = Responder("*", keeps_nothing=True)
        self.sent: list[bytes] = []

    def send(self, data: bytes, keep_alive: bool) -> None:
        self.sent.append(data)


def request(method: str, target: str, **headers: str) -> Request:
    found = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Request(method.encode(), target.encode(), found, "1.1")


def watch(clock: Hands, **more: Any) -> Watch:
    return Watch(Settings(**more), clock)


def answered(watching: Watch, clock: Hands, asked: Request, took_s: float) -> bytes:
    client = Client()
    exchange = watching.begin(client, asked)  # type: ignore[arg-type]
    client.exchanges.append(exchange)
    clock.s += took_s
    exchange.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    return client.sent[0]


@pytest.mark.parametrize(
    ("target", "is_one"),
    [
        ("/v1/stream/a", True),
        ("/bucket/stream", True),
        ("/bucket/stream/append-batch", True),
        ("/__headwater/append", True),
        ("/v0/topics/t/records?x=1", True),
        ("/v0/topics/t/claim", False),
        ("/__headwater/flush", False),
        ("/v1/stream/__ds/subscriptions/x/ack", False),
    ],
)
def test_appends_are_told_from_other_requests(target: str, is_one: bool) -> None:
    assert is_append(request("POST", target)) is is_one
    assert not is_append(request("GET", target))


def test_an_append_is_watched_only_when_its_client_gave_it_a_name() -> None:
    clock = Hands()
    watching = watch(clock, access_log=True)
    assert type(watching.begin(Client(), request("POST", "/v1/stream/a"))) is Exchange  # type: ignore[arg-type]
    named = watching.begin(Client(), request("POST", "/v1/stream/a", x_request_id="n"))  # type: ignore[arg-type]
    assert type(named) is Watched and named.id == "n"
    off = watch(clock, slow_request_ms=0)
    assert type(off.begin(Client(), request("GET", "/v1/stream/a"))) is Exchange  # type: ignore[arg-type]


def test_a_slow_request_is_logged_and_gets_a_name_that_its_answer_tells() -> None:
    clock = Hands()
    watching = watch(clock, slow_request_ms=100)
    with capture_logs() as logged:
        assert b"X-Request-Id" not in answered(watching, clock, request("GET", "/v1/stream/a"), 0.05)
        sent = answered(watching, clock, request("GET", f"/v1/stream/a?sig={SECRET}"), 0.2)
        assert b"X-Request-Id" not in answered(watching, clock, request("GET", "/v1/stream/a?live=sse"), 99.0)
    (line,) = logged
    assert f"\r\nX-Request-Id: {line['request_id']}\r\n".encode() in sent
    assert (line["event"], line["path"], line["ms"]) == ("slow request", "/v1/stream/a", 200.0)


def test_lines_about_slow_requests_are_bounded_and_say_how_many_were_left_out() -> None:
    clock = Hands()
    watching = watch(clock, slow_request_ms=100)
    batch = SlowBatch(0.5, 0.1, 0.3, 64, [])
    with capture_logs() as logged:
        for _ in range(SLOW_LINES_AT_ONCE + 30):
            watching.slow_batch(3, batch)
        clock.s += 1
        watching.slow_batch(3, batch)
    assert len(logged) == SLOW_LINES_AT_ONCE + 1
    assert logged[-1]["omitted"] == 30 and "omitted" not in logged[0]
    assert logged[0] | {"ms": 500.0, "queue_ms": 100.0, "sync_ms": 300.0, "answers": 64, "group": 3} == logged[0]


def test_a_slow_batch_names_an_append_of_it_the_one_with_a_name_first() -> None:
    clock = Hands()
    watching = watch(clock, slow_request_ms=100)
    plain = Exchange(Client(), request("POST", "/v1/stream/plain"))  # type: ignore[arg-type]
    named = watching.begin(Client(), request("POST", "/v1/stream/named", x_request_id="n"))  # type: ignore[arg-type]
    with capture_logs() as logged:
        watching.slow_batch(0, SlowBatch(0.5, 0.1, 0.3, 2, [plain, named]))
        watching.slow_batch(0, SlowBatch(0.5, 0.1, 0.3, 2, [plain]))
    assert [(line["path"], line.get("request_id")) for line in logged] == [
        ("/v1/stream/named", "n"),
        ("/v1/stream/plain", None),
    ]


def test_a_head_with_a_name_or_a_trace_is_not_remembered() -> None:
    for header in ("X-Request-Id: a", "traceparent: 00-0-0-01"):
        parser = RequestParser(32768, 100, 1024, 1024)
        head = f"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n{header}\r\n\r\n".encode()
        for _ in range(2):
            (found,) = parser.feed(head + b"x")
            assert type(found) is Request and found.known is None


def test_a_name_is_put_into_the_head_alone() -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\r\nX-Request-Id: in the body"
    assert request_ids.with_id(body, "n") == body.replace(b"OK\r\n", b"OK\r\nX-Request-Id: n\r\n", 1)
    assert request_ids.with_id(request_ids.with_id(body, "n"), "m") == request_ids.with_id(body, "n")


def test_requests_that_wait_for_records_are_told_from_others() -> None:
    for target in ("/v1/stream/a?live=long-poll", "/v0/topics/t/diff?wait_ms=9", "/v0/topics/t/claim", "/v0/ws"):
        assert waits(request("GET", target))
    for target in ("/v1/stream/a", "/v1/stream/await?offset=-1", "/__headwater/flush"):
        assert not waits(request("GET", target))
