"""The client against a server that plays a script: cut connections, odd answers, refusals, paging.
What a real server does with these requests is the business of test_stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headwater.cli import client as http
from headwater.cli.client import BadUsage, Client, ClientError, ConnectionLost, NotUnderstood, Refused, Unreachable
from tests.support.scripted import Script, answer, scripted, sse

OFFSET_1 = ("Stream-Next-Offset", "1")


def data(payload: bytes) -> bytes:
    return b"event: data\ndata: " + payload + b"\n\n"


def control(offset: str, **more: object) -> bytes:
    return b"event: control\ndata: " + json.dumps({"streamNextOffset": offset, **more}).encode() + b"\n\n"


class Following:
    """Follows a script and remembers what a user would have seen and waited for."""

    def __init__(self, script: Script, offset: str = "0") -> None:
        self.pauses_s: list[float] = []
        self.troubles: list[str] = []
        self.payloads: Iterator[bytes] = http.follow(
            Client(script.url), "s", offset, self.pauses_s.append, lambda why: self.troubles.append(why.message)
        )


def test_following_ends_when_the_stream_is_closed() -> None:
    with scripted([sse(data(b"a"), control("1"), data(b"b"), control("2", streamClosed=True))]) as script:
        following = Following(script)
        assert list(following.payloads) == [b"a", b"b"]
        assert following.pauses_s == []
        assert script.lines == ["GET /v1/stream/s?offset=0&live=sse HTTP/1.1"]


def test_a_cut_connection_resumes_at_the_last_confirmed_offset_and_repeats_nothing() -> None:
    with scripted(
        [sse(data(b"a"), control("1"), data(b"b"), whole=False)],
        [sse(data(b"b"), control("2", streamClosed=True))],
    ) as script:
        assert list(Following(script).payloads) == [b"a", b"b"]
        assert [line.split()[1] for line in script.lines] == [
            "/v1/stream/s?offset=0&live=sse",
            "/v1/stream/s?offset=1&live=sse",
        ]


def test_a_connection_that_ends_cleanly_is_renewed_with_its_cursor_and_without_a_word() -> None:
    with scripted(
        [sse(control("5", streamCursor="c1", upToDate=True))],
        [sse(data(b"x"), control("6", streamClosed=True))],
    ) as script:
        following = Following(script, "now")
        assert list(following.payloads) == [b"x"]
        assert script.lines[1] == "GET /v1/stream/s?offset=5&live=sse&cursor=c1 HTTP/1.1"
        assert following.troubles == []
        assert following.pauses_s == [http.PAUSE_FIRST_S]


def test_a_server_that_is_away_is_told_of_once_and_waited_for_longer_and_longer() -> None:
    with scripted(
        [sse(control("1"))],
        [],
        [answer("503 Service Unavailable")],
        [],
        [sse(control("1", streamClosed=True))],
    ) as script:
        following = Following(script)
        assert list(following.payloads) == []
        assert len(following.troubles) == 1
        assert following.pauses_s == [http.PAUSE_FIRST_S * factor for factor in (1, 2, 4, 8)]


def test_a_stream_that_is_deleted_meanwhile_ends_the_following_with_the_refusal() -> None:
    with scripted([sse(data(b"a"), control("1"))], [answer("404 Not Found", body=b"gone")]) as script:
        following = Following(script)
        assert next(following.payloads) == b"a"
        with pytest.raises(Refused) as caught:
            next(following.payloads)
        assert caught.value.status == 404


def test_a_first_connection_that_fails_is_not_tried_again() -> None:
    with scripted() as script:
        pass
    following = Following(script)
    with pytest.raises(Unreachable):
        next(following.payloads)
    assert following.pauses_s == []


def test_base64_payloads_are_decoded_across_their_lines() -> None:
    event = b"event: data\ndata: AAEC\ndata: /w==\n\n"
    encoded = "Stream-SSE-Data-Encoding: base64\r\n"
    with scripted([sse(event, control("4", streamClosed=True), extra=encoded)]) as script:
        assert list(Following(script).payloads) == [b"\x00\x01\x02\xff"]


@pytest.mark.parametrize(
    ("event", "extra"),
    [
        (b"event: control\ndata: nonsense\n\n", ""),
        (b"event: control\ndata: []\n\n", ""),
        (b"event: control\ndata: {}\n\n", ""),
        (b"event: data\ndata: ?\n\n", "Stream-SSE-Data-Encoding: base64\r\n"),
    ],
)
def test_events_that_make_no_sense_are_said_to(event: bytes, extra: str) -> None:
    with scripted([sse(event, extra=extra)]) as script, pytest.raises(NotUnderstood):
        list(Following(script).payloads)


def test_an_answer_that_is_no_event_stream_is_said_to_be_none() -> None:
    with scripted([answer("200 OK", [("Content-Type", "text/html")])]) as script, pytest.raises(NotUnderstood):
        list(Following(script).payloads)


def test_pages_follow_the_next_offset_until_up_to_date() -> None:
    first = answer("200 OK", [OFFSET_1], b"a")
    second = answer("200 OK", [("Stream-Next-Offset", "2"), ("Stream-Up-To-Date", "true")], b"b")
    with scripted([first, second]) as script:
        pages = list(http.pages(Client(script.url), "s", "-1"))
        assert [(page.body, page.next_offset) for page in pages] == [(b"a", "1"), (b"b", "2")]
        assert [line.split()[1] for line in script.lines] == ["/v1/stream/s?offset=-1", "/v1/stream/s?offset=1"]


def test_a_server_that_promises_more_and_sends_nothing_is_not_asked_for_ever() -> None:
    with scripted([answer("200 OK", [OFFSET_1])]) as script, pytest.raises(NotUnderstood):
        list(http.pages(Client(script.url), "s", "1"))


def test_listing_walks_the_cursor_until_there_is_no_more() -> None:
    def page(name: str, more: bool) -> bytes:
        listing = {"streams": [{"stream_id": name}], "next_cursor": name, "has_more": more}
        return answer("200 OK", body=json.dumps(listing).encode())

    with scripted([page("a/1", True), page("b", False)]) as script:
        found = [stream["stream_id"] for page in http.streams(Client(script.url), "b x", "a/") for stream in page]
        assert found == ["a/1", "b"]
        assert [line.split()[1] for line in script.lines] == [
            "/__headwater/buckets/b%20x/streams?limit=1000&prefix=a%2F",
            "/__headwater/buckets/b%20x/streams?limit=1000&prefix=a%2F&after=a%2F1",
        ]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"streams":[1],"has_more":false}', b"<html>"])
def test_a_listing_that_is_none_is_said_to_be_none(body: bytes) -> None:
    with scripted([answer("200 OK", body=body)]) as script, pytest.raises(NotUnderstood):
        list(http.streams(Client(script.url), "b", ""))


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"error":{"code":"stream_closed","message":"it is closed","detail":{}}}', "stream_closed", "it is closed"),
        (b"Stream is closed\nmore", "", "Stream is closed"),
        (b"", "", "the server answered 409 Conflict"),
        (b'{"error":"odd"}', "", '{"error":"odd"}'),
        (b"[" * 5_000, "", "[" * http.MESSAGE_CHARS_MAX),
        (b"\x1b]0;title\x07\xff", "", "\ufffd]0;title\ufffd\ufffd"),
    ],
)
def test_a_refusal_carries_the_message_of_the_server(body: bytes, code: str, message: str) -> None:
    with scripted([answer("409 Conflict", [("Stream-Closed", "true")], body)]) as script:
        with pytest.raises(Refused) as caught:
            Client(script.url).request("POST", "/v1/stream/s", body=b"x")
        assert (caught.value.status, caught.value.code, caught.value.message) == (409, code, message)
        assert caught.value.facts["stream-closed"] == "true"


def test_a_redirect_is_not_taken_for_success() -> None:
    reply = answer("307 Temporary Redirect", [("Location", "http://other/")])
    with scripted([reply]) as script, pytest.raises(NotUnderstood, match="http://other/"):
        Client(script.url).request("POST", "/v1/stream/s", body=b"x")


def test_a_write_whose_answer_is_lost_is_never_sent_again() -> None:
    with scripted([], [answer("204 No Content")]) as script:
        with pytest.raises(ConnectionLost) as caught:
            Client(script.url).request("POST", "/v1/stream/s", body=b"x")
        assert "--producer" in caught.value.advice
        assert [request.body for request in script.received] == [b"x"]


def test_header_values_may_be_any_text_but_not_control_characters() -> None:
    with scripted([b""], [answer("204 No Content")]) as script:
        client = Client(script.url)
        with pytest.raises(BadUsage):
            client.request("POST", "/v1/stream/s", headers={"Producer-Id": "a\r\nEvil: 1"})
        client.request("POST", "/v1/stream/s", headers={"Producer-Id": "naïve ☃"}, body=b"x")
        assert [request.headers["producer-id"] for request in script.received] == ["naïve ☃"]


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:4437", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://u:p@h", "http://h?q"),
        *("http://h h", "http://h\n", "http://[::1", "http://ä"),
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(BadUsage) as caught:
        Client(url)
    assert caught.value.exit_code == 2


def test_a_path_in_the_address_stands_before_every_request() -> None:
    with scripted([answer("204 No Content")]) as script:
        Client(script.url + "/behind/proxy/").request("GET", "/v1/stream/s")
        assert script.lines == ["GET /behind/proxy/v1/stream/s HTTP/1.1"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "/v1/stream/orders"),
        ("shop/orders", "/v1/stream/shop/orders"),
        ("a b?c#d%e", "/v1/stream/a%20b%3Fc%23d%25e"),
        ("ü", "/v1/stream/%C3%BC"),
        ("\udcff", "/v1/stream/%FF"),
    ],
)
def test_names_become_percent_encoded_paths(name: str, path: str) -> None:
    assert http.stream_path(name) == path


@pytest.mark.parametrize("name", ["", "/", "//"])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ClientError, match="empty"):
        http.stream_path(name)
