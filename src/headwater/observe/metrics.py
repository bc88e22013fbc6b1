"""Counters, gauges and histograms as Prometheus text and as JSON, over all processes of a node.

Owns the shapes of readings and how those of several processes come together. Never sits on a hot path: it reads plain
ints when somebody asks.

    Gauge      one number                                        name
    ByLabel    a number for each of a bounded set of things      name{label="..."}
    Timing     a histogram of seconds                            name_bucket{le="..."}, name_sum, name_count

A Gauge that is told by worker is shown once more for each process, as `worker_` and its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headwater.engine.questions import Questions
from headwater.errors import Failure
from headwater.histogram import BOUNDS_S, Histogram

WITHIN_S = 5.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "headwater_"
Value = Any
"""What a reading comes to: a number, numbers by label, or `{"counts": [...], "sum": s}`. As msgpack has it."""


class Gauge(msgspec.Struct, frozen=True):
    name: str
    help: str
    read: Callable[[], float]
    counts: bool = False
    """True for a number that only grows."""
    merge: Callable[[Iterable[float]], float] = sum
    """What the numbers of several processes come to."""
    by_worker: bool = False

    def value(self) -> Value:
        return self.read()

    def merged(self, values: list[Value]) -> Value:
        return self.merge(values)

    def family(self, value: Value) -> Metric:
        kind = CounterMetricFamily if self.counts else GaugeMetricFamily
        return kind(PREFIX + self.name, self.help, value=value)

    def shown(self, value: Value) -> object:
        return value


class ByLabel(msgspec.Struct, frozen=True):
    name: str
    help: str
    label: str
    read: Callable[[], dict[str, float]]
    """Whoever reads it has a bound for how many there are."""
    counts: bool = False

    def value(self) -> Value:
        return self.read()

    def merged(self, values: list[Value]) -> Value:
        found: dict[str, float] = {}
        for value in values:
            for label, number in value.items():
                found[label] = found.get(label, 0) + number
        return found

    def family(self, value: Value) -> Metric:
        kind = CounterMetricFamily if self.counts else GaugeMetricFamily
        family = kind(PREFIX + self.name, self.help, labels=[self.label])
        for label in sorted(value, key=_by_number):
            family.add_metric([label], value[label])
        return family

    def shown(self, value: Value) -> object:
        return value


class Timing(msgspec.Struct, frozen=True):
    name: str
    help: str
    read: Callable[[], Iterable[Histogram]]
    """They are added up. All have the same buckets."""

    def value(self) -> Value:
        found = list(self.read())
        counts = [sum(column) for column in zip(*(one.counts for one in found), strict=True)]
        return {"counts": counts or [0] * (len(BOUNDS_S) + 1), "sum": sum(one.sum_s for one in found)}

    def merged(self, values: list[Value]) -> Value:
        counts = [sum(column) for column in zip(*(value["counts"] for value in values), strict=True)]
        return {"counts": counts, "sum": sum(value["sum"] for value in values)}

    def family(self, value: Value) -> Metric:
        bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(value["counts"]), strict=True))
        return HistogramMetricFamily(PREFIX + self.name, self.help, buckets=buckets, sum_value=value["sum"])

    def shown(self, value: Value) -> object:
        """Counts of each bucket alone; the last one has no bound."""
        return {"le": list(BOUNDS_S), "counts": value["counts"], "count": sum(value["counts"]), "sum": value["sum"]}


Reading = Gauge | ByLabel | Timing


class Metrics:
    """One table of readings, exported in both forms, over all processes of the node. In a cluster a node is asked for
    its own numbers: whoever gathers them asks each."""

    def __init__(self, questions: Questions, in_cluster: bool = False) -> None:
        self._readings: list[Reading] = []
        self._questions = questions
        self._is_whole = questions.alone or in_cluster
        """The node is this process."""
        questions.register("readings", self._answer)

    def add(self, *readings: Reading) -> None:
        self._readings.extend(readings)

    async def _answer(self) -> dict[str, Value]:
        return {reading.name: reading.value() for reading in self._readings}

    async def _values(self) -> dict[str, Value]:
        members = [self._questions.me] if self._is_whole else list(self._questions.everyone)
        answers = await asyncio.gather(*map(self._of, members))
        found = {member: values for member, values in zip(members, answers, strict=True) if values is not None}
        merged = {}
        for reading in self._readings:
            values = [one[reading.name] for one in found.values() if reading.name in one]
            if values:
                merged[reading.name] = reading.merged(values)
            if isinstance(reading, Gauge) and reading.by_worker:
                numbers = {str(member): one[reading.name] for member, one in found.items() if reading.name in one}
                merged[f"worker_{reading.name}"] = numbers
        if not self._is_whole:
            merged |= {"workers": len(members), "workers_answering": len(found)}
        return merged

    async def _of(self, member: int) -> dict[str, Value] | None:
        if self._is_whole:
            return await self._answer()
        try:
            asked = self._questions.ask(member, "readings", into=dict[str, Any])
            found: dict[str, Value] = await asyncio.wait_for(asked, WITHIN_S)
            return found
        except (Failure, TimeoutError):
            return None

    def _table(self) -> list[Reading]:
        by_worker = [
            ByLabel(f"worker_{one.name}", f"{one.help} By process.", "worker", dict, one.counts)
            for one in self._readings
            if isinstance(one, Gauge) and one.by_worker
        ]
        return [*self._readings, *by_worker, *_WORKERS]

    async def prometheus(self, accept: bytes = b"") -> tuple[int, str, bytes]:
        values = await self._values()
        registry = CollectorRegistry()
        registry.register(_Values(self._table(), values))
        return 200, TEXT, generate_latest(registry)

    async def json(self, accept: bytes = b"") -> tuple[int, str, bytes]:
        values = await self._values()
        shown = {one.name: one.shown(values[one.name]) for one in self._table() if one.name in values}
        return 200, "application/json", msgspec.json.encode(shown)


_WORKERS = [
    Gauge("workers", "Processes of the node.", lambda: 1),
    Gauge("workers_answering", "Processes of the node that answer; the other numbers are theirs.", lambda: 1),
]


def _by_number(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdecimal() else (0, label)


class _Values:
    """As the Prometheus client collects them."""

    def __init__(self, readings: list[Reading], values: dict[str, Value]) -> None:
        self._readings = readings
        self._values = values

    def collect(self) -> Iterable[Metric]:
        for reading in self._readings:
            if reading.name in self._values:
                yield reading.family(self._values[reading.name])
