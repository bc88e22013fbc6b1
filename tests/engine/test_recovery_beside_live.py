"""Random histories with checkpoints at random moments, then a restart: what comes back is what was there.
The live group is the oracle; what it must itself be right about is tested elsewhere."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from headwater.engine.checkpoint import checkpoint
from tests.engine import HandClock
from tests.engine.histories import Node, Step, check_sums, copy, histories, run, state

pytestmark = pytest.mark.usefixtures("quick_disk")
# Shrinking a history of restarts takes longer than a test may: what failed is printed step by step as it is.
quietly = settings(
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(quietly, max_examples=80)
@given(histories)
def test_a_group_recovered_after_a_crash_is_the_group_that_crashed(history: list[Step]) -> None:
    async def body(directory: Path) -> None:
        clock = HandClock()
        live = Node(directory / "live", clock)
        try:
            for step in history:
                await run(step, live)
            await live.settle()
            expected = state(live)
            check_sums(live)
            copy(directory / "live", directory / "copy")
            recovered = Node(directory / "copy", clock)
            try:
                assert state(recovered) == expected
                check_sums(recovered)
            finally:
                recovered.close()
        finally:
            live.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))


@settings(quietly, max_examples=15)
@given(histories, histories)
def test_a_group_goes_on_after_a_restart_as_if_there_had_been_none(before: list[Step], after: list[Step]) -> None:
    async def body(directory: Path) -> None:
        clocks = HandClock(), HandClock()
        restarted, steady = Node(directory / "restarted", clocks[0]), Node(directory / "steady", clocks[1])
        for step in before:
            await run(step, restarted)
            await run(step, steady)
        await restarted.settle()
        await checkpoint(restarted.group)
        restarted.close()
        restarted = Node(directory / "restarted", clocks[0])
        await steady.settle()
        for step in after:
            await run(step, restarted)
            await run(step, steady)
        await restarted.settle()
        await steady.settle()
        try:
            assert without_places(state(restarted)) == without_places(state(steady))
        finally:
            restarted.close()
            steady.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))


PLACES = ("position", "lost_position", "lost_at", "records")


def without_places(found: dict) -> dict:
    """A state without log positions: a restart writes other marks and coarser touches into the log than none."""
    return {
        name: value
        if not isinstance(value, dict) or "records" not in value
        else {field: part for field, part in value.items() if field not in PLACES}
        | {"records": [record[:4] + record[5:] for record in value["records"]]}
        for name, value in found.items()
    }
