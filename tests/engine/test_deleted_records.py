"""Random histories with deletions by tag, by the beginning of a tag, by number and by chance: every way of reading
equals a list, wherever records are, and whatever was flushed, checkpointed or restarted meanwhile."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.deletions import KEYS, TAGS, World

pytestmark = pytest.mark.usefixtures("quick_disk")

EXAMPLES = int(os.environ.get("HEADWATER_HISTORIES", "30"))
keys = st.sampled_from(KEYS)
picks = st.integers(0, 40)
matches = st.none() | st.tuples(st.sampled_from(["Eq", "Glob"]), st.sampled_from(["x", "xy", "y", "z", ""]))
appends = st.tuples(
    st.just("append"),
    keys,
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.lists(st.sampled_from(TAGS), min_size=1, max_size=4),
)
deletes = st.one_of(
    st.tuples(st.just("delete"), keys, matches, st.none() | picks),
    st.tuples(st.just("delete_some"), keys, st.lists(picks, min_size=1, max_size=6)),
)
others = st.one_of(
    st.tuples(st.just("trim"), keys, st.integers(0, 4)),
    st.tuples(st.just("fork"), st.sampled_from(KEYS[:3]), picks),
    st.tuples(st.just("flush"), st.sampled_from([1, 30, 1 << 20])),
    st.just(("retain",)),
    st.just(("checkpoint",)),
    st.just(("restart",)),
)
steps = st.sampled_from([appends, appends, deletes, others, others]).flatmap(lambda kind: kind)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(steps, min_size=8, max_size=30), st.integers(1, 6))
def test_every_way_of_reading_equals_a_list(history: list[Any], often: int) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as directory:
            world = World(Path(directory))
            try:
                await world.create()
                for number, (what, *arguments) in enumerate(history):
                    waiting = getattr(world, what)(*arguments)
                    if waiting is not None:
                        await waiting
                    if number % often == 0:
                        await world.check()
                await world.check()
                world.restart()
                await world.check()
            finally:
                world.close()

    asyncio.run(play())
