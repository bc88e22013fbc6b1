"""Writes refused under pressure: topics architecture §7 (429 only when ingest is full and pressure is about 1), and
what such a refusal says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.config import Settings
from headwater.doors.http import failures
from headwater.doors.http.topics.records import Records, Writes
from headwater.errors import Failure, Throttled, row
from headwater.topics import admission
from headwater.topics.admission import Admission
from tests.engine import KEY, Bench, engine_on

HOT_BYTES_MAX = 1_000


class Pressed:
    """Deliveries, as far as they judge."""

    def __init__(self, retry_after_ms: int | None) -> None:
        self._retry_after_ms = retry_after_ms

    def retry_after_ms(self, ingest_full: bool) -> int | None:
        return self._retry_after_ms if ingest_full else None


class World:
    """A topic in a group that takes 1,000 bytes, under pressure."""

    def __init__(self, retry_after_ms: int | None) -> None:
        self.bench = Bench(hot_bytes_max=HOT_BYTES_MAX)
        self.bench.create()
        engine = engine_on(self.bench.group)
        pressed: Any = Pressed(retry_after_ms)
        self.admission = Admission(engine, pressed)
        self.records = Records(engine, Writes(engine, Settings()))
        self.records.admit = self.admission.demand

    def fill(self, size: int) -> None:
        self.bench.group.loaded.hot_bytes = size

    def write(self, more: bytes = b"") -> bytes | Failure | None:
        """What a write is told; None: nothing yet, because it waits for the log."""
        told: list[bytes | Failure] = []
        try:
            self.records.write(self.bench.group, KEY, b'{"records":[{"data":"x"}]%b}' % more, told.append)
        except Failure as failure:
            return failure
        self.bench.sync()
        return told[0] if told else None


def world_of(retry_after_ms: int | None = 1_500) -> World:
    async def made() -> World:
        return World(retry_after_ms)

    return asyncio.run(made())  # what reads the lake takes a loop; here there is no lake


def test_a_write_is_refused_only_when_there_is_pressure_and_no_room() -> None:
    free, full, calm = world_of(), world_of(), world_of(None)
    full.fill(HOT_BYTES_MAX * 7 // 8 + 1)
    calm.fill(HOT_BYTES_MAX * 7 // 8 + 1)
    assert isinstance(free.write(), bytes) and isinstance(calm.write(), bytes)
    assert isinstance(full.write(), Throttled)
    assert [world.admission.refused_count for world in (free, full, calm)] == [0, 1, 0]
    assert full.bench.group.find(KEY, False).count == 0


def test_a_log_that_is_behind_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    unwritten = world.bench.log
    assert isinstance(world.write(), bytes)
    monkeypatch.setattr(admission, "UNWRITTEN_BYTES_MAX", 10)
    unwritten.tail = unwritten.written + 10
    assert not admission.is_full(world.bench.group)
    unwritten.tail += 1
    assert admission.is_full(world.bench.group)
    assert isinstance(world.write(), Throttled)


def test_a_writer_that_will_not_be_held_back_is_taken_as_long_as_there_is_memory() -> None:
    world = world_of()
    world.fill(HOT_BYTES_MAX * 7 // 8 + 1)
    assert isinstance(world.write(b',"disable_backpressure":true'), bytes)
    world.fill(HOT_BYTES_MAX + 1)
    refused = world.write(b',"disable_backpressure":true')
    assert isinstance(refused, Failure) and row(refused).code == "overloaded"


def test_the_refusal_tells_when_to_come_again() -> None:
    refused = Throttled(1_500)
    assert (row(refused).status, row(refused).code, row(refused).no_effect) == (429, "throttled", True)
    assert failures.headers(refused) == [("Retry-After", "2")]
    assert failures.topic_error(refused)["detail"] == {"retryable": True, "retry_after_ms": 1_500}
