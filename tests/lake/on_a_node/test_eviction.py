"""Streams that left memory and come back: nobody may notice, whatever else the group keeps of them."""

from __future__ import annotations

import asyncio

from headwater.engine.checkpoint import checkpoint
from headwater.model.commands import Create
from tests.engine import Bench


def test_a_stream_with_an_expiry_may_be_unloaded_and_found_again() -> None:
    async def body() -> None:
        bench = Bench()
        keys = [f"_default/{number}" for number in range(8)]
        for key in keys:
            bench.submit(Create(key, "text/plain", [], expires_ms=9_000_000), key)
        bench.sync()
        await checkpoint(bench.group)
        for _ in range(3):
            for _ in range(2):
                bench.group.loaded.evict(0, 100)
            assert not bench.group.loaded.by_key
            for key in keys:
                assert bench.group.find(key, touch=False).deadline_ms == 9_000_000
        bench.clock.ms = 9_000_001
        assert bench.group.expire_due(100) == len(keys)

    asyncio.run(body())
