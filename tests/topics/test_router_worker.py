"""One router in one event loop: records are forwarded in order, each once, whatever process ends or forgets.
A topic is deleted, evicted, lost or made again under it."""

from __future__ import annotations

import asyncio

import pytest

from headwater.errors import StreamSeqConflict
from headwater.model.commands import Append, Durability, Retention
from headwater.model.labels import Labels
from headwater.model.routers import RouterConfig, TagFilter
from headwater.topics import router_worker
from headwater.topics.access import TopicAccess
from headwater.topics.routers import Routers
from tests.support.processes import until
from tests.topics.forwarding import World, numbered, play, turns


@pytest.mark.parametrize("count", [1, 3])
def test_what_the_source_has_and_gets_is_forwarded_in_order(count: int) -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.append(*numbered(5))
        await world.put()
        await world.until_copied(*numbered(5))
        await world.append(*numbered(3, 5))
        await world.until_copied(*numbered(8))
        assert world.stream(world.dest).content_type == "text/plain"
        shown = await world.routers.show("r")
        assert shown["router"] == "r"
        assert shown["config"]["source"] == world.source and shown["config"]["filter"] is None
        await world.until_idle()
        state = (await world.routers.show("r"))["state"]
        assert state == {
            "cursor": 8, "source_head": 8, "lag": 0, "lost": 0, "source_epoch": world.stream(world.source).sid,
            "trouble": None,
        }  # fmt: skip

    play(body, count)


def test_a_filter_chooses_and_labels_are_kept_as_the_router_says() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(tag_filter=TagFilter("red", True), preserve_node=False)
        labels = [Labels("red", "n", b'{"a":1}', "key", 5), None, Labels("blue"), Labels("reddish", "n")]
        await world.append(b"a", b"b", b"c", b"d", labels=labels)
        await world.until_copied(b"a", b"d")
        assert world.labels() == [Labels("red", None, b'{"a":1}'), Labels("reddish")]

    play(body)


def test_copies_of_records_without_labels_have_none() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put(preserve_tag=False)
        await world.append(b"a", labels=[Labels("red")])
        await world.until_copied(b"a")
        assert world.stream(world.dest).timeline.labels is None

    play(body)


@pytest.mark.parametrize("count", [1, 3])
def test_a_source_that_is_made_later_is_waited_for(count: int) -> None:
    async def body(world: World) -> None:
        shown = await world.put()
        assert shown["state"]["source_head"] == 0
        await turns(20)
        await world.make()
        await world.append(b"a")
        await world.until_copied(b"a")

    play(body, count)


def test_batches_are_bounded_by_records_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_worker, "BATCH_RECORDS", 4)
    monkeypatch.setattr(router_worker, "BATCH_BYTES", 20)
    sizes: list[int] = []
    write = TopicAccess.write

    async def noting(self: TopicAccess, key: str, records: list[bytes], *rest: object, **more: object) -> object:
        sizes.append(len(records))
        return await write(self, key, records, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicAccess, "write", noting)

    async def body(world: World) -> None:
        await world.make()
        records = [*[b"x"] * 10, b"y" * 30, b"y" * 15, b"y" * 15]
        await world.append(*records)
        await world.put()
        await world.until_copied(*records)
        assert max(sizes) == 4 and sizes[-2:] == [1, 1]

    play(body)


# ---- each record once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_kill_in_any_turn_neither_loses_nor_repeats_a_record(
    killed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_worker, "BATCH_RECORDS", 3)

    async def body(world: World) -> None:
        records = numbered(20)
        await world.make()
        await world.append(*records[:10])
        await world.put()
        for turn in range(40):
            await turns(turn)
            await world.restart(*killed)
        await world.append(*records[10:])
        await world.until_copied(*records)

    play(body, 3)


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_node_that_is_killed_in_a_turn_goes_on_from_its_log(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_worker, "BATCH_RECORDS", 2)

    async def body(world: World) -> None:
        records = numbered(12)
        await world.make()
        await world.append(*records)
        await world.put()
        await turns(at)
        await world.restart(0)
        await world.until_copied(*records)
        await turns(50)
        assert world.copies() == records

    play(body)


def test_an_append_whose_answer_is_lost_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_worker, "BATCH_RECORDS", 3)

    async def body(world: World) -> None:
        await world.make()
        await world.append(*numbered(9))
        world.wire.losing.add("topic_write")
        await world.put()
        await until(lambda: len(world.copies()) == 9)
        await until(lambda: world.worker.cursor >= 6)
        world.wire.losing.clear()
        await world.append(*numbered(1, 9))
        await world.until_copied(*numbered(10))

    play(body, 3)


def test_a_process_that_does_not_answer_is_asked_until_it_does() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.put()
        await world.append(b"a")
        await world.until_copied(b"a")
        world.wire.cut.add(2)
        await world.append(b"b")
        await until(lambda: world.worker.trouble)
        assert "does not answer" in str((await world.routers.show("r"))["state"]["trouble"])
        world.wire.cut.clear()
        await world.until_copied(b"a", b"b")
        await until(lambda: world.worker.trouble is None)

    play(body, 3)


def test_two_workers_of_one_router_forward_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that was replaced and has not noticed has an append under way when its successor begins, which has
    looked at the destination before that append and writes, with a batch of its own, after it."""
    first, second = asyncio.Event(), asyncio.Event()
    write = TopicAccess.write
    under_way: list[int] = []

    async def held(self: TopicAccess, key: str, records: list[bytes], *rest: object, **more: object) -> object:
        under_way.append(len(records))
        await (first if len(records) == 2 else second).wait()
        return await write(self, key, records, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicAccess, "write", held)
    monkeypatch.setattr(router_worker, "BATCH_RECORDS", 2)

    async def body(world: World) -> None:
        await world.make()
        await world.append(*numbered(5))
        await world.put()
        await until(lambda: under_way == [2])
        monkeypatch.setattr(router_worker, "BATCH_RECORDS", 3)
        beside = Routers(world.processes[0].engine, world.processes[0].part.access)
        beside._begin(world.routers._router("r"))
        await until(lambda: under_way == [2, 3])
        first.set()
        await until(lambda: world.copies() == numbered(2))
        second.set()
        await world.until_copied(*numbered(5))
        both = [world.worker, beside._at_work["r"][0]]
        await until(lambda: [worker.cursor for worker in both] == [5, 5])
        assert world.copies() == numbered(5)
        await beside.stop()

    play(body, 3)


def test_copies_that_the_dest_lost_with_its_process_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.make(world.dest, durability=Durability.MEMORY)
        await world.put(tag_filter=TagFilter("t"))
        tagged: list[Labels | None] = [Labels("t")]
        await world.append(b"a", labels=tagged)
        await world.until_copied(b"a")
        log = world.processes[2].owned[2].group.log
        monkeypatch.setattr(log, "_sync", lambda: None)
        await world.append(b"b", b"passed over", labels=[*tagged, None])
        await world.until_copied(b"a", b"b")
        await world.until_idle()
        world.worker.note_rest()
        await world.kill(2)
        world.start(2)
        assert world.copies() == [b"a"]
        await world.append(b"c", labels=tagged)
        await world.until_copied(b"a", b"b", b"c")

    play(body, 3)


def test_a_client_that_writes_beside_the_router_does_not_disturb_it() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.make(world.dest)
        await world.processes.submit(world.dest, Append([b"own"], stream_seq="0007"))
        await world.put()
        await world.append(b"a")
        await world.until_copied(b"own", b"a")
        await world.append(b"own too", key=world.dest)
        await world.append(b"b")
        await world.until_copied(b"own", b"a", b"own too", b"b")
        with pytest.raises(StreamSeqConflict):
            await world.processes.submit(world.dest, Append([b"x"], stream_seq="0008"))

    play(body)


def test_a_stream_seq_that_nothing_sorts_after_stops_the_router_and_is_told() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.make(world.dest)
        await world.processes.submit(world.dest, Append([b"own"], stream_seq="\u00ff"))
        await world.append(b"a")
        await world.put()
        await until(lambda: world.worker.trouble)
        assert "Stream-Seq must grow" in str(world.worker.trouble) and world.routers.stuck_count == 1
        await world.delete(world.dest)
        await world.until_copied(b"a")
        await until(lambda: world.routers.stuck_count == 0)

    play(body)


def test_a_dest_that_cannot_take_a_record_is_tried_again() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.make(world.dest, "application/json")
        await world.append(b"not json {")
        await world.put()
        await until(lambda: world.worker.trouble)
        assert f"{world.dest} cannot be written to: the stream holds application/json" in str(world.worker.trouble)
        await world.delete(world.dest)
        await world.until_copied(b"not json {")

    play(body)


# ---- topics that go and come --------------------------------------------------------------------------------------


def test_a_source_that_is_made_again_is_forwarded_from_its_start() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.append(b"a", b"b", b"c")
        await world.put()
        await world.until_copied(b"a", b"b", b"c")
        await world.delete(world.source)
        await turns(10)
        await world.make()
        await world.append(b"d", b"e", b"f")
        await world.until_copied(b"a", b"b", b"c", b"d", b"e", b"f")
        await world.restart(0)
        await world.append(b"g")
        await world.until_copied(b"a", b"b", b"c", b"d", b"e", b"f", b"g")

    play(body)


def test_a_dest_that_is_made_again_gets_everything_that_the_source_has() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.append(b"a", b"b")
        await world.put()
        await world.until_copied(b"a", b"b")
        await world.delete(world.dest)
        await world.append(b"c")
        await world.until_copied(b"a", b"b", b"c")

    play(body)


@pytest.mark.parametrize("count", [1, 3])
def test_a_dest_that_is_deleted_gets_all_again_though_the_source_gets_nothing(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_worker, "LOOK_MS", 20)

    async def body(world: World) -> None:
        await world.make()
        await world.append(b"a", b"b")
        await world.put()
        await world.until_copied(b"a", b"b")
        await world.until_idle()
        await world.delete(world.dest)
        await world.until_copied(b"a", b"b")

    play(body, count)


def test_a_router_that_is_defined_again_goes_on_where_the_last_one_was() -> None:
    async def body(world: World) -> None:
        await world.make()
        await world.append(b"a")
        await world.put()
        await world.until_copied(b"a")
        await world.routers.remove("r")
        assert world.routers.count == 0
        await world.append(b"b")
        await turns(50)
        assert world.copies() == [b"a"]
        await world.put("again")
        await world.until_copied(b"a", b"b")

    play(body)


def test_records_that_retention_took_are_counted_and_the_rest_is_forwarded() -> None:
    async def body(world: World) -> None:
        await world.make(retention=Retention(records=3))
        group = world.processes[0].owned[0].group
        await world.append(*numbered(10))
        group.apply_retention()
        await world.put()
        await world.until_copied(*numbered(3, 7))
        assert (await world.routers.show("r"))["state"]["lost"] == 7
        assert world.routers.lost_count == 7 and world.routers.copied_count == 3
        await world.routers.stop()
        await world.routers.durable()
        await world.restart(0)
        await world.append(b"more")
        await world.until_copied(*numbered(3, 7), b"more")
        assert (await world.routers.show("r"))["state"]["lost"] == 7

    play(body)


def test_a_source_that_lost_its_end_is_followed_from_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        await world.make(durability=Durability.MEMORY)
        await world.append(b"a")
        await world.put()
        await world.until_copied(b"a")
        await turns(5)
        log = world.processes[1].owned[1].group.log
        monkeypatch.setattr(log, "_sync", lambda: None)
        await world.append(b"lost", b"lost too")
        await world.until_copied(b"a", b"lost", b"lost too")
        await world.until_idle()
        await world.kill(1)
        world.start(1)
        await until(lambda: world.worker.cursor == 1)
        await world.append(b"b")
        await world.until_copied(b"a", b"lost", b"lost too", b"b")

    play(body, 3)


# ---- what was passed over -------------------------------------------------------------------------------------------


def test_a_restart_does_not_filter_again_what_was_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_worker, "BATCH_RECORDS", 10)
    monkeypatch.setattr(router_worker, "NOTED_RECORDS", 30)
    asked: list[int] = []
    read = TopicAccess.read

    async def noting(self: TopicAccess, key: str, from_seq: int, *rest: object, **more: object) -> object:
        asked.append(from_seq)
        return await read(self, key, from_seq, *rest, **more)  # type: ignore[arg-type]

    async def body(world: World) -> None:
        await world.make()
        await world.put(tag_filter=TagFilter("t"))
        await world.append(*numbered(75))
        await world.until_idle()
        monkeypatch.setattr(TopicAccess, "read", noting)
        await world.restart(0)
        await world.append(b"taken", labels=[Labels("t")])
        await world.until_copied(b"taken")
        assert min(asked) == 60, "every third batch is noted"
        await world.append(*numbered(5))
        await world.until_idle()
        await world.routers.stop()
        await world.routers.durable()
        asked.clear()
        await world.restart(0)
        await until(lambda: asked)
        assert asked[0] == 81, "a node that stops notes the rest"

    play(body)


def test_json_goes_to_text_and_text_that_is_json_to_json() -> None:
    async def body(world: World) -> None:
        await world.make(content_type="application/json")
        await world.make(world.dest)
        await world.append(b'{"a":1}', b"2")
        await world.put()
        await world.until_copied(b'{"a":1}', b"2")
        back, end = world.dest, world.processes.named(0, "town/end")
        await world.make(end, "application/json")
        await world.routers.put("back", RouterConfig(back, end))
        await until(lambda: world.records(end) == [b'{"a":1}', b"2"])

    play(body)
