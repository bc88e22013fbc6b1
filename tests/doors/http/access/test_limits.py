"""Clients beyond their limits, over HTTP: what they are told, who else is not, and what they cannot get around.

The rates are one a second with a burst of some, so that a slow machine changes nothing: whoever asks again and again is
refused some time. Every test comes from addresses of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from websockets.sync.client import connect as websocket

from tests.doors.s3p import request as s3p_request
from tests.doors.s3p.client import Client, Error, Reply, read_request, s3p_port
from tests.support.guarded import Guarded, bearer, code, guarded
from tests.support.http import Connection, ConnectionEnded, Response, encode_request
from tests.support.node import HOST, Node
from tests.support.waiting import until

PROXY = "127.0.3.1"
BURST = 12
TEXT = {"Content-Type": "text/plain"}
ADDRESS_FLAGS = (
    *("--address-requests-per-s", "1", "--limit-burst-ms", str(BURST * 1_000), "--trusted-proxies", PROXY),
    *("--address-connections-max", "3", "--address-followers-max", "2", "--s3p", f"{HOST}:0"),
)
PRINCIPAL_FLAGS = (
    *("--principal-requests-per-s", "1", "--limit-burst-ms", "40000", "--principal-followers-max", "1"),
    *("--principal-bytes-per-s", "10MiB", "--s3p", f"{HOST}:0"),
)
_addresses = (f"127.{10 + number // 200}.2.{1 + number % 200}" for number in count())


@pytest.fixture(scope="module", params=["1", "3"], ids=["one worker", "three workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """With limits of addresses."""
    flags = (*ADDRESS_FLAGS, "--workers", request.param)
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=flags) as node:
        yield node
        assert node.running and "Traceback" not in node.stderr(), node.output()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """With limits of principals."""
    with guarded(tmp_path_factory.mktemp("keys"), flags=PRINCIPAL_FLAGS) as made:
        yield made
        assert made.node.running and "Traceback" not in made.node.stderr(), made.node.output()


@pytest.fixture
def address() -> str:
    return next(_addresses)


def connect(node: Node, source: str) -> Connection:
    return Connection(HOST, node.port, source=source)


def until_refused(ask: Callable[[], Response]) -> tuple[Response, int]:
    """The refusal, and how many were answered before it."""
    for number in range(50 * BURST):
        answer = ask()
        if answer.status == 429:
            return answer, number
    raise AssertionError("nothing was refused")


# ---- rates ----------------------------------------------------------------------------------------------------------


def test_whoever_asks_too_much_is_told_which_limit_it_is_and_when_to_come_again(node: Node, address: str) -> None:
    with connect(node, address) as connection:
        refused, before = until_refused(lambda: connection.request("GET", "/v1/stream/nothing"))
        assert before >= BURST
        assert code(refused) == "rate_limited" and refused.json()["error"]["retryable"] is True
        assert "address_requests_per_s" in refused.json()["error"]["message"]
        assert int(refused.header("retry-after") or 0) >= 1
        assert not refused.closes
        with connect(node, next(_addresses)) as other:
            assert other.request("GET", "/v1/stream/nothing").status == 404
        assert connection.request("GET", "/healthz").status == 200


def test_appends_that_begin_like_others_before_are_counted_too(node: Node, address: str) -> None:
    path = f"/v1/stream/{address}"
    with connect(node, address) as connection:
        assert connection.request("PUT", path, TEXT).status == 201
        refused, before = until_refused(lambda: connection.request("POST", path, TEXT, b"again"))
        assert before >= BURST - 1 and code(refused) == "rate_limited"
    with connect(node, next(_addresses)) as other:
        assert len(other.request("GET", f"{path}?offset=-1").body) == before * len(b"again")


def test_a_refused_request_is_taken_whole_and_those_behind_it_have_their_answers(node: Node, address: str) -> None:
    """With bodies of every framing: nothing of a refused body is taken for a request."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(node, address) as connection:
        until_refused(lambda: connection.request("GET", "/v1/stream/nothing"))
        requests = [
            encode_request("POST", "/v1/stream/nothing", TEXT, smuggled, "x"),
            encode_request("POST", "/v1/stream/nothing", TEXT, [smuggled, smuggled], "x"),
            encode_request("GET", "/healthz", (), None, "x"),
        ]
        connection.send(b"".join(requests))
        answers = [connection.read_response() for _ in requests]
        assert {answer.status for answer in answers[:2]} <= {404, 429} and answers[2].status == 200
        assert connection.unread() == b""


def test_a_limit_tells_nobody_whether_a_stream_is_there(node: Node, address: str) -> None:
    with connect(node, next(_addresses)) as other:
        assert other.request("PUT", "/v1/stream/is-there", TEXT).status == 201
    found = set()
    with connect(node, address) as connection:
        until_refused(lambda: connection.request("GET", "/v1/stream/nothing"))
        for path in ("/v1/stream/is-there", "/v1/stream/is-not-there"):
            answer = until_refused(lambda path=path: connection.request("GET", path))[0]  # type: ignore[misc]
            names = tuple(name for name, _ in answer.headers)
            found.add((answer.status, names, code(answer)))
    assert len(found) == 1


def test_an_address_is_not_what_a_client_says_it_is(node: Node, address: str) -> None:
    said = ({"X-Forwarded-For": f"203.0.113.{number % 250}", "X-Real-IP": "10.1.1.1"} for number in count())
    with connect(node, address) as connection:
        refused, _ = until_refused(lambda: connection.request("GET", "/v1/stream/nothing", next(said)))
    assert code(refused) == "rate_limited"


def test_a_trusted_proxy_has_no_account_and_each_of_its_clients_has_one(node: Node) -> None:
    def ask(client: str) -> Response:
        return connection.request("GET", "/v1/stream/nothing", {"X-Forwarded-For": client})

    with connect(node, PROXY) as connection:
        assert code(until_refused(lambda: ask("203.0.113.77"))[0]) == "rate_limited"
        assert ask("203.0.113.78").status == 404
        assert code(until_refused(lambda: ask("2001:db8::1"))[0]) == "rate_limited"
        assert code(until_refused(lambda: ask("2001:db8::ffff:2"))[0]) == "rate_limited"
        assert ask("2001:db8:0:1::1").status == 404


def test_many_addresses_behind_a_proxy_do_not_slow_it_down(node: Node) -> None:
    with connect(node, PROXY) as connection:
        for number in range(3 * BURST):
            assert connection.request("GET", "/healthz", {"X-Forwarded-For": f"198.51.100.{number}"}).status == 200


def test_a_bulk_append_is_one_request(node: Node, address: str) -> None:
    body = json.dumps([{"stream": f"bulk-{address}-{n}", "text": ["x"], "content_type": "text/plain", "create": True}
                       for n in range(5 * BURST)]).encode()  # fmt: skip
    with connect(node, address) as connection:
        answer = connection.request("POST", "/__headwater/append", {"Content-Type": "application/json"}, body)
        assert answer.status == 200, answer
        assert code(until_refused(lambda: connection.request("GET", "/v1/stream/nothing"))[0]) == "rate_limited"


# ---- connections ----------------------------------------------------------------------------------------------------


def test_a_connection_too_many_is_told_so_and_hundreds_are_cut(tmp_path_factory: pytest.TempPathFactory) -> None:
    flags = ("--address-connections-max", "3")
    with Node.started(tmp_path_factory.mktemp("node"), memory=True, flags=flags) as node:
        held = [connect(node, "127.0.2.200") for _ in range(3)]
        for connection in held:
            assert connection.request("GET", "/v1/stream/nothing").status == 404
        with connect(node, "127.0.2.200") as one_more:
            answer = one_more.request("POST", "/v1/stream/nothing", TEXT, b"body")
            assert answer.status == 429 and answer.closes and code(answer) == "too_many_connections"
            assert answer.header("retry-after") == "1" and one_more.ended()
        many = [connect(node, "127.0.2.200") for _ in range(100)]
        ended = 0
        for connection in many:
            try:
                assert connection.request("GET", "/v1/stream/nothing").status == 429
            except (ConnectionEnded, OSError):
                ended += 1
        assert 0 < ended < 100
        with connect(node, "127.0.2.201") as other:
            assert other.request("GET", "/v1/stream/nothing").status == 404
        for connection in (*held, *many):
            connection.close()

        def served_again() -> bool:
            with connect(node, "127.0.2.200") as connection:
                return connection.request("GET", "/v1/stream/nothing").status == 404

        until(served_again)


# ---- live reads -----------------------------------------------------------------------------------------------------


def follow(node: Node, source: str, path: str, headers: dict[str, str] | None = None) -> tuple[Connection, int]:
    connection = connect(node, source)
    connection.send(encode_request("GET", path, headers or {}, None, "x"))
    return connection, connection.read_head().status


@pytest.mark.parametrize("live", ["live=sse&offset=now", "li%76e=sse&offset=now", "offset=now&%6C%69%76%65=s%73e"])
def test_live_reads_are_counted_however_they_are_asked_for(node: Node, live: str) -> None:
    """With several workers each counts by itself: the same stream is followed, so all are in one."""
    address = next(_addresses)
    path = f"/v1/stream/followed-{address}"
    with connect(node, next(_addresses)) as other:
        assert other.request("PUT", path, TEXT).status == 201
    followers = [follow(node, address, f"{path}?{live}") for _ in range(3)]
    assert [status for _, status in followers] == [200, 200, 429]
    followers[0][0].close()
    followers[2][0].close()

    def has_room() -> bool:
        connection, status = follow(node, address, f"{path}?{live}")
        connection.close()
        return status == 200

    until(has_room)
    followers[1][0].close()


# ---- principals -----------------------------------------------------------------------------------------------------


def test_a_key_is_limited_wherever_it_is_used_and_others_are_not(keys: Guarded) -> None:
    keys.call("PUT", "/v1/stream/shop/1")
    greedy, modest = keys.key("read,append:shop"), keys.key("append,read:shop/1")
    sources = [next(_addresses) for _ in range(3)]
    asked = count()

    def ask() -> Response:
        with connect(keys.node, sources[next(asked) % 3]) as connection:
            return connection.request("GET", "/v1/stream/shop/1?offset=-1", bearer(greedy))

    refused, _ = until_refused(ask)
    assert "this principal" in refused.json()["error"]["message"]
    assert keys.ask(modest, "GET", "/v1/stream/shop/1?offset=-1").status == 200
    assert keys.ask(None, "GET", "/v1/stream/shop/1").status == 401


def test_a_principal_may_follow_as_often_as_its_limit_says(keys: Guarded) -> None:
    path, key = "/v1/stream/shop/2", keys.key("read:shop/2")
    keys.call("PUT", path)
    first, status = follow(keys.node, next(_addresses), f"{path}?live=sse&offset=now", bearer(key))
    assert status == 200
    second, status = follow(keys.node, next(_addresses), f"{path}?live=sse&offset=now", bearer(key))
    assert status == 429
    first.close()
    second.close()


def test_what_was_sent_counts_for_those_after_it(keys: Guarded) -> None:
    path, key = "/v1/stream/shop/3", keys.key("read,append,create:shop/3")
    assert keys.ask(key, "PUT", path, b"x" * (2 << 20), {"Content-Type": "text/plain"}).status == 201
    refused, _ = until_refused(lambda: keys.ask(key, "GET", f"{path}?offset=-1"))
    assert code(refused) == "rate_limited"


def test_many_bad_tokens_are_refused_each_by_itself(keys: Guarded) -> None:
    for number in range(60):
        answer = keys.ask(f"hw_{number:016d}_{'x' * 43}", "GET", "/v1/stream/shop/1")
        assert code(answer) == "credential_refused"


def test_refusals_are_told_by_metrics(keys: Guarded) -> None:
    scraper = keys.key("read:_headwater/metrics")
    figures = keys.ask(scraper, "GET", "/metrics").body.decode()
    refused = [line for line in figures.splitlines() if line.startswith("headwater_limit_refusals_total{")]
    assert {line.partition('"')[2].partition('"')[0] for line in refused} == {
        *("address_requests", "address_bytes", "address_followers", "address_connections"),
        *("principal_requests", "principal_bytes", "principal_followers"),
    }
    assert "headwater_limits_held_total" in figures


# ---- S3P ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3p_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("s3p"), memory=True, flags=ADDRESS_FLAGS) as node:
        yield node
        assert node.running and "Traceback" not in node.stderr(), node.output()


def until_error(ask: Callable[[], Reply | list[tuple[str, bytes]]]) -> tuple[Error, int]:
    for number in range(50 * BURST):
        reply = ask()
        if isinstance(reply, Error):
            return reply, number
    raise AssertionError("nothing was refused")


def test_commands_over_s3p_are_counted_and_the_connection_goes_on(s3p_node: Node, address: str) -> None:
    name = address.encode()
    with Client(s3p_port(s3p_node), source=address) as client:
        assert client.create(name) == "OK"
        error, before = until_error(lambda: client.append(name, b"x"))
        assert before >= BURST - 1
        assert error.code == "ERR_UNAVAILABLE" and "address_requests_per_s" in error.message
        with Client(s3p_port(s3p_node), source=next(_addresses)) as other:
            records = other.read(name, COUNT=20)
        assert isinstance(records, list) and len(records) == before
        until(lambda: not isinstance(client.append(name, b"y"), Error))


def test_appends_that_are_submitted_together_are_counted_one_by_one(s3p_node: Node, address: str) -> None:
    """Pipelined: some are taken together with one before them, so that a few beyond the burst may be taken too."""
    with Client(s3p_port(s3p_node), source=address) as client:
        assert client.create(address.encode()) == "OK"
        client.send(s3p_request(b"APPEND", address.encode(), [], [b"x"]) * 20 * BURST)
        assert [client.reply() for _ in range(20 * BURST)]
    with Client(s3p_port(s3p_node), source=address) as client:
        assert isinstance(client.create(b"another"), Error)


def test_a_blocked_read_is_a_live_read(s3p_node: Node, address: str) -> None:
    with Client(s3p_port(s3p_node), source=next(_addresses)) as other:
        assert other.create(address.encode()) == "OK"
        waiting = [Client(s3p_port(s3p_node), source=address) for _ in range(3)]
        for client in waiting[:2]:
            client.send(read_request(address.encode(), BLOCK=60_000))
        until(lambda: metric(s3p_node, "s3p_reads_blocked") == 2)
        refused = waiting[2].read(address.encode(), BLOCK=60_000)
        assert isinstance(refused, Error) and "address_followers_max" in refused.message
        other.append(address.encode(), b"woken")
        for client in waiting[:2]:
            assert isinstance(client.records(), list)
        until(lambda: not isinstance(waiting[2].read(address.encode(), BLOCK=60_000), Error))
        for client in waiting:
            client.close()


def test_an_s3p_connection_too_many_is_told_so_at_once(s3p_node: Node, address: str) -> None:
    held = [Client(s3p_port(s3p_node), source=address) for _ in range(3)]
    for client in held:
        assert isinstance(client.read(b"nothing"), Error)
    with Client(s3p_port(s3p_node), source=address) as one_more:
        reply = one_more.reply()
        assert isinstance(reply, Error) and reply.code == "ERR_LIMITS" and "address_connections_max" in reply.message
        assert one_more.ended()
    for client in held:
        client.close()


def metric(node: Node, name: str) -> float:
    """Whoever asks has not asked before."""
    with connect(node, next(_addresses)) as connection:
        lines = connection.request("GET", "/metrics").body.decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"headwater_{name} "))


def test_a_key_is_limited_over_s3p_too(keys: Guarded) -> None:
    path, key = "/v1/stream/shop/4", keys.key("read,append:shop/4")
    assert keys.ask(keys.admin, "PUT", path, None, TEXT).status == 201
    with Client(s3p_port(keys.node), source=next(_addresses)) as client:
        assert client.call(b"AUTH", key.encode()) == "OK"
        error, _ = until_error(lambda: client.append(b"shop/4", b"x"))
        assert "principal_requests_per_s" in error.message
    assert code(keys.ask(key, "GET", f"{path}?offset=-1")) == "rate_limited"
    with Client(s3p_port(keys.node), source=next(_addresses)) as client:
        assert client.call(b"AUTH", keys.key("read:shop/4").encode()) == "OK"
        assert isinstance(client.read(b"shop/4", COUNT=1), list)


# ---- WebSockets -----------------------------------------------------------------------------------------------------


def test_messages_over_a_websocket_are_requests_too(s3p_node: Node, address: str) -> None:
    """Each is answered, and the socket goes on."""
    url = f"ws://{HOST}:{s3p_node.port}/v0/ws"
    with websocket(url, source_address=(address, 0), open_timeout=60, close_timeout=60) as socket:
        answers = []
        for number in range(BURST + 4):
            socket.send(f'{{"op":"ping","id":{number}}}' if number % 2 else "no message at all")
            answers.append(json.loads(socket.recv(timeout=60)))
        codes = [answer["error"]["code"] for answer in answers if answer["op"] == "error"]
        assert "rate_limited" in codes and "bad_request" in codes
        assert answers[1] == {"op": "pong", "id": 1}
