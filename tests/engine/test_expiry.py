"""Windows and deadlines: streams end when their time is over, reads and writes restart a sliding one, cheaply.
The clock is the test's."""

from __future__ import annotations

import pytest

from headwater.errors import StreamNotFound
from headwater.model.commands import Append, Create
from headwater.model.events import Created, Deleted, Touched
from tests.engine import KEY, Bench, Ear

TTL_MS = 160_000


def sliding(ttl_ms: int = TTL_MS) -> Bench:
    bench = Bench()
    bench.create(ttl_ms=ttl_ms)
    return bench


def touches(bench: Bench) -> list[int]:
    return [event.at_ms for _, event in bench.log.events if isinstance(event, Touched)]


def test_a_sliding_window_ends_when_nobody_came() -> None:
    bench = sliding()
    bench.clock.ms += TTL_MS - 1
    assert bench.read() == b""
    bench.clock.ms += 1
    with pytest.raises(StreamNotFound):
        bench.read()
    assert isinstance(bench.log.events[-1][1], Deleted) and bench.log.events[-1][1].expired


@pytest.mark.parametrize(
    "use",
    [
        lambda bench: bench.group.find(KEY, touch=True),
        lambda bench: bench.post(),
        lambda bench: bench.post(seq=0),
        lambda bench: bench.submit(Create(KEY, "text/plain", [], ttl_ms=TTL_MS)),
    ],
    ids=["read", "append", "duplicate", "repeated create"],
)
def test_every_use_restarts_a_sliding_window(use) -> None:
    bench = sliding()
    bench.post(seq=0)
    bench.sync()
    for _ in range(3):
        bench.clock.ms += TTL_MS - 1
        use(bench)
        bench.sync()
    bench.clock.ms += TTL_MS
    with pytest.raises(StreamNotFound):
        bench.group.find(KEY, touch=True)


def test_a_look_at_the_metadata_restarts_nothing() -> None:
    bench = sliding()
    bench.clock.ms += TTL_MS - 1
    bench.group.find(KEY, touch=False)
    bench.clock.ms += 1
    with pytest.raises(StreamNotFound):
        bench.group.find(KEY, touch=False)


def test_a_refused_append_restarts_nothing() -> None:
    bench = sliding()
    bench.clock.ms += TTL_MS - 1
    bench.post(seq=5)
    bench.clock.ms += 1
    with pytest.raises(StreamNotFound):
        bench.read()


def test_an_absolute_expiry_never_moves() -> None:
    bench = Bench()
    expires_ms = bench.clock.ms + 1_000
    bench.submit(Create(KEY, None, [], expires_ms=expires_ms))
    bench.sync()
    bench.clock.ms = expires_ms - 1
    bench.post()
    bench.sync()
    bench.group.find(KEY, touch=True)
    bench.clock.ms = expires_ms
    with pytest.raises(StreamNotFound):
        bench.group.find(KEY, touch=True)
    assert touches(bench) == []


def test_reads_of_a_sliding_stream_are_logged_coarsely() -> None:
    bench = sliding()
    began_ms = bench.clock.ms
    for _ in range(TTL_MS // 1_000):
        bench.clock.ms += 1_000
        bench.group.find(KEY, touch=True)
    # A sixteenth of the window apart: so much may be lost in a crash, and no more.
    assert touches(bench) == [began_ms + TTL_MS // 16 * step for step in range(1, 17)]
    assert not any(bench.log.syncs[position] for position, event in bench.log.events if isinstance(event, Touched))


def test_reads_of_a_short_window_are_logged_at_most_once_a_second() -> None:
    bench = sliding(2_000)
    for _ in range(100):
        bench.clock.ms += 100
        bench.group.find(KEY, touch=True)
    assert len(touches(bench)) == 10


def test_duplicates_keep_a_window_open_over_a_restart_like_reads_do() -> None:
    bench = sliding()
    bench.post(seq=0)
    bench.sync()
    bench.clock.ms += TTL_MS // 2
    bench.post(seq=0)
    assert touches(bench) == [bench.clock.ms]


def test_a_clock_that_steps_back_expires_nothing_and_logs_no_touch() -> None:
    bench = sliding()
    bench.clock.ms -= 10_000_000
    bench.group.find(KEY, touch=True)
    assert touches(bench) == [] and bench.group.expire_due(10) == 0


def test_a_command_for_an_expired_stream_finds_none_and_a_create_makes_a_new_one() -> None:
    bench = sliding()
    bench.post(b"old")
    bench.sync()
    bench.clock.ms += TTL_MS
    append = bench.submit(Append([b"late"]))
    create = bench.submit(Create(KEY, "text/plain", [b"new"]))
    assert append.waits and create.waits
    bench.sync()
    assert isinstance(append.outcome, StreamNotFound) and isinstance(create.outcome, Created)
    assert bench.read() == b"new"
    assert sum(isinstance(event, Deleted) for _, event in bench.log.events) == 1


def test_upkeep_expires_what_is_due_and_nothing_else() -> None:
    bench = Bench()
    for number in range(10):
        bench.create(f"_default/{number}", ttl_ms=1_000 * (number + 1))
    bench.create("_default/kept")
    ear = Ear()
    bench.group.follow(bench.group.find("_default/0", touch=False), ear)
    bench.clock.ms += 5_000
    assert bench.group.expire_due(3) == 3
    assert bench.group.expire_due(10) == 2
    assert bench.group.expire_due(10) == 0
    assert ear.gone_count == 0
    bench.sync()
    assert ear.gone_count == 1
    assert sorted(bench.group.loaded.by_key) == [f"_default/{number}" for number in range(5, 10)] + ["_default/kept"]


def test_upkeep_passes_over_streams_that_were_used_or_deleted_meanwhile() -> None:
    bench = Bench()
    for name in ("used", "deleted", "idle"):
        bench.create(f"_default/{name}", ttl_ms=1_000)
    bench.clock.ms += 900
    bench.post(key="_default/used")
    bench.sync()
    bench.clock.ms += 100
    assert bench.group.expire_due(10) == 2
    bench.clock.ms += 899
    assert bench.group.expire_due(10) == 0
    bench.clock.ms += 1
    assert bench.group.expire_due(10) == 1
    bench.sync()
    assert bench.group.loaded.by_key == {}
