"""Jobs that were handed out often enough: moved to their queue's dead letter topic, or deleted when it has none.

Owns the move. Never decides that a job is dead (`model.queues` does).

    dying -> read -> append to the dead letter topic -> delete -> committed

A letter has the key `{topic}:{epoch}:{seq}`, and is not written while a letter with that key is there: a move that was
cut off in the middle is made again, and does not double it. What fails is tried again after a pause.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from headwater.engine.engine import Engine
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.record_reads import TopicRecord
from headwater.errors import Failure, StreamNotFound
from headwater.model.labels import Labels
from headwater.model.names import flat_key
from headwater.model.queue_events import DeadLettered
from headwater.model.subscriptions import path_of
from headwater.topics.access import TopicAccess
from headwater.topics.handing import Answer
from headwater.topics.queue import Queue

BATCH_COUNT = 100
BATCH_BYTES = 4 << 20
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 30.0
NAME_BYTES_MAX = 1 << 16
"""The name was checked when it was configured."""

log = structlog.get_logger("headwater.queues")


class _Refused(Exception):
    """The dead letter topic takes no letters; says why."""


class DeadLetters:
    """One task for each queue that has such jobs, while it has."""

    def __init__(self, engine: Engine, access: TopicAccess) -> None:
        self._clock = engine.clock
        self._access = access
        self._moving: dict[Queue, asyncio.Task[None]] = {}

    def begin(self, queue: Queue) -> None:
        """The queue has jobs to be moved."""
        if queue not in self._moving:
            self._moving[queue] = asyncio.get_running_loop().create_task(self._run(queue))

    async def stop(self) -> None:
        """What was not moved is dying again after a restart, or handed out once more."""
        tasks = list(self._moving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, queue: Queue) -> None:
        try:
            await self._move_all(queue)
        finally:
            # Without a turn of the loop in between: jobs that die from now on begin another task.
            self._moving.pop(queue, None)

    async def _move_all(self, queue: Queue) -> None:
        pause_s = PAUSE_S_MIN
        while queue.state.dying and not queue.closed:
            try:
                await self._move_some(queue)
                queue.trouble = None
                pause_s = PAUSE_S_MIN
                continue
            except _Refused as refused:
                queue.trouble = str(refused)
            except Failure as failure:
                queue.trouble = failure.message()
            except Exception as error:
                queue.trouble = "this server made a mistake; its log says which"
                log.exception("dead letters", topic=ascii(queue.stream.key)[:200], error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
        queue.trouble = None

    async def _move_some(self, queue: Queue) -> None:
        jobs, state = queue.jobs, queue.state
        seqs = sorted(state.dying)[:BATCH_COUNT]
        gone = [(seq, seq + 1) for seq in seqs if not jobs.is_live(seq)]
        if gone:
            state.gone(gone)
            return
        dest = queue.config.dead_letter
        if dest is not None:
            records = await _read(queue, seqs)
            if not records:
                return  # they were deleted meanwhile
            letters: list[Labels | None] = [_letter(queue, one) for one in records]
            payloads = [bytes(one.payload) for one in records]
            key, content_type = flat_key(dest, NAME_BYTES_MAX), queue.stream.content_type
            try:
                await self._access.write(key, payloads, letters, content_type=content_type, unique=True)
            except Failure as failure:
                raise _Refused(f"letters cannot be written to {dest}: {failure.message()}") from None
            seqs = [one.seq for one in records]
        await _delete(queue, seqs)


async def _read(queue: Queue, seqs: list[int]) -> list[TopicRecord]:
    done: asyncio.Future[list[TopicRecord] | Failure] = asyncio.get_running_loop().create_future()

    def tell(found: list[TopicRecord] | Failure) -> None:
        if not done.done():
            done.set_result(found)

    queue.jobs.read(seqs, BATCH_BYTES, tell)
    found = await done
    if isinstance(found, Failure):
        raise found
    return found


async def _delete(queue: Queue, seqs: list[int]) -> None:
    while not queue.closed:
        seqs = [seq for seq in seqs if queue.jobs.is_live(seq) and seq in queue.state.dying]
        if not seqs:
            return
        runs = queue.jobs.runs(seqs)
        if isinstance(runs, int):
            await _find_place(queue, runs)
            continue
        outcome = OutcomeFuture()
        answer = Answer(outcome.resolve)
        queue.delete(seqs, runs, DeadLettered(seqs), answer)
        answer.release()
        await outcome.success()
        return
    raise StreamNotFound


async def _find_place(queue: Queue, seq: int) -> None:
    done: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()

    def tell(failure: Failure | None) -> None:
        if not done.done():
            done.set_result(failure)

    queue.jobs.find_place(seq, tell)
    failure = await done
    if failure is not None:
        raise failure


def _letter(queue: Queue, job: TopicRecord) -> Labels:
    """The job's own labels, and what became of it."""
    own = job.labels or Labels()
    epoch, name = queue.stream.epoch, path_of(queue.stream.key)
    meta = {} if own.meta is None else msgspec.json.decode(own.meta)
    meta["dead_letter"] = {
        "topic": name,
        "seq": job.seq,
        "epoch": epoch,
        "deliveries": queue.state.deliveries_of(job.seq),
        "reason": queue.state.dying.get(job.seq, ""),
        "key": own.key,
    }
    return Labels(own.tag, own.node, msgspec.json.encode(meta), f"{name}:{epoch}:{job.seq}")
