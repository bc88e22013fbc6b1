"""Pull-wake subscriptions on a real node: wake events, claims, leases, acknowledgement and release.
It owns its streams and workers; the node is met over HTTP only."""

from __future__ import annotations

from typing import Any

from tests.subscriptions.support import Api, tails_of
from tests.support.waiting import until

START = "0" * 20
HELD_MS = 600_000
"""A lease that does not pass during a test."""


def started(api: Api, room: str, lease_ttl_ms: int = HELD_MS, **more: Any) -> str:
    """A wake stream and a subscription to everything in the room; returns the wake stream."""
    wake = f"wake/{room}"
    api.stream(wake)
    answer = api.pull(room, wake, **({"pattern": f"{room}/*", "lease_ttl_ms": lease_ttl_ms} | more))
    assert answer.status == 201, answer
    return wake


def wakes(api: Api, wake: str, count: int) -> list[dict[str, Any]]:
    """The events of the wake stream, once there are `count` of them."""
    return until(lambda: len(events := api.read(wake)) >= count and events, f"{count} events on {wake}")


def code(answer: Any) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


def test_work_appends_a_wake_event_that_leads_to_a_claim(api: Api, room: str) -> None:
    wake = started(api, room)
    api.stream(f"{room}/a", {"n": 1})
    (event,) = wakes(api, wake, 1)
    assert set(event) == {"type", "subscription_id", "stream", "generation", "ts"}
    assert (event["type"], event["subscription_id"], event["stream"]) == ("wake", room, f"{room}/a")
    claim = api.claim(room)
    assert claim.status == 200, claim
    claimed = claim.json()
    assert set(claimed) == {"wake_id", "generation", "token", "streams", "lease_ttl_ms"}
    assert (claimed["generation"], claimed["lease_ttl_ms"]) == (event["generation"], HELD_MS)
    (stream,) = claimed["streams"]
    assert (stream["acked_offset"], stream["has_pending"], stream["link_type"]) == (START, True, "glob")
    assert stream["tail_offset"] == api.call("HEAD", f"{room}/a").header("stream-next-offset")


def test_a_held_lease_refuses_everyone_and_names_its_holder(api: Api, room: str) -> None:
    started(api, room)
    api.stream(f"{room}/a", 1)
    claimed = api.claim(room, "worker-1").json()
    for worker in ("worker-2", "worker-1"):
        refused = api.claim(room, worker)
        assert code(refused) == (409, "ALREADY_CLAIMED")
        error = refused.json()["error"]
        assert (error["current_holder"], error["generation"]) == ("worker-1", claimed["generation"])


def test_a_claim_right_after_an_append_always_succeeds(api: Api, room: str) -> None:
    started(api, room)
    api.stream(f"{room}/a")
    generations = []
    for number in range(50):
        tail = api.append(f"{room}/a", number)
        claim = api.claim(room)
        assert claim.status == 200, (number, claim)
        assert tails_of(claim.json()) == {f"{room}/a": tail}
        generations.append(claim.json()["generation"])
        assert api.ack(room, claim.json(), {f"{room}/a": tail}, done=True).json() == {"ok": True, "next_wake": False}
    assert generations == sorted(set(generations))


def test_without_work_there_is_nothing_to_claim(api: Api, room: str) -> None:
    api.stream(f"{room}/old", "before")
    started(api, room)
    assert code(api.claim(room)) == (409, "NO_PENDING_WORK")
    assert code(api.claim(f"{room}-none")) == (404, "SUBSCRIPTION_NOT_FOUND")


def test_an_ack_without_done_moves_cursors_and_keeps_the_claim(api: Api, room: str) -> None:
    started(api, room)
    api.stream(f"{room}/a", 1, 2)
    claimed = api.claim(room).json()
    assert api.ack(room, claimed, {}).json() == {"ok": True, "next_wake": False}
    for offset in ("00000000000000000001", "00000000000000000002"):
        assert api.ack(room, claimed, {f"{room}/a": offset}).json() == {"ok": True, "next_wake": False}
        assert api.cursors(room) == {f"{room}/a": offset}
        assert code(api.claim(room, "other")) == (409, "ALREADY_CLAIMED")


def test_an_ack_inside_a_record_is_refused_in_memory_and_in_the_lake(api: Api, room: str) -> None:
    started(api, room)
    api.stream(f"{room}/a", "one", "two")
    claimed = api.claim(room).json()
    for _ in range(2):
        for offset in (1, 4, 6, 9):
            refused = api.ack(room, claimed, {f"{room}/a": f"{offset:020d}"}, done=True)
            assert code(refused) == (409, "INVALID_OFFSET")
        assert api.cursors(room) == {f"{room}/a": START}
        api.node.request("POST", "/__headwater/flush")
    assert api.ack(room, claimed, {f"{room}/a": f"{5:020d}"}).status == 200
    assert api.ack(room, claimed, {f"{room}/a": f"{10:020d}"}, done=True).status == 200


def test_done_with_work_left_wakes_again_at_once(api: Api, room: str) -> None:
    wake = started(api, room)
    api.stream(f"{room}/a", 1, 2)
    first = api.claim(room).json()
    assert api.ack(room, first, {f"{room}/a": "00000000000000000001"}, done=True).json()["next_wake"] is True
    second = api.claim(room).json()
    assert second["generation"] == first["generation"] + 1
    assert second["wake_id"] != first["wake_id"]
    (stream,) = second["streams"]
    assert stream["acked_offset"] == "00000000000000000001"
    assert code(api.ack(room, first, tails_of(second), done=True)) == (409, "FENCED")
    assert code(api.release(room, first)) == (409, "FENCED")
    assert api.cursors(room) == {f"{room}/a": "00000000000000000001"}
    assert wakes(api, wake, 1)


def test_a_release_moves_nothing_and_wakes_the_next_worker(api: Api, room: str) -> None:
    wake = started(api, room)
    api.stream(f"{room}/a", 1)
    wakes(api, wake, 1)
    claimed = api.claim(room).json()
    assert api.release(room, claimed).status == 204
    events = wakes(api, wake, 2)
    assert [event["generation"] for event in events] == [claimed["generation"], claimed["generation"] + 1]
    assert code(api.ack(room, claimed, tails_of(claimed), done=True)) == (409, "FENCED")
    assert api.cursors(room) == {f"{room}/a": START}
    assert api.claim(room, "worker-2").json()["generation"] == claimed["generation"] + 1


def test_a_lease_that_passes_clears_the_holder_and_wakes_again(api: Api, room: str) -> None:
    wake = started(api, room, lease_ttl_ms=1_000)
    api.stream(f"{room}/a", 1)
    wakes(api, wake, 1)
    first = api.claim(room).json()
    events = wakes(api, wake, 2)
    assert events[-1]["generation"] == first["generation"] + 1
    assert code(api.ack(room, first, tails_of(first), done=True)) == (409, "FENCED")
    assert api.cursors(room) == {f"{room}/a": START}
    second = api.claim(room, "worker-2").json()
    assert second["generation"] > first["generation"]


def test_claims_are_for_pull_wake_and_a_webhook_is_told_so(api: Api, room: str) -> None:
    assert api.webhook(room, "http://127.0.0.1:9/", pattern=f"{room}/*").status == 201
    assert code(api.claim(room)) == (400, "INVALID_REQUEST")
    shown = {"wake_id": "w", "generation": 1, "token": "t"}
    assert code(api.ack(room, shown, {})) == (400, "INVALID_REQUEST")
    assert code(api.release(room, shown)) == (400, "INVALID_REQUEST")


def test_a_wake_stream_that_is_made_later_gets_the_event_then(api: Api, room: str) -> None:
    wake = f"wake/{room}"
    assert api.pull(room, wake, pattern=f"{room}/*").status == 201
    api.stream(f"{room}/a", 1)
    assert api.show(room)["status"] == "active"
    api.stream(wake)
    (event,) = wakes(api, wake, 1)
    assert event["generation"] == 1


def test_a_subscription_to_everything_is_not_woken_by_its_own_wake_events(api: Api, room: str) -> None:
    wake = f"{room}/wake"
    api.stream(wake)
    assert api.pull(room, wake, pattern=f"{room}/**", lease_ttl_ms=HELD_MS).status == 201
    api.stream(f"{room}/a", 1)
    wakes(api, wake, 1)
    claimed = api.claim(room).json()
    assert set(tails_of(claimed)) == {f"{room}/a"}
    assert api.ack(room, claimed, tails_of(claimed), done=True).json()["next_wake"] is False
    assert len(api.read(wake)) == 1


def test_work_that_goes_away_with_its_stream_leaves_the_next_work_able_to_wake(api: Api, room: str) -> None:
    wake = started(api, room)
    api.stream(f"{room}/a", 1)
    wakes(api, wake, 1)
    assert api.call("DELETE", f"{room}/a").status == 204
    assert code(api.claim(room)) == (409, "NO_PENDING_WORK")
    api.stream(f"{room}/b", 1)
    events = wakes(api, wake, 2)
    assert [event["stream"] for event in events] == [f"{room}/a", f"{room}/b"]
    assert events[1]["generation"] == events[0]["generation"] + 1


def test_two_subscriptions_over_one_stream_keep_cursors_of_their_own(api: Api, room: str) -> None:
    started(api, room)
    started(api, f"{room}-b", pattern=f"{room}/**")
    api.stream(f"{room}/a", 1)
    first, second = api.claim(room).json(), api.claim(f"{room}-b").json()
    assert first["token"] != second["token"]
    crossed = first | {"token": second["token"]}
    assert code(api.ack(room, crossed, tails_of(first), done=True)) == (409, "FENCED")
    assert api.ack(room, first, tails_of(first), done=True).status == 200
    assert api.cursors(room) == tails_of(first)
    assert api.cursors(f"{room}-b") == {f"{room}/a": START}


def test_paths_outside_any_bucket_are_named_without_one(api: Api, room: str) -> None:
    started(api, room, pattern="*", streams=[f"_default/{room}-x"])
    api.stream(f"{room}-y", 1)
    claimed = until(lambda: (answer := api.claim(room)).status == 200 and answer.json(), "the claim")
    assert f"{room}-y" in tails_of(claimed)
    assert f"{room}-x" in api.cursors(room)
    assert api.ack(room, claimed, {f"{room}-y": tails_of(claimed)[f"{room}-y"]}).status == 200
