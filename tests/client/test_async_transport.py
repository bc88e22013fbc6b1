"""Plans on other event loops than asyncio's own, and what closing a client does.
What the plans do is held by the tests of streams, topics and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from headwater.client import AsyncHeadwater
from tests.client.conftest import IMPATIENT
from tests.client.faulty_proxy import LoseAnswer, LoseRequest, Proxy


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_any_event_loop_carries_plans_out(
    run: Callable[[Coroutine[Any, Any, Any]], Any], lossy: Proxy, name: str
) -> None:
    async def used() -> tuple[list[Any], list[Any]]:
        done: list[Any] = []
        async with AsyncHeadwater(lossy.url, retries=IMPATIENT) as hw:
            topic, queue = hw.topic(name), hw.queue(f"{name}-jobs")
            await topic.create()
            for number in range(5):
                await topic.write(number)
            await queue.ensure()
            await queue.put_many(list("abc"))

            @queue.worker(max_jobs=3)
            async def collect(job: Any) -> None:
                done.append(job.data)

            await collect.serve()
            return [record.data async for record in topic.records()], done

    lossy.faults.extend([LoseAnswer(), LoseRequest()] * 4)
    assert run(used()) == ([0, 1, 2, 3, 4], ["a", "b", "c"])


def test_a_closed_client_sends_nothing_more(topics_url: str, name: str) -> None:
    async def closed() -> None:
        hw = AsyncHeadwater(topics_url)
        await hw.topic(name).create()
        await hw.close()
        with pytest.raises(RuntimeError, match="closed"):
            await hw.topic(name).config()

    asyncio.run(closed())
