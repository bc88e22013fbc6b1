"""Anything in any stored field, through any door: no later answer or log line holds more than its own.
It knows which headers each route may send, and reads on connections that are kept: one byte too many meets the next."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.doors.s3p.client import Client, Error
from tests.support.http import Connection, Head, Response, encode_request
from tests.support.node import HOST, Node

pytestmark = pytest.mark.full

EXAMPLES = 60
FLAGS = ("--s3p", f"{HOST}:0", "--log-format", "text", "--long-poll-timeout-ms", "50")
ENV = {"HEADWATER_WEBHOOK_ALLOW_LOCAL": "true"}
WARNING = (
    "warning: HEADWATER_WEBHOOK_ALLOW_LOCAL: webhooks may call this machine's own services; turn webhook_allow_local "
    "off outside development"
)
TEXT = {"Content-Type": "text/plain"}
SPLIT = "\r\nX-Injected: yes\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

COMMON = {
    *("date", "access-control-allow-origin", "access-control-expose-headers", "x-content-type-options"),
    *("cross-origin-resource-policy", "content-length", "content-type", "cache-control", "connection"),
}
STREAM = {
    *("stream-next-offset", "stream-up-to-date", "stream-closed", "stream-earliest-offset", "stream-snapshot-offset"),
    *("stream-ttl", "stream-expires-at", "stream-durability", "stream-cursor", "etag", "location"),
    *("stream-sse-data-encoding", "transfer-encoding", "producer-epoch", "producer-seq", "producer-expected-seq"),
    *("producer-received-seq", "x-accel-buffering", "allow", "retry-after", "www-authenticate"),
    *("headwater-position", "headwater-lake-position", "headwater-settled-position", "headwater-next"),
    *("headwater-log", "x-request-id", "content-security-policy"),
}

BREAKING = st.sampled_from(
    [SPLIT, "\r", "\n", "\0", "\x1b[31m", "\x1b]0;title\x07", "\x7f", "\x85", "\x9b31m", "\u2028", "\ud800", "\udfff",
     "é", "€", "\U0001f600", "\u202e", '"', "\\", "/", "..", "%0d%0a", ";", "; a=b", "%", "#", "?", " ", "\t"]
)  # fmt: skip
USUAL = st.sampled_from(
    ["text/plain", "application/json", "a", "orders", "2030-01-01T00:00:00Z", "7", "http://127.0.0.1:1/"]
)
VALUES = st.lists(BREAKING | USUAL | st.text(max_size=6), min_size=1, max_size=4).map("".join) | st.builds(
    lambda text, times: text * times, BREAKING, st.sampled_from([100, 5_000, 20_000])
)


def raw(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def in_path(value: str) -> str:
    return quote(raw(value), safe="")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.started(tmp_path_factory.mktemp("node"), flags=FLAGS, env=ENV) as node:
        assert node.request("PUT", "/plain").status == 201
        yield node
        assert_log_is_clean(node)
        assert node.terminate() == 0, node.output()


def s3p_port(node: Node) -> int:
    found = re.search(r"s3p ready\s+address=127\.0\.0\.1:(\d+)", node.stderr())
    assert found is not None, node.output()
    return int(found[1])


def assert_log_is_clean(node: Node) -> None:
    log = node.stderr()
    assert "request failed" not in log and "Traceback" not in log, node.output()
    for line in log.split("\n"):
        assert line.isprintable(), repr(line)
        assert not line or line == WARNING or re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[", line), repr(line)


def assert_own(head: Head) -> None:
    """The header block is one that a route of this server sends, and no value has more in it than belongs there."""
    names = [name for name, _ in head.headers]
    assert len(set(names)) == len(names), head
    assert not set(names) - COMMON - STREAM, head
    for name, value in head.headers:
        assert value.isascii() and value.isprintable(), (name, value)
    assert head.status < 500 or head.status == 501, head


class Session:
    """One connection that is used for as long as the server keeps it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._connection: Connection | None = None

    def send(self, method: str, target: str | bytes, headers: list[tuple[str, str | bytes]], body: bytes) -> Response:
        if self._connection is None:
            self._connection = self._node.connect()
        path = target if isinstance(target, str) else target.decode("latin-1")
        self._connection.send(encode_request(method, path, headers, body, self._connection.authority))
        answer = self._connection.read_response(method)
        assert_own(answer)
        if answer.closes:
            assert self._connection.ended()  # nothing behind the last answer
            self.close()
        return answer

    def __call__(
        self, method: str, target: str, headers: dict[str, str | bytes] | None = None, body: bytes = b""
    ) -> Response:
        return self.send(method, target, list((headers or {}).items()), body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# ---- doors: each stores the value in one field -----------------------------------------------------------------------


def bulk(session: Session, **fields: object) -> None:
    entry = {"stream": "plain/bulk", "text": ["x"], "content_type": "text/plain", "create": True, **fields}
    answer = session("POST", "/__headwater/append", {}, json.dumps([entry]).encode())
    assert answer.status in (200, 400), answer
    assert b"truncated" not in answer.body, answer
    if answer.status == 200:
        assert answer.json()[0]["status"] < 500
    try:
        packed = msgspec.msgpack.encode([{**entry, "stream": f"{entry['stream']}2"}])
    except UnicodeEncodeError:
        return
    assert session("POST", "/__headwater/append", {"Content-Type": "application/msgpack"}, packed).status in (200, 400)


def bulk_snapshot(session: Session, value: str) -> None:
    session("PUT", "/plain/snapped", dict(TEXT), b"x")
    try:
        packed = msgspec.msgpack.encode(
            [{"stream": "/plain/snapped", "offset": 1, "body": b"s", "content_type": value}]
        )
    except UnicodeEncodeError:
        return
    assert session("POST", "/__headwater/snapshots", {}, packed).status in (200, 400)


def subscribe(session: Session, **fields: object) -> None:
    for kind, more in (
        ("pull-wake", {"wake_stream": "plain/wakes"}),
        ("webhook", {"webhook": {"url": "http://127.0.0.1:1/hook"}}),
    ):
        wanted = {"type": kind, "pattern": "plain/**", **more, **fields}
        target = f"/v1/stream/__ds/subscriptions/{kind}"
        answer = session("PUT", target, {}, json.dumps(wanted).encode())
        assert answer.status in (200, 201, 400, 409), answer
        assert b"truncated" not in answer.body, answer
        shown = session("GET", target)
        if shown.status == 200:
            shown.json()
        session("POST", f"{target}/claim", {}, json.dumps({"worker": fields.get("description", "w")}).encode())
        session("DELETE", target)


def header(session: Session, method: str, path: str, name: str, value: str, more: dict[str, str] | None = None) -> None:
    """The value as a header, in UTF-8. A fault in the bytes themselves ends the connection."""
    headers: list[tuple[str, str | bytes]] = [*(more or {}).items(), (name, raw(value))]
    session.send(method, path, headers, b"x")
    session.close()  # what follows a CR LF in the value is a request of its own, and its answer is not waited for


def named(session: Session, value: str) -> None:
    for path in (f"/v1/stream/{in_path(value)}", f"/v1/stream/plain/{in_path(value)}", f"/plain/{in_path(value)}"):
        session("PUT", path, dict(TEXT), b"x")
        session("POST", path, dict(TEXT), b"y")
    bulk(session, stream=value)
    bulk(session, stream=f"/plain/{value}")


DOORS: dict[str, Callable[[Session, str], object]] = {
    "stream name": named,
    "bucket name": lambda session, value: [
        session("PUT", f"/{in_path(value)}"),
        session("PUT", f"/ds/{in_path(value)}"),
    ],
    "content type": lambda session, value: header(session, "PUT", "/plain/type", "Content-Type", value),
    "content type of a fork": lambda session, value: header(
        session, "PUT", "/plain/fork-type", "Content-Type", value, {"Stream-Forked-From": "/plain/type"}
    ),
    "content type, in bulk": lambda session, value: bulk(session, content_type=value, stream="plain/bulk-type"),
    "parameters, in bulk": lambda session, value: bulk(
        session, content_type=f"text/plain; a={value}", stream="plain/bulk-p"
    ),
    "content type of an append": lambda session, value: header(session, "POST", "/plain/type", "Content-Type", value),
    "content type of a batch": lambda session, value: header(
        session, "POST", "/plain/type/append-batch", "Content-Type", value
    ),
    "content type of a snapshot": lambda session, value: header(
        session, "PUT", f"/plain/type/snapshot/{0:020d}", "Content-Type", value
    ),
    "content type of a snapshot, in bulk": bulk_snapshot,
    "stream seq": lambda session, value: header(session, "POST", "/plain/seq", "Stream-Seq", value, TEXT),
    "stream seq, in bulk": lambda session, value: bulk(session, stream_seq=value),
    "producer": lambda session, value: header(
        session, "POST", "/plain/seq", "Producer-Id", value, {**TEXT, "Producer-Epoch": "0", "Producer-Seq": "0"}
    ),
    "producer, in bulk": lambda session, value: bulk(session, producer_id=value, producer_epoch=0, producer_seq=0),
    "ttl": lambda session, value: header(session, "PUT", "/plain/ttl", "Stream-TTL", value, TEXT),
    "expiry": lambda session, value: header(session, "PUT", "/plain/expiry", "Stream-Expires-At", value, TEXT),
    "retention": lambda session, value: [
        header(session, "PUT", f"/plain/kept-{name}", f"Stream-Retention-{name}", value, TEXT)
        for name in ("Age", "Bytes", "Records")
    ],
    "fork source": lambda session, value: [
        header(session, "PUT", "/plain/forked", "Stream-Forked-From", value, TEXT),
        session("PUT", "/plain/forked-2", {**TEXT, "Stream-Forked-From": f"/v1/stream/plain/{in_path(value)}"}),
    ],
    "description": lambda session, value: subscribe(session, description=value),
    "pattern": lambda session, value: subscribe(session, pattern=value),
    "subscribed streams": lambda session, value: subscribe(session, streams=[value, f"plain/{value}"]),
    "wake stream": lambda session, value: subscribe(session, wake_stream=value),
    "webhook url": lambda session, value: [
        subscribe(session, webhook={"url": value}),
        subscribe(session, webhook={"url": f"http://127.0.0.1:1/{value}"}),
    ],
    "subscription id": lambda session, value: session(
        "PUT",
        f"/v1/stream/__ds/subscriptions/{in_path(value)}",
        {},
        json.dumps({"type": "webhook", "pattern": "plain/**", "webhook": {"url": "http://127.0.0.1:1/"}}).encode(),
    ),
}


def through_s3p(port: int, value: str) -> None:
    with Client(port) as client:
        for name in (raw(value)[:255], b"plain/" + raw(value)[:200]):
            created = client.create(name)
            assert not isinstance(created, Error) or created.code == "ERR_STREAM_EXISTS", created
            assert not isinstance(client.append(name, raw(value) or b"x"), Error)
            assert isinstance(client.read(name), list)


# ---- what reads it back ----------------------------------------------------------------------------------------------


def read_everything(session: Session, node: Node) -> None:
    for bucket in ("plain", "_default"):
        listed = session("GET", f"/{bucket}/streams")
        assert listed.status in (200, 404)
        for one in listed.json().get("streams", []):
            read_stream(session, f"{bucket}/{one['stream_id']}")
    assert session("GET", "/__headwater/groups/0/lake/streams").status == 200
    assert session("GET", "/__headwater/usage").status == 200
    assert session("GET", "/__headwater/groups/0/losses").status == 200
    with node.connect() as connection:
        connection.send(encode_request("GET", "/__headwater/tail?bucket=plain&from=start", (), None, "x"))
        assert_own(connection.read_head())


def read_stream(session: Session, key: str) -> None:
    flat = f"/v1/stream/{quote(key.removeprefix('_default/'))}"
    assert session("HEAD", flat).status in (200, 404, 410)
    assert session("GET", flat).status in (200, 404, 410)
    session("GET", f"{flat}?offset=-1&live=long-poll")
    session("PUT", flat, {"Content-Type": "image/png"})
    session("POST", flat, {"Content-Type": "image/png"}, b"x")
    session("POST", flat, {**TEXT, "Stream-Seq": ""}, b"x")
    bucket, _, stream = key.partition("/")
    bucketed = f"/{bucket}/{quote(stream, safe='')}"
    session("GET", f"{bucketed}/snapshot")
    parts = session("GET", f"{bucketed}/bootstrap")
    if parts.status == 200:
        boundary = (parts.header("content-type") or "").partition("boundary=")[2].encode()
        for part in parts.body.split(b"--" + boundary)[1:-1]:
            lines = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")[0].split(b"\r\n")
            assert len(lines) == 1 and re.fullmatch(rb"Content-Type: [ -~]+", lines[0]), part
        snapshot = parts.header("stream-snapshot-offset") or ""
        if snapshot != "-1":
            assert session("GET", f"{bucketed}/snapshot/{snapshot}").status == 200


def store(session: Session, node: Node, field: str, value: str) -> None:
    for path in ("/plain/seq", "/plain/type"):
        session("PUT", path, dict(TEXT), b"x")
    DOORS[field](session, value)
    if field == "stream name":
        through_s3p(s3p_port(node), value)


def delete_everything(session: Session) -> None:
    for bucket in ("plain", "_default"):
        for one in session("GET", f"/{bucket}/streams").json().get("streams", []):
            session("DELETE", f"/v1/stream/{quote(bucket + '/' + one['stream_id'])}")


BREAKING_ALL = {
    "split": SPLIT,
    "split behind parameters": f"text/plain; a=b{SPLIT}",
    "half a pair": "\ud800",
    "not Latin-1": 'text/plain; a="é€"',
    "terminal": "\x1b]0;x\x07\x9b31m",
    "NUL": "\0",
    "huge": "a" * 20_000,
}


@pytest.mark.parametrize("name", BREAKING_ALL)
def test_a_breaking_value_stays_in_its_field_whichever_it_is(node: Node, name: str) -> None:
    session = Session(node)
    for field in DOORS:
        store(session, node, field, BREAKING_ALL[name])
    read_everything(session, node)
    delete_everything(session)
    session.close()
    assert_log_is_clean(node)


@given(st.sampled_from(sorted(DOORS)), VALUES)
@example("expiry", "9999-12-31T23:59:59-23:59")
@example("expiry", "0001-01-01T00:00:00+23:59")
@example("ttl", "999999999999")
@example("retention", "9007199254740991")
@settings(max_examples=EXAMPLES, deadline=None)
def test_nothing_that_a_client_stores_breaks_out_of_its_field(node: Node, field: str, value: str) -> None:
    session = Session(node)
    store(session, node, field, value)
    read_everything(session, node)
    delete_everything(session)
    session.close()


def test_what_was_stored_is_read_after_a_restart_too(node: Node) -> None:
    session = Session(node)
    for field in DOORS:
        for value in ("a; b=c", "text/plain; a=b", "ü\x1b[0m", SPLIT):
            store(session, node, field, value)
    session.close()
    assert_log_is_clean(node)
    node.restart()
    session = Session(node)
    read_everything(session, node)
    delete_everything(session)
    session.close()
