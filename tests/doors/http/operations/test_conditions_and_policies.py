"""Beyond the spec: conditional appends, durability classes and what they report, and retention by policy.
What a policy lets go must be announced: 410 with the earliest offset, on every way to read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.model.timeline import RECORD_BYTES
from tests.doors.http.extensions.surface import BYTES, JSON, TEXT, WAIT_S, Stream, fresh_name, next_offset, token
from tests.doors.http.operations.conftest import New
from tests.support.http import EventStream
from tests.support.node import Node
from tests.support.waiting import until


def etag_of(stream: Stream) -> str:
    found = stream.head().header("etag")
    assert found is not None
    return found


# --- If-Match -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [TEXT, JSON, BYTES, {"Content-Type": "image/png"}])
def test_an_append_that_names_the_present_tail_is_accepted__if_match(new: New, headers: dict[str, str]) -> None:
    stream = new(headers)
    for n in range(3):
        answer = stream.node.request("POST", stream.path, headers | {"If-Match": etag_of(stream)}, b"%d" % n)
        assert (answer.status, next_offset(answer)) == (204, token(n + 1))


@pytest.mark.parametrize("headers", [TEXT, JSON, BYTES])
def test_an_append_that_names_another_tail_is_412_with_the_present_one__if_match(
    new: New, headers: dict[str, str]
) -> None:
    stream = new(headers)
    stale = etag_of(stream)
    stream.append(b"1")
    answer = stream.node.request("POST", stream.path, headers | {"If-Match": stale}, b"2")
    assert answer.status == 412
    assert answer.header("etag") == etag_of(stream)
    assert stream.node.request("POST", stream.path, headers | {"If-Match": etag_of(stream)}, b"3").status == 204
    assert len(stream.read().body) in (2, len(b"[1,3]"))


@pytest.mark.parametrize("value", ['"nonsense"', "nonsense", '""', 'W/"x"', ""])
def test_an_if_match_that_names_nothing_is_412__if_match(new: New, value: str) -> None:
    stream = new()
    assert stream.node.request("POST", stream.path, TEXT | {"If-Match": value}, b"x").status == 412
    assert stream.read().body == b""


LISTED = ['"other", {etag}', '{etag}, "other"', '"a","b",{etag}']


@pytest.mark.parametrize("form", ["*", *LISTED])
def test_a_star_or_a_list_matches_as_http_says__if_match(new: New, form: str) -> None:
    stream = new()
    headers = TEXT | {"If-Match": form.format(etag=etag_of(stream))}
    assert stream.node.request("POST", stream.path, headers, b"x").status == 204


def test_the_tail_of_a_former_stream_does_not_match__if_match(new: New) -> None:
    stream = new()
    former = etag_of(stream)
    assert stream.delete().status == 204
    assert stream.create().status == 201
    assert stream.node.request("POST", stream.path, TEXT | {"If-Match": former}, b"x").status == 412


def test_of_many_writers_that_saw_the_same_tail_exactly_one_wins__if_match(new: New, node: Node) -> None:
    stream = new()
    for turn in range(5):
        etag = etag_of(stream)
        ready = threading.Barrier(8)

        def write(name: int, etag: str = etag, ready: threading.Barrier = ready) -> int:
            with node.connect() as connection:
                ready.wait()
                return connection.request("POST", stream.path, TEXT | {"If-Match": etag}, b"%d" % name).status

        with ThreadPoolExecutor(8) as writers:
            statuses = sorted(writers.map(write, range(8)))
        assert statuses == [204] + [412] * 7
        assert len(stream.read().body) == turn + 1


def test_a_producers_retry_is_a_duplicate_not_a_conflict__if_match(new: New) -> None:
    stream = new()
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0", "If-Match": etag_of(stream)}
    assert stream.node.request("POST", stream.path, TEXT | producer, b"x").status == 200
    assert stream.node.request("POST", stream.path, TEXT | producer, b"x").status == 204
    assert stream.read().body == b"x"


def test_a_refused_condition_leaves_producer_and_sequence_as_they_were__if_match(new: New) -> None:
    stream = new()
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0", "Stream-Seq": "5"}
    headers = TEXT | producer
    assert stream.node.request("POST", stream.path, headers | {"If-Match": '"x"'}, b"x").status == 412
    assert stream.node.request("POST", stream.path, headers | {"If-Match": etag_of(stream)}, b"x").status == 200


def test_a_conditional_close_needs_the_tail_too__if_match(new: New) -> None:
    stream = new()
    stale = etag_of(stream)
    stream.append(b"x")
    close = {"Stream-Closed": "true"}
    assert stream.node.request("POST", stream.path, close | {"If-Match": stale}).status == 412
    assert stream.head().header("stream-closed") is None
    assert stream.node.request("POST", stream.path, close | {"If-Match": etag_of(stream)}).status == 204
    assert etag_of(stream) != stale


def test_the_etag_of_the_tail_outlives_the_process__if_match(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        stream = Stream(node, "/v1/stream/s", TEXT)
        assert stream.create(b"x").status == 201
        etag = etag_of(stream)
        node.restart()
        assert etag_of(stream) == etag
        assert node.request("POST", stream.path, TEXT | {"If-Match": etag}, b"y").status == 204


# --- durability classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["fsync", "disk", "memory", "FSYNC"])
def test_an_append_reports_the_durability_it_reached__durability(new: New, level: str) -> None:
    stream = new(TEXT, None, stream_durability=level)
    for headers in ({}, {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}, {"Stream-Closed": "true"}):
        answer = stream.node.request("POST", stream.path, TEXT | headers, b"x")
        assert answer.header("stream-durability") == level.lower()
    assert stream.head().header("stream-durability") == level.lower()
    assert stream.read().body == b"xxx"


def test_a_stream_is_fsync_unless_it_asks_for_less__durability(new: New) -> None:
    assert new().head().header("stream-durability") == "fsync"


@pytest.mark.parametrize("level", ["disk", "memory"])
def test_the_default_class_is_a_setting__durability(tmp_path: Path, level: str) -> None:
    with Node.started(tmp_path, flags=("--durability", level)) as node:
        stream = Stream(node, "/v1/stream/s", TEXT)
        assert stream.create().status == 201
        assert stream.head().header("stream-durability") == level
        other = Stream(node, "/v1/stream/t", TEXT)
        assert other.create(stream_durability="fsync").status == 201
        assert other.head().header("stream-durability") == "fsync"


def test_a_node_that_keeps_nothing_never_claims_more_than_memory__durability(tmp_path: Path) -> None:
    with Node.started(tmp_path, memory=True) as node:
        stream = Stream(node, "/v1/stream/s", TEXT)
        assert stream.create(stream_durability="fsync").status == 201
        answer = node.request("POST", stream.path, TEXT, b"x")
        assert answer.header("stream-durability") == "memory"
        assert stream.head().header("stream-durability") == "memory"


@pytest.mark.parametrize("level", ["", "none", "fsync,disk", "quorum-ish"])
def test_an_unknown_class_is_400__durability(nowhere: Stream, level: str) -> None:
    assert nowhere.create(stream_durability=level).status == 400


def test_written_data_survives_a_killed_process_and_creations_always_do__durability(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        streams = {level: Stream(node, f"/v1/stream/{level}", TEXT) for level in ("fsync", "disk", "memory")}
        for level, stream in streams.items():
            assert stream.create(stream_durability=level).status == 201
            for n in range(20):
                stream.append(b"%02d;" % n)
        node.restart()
        whole = b"".join(b"%02d;" % n for n in range(20))
        assert streams["fsync"].read().body == whole
        assert streams["disk"].read().body == whole
        kept = streams["memory"].read().body
        assert whole.startswith(kept)
        for level, stream in streams.items():
            assert stream.head().header("stream-durability") == level
            stream.append(b"after")


# --- retention ----------------------------------------------------------------------------------------------


def eventually(check: Callable[[], bool], why: Callable[[], object]) -> None:
    until(check, why, WAIT_S)


def await_earliest(stream: Stream, offset: str) -> None:
    eventually(lambda: stream.head().header("stream-earliest-offset") == offset, lambda: stream.head())


def filled(new: New, count: int, **policy: str) -> Stream:
    """A stream of `count` records of four bytes."""
    stream = new(TEXT, None, **policy)
    for n in range(count):
        stream.append(b"%03d;" % n)
    return stream


POLICIES = [
    ({"stream_retention_records": "3"}, 7),
    ({"stream_retention_bytes": "12"}, 7),
    ({"stream_retention_bytes": "15"}, 7),
    ({"stream_retention_bytes": "1"}, 9),
    ({"stream_retention_bytes": "1000", "stream_retention_records": "2"}, 8),
    ({"stream_retention_bytes": "8", "stream_retention_records": "5"}, 8),
    ({"stream_retention_age": "3600", "stream_retention_records": "1"}, 9),
]


@pytest.mark.parametrize(("policy", "dropped"), POLICIES)
def test_a_policy_lets_go_of_the_oldest_and_says_so__retention(new: New, policy: dict[str, str], dropped: int) -> None:
    stream = filled(new, 10, **policy)
    earliest = stream.ends[dropped - 1]
    await_earliest(stream, earliest)
    kept = b"".join(b"%03d;" % n for n in range(dropped, 10))
    assert stream.read(earliest).body == kept
    for live in ("", "long-poll", "sse"):
        for offset in ("-1", token(0), stream.ends[dropped - 2]):
            answer = stream.read(offset, live)
            assert (answer.status, answer.header("stream-earliest-offset")) == (410, earliest)


def test_a_stream_within_its_policy_keeps_everything__retention(new: New) -> None:
    stream = filled(new, 3, stream_retention_records="3", stream_retention_bytes="12", stream_retention_age="3600")
    other = filled(new, 4, stream_retention_records="3")
    await_earliest(other, other.ends[0])  # whatever is applied at all has been applied by now
    assert stream.read().body == b"000;001;002;"


def test_old_records_go_when_their_age_comes__retention(new: New) -> None:
    stream = filled(new, 3, stream_retention_age="1")
    await_earliest(stream, stream.ends[2])
    assert stream.read().status == 410
    stream.append(b"new;")
    assert stream.read(stream.ends[2]).body == b"new;"
    await_earliest(stream, stream.ends[3])


def test_a_policy_holds_for_initial_content_too__retention(new: New) -> None:
    stream = new(JSON, b"[1,2,3,4,5]", stream_retention_records="2")
    other = filled(new, 4, stream_retention_records="3")
    await_earliest(other, other.ends[0])
    assert stream.head().header("stream-earliest-offset") == token(3)


def test_age_goes_on_counting_after_a_restart__retention(tmp_path: Path) -> None:
    with Node.started(tmp_path) as node:
        stream = Stream(node, "/v1/stream/aged", TEXT)
        assert stream.create(stream_retention_age="2").status == 201
        stream.append(b"old;")
        node.restart()
        witness = Stream(node, "/v1/stream/witness", TEXT)
        assert witness.create(stream_retention_age="2").status == 201
        witness.append(b"younger;")
        await_earliest(witness, witness.ends[0])
        assert stream.head().header("stream-earliest-offset") == stream.ends[0]


def test_a_follower_at_the_tail_sees_every_record_of_a_short_policy__retention(new: New, node: Node) -> None:
    stream = new(TEXT, None, stream_retention_records="1")
    with node.connect() as connection:
        events = iter(EventStream.open(connection, f"{stream.path}?offset=now&live=sse"))
        assert next(events).name == "control"
        for n in range(20):
            stream.append(b"%d" % n)
            assert next(events).data == str(n)
            assert next(events).json()["streamNextOffset"] == stream.ends[-1]


def test_what_a_policy_let_go_stays_gone_after_a_kill__retention(tmp_path: Path) -> None:
    with Node.started(tmp_path, flags=("--checkpoint-interval-ms", "50")) as node:
        stream = Stream(node, "/v1/stream/kept", TEXT)
        assert stream.create(stream_retention_records="2").status == 201
        for n in range(6):
            stream.append(b"%d;" % n)
        await_earliest(stream, stream.ends[3])
        for _ in range(2):
            node.restart()
            assert stream.head().header("stream-earliest-offset") == stream.ends[3]
            assert stream.read().status == 410
            assert stream.read(stream.ends[3]).body == b"4;5;"
        stream.append(b"6;")
        await_earliest(stream, stream.ends[4])
        assert stream.create(stream_retention_records="2").status == 200
        assert stream.create(stream_retention_records="3").status == 409


def test_memory_held_by_a_policed_stream_does_not_grow_with_what_went_through_it__retention(node: Node) -> None:
    stream = Stream(node, f"/v1/stream/ops/{fresh_name('s')}", BYTES)
    assert stream.create(stream_retention_bytes="1000000").status == 201

    def hot_bytes() -> int:
        return node.request("GET", "/__headwater/metrics").json()["hot_bytes"]

    before = hot_bytes()
    for _ in range(8):
        stream.append(b"x" * 1_000_000)
    eventually(lambda: hot_bytes() - before <= 1_000_000 + RECORD_BYTES, hot_bytes)
    assert stream.head().header("stream-earliest-offset") == token(7_000_000)


def test_a_snapshot_and_a_policy_both_move_the_earliest_offset__retention(new: New) -> None:
    bucketed = Stream(new().node, f"/_default/{fresh_name('s')}", TEXT)
    assert bucketed.create(stream_retention_records="3").status == 201
    for n in range(3):
        bucketed.append(b"%d;" % n)
    assert bucketed.publish(bucketed.ends[1], b"0;1;").status == 204
    assert bucketed.head().header("stream-earliest-offset") == bucketed.ends[1]
    for n in range(3, 5):
        bucketed.append(b"%d;" % n)
    other = filled(new, 4, stream_retention_records="3")
    await_earliest(other, other.ends[0])
    assert bucketed.head().header("stream-earliest-offset") == bucketed.ends[1]
    assert bucketed.read(bucketed.ends[1]).body == b"2;3;4;"
