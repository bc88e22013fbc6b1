"""Plans without a transport: what is sent, what is decided about each reply, and which numbers a producer uses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.client.connection import Answer, CannotBeSent, Failed, Lost, NobodyListens, NoTls
from headwater.client.failures import (
    BadRequest,
    Closed,
    Fenced,
    HeadwaterError,
    NotFound,
    SequenceConflict,
    Throttled,
    Unavailable,
)
from headwater.client.plans import Pause, Plan, Send, produced, sent, stream_path, topic_path, with_query
from headwater.client.producers import PRODUCERS_MAX, Producer, Producers, Stamp
from headwater.client.retries import NO_RETRIES, Retries

PATIENT = Retries(total_s=1_000.0)
REQUEST = Send("GET", "/x")


def ok(status: int = 200) -> Answer:
    return Answer(status, {}, b"")


def refused(status: int, code: str, headers: dict[str, str] | None = None, **detail: object) -> Answer:
    body = {"error": {"code": code, "message": "it is so", "detail": detail}}
    return Answer(status, headers or {}, json.dumps(body).encode())


def carried_out(plan: Plan[Any], *replies: Answer | Failed) -> tuple[Any, list[Send], list[float]]:
    """The result, or the exception, with what was sent and how long each pause was."""
    left, requests, pauses = list(replies), [], []
    step = next(plan)
    while True:
        try:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                step = plan.send(None)
            else:
                requests.append(step)
                step = plan.send(left.pop(0))
        except StopIteration as end:
            assert not left, "the plan ended before it had every reply"
            return end.value, requests, pauses
        except HeadwaterError as why:
            assert not left, "the plan ended before it had every reply"
            return why, requests, pauses


@pytest.mark.parametrize(
    "reply",
    [
        Lost("gone"),
        NobodyListens("refused"),
        refused(503, "overloaded"),
        refused(429, "throttled"),
        Answer(502, {}, b""),
    ],
)
def test_what_may_pass_is_sent_again(reply: Answer | Failed) -> None:
    done, requests, pauses = carried_out(sent(REQUEST, PATIENT), reply, reply, ok())
    assert done.answer.status == 200
    assert requests == [REQUEST] * 3
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refused(404, "topic_not_found"), NotFound),
        (refused(400, "bad_request"), BadRequest),
        (refused(409, "stream_closed"), Closed),
        (refused(403, "stale_epoch"), Fenced),
        (NoTls("no"), Unavailable),
        (CannotBeSent("a line end"), BadRequest),
    ],
)
def test_what_lasts_is_raised_at_once_as_its_own_kind(reply: Answer | Failed, kind: type[HeadwaterError]) -> None:
    why, requests, _ = carried_out(sent(REQUEST, PATIENT), reply)
    assert type(why) is kind
    assert requests == [REQUEST]
    assert not why.outcome_unknown


def test_the_servers_wish_for_a_pause_is_kept_from_header_and_detail() -> None:
    by_header = refused(503, "overloaded", {"retry-after": "7"})
    by_detail = refused(429, "throttled", {"retry-after": "1"}, retry_after_ms=2_500)
    _, _, pauses = carried_out(sent(REQUEST, PATIENT), by_header, by_detail, ok())
    assert pauses == [7.0, 2.5]


def test_after_the_last_attempt_the_failure_says_what_the_server_said() -> None:
    why, _, _ = carried_out(sent(REQUEST, NO_RETRIES), refused(429, "throttled", retry_after_ms=40))
    assert isinstance(why, Throttled)
    assert (why.code, why.message, why.status) == ("throttled", "it is so", 429)
    assert why.detail == {"retry_after_ms": 40}
    assert why.retry_after_s == 0.04


def test_facts_in_headers_stand_in_the_detail() -> None:
    why, _, _ = carried_out(sent(REQUEST, PATIENT), refused(410, "offset_gone", {"stream-earliest-offset": "0042"}))
    assert why.detail == {"earliest_offset": "0042"}


def test_a_success_after_a_lost_answer_is_told_from_one_at_the_first_attempt() -> None:
    assert not carried_out(sent(REQUEST, PATIENT), ok())[0].repeated
    assert carried_out(sent(REQUEST, PATIENT), Lost("gone"), ok())[0].repeated
    assert not carried_out(sent(REQUEST, PATIENT), refused(503, "overloaded"), ok())[0].repeated
    assert carried_out(sent(REQUEST, PATIENT), refused(503, "outcome_unknown"), ok())[0].repeated


def test_what_is_not_repeatable_is_sent_again_only_when_the_server_did_nothing() -> None:
    done, _, _ = carried_out(
        sent(REQUEST, PATIENT, repeatable=False), NobodyListens("x"), refused(503, "no_owner"), ok()
    )
    assert done.answer.status == 200
    why, requests, _ = carried_out(sent(REQUEST, PATIENT, repeatable=False), Lost("gone"))
    assert why.outcome_unknown and len(requests) == 1


# --- producers ---


def stamped(producer: Producer | None, retries: Retries = PATIENT) -> tuple[Plan[Any], list[Stamp | None]]:
    used: list[Stamp | None] = []

    def request(stamp: Stamp | None) -> Send:
        used.append(stamp)
        return Send("POST", "/x", body=repr(stamp).encode(), fresh=stamp is None)

    return produced(request, producer, retries), used


def test_each_write_has_the_next_number_and_its_repetitions_the_same() -> None:
    producer = Producer("p")
    for seq in range(3):
        plan, used = stamped(producer)
        _, requests, _ = carried_out(plan, Lost("gone"), ok())
        assert used == [("p", 0, seq)]
        assert len({request.body for request in requests}) == 1


def test_the_number_of_a_refused_write_is_used_for_the_next() -> None:
    producer = Producer("p")
    carried_out(stamped(producer)[0], refused(409, "stream_closed"))
    assert producer.stamp() == ("p", 0, 0)


@pytest.mark.parametrize("last", [Lost("gone"), refused(503, "outcome_unknown"), refused(500, "internal_error")])
def test_a_write_with_an_unknown_outcome_begins_a_new_epoch(last: Answer | Failed) -> None:
    producer = Producer("p", seq=5)
    why, _, _ = carried_out(stamped(producer, NO_RETRIES)[0], last)
    assert why.outcome_unknown
    assert producer.stamp() == ("p", 1, 0)


def test_a_refusal_after_a_lost_answer_is_an_unknown_outcome_too() -> None:
    producer = Producer("p", seq=5)
    why, _, _ = carried_out(stamped(producer)[0], Lost("gone"), refused(409, "stream_closed"))
    assert isinstance(why, Closed) and why.outcome_unknown
    assert producer.stamp() == ("p", 1, 0)


def test_a_plan_that_is_left_while_a_write_is_under_way_begins_a_new_epoch() -> None:
    producer = Producer("p", seq=5)
    plan, _ = stamped(producer)
    next(plan)
    plan.close()
    assert producer.stamp() == ("p", 1, 0)


def test_a_stream_that_was_made_anew_is_written_to_in_a_new_epoch() -> None:
    producer = Producer()
    producer.seq = 5
    plan, used = stamped(producer)
    done, _, _ = carried_out(plan, refused(409, "producer_seq_conflict"), ok())
    assert done.answer.status == 200
    assert used == [(producer.id, 0, 5), (producer.id, 1, 0)]
    assert producer.stamp() == (producer.id, 1, 1)


def test_the_numbers_that_a_program_gave_are_never_replaced_by_others() -> None:
    producer = Producer("import", seq=5)
    why, _, _ = carried_out(stamped(producer)[0], refused(409, "producer_seq_conflict"))
    assert isinstance(why, SequenceConflict)
    assert producer.stamp() == ("import", 0, 5)


def test_a_write_without_a_producer_has_a_connection_of_its_own_and_is_not_repeated_in_doubt() -> None:
    plan, used = stamped(None)
    why, (request,), _ = carried_out(plan, Lost("gone"))
    assert why.outcome_unknown and used == [None] and request.fresh


def test_a_client_has_one_producer_for_each_door_and_name() -> None:
    known = Producers()
    assert known.of("stream", "a") is known.of("stream", "a")
    ids = {known.of(door, name).id for door in ("stream", "topic") for name in ("a", "b")}
    assert len(ids) == 4


def test_a_producer_that_had_to_make_room_comes_back_under_another_id() -> None:
    known = Producers()
    first = known.of("stream", "first").id
    for number in range(PRODUCERS_MAX):
        known.of("stream", str(number))
    assert known.of("stream", "first").id != first


# --- paths ---


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "/v0/topics/orders"),
        ("shop/orders", "/v0/topics/shop/orders"),
        ("shop/ä b?", "/v0/topics/shop/%C3%A4%20b%3F"),
        ("a/records", "/v0/topics/a%2Frecords"),
        ("a/b/claim", "/v0/topics/a/b%2Fclaim"),
        ("records", "/v0/topics/_default%2Frecords"),
        ("records/a", "/v0/topics/records/a"),
    ],
)
def test_a_topic_whose_last_part_is_a_verb_has_its_slash_encoded(name: str, path: str) -> None:
    assert topic_path(name) == path
    assert topic_path(name, "diff") == f"{path}/diff"


@pytest.mark.parametrize("name", ["", "/", "//"])
def test_an_empty_name_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        topic_path(name)
    with pytest.raises(ValueError, match="empty"):
        stream_path(name)


def test_parameters_without_a_value_are_left_out() -> None:
    assert with_query("/x", a=None) == "/x"
    assert with_query("/x", a=None, b="ü &", c=0) == "/x?b=%C3%BC+%26&c=0"
