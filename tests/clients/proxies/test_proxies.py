"""A node behind nginx, Caddy and HAProxy, with the very configurations of docs/guides/proxies.md, which end TLS.
Only addresses, directories and certificates are replaced; what is not installed is skipped."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doors.http.extensions.surface import JSON, TEXT, dashed, next_offset, token
from tests.support.certificates import Authority, Pair
from tests.support.http import Connection, EventStream, Headers, Response, encode_request
from tests.support.node import HOST, Node

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "proxies.md"
WAIT_S = 30.0
ATTEMPTS = 5
FLAGS = ("--trusted-proxies", HOST, "--long-poll-timeout-ms", "60000", "--body-bytes-max", "64MiB")
PUBLIC = "streams.example.com"


class Proxy:
    """A proxy in front of a node. What is asked of it is asked by its public name."""

    def __init__(self, node: Node, port: int, authority: Authority) -> None:
        self.node = node
        self.port = port
        self.authority = authority

    def connect(self) -> Connection:
        return Connection(HOST, self.port, WAIT_S, tls=self.authority.trusting(), server_name=PUBLIC)

    def request(self, method: str, path: str, headers: Headers = (), body: bytes | None = None) -> Response:
        with self.connect() as connection:
            connection.send(encode_request(method, path, {"Host": PUBLIC, **dict(headers)}, body))
            return connection.read_response(method)


def configured(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, f"the guide does not say {old!r}"
        text = text.replace(old, new)
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def nginx(directory: Path, node: Node, port: int, pair: Pair) -> list[str]:
    server = replaced(
        configured("nginx"),
        ("127.0.0.1:4437", f"{HOST}:{node.port}"),
        ("listen 443 ssl", f"listen {HOST}:{port} ssl"),
        ("/etc/ssl/streams.example.com.pem", str(pair.certificate)),
        ("/etc/ssl/streams.example.com.key", str(pair.key)),
        ("/var/cache/nginx/headwater", f"{directory}/cache"),
    )
    places = "".join(
        f"{what}_temp_path {directory}/{what};\n" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; pid {directory}/pid; error_log stderr; worker_processes 1;\n"
    # Its own user may not look into the directories of tests.
    user = "user root;\n" if Path("/proc/self").stat().st_uid == 0 else ""
    events = "events { worker_connections 256; }\n"
    (directory / "nginx.conf").write_text(f"{user}{main}{events}http {{ access_log off;\n{places}{server}}}\n")
    return ["-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]


def haproxy(directory: Path, node: Node, port: int, pair: Pair) -> list[str]:
    both = directory / "both.pem"
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    sections = replaced(
        configured("haproxy"),
        ("127.0.0.1:4437", f"{HOST}:{node.port}"),
        ("bind :443", f"bind {HOST}:{port}"),
        ("/etc/ssl/streams.example.com.both.pem", str(both)),
    )
    (directory / "haproxy.cfg").write_text(f"global\n    nbthread 1\n    maxconn 1024\n\n{sections}")
    return ["-db", "-f", str(directory / "haproxy.cfg")]


def caddy(directory: Path, node: Node, port: int, pair: Pair) -> list[str]:
    site = replaced(
        configured("caddyfile"),
        ("127.0.0.1:4437", f"{HOST}:{node.port}"),
        (f"{PUBLIC} {{", f"https://{PUBLIC}:{port} {{\nbind {HOST}\ntls {pair.certificate} {pair.key}"),
    )
    (directory / "Caddyfile").write_text("{\nadmin off\nauto_https disable_redirects\n}\n" + site)
    return ["run", "--config", str(directory / "Caddyfile"), "--adapter", "caddyfile"]


COMMANDS = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy}


def started(program: str, directory: Path, node: Node, pair: Pair) -> tuple[subprocess.Popen[bytes], int]:
    """The proxy, once it listens. A port that somebody else took meanwhile is no reason to give up."""
    output = directory / "output"
    # Whatever it keeps for itself, it keeps here.
    env = os.environ | dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(directory))
    for _ in range(ATTEMPTS):
        port = free_port()
        arguments = COMMANDS[Path(program).name](directory, node, port, pair)
        with output.open("wb") as out:
            command = [program, *arguments]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
        deadline_s = time.monotonic() + WAIT_S
        while process.poll() is None and time.monotonic() < deadline_s:
            try:
                socket.create_connection((HOST, port), WAIT_S).close()
                return process, port
            except ConnectionRefusedError:
                time.sleep(0.02)
        process.kill()
        process.wait(WAIT_S)
    raise AssertionError(output.read_text())


@contextmanager
def running(name: str, directory: Path, *flags: str) -> Iterator[Proxy]:
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{name} is not installed")
    authority = Authority(directory / "authority")
    with Node.started(directory / "node", flags=(*FLAGS, *flags)) as node:
        process, port = started(program, directory, node, authority.server("proxy", PUBLIC))
        try:
            yield Proxy(node, port, authority)
            assert node.running and "Traceback" not in node.stderr(), node.output()
        finally:
            process.terminate()
            process.wait(WAIT_S)


@pytest.fixture(scope="module", params=[*COMMANDS])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def create(proxy: Proxy, name: str, body: bytes | None = None, **headers: str) -> str:
    path = f"/v1/stream/{name}"
    assert proxy.request("PUT", path, TEXT | dashed(headers), body).status == 201
    return path


def test_urls_in_answers_begin_with_the_proxys_name(proxy: Proxy) -> None:
    answer = proxy.request("PUT", "/v1/stream/named", TEXT)
    assert (answer.status, answer.header("location")) == (201, f"https://{PUBLIC}/v1/stream/named")
    claims = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "gopher"}
    answer = proxy.request("PUT", "/v1/stream/claimed", TEXT | claims)
    assert answer.header("location") == f"https://{PUBLIC}/v1/stream/claimed"


def test_events_arrive_one_by_one_while_the_connection_stays_open(proxy: Proxy) -> None:
    path = create(proxy, "followed")
    with proxy.connect() as connection:
        feed = EventStream.open(connection, f"{path}?offset=now&live=sse", {"Host": PUBLIC})
        events = iter(feed)
        assert next(events).name == "control"
        for n in range(5):
            assert proxy.request("POST", path, TEXT, b"%d;" % n).status == 204
            assert (next(events).data, next(events).name) == (f"{n};", "control")
        assert proxy.request("POST", path, {"Stream-Closed": "true"}).status == 204
        assert [event.json()["streamClosed"] for event in events] == [True]
        assert feed.ended_cleanly


def test_a_long_poll_waits_through_the_proxy_and_is_answered_by_an_append(proxy: Proxy) -> None:
    path = create(proxy, "polled", b"one;")
    with proxy.connect() as connection:
        connection.send(encode_request("GET", f"{path}?offset={token(4)}&live=long-poll", {"Host": PUBLIC}))
        deadline_s = time.monotonic() + WAIT_S
        while proxy.node.request("GET", "/__headwater/metrics").json()["long_polls_open"] != 1:
            assert time.monotonic() < deadline_s
        assert proxy.request("POST", path, TEXT, b"two;").status == 204
        answer = connection.read_response()
    assert (answer.status, answer.body) == (200, b"two;")


def test_what_is_appended_is_read_at_once_and_conditions_reach_the_node(proxy: Proxy) -> None:
    path = create(proxy, "grown")
    for n in range(20):
        producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(n)}
        assert proxy.request("POST", path, TEXT | producer, b"%02d;" % n).status == 200
        assert proxy.request("GET", f"{path}?offset={token(3 * n)}").body == b"%02d;" % n
    assert proxy.request("POST", path, TEXT | {"If-Match": '"0:0"'}, b"x").status == 412
    assert proxy.request("POST", path, JSON, b"1").status == 409


def test_head_is_a_head_at_the_node_too(proxy: Proxy) -> None:
    path = create(proxy, "looked-at", b"one;", stream_closed="true")
    assert proxy.request("GET", path).body == b"one;"
    answer = proxy.request("HEAD", path)
    assert (answer.status, answer.header("stream-earliest-offset"), next_offset(answer)) == (200, token(0), token(4))


def test_names_reach_the_node_as_they_were_written(proxy: Proxy) -> None:
    for name in ("a%2Fb", "a//b", "gr%C3%B6%C3%9Fe", "with%20space", "a%25b", "q%3Fx"):
        path = create(proxy, f"names/{name}", name.encode())
        assert proxy.node.request("GET", path).body == name.encode()


def test_long_bodies_pass_both_ways(proxy: Proxy) -> None:
    path = create(proxy, "long")
    body = bytes(range(33, 123)) * 40_000
    assert proxy.request("POST", path, TEXT, body).status == 204
    assert proxy.request("GET", path).body == body


@pytest.mark.parametrize("path", ["/__headwater/config", "/__headwater", "/__headwater/../v1/stream/x"])
def test_the_nodes_own_calls_are_not_for_the_public(proxy: Proxy, path: str) -> None:
    assert proxy.request("GET", path).status == 403


@pytest.mark.parametrize("proxy", ["nginx"], indirect=True)
def test_nginx_keeps_what_never_changes_and_asks_again_at_the_tail(proxy: Proxy) -> None:
    path = create(proxy, "kept")
    for body in (b"one;", b"two;"):
        assert proxy.request("POST", path, TEXT, body).status == 204
    for query, expected in (("?offset=-1&max_bytes=4", "HIT"), ("?offset=-1", "MISS"), ("?offset=now", "MISS")):
        first, second = proxy.request("GET", path + query), proxy.request("GET", path + query)
        assert (first.header("x-cache-status"), second.header("x-cache-status")) == ("MISS", expected), query
        assert first.body == second.body
    assert proxy.request("POST", path, {"Stream-Closed": "true"}).status == 204
    assert [proxy.request("GET", path).header("x-cache-status") for _ in range(2)] == ["MISS", "HIT"]
    assert proxy.request("GET", f"{path}?offset=-1&max_bytes=9").header("x-cache-status") == "MISS"


@pytest.mark.parametrize("name", [*COMMANDS])
def test_credentials_pass_through_and_what_is_read_with_them_is_kept_for_nobody_else(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path, "--auth", "on") as proxy:
        key = re.search(r"hw_[\w-]+", proxy.node.output())
        assert key is not None, proxy.node.output()
        bearer, path = {"Authorization": f"Bearer {key[0]}"}, "/v1/stream/guarded"
        assert proxy.request("PUT", path, TEXT).status == 401
        assert proxy.request("PUT", path, TEXT | bearer, b"secret").status == 201
        assert proxy.request("POST", path, {**bearer, "Stream-Closed": "true"}).status == 204
        for _ in range(3):
            answer = proxy.request("GET", f"{path}?offset=-1", bearer)
            assert (answer.status, answer.body) == (200, b"secret")
            assert str(answer.header("cache-control")).startswith("private, ")
            refused = proxy.request("GET", f"{path}?offset=-1")
            assert refused.status == 401 and b"secret" not in refused.body
            assert proxy.request("GET", f"{path}?offset=-1", {"Authorization": "Bearer hw_x_y"}).status == 401
