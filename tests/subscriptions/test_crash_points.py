"""A whole history of subscriptions, cut off after every single event of its log: each remainder is taken up rightly.
It owns the history and what must hold after each cut; nothing in it touches a disk but the catalog's copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headwater.catalog.sqlite import SqliteCatalog
from headwater.engine.checkpoint import checkpoint
from headwater.errors import Failure
from headwater.model import glob
from headwater.model import subscriptions as model
from headwater.model.events import Event
from headwater.subscriptions.manager import Bearer
from headwater.subscriptions.webhooks import Reply
from tests.subscriptions.desk import DONE, TAKEN, Desk, Post, in_a_loop


class Story:
    """What happened before the cut, as clients and receivers saw it."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.posts: list[Post] = []
        self.claims: list[tuple[int, int, str]] = []
        """(durable events, generation, wake id)"""
        self.acked: list[tuple[int, str, str, int, int]] = []
        """(durable events, subscription, path, sid, offset) of every acknowledgement that was answered."""
        self.now_ms = 0
        self.checkpoints: list[tuple[int, Path]] = []


async def tell(folder: Path) -> Story:
    """One life of a node with most of what can happen to subscriptions."""
    story = Story()
    path = folder / "catalog.db"

    def answer(number: int) -> Reply | None:
        return {1: None, 2: TAKEN, 3: None}.get(number, DONE)

    desk = Desk(answer, catalog=SqliteCatalog(path))

    def note_acks(name: str, paths: list[str]) -> None:
        for link in paths:
            held = desk.registry.by_id[name].links[link]
            story.acked.append((desk.durable_count(), name, link, held.sid, held.acked))

    async def save() -> None:
        await desk.complete(checkpoint(desk.group))
        copy = folder / f"catalog.{len(story.checkpoints)}.db"
        desk.group.catalog._writer.execute("pragma wal_checkpoint(truncate)")
        shutil.copy(path, copy)
        story.checkpoints.append((desk.durable_count(), copy))

    async def claim_and_ack(done: bool) -> None:
        claimed = await desk.complete(desk.manager.claim("pull", "worker"))
        story.claims.append((desk.durable_count(), claimed.generation, claimed.wake_id))
        bearer = Bearer(claimed.token, claimed.wake_id, claimed.generation)
        acks = [(info.path, int(info.tail_offset)) for info in claimed.streams if info.has_pending]
        await desk.complete(desk.manager.acknowledge("pull", bearer, acks[:1], done))
        note_acks("pull", [path for path, _ in acks[:1]])

    desk.put("events/old", b"before all")
    desk.put("wake/pool")
    await desk.sync()
    await desk.subscribe("hook", streams=("named",))
    await desk.subscribe("pull", model.PULL_WAKE)
    desk.put("events/a", b"one")
    await desk.sync()
    await desk.pass_time(1_500)  # the retry, which is taken and never called back
    await save()
    await desk.pass_time(1_500)  # its lease passes
    desk.put("named", b"two")
    desk.append("events/old")
    await desk.sync()
    await claim_and_ack(done=False)
    desk.put("events/b", b"three")
    await desk.pass_time(1_500)  # the claim's lease passes
    await claim_and_ack(done=True)
    await save()
    desk.delete("events/a")
    await desk.sync()
    desk.put("events/a", b"a second life")
    await desk.sync()
    await desk.pass_time(3_000)
    await desk.complete(desk.manager.add_streams("hook", ["events/b", "late"]))
    await desk.complete(desk.manager.remove_stream("hook", "named"))
    desk.put("late", b"four")
    await desk.sync()
    await claim_and_ack(done=True)
    await desk.complete(desk.manager.remove("hook"))
    await desk.subscribe("hook")
    desk.append("events/b")
    await desk.sync()
    story.events, story.posts, story.now_ms = desk.events, desk.client.posts, desk.clock.ms
    await desk.manager.stop()
    return story


async def take_up(story: Story, cut: int, catalog: Path | None) -> None:
    """Starts on the first `cut` events and lets everything go its way: all work must end up acknowledged."""
    kept = None if catalog is None else SqliteCatalog(catalog)
    desk = Desk(replayed=story.events[:cut], catalog=kept, now_ms=story.now_ms)
    for name, sub in desk.registry.by_id.items():
        for durable, acked_name, path, sid, offset in story.acked:
            if acked_name == name and durable <= cut and path in sub.links and sub.links[path].sid == sid:
                assert sub.links[path].acked >= offset, "an acknowledged cursor went back"
    await desk.sync()
    for _ in range(4):
        await desk.pass_time(100_000)
    if "pull" in desk.registry.by_id:
        for _ in range(10):
            try:
                claimed = await desk.complete(desk.manager.claim("pull", "worker"))
            except Failure:
                break
            seen = {generation: wake_id for durable, generation, wake_id in story.claims if durable <= cut}
            assert seen.get(claimed.generation, claimed.wake_id) == claimed.wake_id, "a generation was used twice"
            bearer = Bearer(claimed.token, claimed.wake_id, claimed.generation)
            acks = [(info.path, int(info.tail_offset)) for info in claimed.streams if info.has_pending]
            await desk.complete(desk.manager.acknowledge("pull", bearer, acks, True))
    sent = [post.body for post in story.posts if post.log_length <= cut]
    told = {(body["subscription_id"], body["generation"]): body["wake_id"] for body in sent}
    for post in desk.client.posts:
        name, generation = post.body["subscription_id"], post.body["generation"]
        assert told.get((name, generation), post.body["wake_id"]) == post.body["wake_id"], "a generation was used twice"
        assert generation >= max([g for n, g in told if n == name], default=0)
    for name, sub in desk.registry.by_id.items():
        assert not sub.pending, f"{name} was left with work after {cut} events"
        assert sub.wake is None
        for stream in desk.streams():
            path = model.path_of(stream.key)
            link = sub.links.get(path)
            if stream.tail > 0 and glob.matches("events/*", path):
                assert link is not None, f"{path} is not linked to {name} after {cut} events"
            if link is not None and link.sid == stream.sid:
                assert link.acked == stream.tail
        for path, link in sub.links.items():
            found = desk.manager.streams.local.look(path, 0)
            assert link.sid == (0 if found is None or link.sid == 0 else found[0]), f"{path} is linked to a stream past"
    pool = desk.group.loaded.find("wake/pool")
    if pool is not None:
        announced = [json.loads(record)["generation"] for record in pool.timeline.payloads]
        assert announced == sorted(set(announced)), "a wake event is there twice, or out of order"
    await desk.manager.stop()


@pytest.mark.parametrize("with_catalog", [False, True], ids=["log-alone", "from-a-checkpoint"])
def test_every_cut_of_a_history_is_taken_up_with_no_work_lost_and_no_generation_reused(
    tmp_path: Path, with_catalog: bool
) -> None:
    story = Story()

    async def first() -> None:
        nonlocal story
        story = await tell(tmp_path)

    in_a_loop(first)
    assert len(story.events) > 50
    assert len(story.checkpoints) == 2
    for cut in range(len(story.events) + 1):
        catalogs = [copy for taken_at, copy in story.checkpoints if taken_at <= cut]
        if with_catalog and not catalogs:
            continue
        used = None
        if with_catalog:
            used = tmp_path / "used.db"
            shutil.copy(catalogs[-1], used)

        async def second(cut: int = cut, used: Path | None = used) -> None:
            await take_up(story, cut, used)

        in_a_loop(second)
        if used is not None:
            for leftover in tmp_path.glob("used.db*"):
                leftover.unlink()
