"""A group that goes from owner to owner: what one of them told a reader, the next one answers for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.doors.http.admin.lake import catch_up
from headwater.engine.checkpoint import checkpoint
from headwater.errors import AnotherLog, LogSetBack
from headwater.spark.node import Seen
from tests.engine.changing_owners import World, in_a_world

KEYS = ("_default/r", "_default/s")


async def fill(world: World) -> None:
    for key in KEYS:
        await world.append(key)
    await world.owner.flusher.flush_all()


def test_positions_are_of_the_same_log_for_every_owner(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        told: list[Seen] = []
        for name in ("b", "a", "a", "c", "b", "c"):
            group = world.owner.group
            for seen in told:
                group.lineage.check(*seen, group.log.synced)
            # What a reader has from this owner, at its beginning and later.
            told.append(Seen(group.lineage.log, group.lineage.newest.id, group.log.synced))
            await fill(world)
            told.append(Seen(group.lineage.log, group.lineage.newest.id, group.log.synced))
            state = world.owner.owned.state()
            assert state["log"] == told[0].log and state["incarnations"][-1][0] == told[-1].incarnation
            await world.change_owner(name)
        group = world.owner.group
        assert len({seen.incarnation for seen in told}) == 6 and len({seen.log for seen in told}) == 1
        newest = told[-1]
        with pytest.raises(LogSetBack):  # that owner never had it
            group.lineage.check(newest.log, newest.incarnation, newest.position + 1, group.log.synced)
        with pytest.raises(AnotherLog):
            group.lineage.check("another", newest.incarnation, 0, group.log.synced)

    in_a_world(tmp_path, body)


def test_the_next_owner_knows_the_files_and_streams_that_the_one_before_it_told_of(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await fill(world)
        await checkpoint(world.owner.group)
        told = world.owner.extents()
        b = await world.change_owner("b")
        assert told and not b.extents(), "so far it has them in memory alone"
        await catch_up(b.group)
        assert b.extents() == told
        position = b.group.catalog.position
        await world.append(KEYS[0])
        await catch_up(b.group)
        assert b.group.catalog.position == position, "once is enough"

    in_a_world(tmp_path, body)
