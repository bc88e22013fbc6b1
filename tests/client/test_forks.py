"""A client in a process that was forked, and on one event loop after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from headwater.client import AsyncHeadwater, Headwater, Producer


def in_child(act: Callable[[], None]) -> bool:
    """Whether it went through without an exception."""
    pid = os.fork()
    if not pid:
        done = 1
        try:
            act()
            done = 0
        finally:
            os._exit(done)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_every_write_of_every_process_is_stored(topics_url: str, name: str) -> None:
    with Headwater(topics_url) as hw:
        topic = hw.topic(name)
        topic.create()
        assert not topic.write("parent").repeated

        def write() -> None:
            assert [topic.write(n).repeated for n in range(3)] == [False] * 3

        assert in_child(write) and in_child(write)
        write()
        assert [record.data for record in topic.records()] == ["parent", 0, 1, 2, 0, 1, 2, 0, 1, 2]  # type: ignore[union-attr]


def test_a_lock_that_another_thread_had_is_free_after_a_fork(topics_url: str, name: str) -> None:
    with Headwater(topics_url) as hw:
        topic = hw.topic(name)
        topic.create()
        producer = topic._plans.producer
        assert producer is not None
        with producer.lock, hw._plans._producers._lock, topic._transport._lock:
            assert in_child(lambda: None if not hw.topic(name).write(1).repeated else os._exit(1))


def test_an_id_that_was_chosen_stays() -> None:
    chosen, own = Producer("import-7", epoch=2, seq=5), Producer()
    own.accepted()
    before = own.id

    def compare() -> None:
        assert chosen.stamp() == ("import-7", 2, 5)
        assert own.id != before and own.seq == 0

    assert in_child(compare)
    assert own.id == before and own.seq == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_asynchronous_client_works_on_one_loop_after_another(topics_url: str, name: str) -> None:
    hw = AsyncHeadwater(topics_url)

    async def writes() -> list[bool]:
        topic = hw.topic(name)
        await topic.ensure()
        return [one.repeated for one in await asyncio.gather(*(topic.write(n) for n in range(5)))]

    assert asyncio.run(writes()) == asyncio.run(writes()) == [False] * 5
    asyncio.run(hw.close())
