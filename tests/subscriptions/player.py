"""Someone who works with a subscription at random: streams grow, go and come back, and its work is claimed and done.
Which faults come in between is that of each test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from headwater.errors import Failure
from headwater.model import offsets
from headwater.subscriptions.manager import Bearer


class Player:
    def __init__(self, world: Any, seed: int, groups_count: int, named: Callable[[int, str], str]) -> None:
        """`named` makes a name that lives in a group."""
        self.world = world
        self.random = random.Random(seed)
        self.paths = [
            named(group, f"{prefix}{letter}")
            for group in range(groups_count)
            for prefix, letter in (("events/", "a"), ("events/", "b"), ("other/", "c"))
        ]
        self.named = tuple(path for path in self.paths if path.startswith("other/"))

    async def step(self) -> None:
        world, path = self.world, self.random.choice(self.paths)
        match self.random.choice(["put", "append", "append", "append", "delete", "work", "work", "turn", "fault"]):
            case "put":
                await world.put(path, *[b"one"] * self.random.randrange(2))
            case "append":
                await world.append(path)
            case "delete":
                await world.delete(path)
            case "work":
                await self.work()
            case "turn":
                await asyncio.sleep(self.random.choice([0, 0, 0.001]))
            case "fault":
                await self.fault()

    async def work(self) -> None:
        claim = await self.world.claim()
        bearer = Bearer(claim.token, claim.wake_id, claim.generation)
        acks = [(info.path, offsets.parse(info.tail_offset)) for info in claim.streams if info.has_pending]
        if self.random.random() < 0.5:
            await asyncio.sleep(0)
        try:
            await self.world.manager.acknowledge(self.world.id, bearer, acks, True)
        except Failure:
            await self.world.manager.release(self.world.id, bearer)

    async def fault(self) -> None:
        raise NotImplementedError
