"""Webhook subscriptions on a real node with a real receiver: signed, acknowledged, fenced, repeated.
It owns the receivers' behaviour; the node is met over HTTP only."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.subscriptions.support import Api, Call, Said, receiving
from tests.subscriptions.test_keys import verify
from tests.support.waiting import until

START = "0" * 20


def test_an_append_calls_the_webhook_with_a_signature_that_the_published_keys_verify(api: Api, room: str) -> None:
    with receiving((200, {"done": True})) as receiver:
        created = api.webhook(room, receiver.url, pattern=f"{room}/*")
        assert created.status == 201, created
        signing = created.json()["webhook"]["signing"]
        assert signing["jwks_url"] == f"{api.node.url}/v1/stream/__ds/jwks.json"
        before_s = int(time.time())
        api.stream(f"{room}/a", {"n": 1})
        call = receiver.next()
        jwks = api.call("GET", "__ds/jwks.json")
        assert jwks.header("content-type") == "application/jwk-set+json"
        assert jwks.header("cache-control") == "public, max-age=300"
        verify(jwks.body, call.headers["webhook-signature"], call.raw)
        assert f"kid={signing['kid']}," in call.headers["webhook-signature"]
        stamp = int(call.headers["webhook-signature"].split(",")[0].removeprefix("t="))
        assert before_s <= stamp <= time.time()
        assert call.headers["content-type"] == "application/json"
        body = call.body
        assert body["subscription_id"] == room
        assert body["generation"] == 1
        assert body["callback_url"] == f"{api.node.url}/v1/stream/__ds/subscriptions/{room}/callback"
        (stream,) = body["streams"]
        tail = api.call("HEAD", f"{room}/a").header("stream-next-offset")
        assert stream == {
            "path": f"{room}/a",
            "link_type": "glob",
            "acked_offset": START,
            "tail_offset": tail,
            "has_pending": True,
        }
        until(lambda: api.cursors(room) == {f"{room}/a": tail}, "the wake's snapshot is acknowledged")
        assert api.show(room)["status"] == "active"


def test_urls_begin_with_what_the_client_called_the_server(api: Api, room: str) -> None:
    with receiving() as receiver:
        host = f"localhost:{api.node.port}"
        body = b'{"type":"webhook","pattern":"%s/*","webhook":{"url":"%s"}}' % (room.encode(), receiver.url.encode())
        path = f"/v1/stream/__ds/subscriptions/{room}"
        answer = api.node.request("PUT", path, {"Host": host, "Content-Type": "application/json"}, body)
        assert answer.json()["webhook"]["signing"]["jwks_url"] == f"http://{host}/v1/stream/__ds/jwks.json"
        claims_tls = api.node.request("GET", path, {"Host": "streams.example", "X-Forwarded-Proto": "https"})
        jwks_url = claims_tls.json()["webhook"]["signing"]["jwks_url"]
        assert jwks_url == "http://streams.example/v1/stream/__ds/jwks.json", "nobody said that a proxy may be believed"
        api.stream(f"{room}/a", 1)
        assert receiver.next().body["callback_url"] == f"http://{host}{path}/callback"


def test_the_same_configuration_is_confirmed_and_another_one_refused(api: Api, room: str) -> None:
    with receiving() as receiver:
        first = api.webhook(room, receiver.url, streams=["x", "y"], description="d", lease_ttl_ms=5_000)
        again = api.webhook(room, receiver.url, streams=["/y/", "x", "x"], description="d", lease_ttl_ms=5_000)
        assert (first.status, again.status) == (201, 200)
        assert first.json()["created_at"] == again.json()["created_at"]
        for other in ({"description": "e"}, {"lease_ttl_ms": 6_000}, {"streams": ["x"]}, {"pattern": "other/*"}):
            wish = {"streams": ["x", "y"], "description": "d", "lease_ttl_ms": 5_000} | other
            refused = api.webhook(room, receiver.url, **wish)
            assert (refused.status, refused.json()["error"]["code"]) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
        assert api.pull(room).status == 409


def test_existing_streams_begin_at_their_tail_and_later_ones_before_their_first_append(api: Api, room: str) -> None:
    api.stream(f"{room}/old", "long", "ago")
    api.stream(f"{room}/empty")
    old_tail = api.call("HEAD", f"{room}/old").header("stream-next-offset") or ""
    with receiving() as receiver:
        created = api.webhook(room, receiver.url, pattern=f"{room}/*")
        links = {stream["path"]: stream["acked_offset"] for stream in created.json()["streams"]}
        assert links == {f"{room}/old": old_tail, f"{room}/empty": START}
        api.stream(f"{room}/new", "first")
        (stream,) = [stream for stream in receiver.next().body["streams"] if stream["has_pending"]]
        assert (stream["path"], stream["acked_offset"]) == (f"{room}/new", START)


def test_an_append_during_the_work_makes_a_new_wake_with_its_own_id_and_generation(api: Api, room: str) -> None:
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*")
        api.stream(f"{room}/a", 1)
        first = receiver.next()
        tail = api.append(f"{room}/a", 2)
        answer = api.ack(room, first.body, first.tails(), done=True)
        assert answer.json() == {"ok": True, "next_wake": True}
        second = receiver.next()
        assert second.body["wake_id"] != first.body["wake_id"]
        assert second.body["generation"] == first.body["generation"] + 1
        assert second.tails() == {f"{room}/a": tail}
        assert api.ack(room, second.body, second.tails(), done=True).json() == {"ok": True, "next_wake": False}
        assert api.cursors(room) == {f"{room}/a": tail}


def test_done_acknowledges_what_the_receiver_was_told_of_and_not_what_came_meanwhile(api: Api, room: str) -> None:
    late: list[str] = []

    def answer(call: Call) -> Said:
        if not late:
            late.append(api.append(f"{room}/a", "while the receiver works"))
        return 200, {"done": True}

    with receiving(answer) as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*")
        api.stream(f"{room}/a", 1)
        first, second = receiver.next(), receiver.next()
        assert second.tails() == {f"{room}/a": late[0]}
        (stream,) = second.body["streams"]
        assert stream["acked_offset"] == first.tails()[f"{room}/a"]
        until(lambda: api.cursors(room) == {f"{room}/a": late[0]}, "the second wake is acknowledged")


def test_a_callback_with_anything_wrong_is_fenced_and_moves_no_cursor(api: Api, room: str) -> None:
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", lease_ttl_ms=600_000)
        api.stream(f"{room}/a", 1)
        call = receiver.next()
        tails = call.tails()
        token = call.body["callback_token"]
        for wrong in (
            {"callback_token": token[:-1] + ("A" if token[-1] != "A" else "B")},
            {"callback_token": "x"},
            {"wake_id": "w_0"},
            {"wake_id": None},
            {"generation": call.body["generation"] + 1},
            {"generation": call.body["generation"] - 1},
            {"generation": str(call.body["generation"])},
            {"generation": True},
        ):
            refused = api.ack(room, call.body, tails, done=True, **wrong)
            assert (refused.status, refused.json()["error"]["code"]) == (409, "FENCED"), wrong
        path = f"__ds/subscriptions/{room}/callback"
        without = api.call("POST", path, {"wake_id": call.body["wake_id"], "generation": 1, "done": True})
        assert (without.status, without.json()["error"]["code"]) == (401, "TOKEN_INVALID")
        assert api.cursors(room) == {f"{room}/a": START}
        assert api.ack(room, call.body, tails, done=False).json() == {"ok": True, "next_wake": False}
        assert api.cursors(room) == tails
        assert api.ack(room, call.body, {}, done=True).status == 200
        stale = api.ack(room, call.body, tails, done=True)
        assert (stale.status, stale.json()["error"]["code"]) == (409, "FENCED")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda room, tail: {f"{room}/a": tail, f"{room}/none": START},
        lambda room, tail: {f"{room}/a": f"{int(tail) + 1:020d}"},
        lambda room, tail: {f"{room}/a": "-1"},
        lambda room, tail: {f"{room}/a": "now"},
        lambda room, tail: {f"{room}/a": "7"},
        lambda room, tail: {"__ds/x": tail},
    ],
    ids=["unknown-stream", "beyond-the-tail", "before-the-first", "now", "not-an-offset", "reserved"],
)
def test_one_bad_ack_refuses_them_all(api: Api, room: str, wrong: Callable[[str, str], dict[str, str]]) -> None:
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", lease_ttl_ms=600_000)
        api.stream(f"{room}/a", 1)
        call = receiver.next()
        tail = call.tails()[f"{room}/a"]
        refused = api.ack(room, call.body, wrong(room, tail), done=True)
        assert (refused.status, refused.json()["error"]["code"]) == (409, "INVALID_OFFSET")
        assert api.cursors(room) == {f"{room}/a": START}
        assert api.ack(room, call.body, {f"{room}/a": tail}, done=True).json()["next_wake"] is False


def test_an_ack_behind_the_cursor_is_refused(api: Api, room: str) -> None:
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", lease_ttl_ms=600_000)
        api.stream(f"{room}/a", 1, 2)
        call = receiver.next()
        assert api.ack(room, call.body, call.tails()).status == 200
        refused = api.ack(room, call.body, {f"{room}/a": START}, done=True)
        assert refused.json()["error"]["code"] == "INVALID_OFFSET"
        assert api.cursors(room) == call.tails()


def test_a_failed_delivery_is_repeated_as_the_same_wake_until_it_is_taken(api: Api, room: str) -> None:
    replies = iter([(500, {}), (302, {}), (200, {"done": True})])
    with receiving(lambda _: next(replies)) as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", lease_ttl_ms=1_000)
        api.stream(f"{room}/a", 1)
        first = receiver.next()
        shown = until(lambda: (view := api.show(room))["status"] == "failed" and view, "the failure shows")
        assert shown["retry"]["failures"] == 1
        second, third = receiver.next(), receiver.next()
        for call in (second, third):
            assert call.body["wake_id"] == first.body["wake_id"]
            assert call.body["generation"] == first.body["generation"]
            assert call.body["callback_token"] == first.body["callback_token"]
        until(lambda: api.cursors(room) == third.tails(), "the third attempt is acknowledged")
        view = api.show(room)
        assert view["status"] == "active"
        assert "retry" not in view


def test_a_receiver_that_failed_to_answer_may_still_call_back(api: Api, room: str) -> None:
    with receiving((503, {})) as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", lease_ttl_ms=600_000)
        api.stream(f"{room}/a", 1)
        call = receiver.next()
        until(lambda: api.show(room)["status"] == "failed", "the failure shows")
        assert api.ack(room, call.body, call.tails(), done=True).json() == {"ok": True, "next_wake": False}
        assert api.show(room)["status"] == "active"
        assert api.cursors(room) == call.tails()


def test_a_lease_that_passes_wakes_again_with_the_next_generation_and_fences_the_former(api: Api, room: str) -> None:
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", lease_ttl_ms=1_000)
        api.stream(f"{room}/a", 1)
        first, second = receiver.next(), receiver.next()
        assert second.body["generation"] == first.body["generation"] + 1
        assert second.body["wake_id"] != first.body["wake_id"]
        assert api.ack(room, first.body, first.tails(), done=True).json()["error"]["code"] == "FENCED"


def test_explicit_streams_come_and_go_and_leave_what_the_pattern_takes_in(api: Api, room: str) -> None:
    api.stream(f"{room}/a", 1)
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", streams=[f"{room}/a"])
        for _ in range(2):
            assert api.subscription("POST", room, "/streams", {"streams": [f"{room}-extra"]}).status == 204
        types = {stream["path"]: stream["link_type"] for stream in api.show(room)["streams"]}
        assert types == {f"{room}/a": "explicit", f"{room}-extra": "explicit"}
        for path in (f"{room}-extra", f"{room}%2Fa", f"{room}/never"):
            for _ in range(2):
                assert api.subscription("DELETE", room, f"/streams/{path}").status == 204
        (left,) = api.show(room)["streams"]
        assert (left["path"], left["link_type"]) == (f"{room}/a", "glob")
        assert left["acked_offset"] == api.call("HEAD", f"{room}/a").header("stream-next-offset")


def test_a_named_stream_that_does_not_exist_yet_wakes_with_its_first_record(api: Api, room: str) -> None:
    with receiving((200, {"done": True})) as receiver:
        api.webhook(room, receiver.url, pattern=None, streams=[room])
        api.stream(room, "first")
        assert receiver.next().tails() == {room: api.call("HEAD", room).header("stream-next-offset")}
        until(lambda: api.cursors(room)[room] != START, "it is acknowledged")


def test_a_stream_that_is_deleted_and_made_again_starts_from_its_beginning(api: Api, room: str) -> None:
    with receiving((200, {"done": True})) as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*", streams=[f"{room}-named"])
        for path in (f"{room}/a", f"{room}-named"):
            api.stream(path, "a long first life of the stream")
            tail = receiver.next().tails()[path]
            until(lambda path=path, tail=tail: api.cursors(room)[path] == tail, "the first life is acknowledged")
            assert api.call("DELETE", path).status == 204
        assert api.cursors(room) == {f"{room}-named": START}
        for path in (f"{room}/a", f"{room}-named"):
            api.stream(path, 1)
            (stream,) = [stream for stream in receiver.next().body["streams"] if stream["path"] == path]
            assert (stream["acked_offset"], stream["has_pending"]) == (START, True)


def test_a_fork_begins_at_its_fork_point(api: Api, room: str) -> None:
    api.stream(f"{room}-source", "shared")
    tail = api.call("HEAD", f"{room}-source").header("stream-next-offset")
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*")
        headers = {"Stream-Forked-From": f"/v1/stream/{room}-source"}
        assert api.node.request("PUT", f"/v1/stream/{room}/fork", headers).status == 201
        api.append(f"{room}/fork", "own")
        (stream,) = receiver.next().body["streams"]
        assert (stream["path"], stream["acked_offset"]) == (f"{room}/fork", tail)


def test_a_deleted_subscription_is_gone_and_its_id_goes_on_with_higher_generations(api: Api, room: str) -> None:
    with receiving() as receiver:
        api.webhook(room, receiver.url, pattern=f"{room}/*")
        api.stream(f"{room}/a", 1)
        first = receiver.next()
        for _ in range(2):
            assert api.subscription("DELETE", room).status == 204
        assert api.subscription("GET", room).json()["error"]["code"] == "SUBSCRIPTION_NOT_FOUND"
        refused = api.ack(room, first.body, first.tails(), done=True)
        assert (refused.status, refused.json()["error"]["code"]) == (404, "SUBSCRIPTION_NOT_FOUND")
        assert api.webhook(room, receiver.url, pattern=f"{room}/*").status == 201
        api.append(f"{room}/a", 2)
        second = receiver.next()
        assert second.body["generation"] > first.body["generation"]
        assert api.ack(room, first.body, first.tails(), done=True).json()["error"]["code"] == "FENCED"


def test_an_id_may_hold_any_printable_text(api: Api, room: str) -> None:
    name = f"{room} ü/?#%41(x)"
    with receiving() as receiver:
        assert api.webhook(name, receiver.url, pattern=f"{room}/*").json()["id"] == name
        api.stream(f"{room}/a", 1)
        call = receiver.next()
        assert call.body["subscription_id"] == name
        path = call.body["callback_url"].removeprefix(f"{api.node.url}/v1/stream/")
        body = {"wake_id": call.body["wake_id"], "generation": call.body["generation"], "done": True}
        assert api.call("POST", path, body, call.body["callback_token"]).status == 200


def test_many_existing_streams_are_linked_before_the_answer(api: Api, room: str) -> None:
    with api.node.connect() as connection:
        for number in range(1_200):
            answer = connection.request("PUT", f"/v1/stream/{room}/s{number:04d}", {"Content-Type": "text/plain"}, b"x")
            assert answer.status == 201
    with receiving() as receiver:
        created = api.webhook(room, receiver.url, pattern=f"{room}/**")
        assert len(created.json()["streams"]) == 1_200
        assert {stream["acked_offset"] for stream in created.json()["streams"]} == {f"{1:020d}"}
        assert receiver.quiet()
