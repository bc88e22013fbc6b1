"""Requests about many streams, on a node of two processes with two groups each: every entry is judged where its stream
lives, and a client sees one node, whichever process it asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.doors.http import by_owner
from headwater.doors.http.admin.bulk_snapshots import Entry, _Sent
from headwater.doors.http.bulk_append import _Wish
from headwater.doors.http.member_tail import MemberTail, Refused
from headwater.engine.placements import Placed, Placements, encode
from headwater.errors import GroupMoved, MemberUnavailable, OutcomeUnknown
from headwater.model.commands import Append, Create, Delete
from tests.engine import Inbox
from tests.support.http import EventStream, encode_request
from tests.support.node import Node
from tests.support.two_members import GROUPS, TwoMembers, two_members
from tests.support.waiting import until

APPEND, SNAPSHOTS, TAIL = "/__headwater/append", "/__headwater/snapshots", "/__headwater/tail"
TEXTS = {"content_type": "text/plain", "create": True}
WAIT_S = 30.0


@pytest.fixture
def both() -> Iterator[TwoMembers]:
    with two_members() as both:
        yield both


def bulk(both: TwoMembers, member: int, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = both.request(member, "POST", APPEND, {}, json.dumps(entries).encode())
    assert answer.status == 200, answer
    return answer.json()


def publish(both: TwoMembers, member: int, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = both.request(member, "POST", SNAPSHOTS, {}, msgspec.msgpack.encode(entries))
    assert answer.status == 200, answer
    return answer.json()


def statuses(answers: list[dict[str, Any]]) -> list[int]:
    return [one["status"] for one in answers]


def codes(answers: list[dict[str, Any]]) -> list[str | None]:
    return [one["error"]["code"] if "error" in one else None for one in answers]


def everywhere(both: TwoMembers, bucket: str = "town") -> list[str]:
    """A stream of every group."""
    return [both.names(group, 1, bucket)[0] for group in range(GROUPS)]


def entries_of(names: list[str], text: str = "x") -> list[dict[str, Any]]:
    return [{"stream": name, "text": [text], **TEXTS} for name in names]


# ---- bulk append ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", [0, 1])
def test_entries_are_answered_in_order_whichever_process_serves_them__append(both: TwoMembers, member: int) -> None:
    names = everywhere(both)
    producer = {"producer_id": "p", "producer_epoch": 0}
    entries = [
        {"stream": name, "text": [f"{n};"], "producer_seq": n, **producer, **TEXTS} for n in range(3) for name in names
    ]
    answers = bulk(both, member, entries)
    assert statuses(answers) == [200] * 12
    assert [one.get("created", False) for one in answers] == [True] * 4 + [False] * 8
    assert [int(one["stream_next_offset"]) for one in answers] == [2] * 4 + [4] * 4 + [6] * 4
    assert [both.read(name).body for name in names] == [b"0;1;2;"] * 4
    again = bulk(both, 1 - member, entries)
    assert [(one["status"], one["duplicate"]) for one in again] == [(204, True)] * 12
    # One question to the other process for each request, however many of its streams are meant.
    assert both.members[member].questions.asked == ["append_entries"]


def test_records_that_are_json_arrive_as_they_were_sent__append(both: TwoMembers) -> None:
    names = everywhere(both)
    answers = bulk(both, 0, [{"stream": name, "records": [{"a": 1.50}, [2]], "create": True} for name in names])
    assert statuses(answers) == [204] * 4
    assert [both.read(name).body for name in names] == [b'[{"a": 1.5},[2]]'] * 4


def test_an_entry_that_is_refused_does_not_stop_others_anywhere__append(both: TwoMembers) -> None:
    first, second, third, fourth = everywhere(both)
    entries = [
        {"stream": first, "text": ["x"], "content_type": "text/plain"},
        {"stream": second, "text": ["x"], "content_type": "text/plain"},
        *entries_of([third, fourth]),
        {"stream": second, "text": [""], **TEXTS},
    ]
    assert codes(bulk(both, 0, entries)) == ["stream_not_found", "stream_not_found", None, None, "bad_body"]


@pytest.mark.parametrize("away", [MemberUnavailable, OutcomeUnknown])
def test_a_process_that_is_away_gives_its_own_entries_that_answer_and_no_others__append(
    both: TwoMembers, away: Any
) -> None:
    names = everywhere(both)
    both.members[0].questions.away[1] = away
    answers = bulk(both, 0, entries_of(names))
    assert statuses(answers) == [204, 503, 204, 503]
    assert all(one["error"]["retryable"] for one in answers[1::2])
    both.members[0].questions.away.clear()
    assert statuses(bulk(both, 0, entries_of(names))) == [204] * 4


def test_a_fault_of_a_process_is_told_for_its_own_entries_and_no_others__append(both: TwoMembers) -> None:
    names = everywhere(both)
    for number in (1, 3):
        both.members[1].engine.owned[number].group.log.add = None  # type: ignore[assignment,method-assign]
    answers = bulk(both, 0, entries_of(names))
    assert statuses(answers) == [204, 503, 204, 503]
    assert codes(answers)[1::2] == ["outcome_unknown"] * 2


def test_an_answer_of_a_process_that_makes_no_sense_is_told_for_its_own_entries_and_no_others__append(
    both: TwoMembers,
) -> None:
    both.members[1].questions.register("append_entries", _nothing)
    answers = bulk(both, 0, entries_of(everywhere(both)))
    assert statuses(answers) == [204, 500, 204, 500]
    assert codes(answers)[1::2] == ["internal_error"] * 2


def test_many_entries_for_a_process_keep_their_order_over_several_questions__append(
    both: TwoMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_owner, "QUESTION_ENTRIES_MAX", 7)
    monkeypatch.setattr(by_owner, "QUESTION_BYTES_MAX", 2_000)
    name = both.names(1, 1)[0]
    answers = bulk(both, 0, [{"stream": name, "text": [f"{n};"], **TEXTS} for n in range(50)])
    assert statuses(answers) == [204] * 50
    assert both.read(name).body == b"".join(b"%d;" % n for n in range(50))
    assert len(both.members[0].questions.asked) > 7


def test_a_long_request_is_answered_in_order_too__append(both: TwoMembers) -> None:
    names = both.names(0, 3) + both.names(1, 3)
    entries = [{"stream": name, "text": [f"{n};", "y" * 50], **TEXTS} for n in range(400) for name in names]
    assert statuses(bulk(both, 1, entries)) == [204] * 2_400
    expected = b"".join(b"%d;" % n + b"y" * 50 for n in range(400))
    assert [both.read(name).body == expected for name in names] == [True] * 6


def test_requests_of_one_connection_are_judged_in_order_wherever_their_streams_live__append(both: TwoMembers) -> None:
    name = both.names(1, 1)[0]
    made = json.dumps(entries_of([name], "1")).encode()
    then = json.dumps([{"stream": name, "content_type": "text/plain", "text": ["2"]}]).encode()
    with both.connect(0) as connection:
        connection.send(encode_request("POST", APPEND, {}, made) + encode_request("POST", APPEND, {}, then))
        found = [connection.read_response("POST").json() for _ in range(2)]
    assert [statuses(one) for one in found] == [[204], [204]]
    assert both.read(name).body == b"12"


@pytest.mark.parametrize("member", [0, 1])
def test_a_bucket_of_group_0_is_found_by_every_process__append(both: TwoMembers, member: int) -> None:
    assert both.request(0, "PUT", "/town").status == 201
    names = everywhere(both) + everywhere(both, "nowhere")
    answers = bulk(both, member, [{"stream": f"/{name}", "text": ["x"], **TEXTS} for name in names])
    assert statuses(answers) == [204] * 4 + [404] * 4
    assert set(codes(answers)[4:]) == {"bucket_not_found"}


def test_a_bucket_that_only_streams_of_another_process_make_is_a_bucket__append(both: TwoMembers) -> None:
    here, there = both.names(0, 1)[0], both.names(1, 1)[0]
    assert statuses(bulk(both, 0, entries_of([here]))) == [204]
    assert statuses(bulk(both, 0, entries_of([f"/{there}"]))) == [204]
    assert both.read(there).body == b"x"


def test_one_process_with_several_groups_asks_nobody() -> None:
    with two_members(count=1) as alone:
        names = everywhere(alone)
        entries = [{"stream": name, "text": [f"{n}"], **TEXTS} for n in range(3) for name in names]
        assert statuses(bulk(alone, 0, entries)) == [204] * 12
        assert statuses(publish(alone, 0, [{"stream": name, "offset": 1, "body": b"x"} for name in names])) == [204] * 4
        with alone.connect(0) as connection:
            events = tail(connection, "bucket=town&from=start")
            found = [next(events) for _ in range(9)][1:]
        assert sorted(map(data_of, found)) == sorted((name, text) for name in names for text in "12")
        assert groups_in(found[-1].id) == ["0", "1", "2", "3"]
        assert alone.members[0].questions.asked == []


# ---- forks that live outside their name's home ------------------------------------------------------------------


def place(both: TwoMembers, name: str, group: int) -> None:
    """Makes the stream of that name live in a group that is not its home, as a fork does."""
    home, lives = both.home(name), both.members[group % 2].engine
    at_home = both.members[home % 2].engine.owned[home].group
    both.run(lambda: at_home.note(Placements.name, encode(Placed(name, group))))
    both.run(lambda: lives.owned[group].group.submit(name, Create(name, "text/plain", []), Inbox()))


@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize(("home", "group"), [(0, 3), (1, 2), (0, 2), (3, 1)])
def test_an_entry_finds_a_fork_in_the_group_it_lives_in__append(
    both: TwoMembers, member: int, home: int, group: int
) -> None:
    name = both.names(home, 1)[0]
    place(both, name, group)
    entries = [{"stream": name, "text": ["a"], "content_type": "text/plain"}, *entries_of([name], "b")]
    answers = bulk(both, member, entries)
    assert [int(one["stream_next_offset"]) for one in answers] == [1, 2]
    assert not any("created" in one for one in answers)
    answers = publish(both, member, [{"stream": name, "offset": 1, "body": b"state"}])
    assert statuses(answers) == [204]
    assert [key.split("/")[1] for key in both.blobs.kept] == [str(group)]
    with both.connect(member) as connection:
        events = iter(EventStream.open(connection, f"{TAIL}?stream={name}&from=start"))
        assert [next(events).name, next(events).json()["data"]] == ["open", "b"]


def test_a_name_is_used_again_where_it_is_placed_unless_it_has_been_placed_elsewhere_since__append(
    both: TwoMembers,
) -> None:
    name = both.names(0, 1)[0]
    place(both, name, 3)
    lives = both.members[1].engine
    both.members[0].questions.register("placement_tidy", _nothing)  # as if the home did not hear of the deletion
    both.run(lambda: lives.owned[3].group.submit(name, Delete(), Inbox()))
    answers = bulk(both, 0, entries_of([name]))
    assert [(one["status"], one["created"]) for one in answers] == [(204, True)]
    assert both.run(lambda: lives.owned[3].group.has(name))
    both.run(lambda: lives.owned[3].group.submit(name, Delete(), Inbox()))
    both.run(lambda: lives.bar(name, 1 << 40))
    answers = bulk(both, 1, entries_of([name]))
    assert [(one["status"], one["error"]["retryable"]) for one in answers] == [(503, True)]
    assert not both.run(lambda: lives.owned[3].group.has(name))


async def _nothing(*_: Any) -> None: ...


def test_a_creation_waits_until_it_is_decided_where_its_name_is_placed__append(both: TwoMembers) -> None:
    name = both.names(0, 1)[0]
    placing = both.members[0].placing
    locks, deciding = placing._locks, placing._decide(name)
    both.run(deciding.__aenter__())
    with both.connect(1) as connection:
        body = json.dumps([*entries_of([name], "1"), {"stream": name, "content_type": "text/plain", "text": ["2"]}])
        connection.send(encode_request("POST", APPEND, {}, body.encode()))
        until(lambda: both.run(lambda: locks._held[name][1]) == 2)
        place(both, name, 1)
        both.run(deciding.__aexit__(None, None, None))
        answers = connection.read_response("POST").json()
    assert [int(one["stream_next_offset"]) for one in answers] == [1, 2]
    assert not any("created" in one for one in answers)
    assert both.run(lambda: both.members[1].engine.owned[1].group.has(name))
    assert not both.run(lambda: both.members[0].engine.owned[0].group.has(name))


# ---- snapshots --------------------------------------------------------------------------------------------------


def test_snapshots_are_published_where_their_streams_live__snapshots(both: TwoMembers) -> None:
    names = everywhere(both)
    bulk(both, 0, entries_of(names, "12345"))
    entries = [{"stream": name, "offset": 5, "body": name.encode()} for name in names]
    wrong = [{"stream": both.names(1, 2)[1], "offset": 0, "body": b"x"}, {"stream": "//", "offset": 0, "body": b"x"}]
    answers = publish(both, 1, [*entries, *wrong])
    assert statuses(answers) == [204, 204, 204, 204, 404, 400]
    assert sorted(both.blobs.kept.values()) == sorted(name.encode() for name in names)
    assert {key.split("/")[1] for key in both.blobs.kept} == {"0", "1", "2", "3"}


def test_a_process_that_is_away_gives_its_own_entries_that_answer_and_no_others__snapshots(both: TwoMembers) -> None:
    names = everywhere(both)
    bulk(both, 0, entries_of(names, "12345"))
    both.members[0].questions.away[1] = MemberUnavailable
    answers = publish(both, 0, [{"stream": name, "offset": 5, "body": b"x"} for name in names])
    assert statuses(answers) == [204, 503, 204, 503]


# ---- tail -------------------------------------------------------------------------------------------------------


def tail(connection: Any, query: str, after: str | None = None) -> Iterator[Any]:
    headers = {} if after is None else {"Last-Event-ID": after}
    stream = EventStream.open(connection, f"{TAIL}?{query}", headers)
    assert stream.head.status == 200, stream.head
    return iter(stream)


def data_of(event: Any) -> tuple[str, str]:
    return event.json()["stream"], event.json()["data"]


def groups_in(token: str) -> list[str]:
    return [part.partition(":")[0] for part in token.split(",")]


@pytest.mark.parametrize("member", [0, 1])
def test_one_connection_tells_of_every_group_and_of_streams_that_come_later__tail(
    both: TwoMembers, member: int
) -> None:
    early = everywhere(both)
    bulk(both, 0, entries_of(early, "early"))
    with both.connect(member) as connection:
        events = tail(connection, "bucket=town")
        opening = next(events)
        assert (opening.name, groups_in(opening.id)) == ("open", ["0", "1", "2", "3"])
        late = [both.names(group, 2)[1] for group in range(GROUPS)]
        bulk(both, 1, entries_of([*late, *early], "late") + entries_of(["other/s"]))
        found = [next(events) for _ in range(8)]
    assert sorted(map(data_of, found)) == sorted((name, "late") for name in [*late, *early])
    assert all(groups_in(event.id) == ["0", "1", "2", "3"] for event in found)


@pytest.mark.parametrize("resumed_at", [0, 1])
def test_a_resume_at_any_event_tells_the_rest_each_once_and_in_order__tail(both: TwoMembers, resumed_at: int) -> None:
    names = everywhere(both)
    for n in range(6):
        bulk(both, n % 2, [{"stream": name, "text": [f"{n}a", f"{n}b"], **TEXTS} for name in names])
    written = {name: [f"{n}{half}" for n in range(6) for half in "ab"] for name in names}
    with both.connect(0) as connection:
        events = tail(connection, "bucket=town&from=start")
        everything = [next(events) for _ in range(1 + 4 * 12)]
    for at, event in enumerate(everything):
        if not event.id:
            continue
        seen = [data_of(one) for one in everything[1 : at + 1]]
        with both.connect(resumed_at) as connection:
            events = tail(connection, "bucket=town", after=event.id)
            assert next(events).id == event.id
            seen += [data_of(next(events)) for _ in range(4 * 12 - at)]
        assert {name: [data for of, data in seen if of == name] for name in names} == written


@pytest.mark.parametrize("member", [0, 1])
def test_named_streams_have_to_exist_wherever_they_live__tail(both: TwoMembers, member: int) -> None:
    names = everywhere(both)
    bulk(both, 0, entries_of(names[:3]))
    query = "&".join(f"stream={name}" for name in names)
    refused = both.request(member, "GET", f"{TAIL}?{query}")
    assert (refused.status, refused.json()["error"]["code"]) == (404, "stream_not_found")
    bulk(both, 0, entries_of(names[3:]))
    with both.connect(member) as connection:
        events = tail(connection, query + "&from=start")
        assert sorted(data_of(event) for event in [next(events) for _ in range(5)][1:]) == [
            (name, "x") for name in sorted(names)
        ]
    until(lambda: [one.tails.open_count for one in both.members] == [0, 0])


@pytest.mark.parametrize("token", ["0:1", "0:1,1:1,2:1", "0:1,1:1,2:1,4:1", "0:1,0:1,1:1,2:1,3:1", "0:1,1:1,2:1,3:x"])
def test_a_token_that_is_not_of_these_groups_is_refused__tail(both: TwoMembers, token: str) -> None:
    assert both.request(0, "GET", f"{TAIL}?bucket=town&after={token}").status == 400


def test_a_member_that_is_away_is_told_at_once__tail(both: TwoMembers) -> None:
    both.run(both.members[1].leave())
    answer = both.request(0, "GET", f"{TAIL}?bucket=town")
    assert (answer.status, answer.json()["error"]["code"]) == (503, "member_unavailable")
    assert both.members[0].tails.open_count == 0


def test_a_member_that_goes_away_ends_the_connection_cleanly_and_a_resume_goes_on__tail(both: TwoMembers) -> None:
    names = everywhere(both)
    bulk(both, 0, entries_of(names, "before"))
    with both.connect(0) as connection:
        stream = EventStream.open(connection, f"{TAIL}?bucket=town&from=start")
        events = iter(stream)
        found = [next(events) for _ in range(5)]
        both.run(both.members[1].leave())
        assert next(events, None) is None
        assert stream.ended_cleanly
        assert connection.request("GET", f"{TAIL}?bucket=town").status == 503  # the connection itself goes on
    both.run(both.members[1].join())
    bulk(both, 0, entries_of(names, "after"))
    with both.connect(1) as connection:
        events = tail(connection, "bucket=town", after=found[-1].id)
        rest = [next(events) for _ in range(5)][1:]
    assert sorted(map(data_of, rest)) == sorted((name, "after") for name in names)


def test_a_client_that_does_not_read_holds_little_and_gets_everything_later__tail(both: TwoMembers) -> None:
    name = both.names(1, 1)[0]
    bulk(both, 1, entries_of([name], "begin"))
    size, count = 200_000, 150
    with both.connect(0, receive_buffer_bytes=4_096) as connection:
        events = tail(connection, "bucket=town")
        assert next(events).name == "open"
        for n in range(count):
            bulk(both, 1, [{"stream": name, "content_type": "text/plain", "text": [f"{n:06}" + "z" * size]}])

        def held() -> list[int]:
            streamers = [one.streamer for one in both.members[0].http.connections if one.streamer is not None]
            return [len(other._buffer) for streamer in streamers for other in streamer._others]  # type: ignore[attr-defined]

        def is_paused() -> bool:
            return any(one.paused for one in both.members[1].internal.connections)

        until(lambda: both.run(is_paused))
        assert max(both.run(held)) < 4 * size
        found = [data_of(next(events))[1][:6] for _ in range(count)]
    assert found == [f"{n:06}" for n in range(count)]


# ---- a node of two workers --------------------------------------------------------------------------------------


def test_two_workers_serve_requests_about_many_streams_like_one_node(tmp_path: Path) -> None:
    names = [f"town/s{n}" for n in range(12)]
    forks = [f"town/fork{n}" for n in range(12)]
    with Node.started(tmp_path, flags=["--workers", "2", "--groups", "4"]) as node:

        def send(path: str, body: bytes) -> list[int]:
            return statuses(node.request("POST", path, {}, body).json())

        assert send(APPEND, json.dumps(entries_of(names, "first")).encode()) == [204] * 12
        for name, fork in zip(names, forks, strict=True):
            headers = {"Content-Type": "text/plain", "Stream-Forked-From": f"/v1/stream/{name}"}
            assert node.request("PUT", f"/v1/stream/{fork}", headers).status == 201
        with node.connect() as connection:
            events = tail(connection, "bucket=town&from=start")
            opening = next(events)
            first = [next(events) for _ in range(12)]
            assert sorted(map(data_of, first)) == sorted((name, "first") for name in names)
            # A fork lives with its source, which may be in a group of the other worker.
            assert send(APPEND, json.dumps(entries_of([*forks, *names], "more")).encode()) == [204] * 24
            more = [next(events) for _ in range(24)]
            assert sorted(map(data_of, more)) == sorted((name, "more") for name in [*forks, *names])
        assert groups_in(opening.id) == groups_in(more[-1].id) == ["0", "1", "2", "3"]
        with node.connect() as connection:
            query = "&".join(f"stream={name}" for name in [*forks, *names])
            events = tail(connection, query, after=more[7].id)
            rest = [next(events) for _ in range(17)][1:]
        assert sorted(map(data_of, more[:8] + rest)) == sorted(map(data_of, more))
        snapshots = [{"stream": name, "offset": 5, "body": b"state"} for name in [*forks, *names]]
        assert send(SNAPSHOTS, msgspec.msgpack.encode(snapshots)) == [204] * 24
        assert node.terminate() == 0, node.output()
        assert "Traceback" not in node.stderr(), node.output()


# ---- owners that are not what they are taken for ------------------------------------------------------------------


@pytest.mark.parametrize("question", ["append_entries", "publish_snapshots"])
def test_what_was_sent_to_a_process_that_does_not_serve_it_is_refused_and_not_sent_on(
    both: TwoMembers, question: str
) -> None:
    (name,) = both.names(0, 1)
    entries: list[object] = [_Sent(Entry(name, 0, b"x"))]
    if question == "append_entries":
        entries = [_Wish(name, Append([b"x"], "text/plain"))]
    wrong = both.members[1].questions
    asked = wrong.ask(1, question, msgspec.to_builtins(entries, builtin_types=(bytes,)))
    assert codes(both.run(asked)) == ["not_served_here"]
    assert wrong.asked == []


def test_a_process_that_does_not_serve_a_name_does_not_say_that_it_lives_at_home__tail(both: TwoMembers) -> None:
    (name,) = both.names(0, 1)
    questions = both.members[1].questions
    with pytest.raises(GroupMoved):
        both.run(questions.ask(1, "tail_aliases", [name]))


def test_a_tail_is_not_opened_at_a_process_that_serves_other_groups_than_is_believed(both: TwoMembers) -> None:
    served = ",".join(str(group) for group in range(GROUPS) if group % 2)
    for groups, status in ((served, 200), ("1", 503), (served + ",0", 503)):
        assert both.run(opened(both, f"{TAIL}?bucket=town&prefix=&from=now&groups={groups}".encode())) == status


async def opened(both: TwoMembers, target: bytes) -> int:
    """The status with which the second process answers what the first one asks."""
    tail = MemberTail(1)
    try:
        await tail.open(both.members[0].members, target)
        return 200
    except Refused as refused:
        return refused.status
    finally:
        tail.close()
