"""Streams through both clients, against a real node, with and without a proxy that loses what it is told to.
Each test has streams of its own; the node is shared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headwater.client import (
    NO_RETRIES,
    AsyncHeadwater,
    BadRequest,
    Chunk,
    Closed,
    Conflict,
    Gone,
    Headwater,
    NotFound,
    Producer,
    Retries,
    SequenceConflict,
    TooLarge,
    Unavailable,
)
from tests.client.conftest import IMPATIENT, Connect
from tests.client.faulty_proxy import LoseAnswer, LoseRequest, Proxy, faulty_proxy
from tests.client.serving import Told
from tests.support.node import Node
from tests.support.tcp_wire import TcpWire


@pytest.fixture
def hw(connect: Connect, node: Node) -> Any:
    return connect(node.url)


@pytest.fixture
def proxy(node: Node) -> Iterator[Proxy]:
    with faulty_proxy(node.url) as proxy:
        yield proxy


def messages(chunks: Iterator[Chunk]) -> list[Any]:
    return [message for chunk in chunks for message in chunk]


def test_json_messages_come_back_as_they_were_appended(hw: Any, name: str) -> None:
    log = hw.stream(name)
    assert log.create() is True
    assert log.create() is False
    sent = [{"a": 1}, [1, 2], "text", None, 3.5, [], b'{"raw": true}']
    for message in sent:
        assert not log.append(message).repeated
    assert messages(log.read()) == [*sent[:-1], {"raw": True}]


def test_bytes_and_text_come_back_as_they_were_appended(hw: Any, name: str) -> None:
    log = hw.stream(name)
    log.create("text/plain", data="first ")
    hw.stream(name).append("höher ")
    log.append(b"last", close=True)
    assert b"".join(chunk.data for chunk in log.read()) == "first höher last".encode()


def test_reading_goes_on_at_the_offset_of_a_chunk(hw: Any, name: str) -> None:
    log = hw.stream(name)
    log.create(data=1)
    (chunk,) = log.read()
    assert (chunk.messages, chunk.up_to_date, chunk.closed) == ([1], True, False)
    appended = log.append(2)
    (chunk,) = log.read(chunk.next_offset)
    assert chunk.messages == [2]
    assert chunk.next_offset == appended.next_offset
    assert list(log.read(chunk.next_offset)) == []


def test_many_records_are_few_requests(connect: Connect, proxy: Proxy, name: str) -> None:
    log = connect(proxy.url).stream(name)
    log.create()
    log.append_many(range(2_500))
    assert messages(log.read()) == list(range(2_500))
    assert sum(line.startswith("POST") for line in proxy.seen) == 3
    assert log.append_many([]) is None


def test_many_records_of_bytes_are_one_request_each(hw: Any, name: str) -> None:
    log = hw.stream(name)
    log.create("application/octet-stream")
    log.append_many([b"a", b"b", b"c"])
    assert b"".join(chunk.data for chunk in log.read()) == b"abc"


def test_a_body_above_the_size_of_a_socket_buffer_arrives_whole(hw: Any, name: str) -> None:
    log = hw.stream(name)
    log.create("application/octet-stream")
    large = bytes(range(256)) * (16 * 1024)
    log.append(large)
    assert b"".join(chunk.data for chunk in log.read()) == large


def test_head_tells_what_a_stream_is(hw: Any, name: str) -> None:
    log = hw.stream(name)
    log.create("text/plain", ttl_s=3_600, durability="memory", data="abc")
    head = log.head()
    assert (head.content_type, head.ttl_s, head.durability, head.closed) == ("text/plain", 3_600, "memory", False)
    assert head.next_offset == f"{3:020}"
    assert log.close() == head.next_offset
    assert log.head().closed


def test_a_fixed_end_and_retention_are_kept(hw: Any, name: str) -> None:
    log = hw.stream(name)
    end = datetime(2090, 1, 31, 12, tzinfo=UTC)
    log.create(expires_at=end, retention_records=2)
    offsets = [log.append(number).next_offset for number in (1, 2, 3, 4)]
    assert log.head().expires_at == end
    while log.head().earliest_offset != offsets[1]:
        pass  # The node applies the policy a few times a second.
    with pytest.raises(Gone) as gone:
        list(log.read(offsets[0]))
    assert messages(log.read(gone.value.detail["earliest_offset"])) == [3, 4]


def test_failures_are_told_by_their_kind(hw: Any, name: str) -> None:
    log = hw.stream(name)
    for attempt in (log.head, log.delete, lambda: log.append(1), lambda: list(log.read())):
        with pytest.raises(NotFound) as missing:
            attempt()
        assert missing.value.code == "stream_not_found"
    log.create()
    with pytest.raises(Conflict):
        log.create("text/plain")
    with pytest.raises(BadRequest):
        list(log.read("nonsense"))
    log.append({"last": True}, close=True)
    with pytest.raises(Closed) as closed:
        log.append(1)
    assert closed.value.code == "stream_closed" and closed.value.status == 409
    assert closed.value.detail["next_offset"] == log.head().next_offset
    log.delete()
    with pytest.raises(NotFound):
        log.head()


def test_data_that_the_stream_cannot_hold_is_refused_before_it_is_sent(hw: Any, name: str) -> None:
    hw.stream(name).create()
    with pytest.raises(ValueError, match="not one JSON message"):
        hw.stream(name).append(b"1, 2")
    hw.stream(f"{name}-bytes").create("text/plain")
    with pytest.raises(TypeError, match="bytes or text"):
        hw.stream(f"{name}-bytes").append({"a": 1})
    with pytest.raises(ValueError, match="time zone"):
        hw.stream(name).create(expires_at=datetime(2090, 1, 1))


def test_a_body_that_is_too_large_is_told_from_a_lost_connection(connect: Connect, tmp_path: Path, name: str) -> None:
    with Node.started(tmp_path, memory=True, flags=["--body-bytes-max", "1MiB"]) as small:
        log = connect(small.url).stream(name)
        log.create("application/octet-stream")
        with pytest.raises(TooLarge):
            log.append(b"x" * (8 * 1024 * 1024))
        log.append(b"small")
        assert b"".join(chunk.data for chunk in log.read()) == b"small"


# --- what a lost connection does ------------------------------------------------------------------------------


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("fault", [LoseAnswer(), LoseRequest(), Told(503, [("Retry-After", "0")])])
def test_an_append_whose_attempt_fails_is_stored_once(
    connect: Connect, proxy: Proxy, fault: Any, close: bool, name: str
) -> None:
    log = connect(proxy.url).stream(name)
    log.create(data=0)
    proxy.meant = lambda method, path: method == "POST"
    proxy.faults.extend([fault, fault])
    appended = log.append(1, close=close)
    assert appended.repeated is (fault == LoseAnswer())
    assert appended.closed is close
    if not close:
        log.append(2)
    assert messages(log.read()) == ([0, 1] if close else [0, 1, 2])


def test_every_answer_to_many_appends_may_be_lost(connect: Connect, proxy: Proxy, name: str) -> None:
    log = connect(proxy.url).stream(name)
    log.create()
    proxy.meant = lambda method, path: method == "POST"
    for number in range(20):
        proxy.faults.extend([LoseAnswer(), LoseRequest()])
        log.append(number)
    assert messages(log.read()) == list(range(20))


def test_after_an_unknown_outcome_the_next_append_is_not_taken_for_a_repetition(
    connect: Connect, proxy: Proxy, name: str
) -> None:
    log = connect(proxy.url, retries=NO_RETRIES).stream(name)
    log.create()
    proxy.meant = lambda method, path: method == "POST"
    for fault in (LoseAnswer(), LoseRequest()):
        proxy.faults.append(fault)
        with pytest.raises(Unavailable) as lost:
            log.append({"lost": type(fault).__name__})
        assert lost.value.code == "connection_lost" and lost.value.outcome_unknown
        log.append("next")
    assert messages(log.read()) == [{"lost": "LoseAnswer"}, "next", "next"]


def test_a_stream_that_was_deleted_and_made_again_takes_appends(hw: Any, name: str) -> None:
    log = hw.stream(name)
    for _ in range(2):
        log.create()
        log.append_many([1])
        log.append(2)
        assert messages(log.read()) == [1, 2]
        log.delete()


def test_a_stream_made_again_takes_appends_of_a_producer_in_a_later_epoch(
    connect: Connect, proxy: Proxy, name: str
) -> None:
    log = connect(proxy.url, retries=NO_RETRIES).stream(name, content_type="application/json")
    log.create()
    proxy.faults.append(LoseAnswer())
    with pytest.raises(Unavailable):
        log.append("lost")
    for message in (1, 2, 3):
        log.append(message)
    log.delete()
    log.create()
    log.append(4)
    log.append(5)
    assert messages(log.read()) == [4, 5]


def test_two_handles_of_a_client_share_the_numbers(hw: Any, name: str) -> None:
    hw.stream(name).create()
    for number in range(3):
        assert not hw.stream(name).append(number).repeated
    assert messages(hw.stream(name).read()) == [0, 1, 2]


def test_a_producer_that_was_given_recognises_the_work_of_an_earlier_run(hw: Any, name: str) -> None:
    hw.stream(name).create()
    for expected in (False, True):
        run = hw.stream(name, producer=Producer("import"))
        assert [run.append(number).repeated for number in range(3)] == [expected] * 3
    with pytest.raises(SequenceConflict) as gap:
        hw.stream(name, producer=Producer("import", seq=9)).append(9)
    assert gap.value.detail["producer_expected_seq"] == "3"
    assert messages(hw.stream(name).read()) == [0, 1, 2]


def test_a_deletion_whose_answer_was_lost_is_a_deletion(connect: Connect, proxy: Proxy, name: str) -> None:
    log = connect(proxy.url).stream(name)
    log.create()
    proxy.faults.append(LoseAnswer())
    log.delete()
    with pytest.raises(NotFound):
        log.delete()


def test_without_producers_a_lost_append_is_not_sent_again(connect: Connect, proxy: Proxy, name: str) -> None:
    log = connect(proxy.url, idempotent=False).stream(name)
    log.create()
    proxy.meant = lambda method, path: method == "POST"
    proxy.faults.extend([Told(503, [], b'{"error":{"code":"overloaded","message":"full"}}'), LoseAnswer()])
    with pytest.raises(Unavailable) as lost:
        log.append(1)
    assert lost.value.outcome_unknown
    assert messages(log.read()) == [1]


def test_a_node_that_is_not_there_is_waited_for_until_patience_ends(connect: Connect) -> None:
    with faulty_proxy("http://127.0.0.1:1") as gone:
        pass
    with pytest.raises(Unavailable) as why:
        connect(gone.url, retries=Retries(total_s=0.05, pause_s_first=0.01)).stream("x").head()
    assert why.value.code == "unreachable" and not why.value.outcome_unknown


def test_appends_of_many_threads_are_all_stored_once(node: Node, name: str) -> None:
    with faulty_proxy(node.url) as proxy, Headwater(proxy.url, retries=IMPATIENT) as hw:
        hw.stream(name).create()
        proxy.meant = lambda method, path: method == "POST"
        proxy.faults.extend([LoseAnswer(), LoseRequest()] * 20)
        threads = [
            threading.Thread(target=lambda part=part: [hw.stream(name).append([part, n]) for n in range(10)])
            for part in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        stored = messages(hw.stream(name).read())
    assert sorted(stored) == [[part, n] for part in range(8) for n in range(10)]
    for part in range(8):
        assert [n for owner, n in stored if owner == part] == list(range(10))


def test_appends_of_many_tasks_are_all_stored_once(node: Node, name: str) -> None:
    async def together(url: str) -> list[Any]:
        async with AsyncHeadwater(url, retries=IMPATIENT) as hw:
            await hw.stream(name).create()
            await asyncio.gather(*(hw.stream(name).append(number) for number in range(50)))
            return [message async for chunk in hw.stream(name).read() for message in chunk]

    with faulty_proxy(node.url) as proxy:
        proxy.meant = lambda method, path: method == "POST"
        proxy.faults.extend([LoseAnswer(), LoseRequest()] * 20)
        assert sorted(asyncio.run(together(proxy.url))) == list(range(50))


def test_an_append_that_is_cancelled_disturbs_no_later_one(node: Node, name: str) -> None:
    async def cancelled() -> list[Any]:
        wire = TcpWire(node.port)
        await wire.listen()
        async with AsyncHeadwater(f"http://127.0.0.1:{wire.port}", retries=IMPATIENT) as hw:
            log = hw.stream(name)
            await log.create()
            wire.answering.clear()
            attempt = asyncio.create_task(log.append("first"))
            async with AsyncHeadwater(node.url) as beside:
                while (await beside.stream(name).head()).next_offset == f"{0:020}":
                    pass
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            wire.answering.set()
            await log.append("second")
            stored = [message async for chunk in log.read() for message in chunk]
        await wire.close()
        return stored

    assert asyncio.run(cancelled()) == ["first", "second"]


# --- following ------------------------------------------------------------------------------------------------


def test_a_tail_goes_on_after_lost_connections_and_ends_with_the_stream(
    connect: Connect, node: Node, proxy: Proxy, name: str
) -> None:
    log, writer = connect(proxy.url).stream(name), Headwater(node.url).stream(name)
    writer.create(data=0)
    proxy.meant = lambda method, path: "live=" in path
    seen: list[Any] = []
    for chunk in log.tail("-1"):
        seen += chunk
        proxy.faults.extend([LoseAnswer(), LoseRequest(), Told(503)])
        if len(seen) < 5:
            writer.append(len(seen))
        else:
            writer.close()
    assert seen == [0, 1, 2, 3, 4]


def test_a_tail_from_now_begins_where_the_stream_ended_when_it_began(
    connect: Connect, node: Node, proxy: Proxy, name: str
) -> None:
    writer = Headwater(node.url).stream(name)
    writer.create(data="before")

    @dataclass
    class AppendAtFirstPoll:
        done: bool = False

        def __call__(self, method: str, path: str) -> bool:
            if "live=" in path and not self.done:
                self.done = True
                writer.append("after", close=True)
            return False

    proxy.meant = AppendAtFirstPoll()
    proxy.faults.append(LoseRequest())
    assert messages(connect(proxy.url).stream(name).tail()) == ["after"]


def test_a_tail_of_a_deleted_stream_ends_with_not_found(hw: Any, name: str) -> None:
    log = hw.stream(name)
    log.create(data=1)
    following = log.tail("-1")
    assert next(following).messages == [1]
    log.delete()
    with pytest.raises(NotFound):
        next(following)


def test_appends_and_a_tail_live_through_a_node_that_is_killed(connect: Connect, tmp_path: Path, name: str) -> None:
    with Node.started(tmp_path) as node:
        node.listen = f"127.0.0.1:{node.port}"
        hw = connect(node.url)
        log = hw.stream(name)
        log.create()
        log.append(0)
        following = log.tail("-1")
        assert next(following).messages == [0]
        node.restart()
        log.append(1)
        assert next(following).messages == [1]
        assert messages(log.read()) == [0, 1]
