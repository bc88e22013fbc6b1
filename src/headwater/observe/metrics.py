"""Counters and gauges as Prometheus text and as JSON.

Owns names and help texts. Never sits on a hot path: it reads plain ints when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Gauge(msgspec.Struct, frozen=True):
    name: str
    help: str
    read: Callable[[], float]
    counts: bool = False
    """True for a number that only grows."""


class Metrics:
    """One table of readings, exported in both forms."""

    def __init__(self) -> None:
        self._readings: list[Gauge] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, *readings: Gauge) -> None:
        self._readings.extend(readings)

    def collect(self) -> Iterable[Metric]:
        for reading in self._readings:
            family = CounterMetricFamily if reading.counts else GaugeMetricFamily
            yield family(f"headwater_{reading.name}", reading.help, value=reading.read())

    def prometheus(self) -> tuple[int, str, bytes]:
        return 200, TEXT, generate_latest(self._registry)

    def json(self) -> tuple[int, str, bytes]:
        values = {reading.name: reading.read() for reading in self._readings}
        return 200, "application/json", msgspec.json.encode(values)
