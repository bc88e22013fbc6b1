"""All routers in one event loop: defined by the rules, durable, and at work where the directory group is served.
What one of them does is tested beside its worker."""

from __future__ import annotations

import asyncio

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.engine import Engine
from headwater.engine.recovery import Fold
from headwater.errors import RouterConflict, RouterNotFound
from headwater.model.labels import Labels
from headwater.model.routers import RouterConfig, TagFilter
from tests.engine import owned_on
from tests.support.processes import SyncingLog, until
from tests.topics.forwarding import World, play, turns


def test_definitions_outlive_a_kill_and_a_removal_does() -> None:
    async def body(world: World) -> None:
        await world.put("one")
        await world.routers.put("two", RouterConfig("town/a", "town/b"))
        await world.routers.remove("one")
        await world.restart(0)
        assert [one["router"] for one in await world.routers.all()] == ["two"]
        with pytest.raises(RouterNotFound):
            await world.routers.show("one")
        with pytest.raises(RouterNotFound):
            await world.routers.remove("one")

    play(body)


def test_of_two_definitions_at_once_for_one_dest_one_is_refused() -> None:
    async def body(world: World) -> None:
        found = await asyncio.gather(
            world.routers.put("one", RouterConfig("town/a", "town/c")),
            world.routers.put("two", RouterConfig("town/b", "town/c")),
            return_exceptions=True,
        )
        assert [isinstance(one, RouterConflict) for one in found] == [False, True]
        again, new = await world.routers.put("one", RouterConfig("town/a", "town/c"))
        assert not new and again["config"]["dest"] == "town/c"

    play(body)


def test_routers_are_at_work_where_the_directory_group_is_served() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put()
        await world.append(b"a")
        await world.until_copied(b"a")
        engine: Engine = world.processes[0].engine
        owned = engine.owned[0]
        engine.leave(0)
        assert world.routers.count == 0
        await world.append(b"b")
        await turns(50)
        assert world.copies() == [b"a"]
        engine.enter(owned)
        assert world.routers.count == 1
        await world.until_copied(b"a", b"b")

    play(body, 3)


def test_the_next_owner_of_the_directory_goes_on_where_the_last_one_was() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(tag_filter=TagFilter("t"))
        await world.append(b"a", labels=[Labels("t")])
        await world.until_copied(b"a")
        await world.append(b"b")
        await world.until_idle()
        world.worker.note_rest()
        await world.routers.durable()
        log = world.processes[0].owned[0].group.log
        world.processes[0].engine.leave(0)
        # The second process has followed the group's log, and takes it over.
        followed = SyncingLog(list(log.events))
        group = followed.group = world.processes.group_on(followed, SqliteCatalog(None), 0)
        owned = owned_on(group)
        fold = Fold(group)
        fold.feed(followed.replay())
        fold.finish()
        world.processes[1].engine.enter(owned)
        routers = world.processes[1].part.routers
        assert (routers.count, world.routers.count) == (1, 0)
        worker = routers._at_work["r"][0]
        assert worker.cursor == 2
        await world.append(b"c", labels=[Labels("t")])
        await world.until_copied(b"a", b"c")
        await routers.remove("r")

    play(body, 3)


def test_a_source_whose_group_left_and_came_back_is_followed_again() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put()
        await world.append(b"a")
        await world.until_copied(b"a")
        engine: Engine = world.processes[1].engine
        owned = engine.owned[1]
        engine.leave(1)
        await until(lambda: world.worker.trouble)
        engine.enter(owned)
        await world.append(b"b")
        await world.until_copied(b"a", b"b")

    play(body, 3)


def test_closing_ends_what_others_wait_for_here() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.append(b"a")
        await world.put()
        await world.until_copied(b"a")
        await until(lambda: world.processes[1].part.access._waiting)
        world.processes[1].part.access.close()
        await until(lambda: not world.processes[1].part.access._waiting)
        await until(lambda: world.worker.trouble)

    play(body, 3)


def test_any_process_finds_the_routers_that_name_a_topic() -> None:
    async def body(world: World) -> None:
        await world.put("from")
        await world.routers.put("to", RouterConfig("town/other", world.source))
        for part in world.processes.parts:
            assert await part.routers.named_by(world.source) == ["from", "to"]
            assert await part.routers.named_by(world.dest) == ["from"]
            assert await part.routers.named_by("town/none") == []

    play(body, 3)
