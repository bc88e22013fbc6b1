"""Counters and gauges as Prometheus text and as JSON.

Owns names and help texts. Never sits on a hot path: it reads plain ints when somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headwater.engine.questions import Questions
from headwater.errors import Failure

WITHIN_S = 5.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Gauge(msgspec.Struct, frozen=True):
    name: str
    help: str
    read: Callable[[], float]
    counts: bool = False
    """True for a number that only grows."""
    merge: Callable[[Iterable[float]], float] = sum
    """What the numbers of several processes come to."""


class Metrics:
    """One table of readings, exported in both forms, over all processes of the node. In a cluster a node is asked for
    its own numbers: whoever gathers them asks each."""

    def __init__(self, questions: Questions, in_cluster: bool = False) -> None:
        self._readings: list[Gauge] = []
        self._questions = questions
        self._is_whole = questions.alone or in_cluster
        """The node is this process."""
        questions.register("readings", self._answer)

    def add(self, *readings: Gauge) -> None:
        self._readings.extend(readings)

    async def _answer(self) -> dict[str, float]:
        return {reading.name: reading.read() for reading in self._readings}

    async def _values(self) -> dict[str, float]:
        if self._is_whole:
            return await self._answer()
        members = self._questions.everyone
        found = [values for values in await asyncio.gather(*map(self._of, members)) if values is not None]
        values = {
            reading.name: reading.merge([one[reading.name] for one in found if reading.name in one])
            for reading in self._readings
        }
        return values | {"workers": len(members), "workers_answering": len(found)}

    async def _of(self, member: int) -> dict[str, float] | None:
        try:
            asked = self._questions.ask(member, "readings", into=dict[str, int | float])
            found: dict[str, float] = await asyncio.wait_for(asked, WITHIN_S)
            return found
        except (Failure, TimeoutError):
            return None

    async def prometheus(self) -> tuple[int, str, bytes]:
        values = await self._values()
        registry = CollectorRegistry()
        registry.register(_Values(self._readings + _WORKERS, values))
        return 200, TEXT, generate_latest(registry)

    async def json(self) -> tuple[int, str, bytes]:
        return 200, "application/json", msgspec.json.encode(await self._values())


_WORKERS = [
    Gauge("workers", "Processes of the node.", lambda: 1),
    Gauge("workers_answering", "Processes of the node that answer; the other numbers are theirs.", lambda: 1),
]


class _Values:
    """As the Prometheus client collects them."""

    def __init__(self, readings: list[Gauge], values: dict[str, float]) -> None:
        self._readings = readings
        self._values = values

    def collect(self) -> Iterable[Metric]:
        for reading in self._readings:
            if reading.name in self._values:
                family = CounterMetricFamily if reading.counts else GaugeMetricFamily
                yield family(f"headwater_{reading.name}", reading.help, value=self._values[reading.name])
