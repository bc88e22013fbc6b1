"""Random histories of a group with its lake, held after every step against streams that are plain lists.
Restarts, crashes amid a flush or a swap of files, checkpoints and evictions are steps like any other: nobody may
notice them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from headwater.lake.lake import DeltaLake
from headwater.lake.local import LocalStore
from headwater.ports import SystemRng
from tests.engine import HandClock
from tests.lake.on_a_node.swap_world import SwapListLake, SwapWorld, rewriting
from tests.lake.on_a_node.world import World

pytestmark = pytest.mark.usefixtures("quick_disk")

EXAMPLES = int(os.environ.get("HEADWATER_HISTORIES", "80"))
KEYS = ("a/one", "a/two", "b/one", "b/two/deep")
quietly = settings(
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Step:
    what: str
    arguments: tuple[Any, ...] = ()

    async def run(self, world: World) -> None:
        arguments = [one.bound(world) if isinstance(one, Step) else one for one in self.arguments]
        waiting = getattr(world, self.what)(*arguments)
        if waiting is not None:
            await waiting

    def bound(self, world: World) -> Callable[[], Awaitable[None]]:
        return lambda: self.run(world)


def step(what: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(*arguments).map(lambda given: Step(what, given))


keys = st.sampled_from(KEYS)
picks = st.integers(0, 20)
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=3)
rarely = st.sampled_from([False] * 9 + [True])
file_bytes = st.sampled_from([1, 10, 40, 200])

creates = step("create", keys, st.lists(st.integers(1, 20), max_size=2), st.booleans(), rarely)
appends = step("append", keys, sizes, rarely)
forks = step("fork", keys, keys, st.none() | picks, st.sampled_from([0, 0, 1, 2, 30]), st.just([]) | sizes)
lets_go = step("let_go", keys, picks, st.booleans())
deletes = step("delete", keys)
flushes = step("flush", file_bytes)
meanwhile = st.one_of(appends, lets_go, deletes, forks, creates, step("checkpoint"))
amid = step("flush_amid", file_bytes, meanwhile)
swaps = st.one_of(step("swap", picks), step("swap_amid", picks, meanwhile), step("torn_swap", picks))
others = st.one_of(
    step("flush_all"),
    step("flush_stream", keys, file_bytes),
    step("checkpoint"),
    step("restart"),
    step("torn_flush", file_bytes),
    step("evict"),
    step("walk", st.sampled_from([1, 10_000, 60_000])),
)
steps = st.sampled_from(
    [creates] * 2
    + [appends] * 10
    + [forks] * 3
    + [lets_go] * 2
    + [deletes]
    + [flushes] * 5
    + [amid] * 2
    + [others] * 6
    + [swaps] * 3
).flatmap(lambda kind: kind)
first = [Step("create", (key, [5], index == 1, False)) for index, key in enumerate(KEYS[:3])]
histories = st.lists(st.tuples(steps, picks, st.sampled_from([1, 12, 40])), min_size=20, max_size=50)


async def play(world: World, history: list[tuple[Step, int, int]]) -> None:
    note(str([one for one, _, _ in history]))
    try:
        for one in first:
            await one.run(world)
        for one, pick, bytes_max in history:
            await one.run(world)
            await world.check(pick, bytes_max)
        world.restart()
        await world.check(3, 25)
        await world.check_table()
        await world.checkpoint()
        world.restart()
        await world.check(7, 25)
    finally:
        world.close()


def on_lists(history: list[tuple[Step, int, int]]) -> None:
    async def body(directory: Path) -> None:
        lake = SwapListLake()
        await play(SwapWorld(directory, lake, lake.rows, lake.rewrite), history)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))


@pytest.mark.timeout(300)
@settings(quietly, max_examples=EXAMPLES)
@given(histories)
def test_a_read_through_memory_lake_and_forks_equals_one_of_a_list(history: list[tuple[Step, int, int]]) -> None:
    on_lists(history)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_other_histories_equal_their_lists() -> None:
    number = int(os.environ.get("HEADWATER_HISTORIES_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"repeat with HEADWATER_HISTORIES_SEED={number}")
    examples = int(os.environ.get("HEADWATER_HISTORIES", "2000"))
    search = settings(quietly, max_examples=examples, derandomize=False, database=None)
    seed(number)(search(given(histories)(on_lists)))()


@settings(quietly, max_examples=15)
@given(histories)
def test_a_real_table_of_real_files_equals_the_lists_too(history: list[tuple[Step, int, int]]) -> None:
    async def body(directory: Path) -> None:
        place = directory / "lake"

        def rows() -> list[tuple[int, int, int, bytes]]:
            if not place.exists():
                return []
            columns = ("incarnation", "seq", "offset", "payload")
            table = DeltaTable(place).to_pyarrow_table(columns=list(columns))
            return list(zip(*(table[name].to_pylist() for name in columns), strict=True))

        lake = DeltaLake(LocalStore(place), 1 << 20, HandClock(), SystemRng())
        await play(SwapWorld(directory, lake, rows, rewriting(place)), history)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))
