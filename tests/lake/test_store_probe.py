"""Trying out a store: what ends a start, what does not, and how it is tried again.
The probe is a list of outcomes; the pauses between attempts are cut short."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from headwater.lake import store_probe as module
from headwater.lake.store import StoreRefused, StoreUnavailable
from headwater.lake.store_probe import StoreProbe


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S_MIN", 0.001)
    monkeypatch.setattr(module, "AGAIN_S_MAX", 0.001)


class Probe:
    """Raises its outcomes one after the other, and returns from then on."""

    def __init__(self, *outcomes: Exception) -> None:
        self.outcomes: Iterator[Exception] = iter(outcomes)
        self.calls_count = 0

    def __call__(self) -> None:
        self.calls_count += 1
        for outcome in self.outcomes:
            raise outcome


def _ignored(_: object) -> None: ...


async def healed(store_probe: StoreProbe) -> None:
    while store_probe.failure is not None:
        await asyncio.sleep(0.001)


def test_a_store_that_works_is_tried_once() -> None:
    async def play() -> None:
        probe = Probe()
        store_probe = StoreProbe(probe, said.append)
        await store_probe.start()
        assert store_probe.failure is None and probe.calls_count == 1
        await store_probe.stop()

    said: list[str] = []
    asyncio.run(play())
    assert not said


def test_a_refusal_ends_the_start() -> None:
    async def play() -> None:
        store_probe = StoreProbe(Probe(StoreRefused("no such bucket")), said.append)
        with pytest.raises(StoreRefused, match="no such bucket"):
            await store_probe.start()
        await store_probe.stop()

    said: list[str] = []
    asyncio.run(play())


def test_a_store_that_is_away_is_tried_until_it_is_back_and_each_reason_is_told_once() -> None:
    async def play() -> None:
        away = [StoreUnavailable("nobody answers")] * 3
        probe = Probe(*away, StoreRefused("no permission"), StoreRefused("no permission"))
        store_probe = StoreProbe(probe, said.append)
        await store_probe.start()
        assert store_probe.failure is not None and "nobody answers" in store_probe.failure
        await healed(store_probe)
        assert probe.calls_count == 6
        await store_probe.stop()

    said: list[str] = []
    asyncio.run(play())
    assert ["nobody answers" in said[0], "no permission" in said[1], len(said)] == [True, True, 2]


def test_a_store_that_says_nothing_holds_up_neither_start_nor_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S_MAX", 0.01)
    answer = threading.Event()

    async def play(heals: bool) -> None:
        store_probe = StoreProbe(lambda: _ignored(answer.wait(60)), said.append)
        await store_probe.start()
        assert store_probe.failure is not None and "no answer" in store_probe.failure
        if heals:
            answer.set()
            await healed(store_probe)
        await store_probe.stop()

    said: list[str] = []
    asyncio.run(play(heals=False))
    asyncio.run(play(heals=True))
    assert len(said) == 2
