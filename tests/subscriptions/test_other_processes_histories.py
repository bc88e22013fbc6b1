"""Random histories of two processes: streams grow, go and come back, workers work, processes die and cannot be reached.
Whatever happened, in the end every subscription knows of all work there is, and of no stream that is gone."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headwater.errors import Failure
from tests.subscriptions.player import Player
from tests.subscriptions.two_processes import HERE, THERE, World, play
from tests.support.processes import until

STEPS = 120
FAULTS = ["cut", "heal", "restart here", "restart there", "lose", "find"]


class FailingPlayer(Player):
    def __init__(self, world: World, seed: int, groups_count: int) -> None:
        super().__init__(world, seed, groups_count, world.processes.named)

    async def fault(self) -> None:
        world = self.world
        match self.random.choice(FAULTS):
            case "cut":
                world.wire.cut.add(self.random.choice([HERE, THERE]))
            case "heal":
                world.wire.cut.clear()
            case "restart here":
                await world.restart(HERE)
            case "restart there":
                await world.restart(THERE)
            case "lose":
                world.wire.losing.add("subscriptions_news")
            case "find":
                world.wire.losing.clear()

    def wrong(self) -> list[str]:
        """What the subscription does not know, or knows and is not so."""
        sub, found = self.world.sub, []
        for path in self.paths:
            engine = self.world.processes[self.world.processes.engine.home(path) % 2].engine
            stream, link = engine.look(path), sub.links.get(path)
            if stream is None:
                if link is not None and link.sid:
                    found.append(f"{path} is gone and linked")
            elif stream.visible and (link is None or link.sid != stream.sid):
                found.append(f"{path} is there and not linked")
            elif link is not None and stream.visible > link.acked and path not in sub.pending:
                found.append(f"{path} has work and is not pending")
        return found


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_all_work_is_known_in_the_end(seed: int) -> None:
    groups_count = 2 + 2 * (seed % 2)

    async def body(world: World) -> None:
        player = FailingPlayer(world, seed, groups_count)
        await world.subscribe(streams=player.named)
        for _ in range(STEPS):
            with suppress(Failure):
                await player.step()
        world.wire.losing.clear()
        world.wire.cut.clear()
        await until(lambda: not player.wrong())
        await world.manager.show(world.id)
        assert player.wrong() == []

    play(groups_count, body)
