"""Checkpoints: what is written is true for one position and durable before; what fails is tried again; what is
needed stays in the log. The log moves by hand, the catalog is real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine import checkpoint as module
from headwater.engine import group
from headwater.engine.checkpoint import checkpoint
from headwater.errors import Overloaded
from headwater.model.commands import Append, Create, Delete, Fork, Trim
from headwater.model.stream import Unchanged
from headwater.ports import Change
from tests.engine import KEY, Bench
from tests.engine.histories import Notes


class SlowCatalog(SqliteCatalog):
    """A catalog that remembers what it was handed, and can refuse it."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(None)
        self.before = before
        self.changes: list[Change] = []

    def write(self, change: Change) -> None:
        self.before()
        self.changes.append(change)
        super().write(change)


async def take(bench: Bench) -> int:
    """A checkpoint, with the log synced as soon as it asks for that."""
    task = asyncio.create_task(checkpoint(bench.group))
    while not task.done():
        await asyncio.sleep(0)
        if not task.done():
            bench.sync()
    return await task


def test_a_checkpoint_waits_until_everything_it_tells_of_is_synced() -> None:
    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        bench.create()
        bench.post(b"pending")
        task = asyncio.create_task(checkpoint(bench.group))
        for _ in range(20):
            await asyncio.sleep(0)
        bench.write()
        await asyncio.sleep(0)
        assert not task.done() and catalog.changes == []
        bench.sync()
        assert await task == 2  # the stream and its bucket
        assert catalog.position == bench.log.tail
        row = catalog.load(KEY)
        assert row is not None and (row.tail, row.position) == (7, bench.log.tail)

    asyncio.run(body())


def test_nothing_changed_is_nothing_written() -> None:
    async def body() -> None:
        bench = Bench(catalog=SlowCatalog())
        assert await take(bench) == 0
        bench.create()
        assert await take(bench) == 2
        assert await take(bench) == 0

    asyncio.run(body())


def test_a_deleted_stream_leaves_the_catalog_and_its_name_is_free() -> None:
    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        bench.create()
        await take(bench)
        old = catalog.load(KEY)
        bench.submit(Delete())
        bench.submit(Create(KEY, "text/html", []))
        bench.sync()
        await take(bench)
        new = catalog.load(KEY)
        assert old is not None and new is not None and new.sid > old.sid
        assert catalog.load_sid(old.sid) is None and bench.group.loaded.removed == {}

    asyncio.run(body())


def test_changes_under_a_checkpoint_are_in_it_whole_or_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_STREAMS", 1)
    keys = [f"_default/{number}" for number in range(5)]

    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        for key in keys:
            bench.create(key)
        task = asyncio.create_task(checkpoint(bench.group))
        for turn in range(4):
            await asyncio.sleep(0)
            bench.post(b"%d" % turn, keys[0])
            bench.post(b"%d" % turn, keys[4])
            if turn == 2:
                bench.submit(Delete(), keys[1])
        while not task.done():
            await asyncio.sleep(0)
            bench.sync()
        (change,) = catalog.changes
        # All rows speak of the same moment: none is newer than the position, none misses an event below it.
        events = [(position, event) for position, event in bench.log.events if position <= change.position]
        for row in change.rows:
            newest = max(position for position, event in events if getattr(event, "sid", None) == row.sid)
            assert row.position == newest
        await take(bench)
        assert catalog.load(keys[1]) is None
        row = catalog.load(keys[4])
        assert row is not None and row.tail == 4

    asyncio.run(body())


def test_a_failed_write_is_made_up_for_by_the_next_checkpoint() -> None:
    async def body() -> None:
        def fail() -> None:
            raise OSError("no room for the catalog")

        catalog = SlowCatalog(fail)
        bench = Bench(catalog=catalog)
        notes = bench.group.domains["notes"] = Notes()
        bench.create()
        bench.create("_default/deleted")
        bench.submit(Delete(), "_default/deleted")
        bench.group.note("notes", b"a=1")
        bench.sync()
        with pytest.raises(OSError, match="no room"):
            await take(bench)
        assert catalog.position == 0 and bench.log.trims == []
        catalog.before = lambda: None
        await take(bench)
        assert catalog.load(KEY) is not None and catalog.load("_default/deleted") is None
        assert catalog.load_things("notes") == {"a": b"1"} == notes.values
        bucket = catalog.load_bucket("_default")
        assert bucket is not None and bucket.count == 1

    asyncio.run(body())


@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_that_is_cancelled_while_it_is_written_ends_with_the_write(fails: bool) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        begun, go_on = asyncio.Event(), threading.Event()

        def before() -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()
            if fails:
                raise OSError("no room for the catalog")

        catalog = SlowCatalog(before)
        bench = Bench(catalog=catalog)
        bench.create()
        bench.group.usage.add(KEY, 5)
        task = asyncio.create_task(checkpoint(bench.group))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert bench.group.locks.checkpointing.locked(), "another one must not begin beside it"
        go_on.set()
        with pytest.raises(OSError if fails else asyncio.CancelledError):
            await task
        assert [row.reads for row in catalog.reads(0, "", 10)] == ([] if fails else [1])
        assert bool(bench.group.loaded.dirty) == fails
        catalog.before = lambda: None
        await take(bench)
        assert [row.reads for row in catalog.reads(0, "", 10)] == [1], "each read is counted once"
        assert catalog.load(KEY) is not None

    asyncio.run(body())


def test_a_checkpoint_that_is_cancelled_while_it_captures_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_STREAMS", 1)
    keys = [f"_default/{number}" for number in range(5)]

    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        for key in keys:
            bench.create(key)
        task = asyncio.create_task(checkpoint(bench.group))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done() and bench.group.loaded.capturing
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert catalog.changes == []
        bench.post(b"later", keys[4])
        bench.submit(Delete(), keys[3])
        await take(bench)
        rows = {key: catalog.load(key) for key in keys}
        assert [None if row is None else row.tail for row in rows.values()] == [0, 0, 0, None, 5]
        assert bench.group.loaded.capturing == {}

    asyncio.run(body())


def test_a_failed_log_keeps_the_catalog_where_it_was() -> None:
    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        bench.create()
        bench.post()
        task = asyncio.create_task(checkpoint(bench.group))
        for _ in range(5):
            await asyncio.sleep(0)
        bench.fail()
        with pytest.raises(OSError, match="log failed"):
            await task
        assert catalog.changes == [] and bench.log.trims == []

    asyncio.run(body())


# ---- what the log may forget --------------------------------------------------------------------------------------


def test_the_log_keeps_every_payload_that_is_nowhere_else() -> None:
    async def body() -> None:
        bench = Bench(catalog=SlowCatalog())
        bench.create()
        bench.create("_default/other")
        bench.post(b"old")
        needed = bench.log.tail
        bench.post(b"new", "_default/other")
        bench.sync()
        await take(bench)
        assert bench.log.trims == [needed - 1] == [bench.group.catalog.log_floor]
        bench.submit(Delete())
        bench.sync()
        await take(bench)
        assert needed < bench.log.trims[-1] < bench.log.tail

    asyncio.run(body())


def test_a_log_without_payloads_is_forgotten_up_to_the_checkpoint() -> None:
    async def body() -> None:
        bench = Bench(catalog=SlowCatalog())
        bench.create()
        await take(bench)
        assert bench.log.trims == [bench.log.tail]

    asyncio.run(body())


@pytest.mark.parametrize("command", [Delete(), Trim(3)], ids=["delete", "trim"])
def test_what_is_let_go_while_a_checkpoint_is_written_stays_in_the_log_until_that_is_durable(command) -> None:
    async def body() -> None:
        bench = Bench()
        written = asyncio.Event()
        loop = asyncio.get_running_loop()
        catalog = SlowCatalog(lambda: loop.call_soon_threadsafe(written.set))
        bench = Bench(catalog=catalog)
        bench.create()
        bench.post(b"old")
        needed = bench.log.tail
        bench.post(b"new")
        bench.sync()
        task = asyncio.create_task(checkpoint(bench.group))
        await written.wait()
        bench.submit(command)
        await task
        # The deletion is not durable: after a crash the stream has to be there, whole.
        assert bench.log.synced < bench.log.tail
        assert bench.log.trims == [needed - 1]

    asyncio.run(body())


def test_what_a_checkpoint_is_writing_is_not_unloaded_meanwhile() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        written = asyncio.Event()
        bench = Bench(catalog=SlowCatalog(lambda: loop.call_soon_threadsafe(written.set)))
        bench.create()
        bench.submit(Append([], close=True))
        bench.sync()
        stream = bench.group.find(KEY, touch=False)
        task = asyncio.create_task(checkpoint(bench.group))
        await written.wait()
        for _ in range(3):
            bench.group.loaded.evict(0, 10)
        assert bench.group.find(KEY, touch=False) is stream
        await task
        for _ in range(3):
            bench.group.loaded.evict(0, 10)
        again = bench.group.find(KEY, touch=False)
        assert again is not stream and again.closed

    asyncio.run(body())


def test_a_fork_that_goes_under_a_checkpoint_gives_its_source_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_STREAMS", 1)

    async def body() -> None:
        catalog = SlowCatalog()
        bench = Bench(catalog=catalog)
        bench.create()
        bench.submit(Create("_default/fork", None, [], fork=Fork(KEY)), "_default/fork")
        bench.create("_default/last")
        task = asyncio.create_task(checkpoint(bench.group))
        await asyncio.sleep(0)
        bench.submit(Delete(), "_default/fork")
        while not task.done():
            await asyncio.sleep(0)
            bench.sync()
        row = catalog.load(KEY)
        assert row is not None and row.children == 0
        assert catalog.load("_default/fork") is None

    asyncio.run(body())


def test_new_streams_are_turned_away_while_too_many_wait_for_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "NEW_MAX", 2)

    async def body() -> None:
        bench = Bench(catalog=SlowCatalog())
        bench.create("_default/a")
        bench.create("_default/b")
        logged = len(bench.log.events)
        refused = bench.submit(Create("_default/c", "text/plain", []), "_default/c")
        assert isinstance(refused.outcome, Overloaded) and len(bench.log.events) == logged
        again = bench.submit(Create("_default/a", "text/plain", []), "_default/a")
        assert isinstance(again.outcome, Unchanged), "it is there already"
        bench.post(key="_default/b")
        await take(bench)
        bench.create("_default/c")
        assert bench.group.find("_default/c", touch=False).visible == 0

    asyncio.run(body())
