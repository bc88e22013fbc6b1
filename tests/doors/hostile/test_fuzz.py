"""Requests nobody thought of: Hypothesis makes up bytes, headers, paths, queries and JSON.
It asserts only what holds for any input: no server error, errors of one shape, and a server that lives on."""

from __future__ import annotations

import json
from urllib.parse import quote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.doors.hostile.shapes import JSON, TEXT, assert_alive, assert_well_shaped, send
from tests.support.http import ConnectionEnded, Response, encode_request
from tests.support.node import Node

FUZZ_EXAMPLES = 150
PATIENCE_S = 0.1

header_values = st.binary(max_size=60).filter(lambda raw: not set(raw) & {0x0A, 0x0D})
header_names = st.sampled_from(
    [
        "Stream-TTL",
        "Stream-Expires-At",
        "Stream-Seq",
        "Stream-Closed",
        "Stream-Forked-From",
        "Stream-Fork-Offset",
        "Producer-Id",
        "Producer-Epoch",
        "Producer-Seq",
        "Content-Type",
        "If-None-Match",
        "If-Match",
        "Expect",
        "Connection",
        "Upgrade",
        "Host",
        "Origin",
        "Range",
        "Accept",
        "Access-Control-Request-Headers",
        "Te",
    ]
)
methods = st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"])


def _survives(node: Node, data: bytes, method: str = "GET") -> None:
    """Whatever is answered is no server error and has the right shape, and the next client is served."""
    with node.connect(timeout_s=PATIENCE_S) as connection:
        send(connection, data)
        try:
            head = connection.read_head()
            # A well-formed live read goes on for as long as the server likes.
            if (head.header("content-type") or "").startswith("text/event-stream"):
                return
            body = b"".join(connection.body_pieces(head, method))
        except (ConnectionEnded, TimeoutError):
            pass  # Half a request has no answer yet: this client goes away in the middle of it.
        else:
            answer = Response(head.status, head.reason, head.headers, head.informational, body)
            assert_well_shaped(answer, has_body=method != "HEAD")
    assert_alive(node)


@settings(max_examples=FUZZ_EXAMPLES)
@given(data=st.binary(min_size=1, max_size=300))
@example(data=b"\r\n\r\n")
@example(data=b"GET")
def test_any_bytes_at_all_are_survived(node: Node, data: bytes) -> None:
    _survives(node, data)


@settings(max_examples=FUZZ_EXAMPLES)
@given(
    method=methods,
    position=st.integers(0, 160),
    removed=st.integers(0, 5),
    inserted=st.binary(max_size=6),
)
def test_a_request_with_a_few_bytes_changed_is_survived(
    node: Node, method: str, position: int, removed: int, inserted: bytes
) -> None:
    headers = {**TEXT, "Producer-Id": "f", "Producer-Epoch": "0", "Producer-Seq": "0"}
    good = encode_request(method, "/v1/stream/fuzz/changed?offset=-1", headers, b"payload")
    _survives(node, good[:position] + inserted + good[position + removed :], method)


@settings(max_examples=FUZZ_EXAMPLES)
@given(method=methods, headers=st.lists(st.tuples(header_names, header_values), max_size=5))
def test_any_header_values_are_survived(node: Node, method: str, headers: list[tuple[str, bytes]]) -> None:
    body = b"payload" if method in ("PUT", "POST", "PATCH") else None
    _survives(node, encode_request(method, "/v1/stream/fuzz/headers", headers, body), method)


@settings(max_examples=FUZZ_EXAMPLES)
@given(
    method=methods,
    path=st.text(max_size=40).map(lambda text: quote(text, safe="/%")),
    query=st.dictionaries(
        st.sampled_from(["offset", "live", "cursor", "x"]), st.text(max_size=20).map(quote), max_size=4
    ),
)
def test_any_path_and_query_is_survived(node: Node, method: str, path: str, query: dict[str, str]) -> None:
    target = f"/v1/stream/{path}?" + "&".join(f"{name}={value}" for name, value in query.items())
    _survives(node, encode_request(method, target, TEXT, b"x" if method in ("PUT", "POST") else None), method)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=FUZZ_EXAMPLES)
@given(value=json_values, position=st.integers(0, 80), inserted=st.binary(max_size=4))
@example(value="\ud800", position=0, inserted=b"")
def test_a_json_body_is_kept_exactly_or_refused(node: Node, value: object, position: int, inserted: bytes) -> None:
    path = "/v1/stream/fuzz/json"
    raw = json.dumps([value]).encode()
    body = raw[:position] + inserted + raw[position:]
    node.request("DELETE", path)
    assert node.request("PUT", path, JSON).status == 201
    answer = node.request("POST", path, JSON, body)
    assert_well_shaped(answer)
    kept = node.request("GET", f"{path}?offset=-1")
    assert kept.status == 200
    if answer.status == 204:
        sent = json.loads(body.decode("utf-8"), parse_constant=_not_json)
        wanted = sent if isinstance(sent, list) else [sent]
        assert json.dumps(kept.json()) == json.dumps(wanted)
    else:
        assert answer.status == 400, answer
        assert kept.json() == []
        # Python's own reader, made strict, agrees that there was nothing to keep.
        assert not _is_json_with_messages(body), body


def _not_json(word: str) -> object:
    raise ValueError(word)


def _is_json_with_messages(body: bytes) -> bool:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_not_json)
    except ValueError:
        return False
    # An escaped lone surrogate is JSON by the grammar and no text by Unicode: a server may refuse it.
    return value != [] and not any("\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False))
