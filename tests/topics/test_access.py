"""Topics wherever they live, as routers and dead letters reach them: read, wait, write, demand a place.
The processes are simulated; each test runs with the topic here and with it in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.errors import GroupMoved, MemberUnavailable, NotServedHere, StreamNotFound, StreamSeqConflict
from headwater.model.commands import DeleteRecords
from headwater.model.holes import Run
from headwater.model.labels import Labels
from headwater.topics import access as access_module
from headwater.topics.access import Copy, TopicAccess, Written
from tests.support.processes import until
from tests.topics.forwarding import World, numbered, play, turns

Body = Callable[[World, TopicAccess], Awaitable[None]]


@pytest.fixture(params=[1, 3], ids=["here", "in another process"])
def meet(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Plays a test whose topic is the world's source."""

    def played(body: Body) -> None:
        play(lambda world: body(world, world.processes[0].part.access), request.param)

    return played


def test_records_come_with_numbers_and_labels_after_a_cursor(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        await world.make()
        await world.append(b"a", b"b", b"c", labels=[None, Labels("t", "n", b"{}", "k", 7), None])
        ms = world.processes.clock.now_ms()
        diff = await access.read(world.source, 0, 2, 100)
        assert diff is not None
        assert diff.records == [Copy(1, ms, b"a", None), Copy(2, ms, b"b", Labels("t", "n", b"{}", "k", 7))]
        assert (diff.next_seq, diff.head_seq, diff.evict_floor, diff.content_type) == (2, 3, 1, "text/plain")
        assert diff.epoch == world.stream(world.source).sid
        rest = await access.read(world.source, 2, 10, 100)
        assert rest is not None and [one.seq for one in rest.records] == [3]
        assert await access.head_seq(world.source) == 3

    meet(body)


def test_a_missing_topic_is_none_and_one_without_more_is_empty(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        assert await access.read(world.source, 0, 1, 1) is None
        assert await access.head_seq(world.source) == 0
        assert await access.stream_seq(world.source) is None
        await world.make()
        diff = await access.read(world.source, 0, 1, 1, wait_ms=1)
        assert diff is not None and not diff.records and diff.next_seq == 0

    meet(body)


def test_a_cursor_behind_deleted_records_moves_to_the_end(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        await world.make()
        await world.append(b"a", b"b", b"c")
        await world.processes.submit(world.source, DeleteRecords([Run(1, 3, 1, 3)]))
        diff = await access.read(world.source, 1, 10, 100, wait_ms=None)
        assert diff is not None and not diff.records and diff.next_seq == 3

    meet(body)


@pytest.mark.parametrize("is_there", [True, False])
def test_who_waits_is_woken_by_the_next_record(meet: Callable[[Body], None], is_there: bool) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        if is_there:
            await world.make()
        waiting = asyncio.ensure_future(access.read(world.source, 0, 10, 100, wait_ms=None))
        await turns(30)
        assert not waiting.done()
        if not is_there:
            await world.make()
            await turns(10)
            assert not waiting.done()
        await world.append(b"a")
        diff = await waiting
        assert diff is not None and [one.payload for one in diff.records] == [b"a"]
        assert all(not part.access._waiting and not part.access._missing for part in world.processes.parts)

    meet(body)


def test_who_waits_for_a_topic_that_is_deleted_or_made_again_is_told(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        await world.make()
        await world.append(b"a")
        first = await access.read(world.source, 0, 1, 1)
        assert first is not None
        waiting = asyncio.ensure_future(access.read(world.source, 1, 1, 1, wait_ms=None, epoch=first.epoch))
        await turns(30)
        await world.delete(world.source)
        await turns(10)
        await world.make()
        await world.append(b"b")
        diff = await waiting
        assert diff is not None and diff.epoch != first.epoch and not diff.records

    meet(body)


def test_a_missing_topic_is_looked_for_again_after_a_while(
    meet: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "MISSING_MS", 1)

    async def body(world: World, access: TopicAccess) -> None:
        assert await access.read(world.source, 0, 1, 1, wait_ms=None) is None

    meet(body)


def test_who_waits_in_a_group_that_leaves_is_refused() -> None:
    async def body(world: World) -> None:
        access = world.processes[0].part.access
        await world.make()
        there = asyncio.ensure_future(access.read(world.source, 0, 1, 1, wait_ms=None))
        missing = asyncio.ensure_future(access.read(world.processes.named(1, "town/none"), 0, 1, 1, wait_ms=None))
        await until(lambda: len(world.processes[1].part.access._waiting) == 2)
        world.processes[1].engine.leave(1)
        for waiting in (there, missing):
            with pytest.raises(GroupMoved):
                await waiting

    play(body, 3)


def test_nobody_waits_in_a_process_that_closes() -> None:
    async def body(world: World) -> None:
        access, other = world.processes[0].part.access, world.processes[1].part.access
        await world.make()
        waiting = asyncio.ensure_future(access.read(world.source, 0, 1, 1, wait_ms=None))
        await until(lambda: other._waiting)
        other.close()
        with pytest.raises(MemberUnavailable):
            await waiting
        with pytest.raises(MemberUnavailable):
            await access.read(world.source, 0, 1, 1, wait_ms=None)
        assert await access.head_seq(world.source) == 0, "what needs no wait is answered"

    play(body, 3)


class Doubt:
    """A lease of a process that may have been replaced."""

    def __init__(self) -> None:
        self.is_replaced = True
        self.asked_count = 0

    def holds(self) -> bool:
        return True

    async def confirm(self) -> None:
        self.asked_count += 1
        if self.is_replaced:
            raise GroupMoved(1)


def test_an_older_end_or_another_epoch_is_told_only_by_who_is_certain_to_serve_the_topic() -> None:
    async def body(world: World) -> None:
        access = world.processes[0].part.access
        await world.make()
        await world.append(b"a")
        epoch = world.stream(world.source).sid
        doubt = world.processes[1].engine._leases[1] = Doubt()

        async def read(from_seq: int, of: int) -> tuple[int, int, int]:
            found = await access.read(world.source, from_seq, 10, 100, epoch=of, certain=True)
            assert found is not None
            return found.epoch, found.head_seq, len(found.records)

        assert await read(0, epoch) == (epoch, 1, 1) and doubt.asked_count == 0
        for from_seq, of in ((2, epoch), (0, 0), (0, epoch + 1), (5, epoch + 1)):
            with pytest.raises(GroupMoved):
                await read(from_seq, of)
        doubt.is_replaced = False
        assert await read(2, epoch) == (epoch, 1, 0)
        assert await read(0, 0) == (epoch, 1, 1)
        assert await read(0, epoch + 1) == (epoch, 1, 0)
        assert await access.head_seq(world.source) == 1

    play(body, 3)


# ---- writing --------------------------------------------------------------------------------------------------------


def test_a_write_appends_with_labels_and_tells_where(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        await world.make()
        written = await access.write(world.source, [b"a", b"b"], [None, Labels("t")])
        assert written == Written(world.stream(world.source).sid, 2)
        assert world.records(world.source) == [b"a", b"b"]
        assert list(world.stream(world.source).timeline.labels) == [None, Labels("t")]

    meet(body)


def test_a_missing_topic_is_made_only_when_its_content_type_is_told(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        with pytest.raises(StreamNotFound):
            await access.write(world.source, [b"1"])
        written = await access.write(world.source, [b"1"], content_type="application/json", stream_seq="x", after="")
        stream = world.stream(world.source)
        assert (stream.content_type, stream.sid, stream.count) == ("application/json", written.epoch, 1)
        assert await access.stream_seq(world.source) == "x"

    meet(body)


def test_a_write_that_demands_another_place_is_refused_with_the_present_one(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        await world.make()
        for after in ("wrong", "5"):
            with pytest.raises(StreamSeqConflict) as refused:
                await access.write(world.source, [b"a"], stream_seq="6", after=after)
            assert refused.value.last == ""
        await access.write(world.source, [b"a"], stream_seq="6", after="")
        for after in ("", "5", "7"):
            with pytest.raises(StreamSeqConflict) as refused:
                await access.write(world.source, [b"b"], stream_seq="8", after=after)
            assert refused.value.last == "6"
        with pytest.raises(StreamSeqConflict):
            await access.write(world.source, [b"b"], stream_seq="6", after="6")
        await access.write(world.source, [b"b"], stream_seq="8", after="6")
        await access.write(world.source, [b"c"])
        assert world.records(world.source) == [b"a", b"b", b"c"]

    meet(body)


def test_of_writes_that_demand_the_same_place_at_once_one_succeeds(meet: Callable[[Body], None]) -> None:
    async def body(world: World, access: TopicAccess) -> None:
        await world.make()
        writes = (
            access.write(world.source, [record], stream_seq=f"{number}", after="")
            for number, record in enumerate(numbered(5))
        )
        found = await asyncio.gather(*writes, return_exceptions=True)
        assert sum(isinstance(one, Written) for one in found) == 1
        assert len(world.records(world.source)) == 1

    meet(body)


def test_a_name_whose_place_is_being_decided_is_not_made() -> None:
    async def body(world: World) -> None:
        access = world.processes[0].part.access
        placing = world.processes[1].placing
        async with placing._decide(world.source):
            with pytest.raises(NotServedHere):
                await access.write(world.source, [b"a"], content_type="text/plain")
        await access.write(world.source, [b"a"], content_type="text/plain")
        assert world.records(world.source) == [b"a"]

    play(body, 3)


def test_a_process_that_answers_too_late_is_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "ANSWER_S", 0.01)

    async def body(world: World) -> None:
        access = world.processes[0].part.access
        await world.make()
        world.wire.gates["topic_write"] = asyncio.Event()
        with pytest.raises(Exception, match="went away before it answered"):
            await access.write(world.source, [b"a"])
        world.wire.gates.clear()

    play(body, 3)
