"""Acks of one queue. Those of one turn of the event loop: the first is done at once, the others together.

Owns what an ack does, which acks wait for the end of the turn, and their bound. Never decides which are good
(`model.queues` does).

A worker alone waits for nothing. Of many workers, a turn makes two deletions instead of one for each, and both are part
of the commit that the first one asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import structlog

from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure, InternalError
from headwater.model import queues as model
from headwater.model.holes import Run
from headwater.model.queue_events import Acked, QueueEvent
from headwater.model.queue_state import QueueState
from headwater.topics.handing import Answer
from headwater.topics.queue_jobs import QueueJobs

TOGETHER_MAX = 1_000
"""Jobs of the acks that wait for the end of a turn. Overflow: an ack is done by itself."""

log = structlog.get_logger("headwater.queues")


class Done(NamedTuple):
    """What an ack, a nack or an extension did."""

    done: list[int]
    failed: list[tuple[int, str]]
    """(seq, code)"""
    dead: Sequence[int] = ()
    deadlines: Sequence[tuple[int, int]] = ()


Told = Callable[[Done | Failure], None]
Pairs = list[tuple[int, int]]
"""(seq, lease id)"""


class Acking(Protocol):
    """A queue, as acks see it."""

    state: QueueState
    jobs: QueueJobs

    def check(self) -> None: ...

    def delete(self, seqs: list[int], runs: list[Run], event: QueueEvent, answer: Answer) -> bool: ...

    def connections_of(self, seqs: Iterable[int]) -> set[int]: ...

    def freed(self, connections: set[int]) -> None: ...

    def find_place(self, seq: int, then: Callable[[], None], tell: Told) -> None: ...

    def tell_when_durable(self, tell: Told, done: Done) -> None: ...


class Acks:
    def __init__(self, queue: Acking) -> None:
        self._queue = queue
        self._turn = False
        """One was done in this turn."""
        self._waiting: list[tuple[Pairs, Told]] = []
        self._room = TOGETHER_MAX

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, pairs: Pairs, tell: Told, soon: Callable[[Callable[[], None]], object]) -> None:
        """Does an ack in this turn of the event loop. Raises why nothing has happened."""
        if not self._turn:
            # Before the group is asked to commit: what the turn gathers is part of the same commit.
            self._turn = True
            soon(self._turn_ended)
            self.do_now(pairs, tell)
        elif len(pairs) <= self._room:
            self._room -= len(pairs)
            self._waiting.append((pairs, tell))
        else:
            self.do_now(pairs, tell)

    def _turn_ended(self) -> None:
        self._turn = False
        if self._waiting:
            self.do_waiting()

    def do_waiting(self) -> None:
        waiting, self._waiting, self._room = self._waiting, [], TOGETHER_MAX
        try:
            self._queue.check()
            if len(waiting) > 1 and self._do_together(waiting):
                return
        except Failure as failure:
            _refuse(waiting, failure)
            return
        except Exception:
            log.exception("acks failed")
            _refuse(waiting, InternalError("queue"))
            return
        for pairs, tell in waiting:
            try:
                self.do_now(pairs, tell)
            except Failure as failure:
                tell(failure)
            except Exception:
                log.exception("an ack failed")
                tell(InternalError("queue"))

    def refuse(self, failure: Failure) -> None:
        """Those that wait are told why they are not done."""
        waiting, self._waiting, self._room = self._waiting, [], TOGETHER_MAX
        _refuse(waiting, failure)

    def do_now(self, pairs: Pairs, tell: Told) -> None:
        """Raises why nothing has happened."""
        queue = self._queue
        event, ((_, failed),) = model.ack_all(queue.state, [pairs], queue.jobs)
        if event is None:
            queue.tell_when_durable(tell, Done([], failed))
            return
        runs = queue.jobs.runs(event.seqs)
        if isinstance(runs, int):
            queue.find_place(runs, lambda: self._again(pairs, tell), tell)
            return
        done = Done(event.seqs, failed)
        answer = Answer(lambda outcome: tell(outcome if isinstance(outcome, Failure) else done))
        if not self._delete(event, runs, answer):
            answer.release()

    def _again(self, pairs: Pairs, tell: Told) -> None:
        self._queue.check()
        self.do_now(pairs, tell)

    def _do_together(self, waiting: list[tuple[Pairs, Told]]) -> bool:
        """False: nothing has happened, each has to be done by itself. Raises why nothing has happened."""
        queue = self._queue
        event, found = model.ack_all(queue.state, [pairs for pairs, _ in waiting], queue.jobs)
        runs = 0 if event is None else queue.jobs.runs(event.seqs)
        if event is None or isinstance(runs, int):
            return False

        def told(outcome: Outcome) -> None:
            for (_, tell), (done, failed) in zip(waiting, found, strict=True):
                tell(outcome if isinstance(outcome, Failure) else Done(done, failed))

        return self._delete(event, runs, Answer(told))

    def _delete(self, event: Acked, runs: list[Run], answer: Answer) -> bool:
        """False: it was refused, and nothing has happened. `answer` has been told why, and is not released."""
        queue = self._queue
        connections = queue.connections_of(event.seqs)
        if not queue.delete(event.seqs, runs, event, answer):
            return False
        if connections:
            queue.freed(connections)
        answer.release()
        return True


def _refuse(waiting: list[tuple[Pairs, Told]], failure: Failure) -> None:
    for _, tell in waiting:
        tell(failure)
