"""Operations spec, "Stream Metadata", "Catch-up", "Long-poll" and "SSE": every sentence of the four sections.
How a live read behaves for hostile or slow clients is tested elsewhere."""

from __future__ import annotations

import base64
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.http.extensions.surface import BYTES, JSON, TEXT, WAIT_S, Stream, fresh_name, next_offset, token
from tests.doors.http.operations.conftest import New
from tests.support.http import EventStream, encode_request, read_pages
from tests.support.node import Node

# --- Stream Metadata ----------------------------------------------------------------------------------------


def test_head_tells_type_tail_and_no_store__stream_metadata(new: New) -> None:
    stream = new({"Content-Type": "text/plain; charset=utf-8"}, b"abc")
    answer = stream.head()
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("content-type") == "text/plain; charset=utf-8"
    assert next_offset(answer) == token(3)
    assert answer.header("cache-control") == "no-store"
    for absent in ("stream-ttl", "stream-expires-at", "stream-closed"):
        assert answer.header(absent) is None


def test_head_tells_ttl_expiry_and_closure_where_there_are_any__stream_metadata(new: New) -> None:
    assert new(TEXT, None, stream_ttl="3600").head().header("stream-ttl") == "3600"
    expires = new(TEXT, None, stream_expires_at="2099-01-02T03:04:05Z").head().header("stream-expires-at") or ""
    assert expires.startswith("2099-01-02T03:04:05") and expires.endswith("Z")
    assert new(TEXT, None, stream_closed="true").head().header("stream-closed") == "true"


def test_head_of_an_unknown_stream_is_404_without_a_body__stream_metadata(nowhere: Stream) -> None:
    answer = nowhere.head()
    assert (answer.status, answer.body) == (404, b"")


# --- Catch-up -----------------------------------------------------------------------------------------------


def test_a_read_starts_at_the_beginning_unless_told_otherwise__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"one;")
    stream.append(b"two;")
    assert node.request("GET", stream.path).body == b"one;two;"
    assert stream.read("-1").body == b"one;two;"
    assert stream.read(token(0)).body == b"one;two;"
    assert stream.read(token(4)).body == b"two;"
    now = stream.read("now")
    assert (now.status, now.body, next_offset(now)) == (200, b"", token(8))


def test_at_the_tail_the_body_is_empty_and_up_to_date__catch_up(new: New) -> None:
    stream = new(TEXT, b"abc")
    answer = stream.read(token(3))
    assert (answer.status, answer.body, next_offset(answer)) == (200, b"", token(3))
    assert answer.header("stream-up-to-date") == "true"
    numbers = new(JSON)
    assert numbers.read().json() == []


def test_parts_of_a_long_stream_are_not_up_to_date_until_the_last__catch_up(new: New, node: Node) -> None:
    stream = new(BYTES)
    with node.connect() as connection:
        for n in range(10):
            assert connection.request("POST", stream.path, BYTES, bytes([n]) * 1_000_000).status == 204
        pages = list(read_pages(connection, stream.path))
    assert len(pages) > 1
    assert [page.header("stream-up-to-date") for page in pages] == [None] * (len(pages) - 1) + ["true"]
    assert b"".join(page.body for page in pages) == b"".join(bytes([n]) * 1_000_000 for n in range(10))


def test_closed_is_told_only_at_the_final_offset__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"one;")
    stream.append(b"two;", stream_closed="true")
    part = node.request("GET", f"{stream.path}?offset=-1&max_bytes=4")
    assert (part.body, part.header("stream-closed"), part.header("stream-up-to-date")) == (b"one;", None, None)
    for offset in ("-1", next_offset(part), token(8), "now"):
        assert stream.read(offset).header("stream-closed") == "true"


@pytest.mark.parametrize("offset", ["abc", "1", "-2", "+1", "1.0", "", "NOW", "9" * 21, token(2), token(99)])
def test_a_malformed_or_impossible_offset_is_400__catch_up(new: New, offset: str) -> None:
    stream = new(TEXT, b"one;")
    for live in ("", "long-poll", "sse"):
        assert stream.read(offset, live).status == 400


def test_an_offset_given_twice_is_400__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"one;")
    assert node.request("GET", f"{stream.path}?offset=-1&offset=now").status == 400


def test_an_unknown_stream_is_404__catch_up(nowhere: Stream) -> None:
    for live in ("", "long-poll", "sse"):
        assert nowhere.read("-1", live).status == 404


def test_the_etag_names_a_range_and_spares_the_body__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"one;")
    first = stream.read()
    etag = first.header("etag") or ""
    assert etag.startswith('"') and etag.endswith('"')
    again = node.request("GET", f"{stream.path}?offset=-1", {"If-None-Match": etag})
    assert (again.status, again.body, again.header("etag")) == (304, b"", etag)
    stream.append(b"two;")
    changed = node.request("GET", f"{stream.path}?offset=-1", {"If-None-Match": etag})
    assert (changed.status, changed.body) == (200, b"one;two;")
    assert changed.header("etag") != etag


def test_an_etag_does_not_survive_its_stream__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"one;")
    etag = stream.read().header("etag") or ""
    assert stream.delete().status == 204
    assert stream.create(b"two;").status == 201
    assert node.request("GET", f"{stream.path}?offset=-1", {"If-None-Match": etag}).body == b"two;"


def test_history_may_be_cached_and_the_tail_has_to_be_asked_for__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"one;")
    stream.append(b"two;")
    past = node.request("GET", f"{stream.path}?offset=-1&max_bytes=4").header("cache-control") or ""
    assert "max-age=60" in past and "stale-while-revalidate=300" in past
    assert "max-age" not in (stream.read().header("cache-control") or "")
    assert stream.read("now").header("cache-control") == "no-store"


# --- Long-poll ----------------------------------------------------------------------------------------------


def test_data_that_is_there_is_answered_at_once__long_poll(new: New) -> None:
    stream = new(TEXT, b"one;")
    answer = stream.read("-1", "long-poll")
    assert (answer.status, answer.body, next_offset(answer)) == (200, b"one;", token(4))
    assert answer.header("stream-up-to-date") == "true"
    assert answer.header("stream-cursor")


@pytest.mark.parametrize("offset", ["now", token(4)])
def test_a_waiting_poll_gets_what_is_appended__long_poll(new: New, node: Node, tmp_path: Path, offset: str) -> None:
    with Node.started(tmp_path, memory=True, flags=("--long-poll-timeout-ms", "60000")) as patient:
        stream = Stream(patient, f"/v1/stream/{fresh_name('s')}", TEXT)
        assert stream.create(b"one;").status == 201
        with patient.connect() as connection:
            connection.send(encode_request("GET", f"{stream.path}?offset={offset}&live=long-poll"))
            # Until the poll waits, an append would be found by it, not delivered to it.
            deadline_s = time.monotonic() + WAIT_S
            while patient.request("GET", "/__headwater/metrics").json()["long_polls_open"] != 1:
                assert time.monotonic() < deadline_s
            stream.append(b"two;")
            answer = connection.read_response()
    assert (answer.status, answer.body, next_offset(answer)) == (200, b"two;", token(8))
    assert answer.header("stream-cursor")


def test_a_poll_whose_client_resets_is_not_counted_any_more__long_poll(new: New, node: Node) -> None:
    def open_count() -> int:
        return node.request("GET", "/__headwater/metrics").json()["long_polls_open"]

    def until(count: int) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while open_count() != count:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    before = open_count()
    connection = node.connect()
    connection.send(f"GET {new().path}?offset=now&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    until(before + 1)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    until(before)


def test_a_poll_that_saw_nothing_is_204_at_the_tail__long_poll(new: New) -> None:
    stream = new(TEXT, b"one;")
    answer = stream.read(token(4), "long-poll")
    assert (answer.status, answer.body, next_offset(answer)) == (204, b"", token(4))
    assert answer.header("stream-up-to-date") == "true"
    assert answer.header("stream-cursor")
    assert answer.header("stream-closed") is None


def test_the_end_of_a_closed_stream_is_204_with_closed__long_poll(new: New) -> None:
    stream = new(TEXT, b"one;", stream_closed="true")
    answer = stream.read(token(4), "long-poll")
    assert (answer.status, next_offset(answer)) == (204, token(4))
    assert (answer.header("stream-closed"), answer.header("stream-up-to-date")) == ("true", "true")
    last = stream.read("-1", "long-poll")
    assert (last.status, last.body, last.header("stream-closed")) == (200, b"one;", "true")


def test_a_cursor_sent_back_is_never_answered_with_the_same_one__long_poll(new: New, node: Node) -> None:
    stream = new()
    cursor = stream.read("-1", "long-poll").header("stream-cursor") or ""
    for _ in range(3):
        answer = node.request("GET", f"{stream.path}?offset=-1&live=long-poll&cursor={cursor}")
        following = answer.header("stream-cursor") or ""
        assert int(following) > int(cursor)
        cursor = following


def test_a_cursor_of_a_deleted_stream_does_not_read_its_successor__long_poll_and_sse(new: New, node: Node) -> None:
    stream = new(TEXT, b"of the first;")
    cursor = stream.read("-1", "long-poll").header("stream-cursor") or ""
    assert stream.delete().status == 204
    assert stream.create(b"of the second;").status == 201
    for live in ("live=long-poll&", "live=sse&", ""):
        answer = node.request("GET", f"{stream.path}?offset={token(13)}&{live}cursor={cursor}")
        assert (answer.status, answer.json()["error"]["code"]) == (410, "stream_replaced"), live
        assert answer.header("stream-earliest-offset") == token(0)
    fresh = stream.read("-1", "long-poll").header("stream-cursor") or ""
    assert node.request("GET", f"{stream.path}?offset=-1&live=long-poll&cursor={fresh}").body == b"of the second;"


@pytest.mark.parametrize("cursor", ["1700000", "0", "abc"])
def test_a_cursor_of_another_server_is_no_reason_to_refuse__long_poll(new: New, node: Node, cursor: str) -> None:
    stream = new(TEXT, b"one;")
    assert node.request("GET", f"{stream.path}?offset=-1&live=long-poll&cursor={cursor}").body == b"one;"


def test_an_etag_of_a_deleted_stream_matches_nothing_of_its_successor__catch_up(new: New, node: Node) -> None:
    stream = new(TEXT, b"same")
    tags = {"If-None-Match": stream.read().header("etag") or ""}, {"If-Match": stream.head().header("etag") or ""}
    assert stream.delete().status == 204
    assert stream.create(b"same").status == 201
    assert node.request("GET", stream.path, tags[0]).status == 200
    assert node.request("POST", stream.path, TEXT | tags[1], b"x").status == 412


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_max_bytes_bounds_one_answer_in_both_modes__catch_up_and_long_poll(new: New, node: Node, live: str) -> None:
    stream = new()
    for body in (b"one;", b"two;", b"three;"):
        stream.append(body)
    answer = node.request("GET", f"{stream.path}?offset=-1&max_bytes=9{live}")
    assert (answer.body, next_offset(answer)) == (b"one;two;", token(8))
    assert answer.header("stream-up-to-date") is None
    assert node.request("GET", f"{stream.path}?offset=-1&max_bytes=many{live}").status == 400


@pytest.mark.parametrize("query", ["live=long-poll", "live=sse", "offset=-1&live=maybe", "offset=-1&live="])
def test_a_live_read_names_its_offset_and_a_known_mode__long_poll_and_sse(new: New, node: Node, query: str) -> None:
    assert node.request("GET", f"{new().path}?{query}").status == 400


# --- SSE ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream"])
def test_every_data_event_is_followed_by_a_control_event__sse(new: New, node: Node, kind: str) -> None:
    stream = new({"Content-Type": kind})
    with node.connect() as connection:
        feed = EventStream.open(connection, f"{stream.path}?offset=-1&live=sse")
        assert feed.head.header("content-type") == "text/event-stream"
        assert feed.head.header("stream-sse-data-encoding") == ("base64" if kind.endswith("stream") else None)
        events = iter(feed)
        first = next(events)
        assert first.name == "control" and first.json()["upToDate"] is True
        for n in range(5):
            stream.append(b"%d" % n)
            data, control = next(events), next(events)
            assert (data.name, control.name) == ("data", "control")
            match kind:
                case "application/json":
                    assert data.json() == [n]
                case "text/plain":
                    assert data.data == str(n)
                case _:
                    assert base64.b64decode(data.data, validate=True) == b"%d" % n
            facts = control.json()
            assert facts["streamNextOffset"] == stream.ends[-1]
            assert facts["streamCursor"] and facts["upToDate"] is True
            assert "streamClosed" not in facts


def test_the_last_control_event_says_closed_and_the_connection_ends__sse(new: New, node: Node) -> None:
    stream = new(JSON, b"[1]")
    with node.connect() as connection:
        feed = EventStream.open(connection, f"{stream.path}?offset=-1&live=sse")
        events = iter(feed)
        assert [next(events).name for _ in range(2)] == ["data", "control"]
        stream.append(b"2", stream_closed="true")
        rest = list(events)
        assert feed.ended_cleanly
    assert [event.name for event in rest] == ["data", "control"]
    assert rest[1].json()["streamClosed"] is True
    assert rest[1].json()["streamNextOffset"] == stream.ends[-1]


def test_closing_without_data_ends_it_with_one_control_event__sse(new: New, node: Node) -> None:
    stream = new()
    with node.connect() as connection:
        events = iter(EventStream.open(connection, f"{stream.path}?offset=now&live=sse"))
        assert next(events).name == "control"
        assert node.request("POST", stream.path, {"Stream-Closed": "true"}).status == 204
        rest = list(events)
    assert [event.json().get("streamClosed") for event in rest] == [True]


@pytest.mark.parametrize("offset", ["now", token(4)])
def test_the_tail_of_a_closed_stream_is_told_in_head_and_control_event__sse(new: New, node: Node, offset: str) -> None:
    stream = new(TEXT, b"one;", stream_closed="true")
    catch_up = stream.read(offset)
    with node.connect() as connection:
        feed = EventStream.open(connection, f"{stream.path}?offset={offset}&live=sse")
        for name in ("stream-next-offset", "stream-up-to-date", "stream-closed"):
            assert feed.head.header(name) == catch_up.header(name) is not None
        (event,) = list(feed)
        assert feed.ended_cleanly
    assert event.json() == {"streamNextOffset": token(4), "upToDate": True, "streamClosed": True}


def test_a_head_promises_nothing_while_there_is_more_to_come__sse(new: New, node: Node) -> None:
    for stream, offset in ((new(TEXT, b"one;", stream_closed="true"), "-1"), (new(TEXT, b"one;"), "now")):
        with node.connect() as connection:
            feed = EventStream.open(connection, f"{stream.path}?offset={offset}&live=sse")
            assert feed.head.header("stream-closed") is feed.head.header("stream-up-to-date") is None


def test_proxies_are_told_not_to_buffer__sse(new: New, node: Node) -> None:
    stream = new()
    for path in (f"{stream.path}?offset=now&live=sse", "/__headwater/tail?bucket=ops"):
        with node.connect() as connection:
            assert EventStream.open(connection, path).head.header("x-accel-buffering") == "no"


@pytest.fixture(scope="module")
def brisk_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ("--sse-lifetime-ms", "600", "--sse-keepalive-ms", "50")
    with Node.started(tmp_path_factory.mktemp("brisk"), memory=True, flags=flags) as node:
        yield node


def test_the_server_ends_connections_by_and_by_and_the_last_offset_resumes__sse(brisk_node: Node) -> None:
    stream = Stream(brisk_node, "/v1/stream/resumed", TEXT)
    assert stream.create().status == 201
    received, offset, lives = "", "-1", 0
    while lives < 3:
        with brisk_node.connect() as connection:
            feed = EventStream.open(connection, f"{stream.path}?offset={offset}&live=sse")
            stream.append(b"%d;" % lives)
            for event in feed:
                if event.name == "data":
                    received += event.data
                else:
                    offset = event.json()["streamNextOffset"]
                    assert "streamClosed" not in event.json()
            assert feed.ended_cleanly
        lives += 1
    assert received == "0;1;2;"
    assert offset == stream.ends[-1]


def test_a_deleted_stream_ends_its_followers__sse_and_long_poll(new: New, node: Node) -> None:
    stream = new(TEXT, b"x")
    with node.connect() as connection:
        feed = EventStream.open(connection, f"{stream.path}?offset=-1&live=sse")
        events = iter(feed)
        assert next(events).data == "x"
        assert stream.delete().status == 204
        assert [event for event in events if event.name == "data"] == []
        assert feed.ended_cleanly


# --- every answer -------------------------------------------------------------------------------------------


def test_answers_are_dated_from_the_first_one_on__every_answer(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        date = node.request("GET", "/healthz").header("date") or ""
    assert "1970" not in date


def test_errors_are_json_of_one_shape__every_answer(nowhere: Stream) -> None:
    error = nowhere.read().json()["error"]
    assert error["code"] == "stream_not_found"
    assert isinstance(error["message"], str) and error["retryable"] is False
