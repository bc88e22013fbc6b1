"""What readers see of a group: events that are as durable as their streams promise.

Owns when an answer leaves and when followers and observers are told. Never logs and never decides.
"""

from __future__ import annotations

from headwater.engine.batch_times import BatchTimes
from headwater.engine.loaded_stream import LoadedStream, Observer
from headwater.engine.pending_answers import Outcome, PendingAnswers
from headwater.model.events import Appended, Created, Deleted
from headwater.model.stream import CreatedAndAppended
from headwater.ports import Clock, Log


class Visibility:
    def __init__(self, log: Log, answers: PendingAnswers, clock: Clock) -> None:
        self._log = log
        self._answers = answers
        self.batches = BatchTimes(log, answers, clock)
        self.observers: list[Observer] = []
        self.unpublished: dict[str, int] = {}
        """Keys whose creation or deletion is not durable yet, with its position: readers wait for it."""

    def progress(self) -> None:
        """The log's watermarks moved, or it failed: answers and wake-ups that were waiting leave now."""
        log = self._log
        self.batches.moved()
        released = 0
        woken: dict[int, LoadedStream] = {}
        for queue, mark in ((self._answers.sync, log.synced), (self._answers.disk, log.written)):
            while queue and queue[0][0] <= mark:
                position, waiter, outcome, stream = queue.popleft()
                released += 1
                if stream is not None:
                    if type(outcome) is Appended:
                        stream.visible = outcome.end
                        if outcome.closed:
                            stream.closed_visible = True
                        if stream.followers:
                            woken[stream.sid] = stream
                        if outcome.records:
                            for observer in self.observers:
                                observer.grown(stream, outcome.start)
                    else:
                        self._mark_published(stream.key, position)
                        self.publish(stream, outcome)
                if waiter is not None:
                    waiter.resolve(outcome)
        self._answers.released_count += released
        # Followers once per pass, after every writer was answered: an event reaches them encoded once.
        for stream in woken.values():
            self._wake(stream)
        for observer in self.observers:
            observer.pass_ended()

    def _mark_published(self, key: str, position: int) -> None:
        if self.unpublished.get(key, 0) <= position:
            self.unpublished.pop(key, None)

    def publish(self, stream: LoadedStream, event: Outcome) -> None:
        """Makes a durable event visible."""
        if type(event) is Appended:
            stream.visible = event.end
            if event.closed:
                stream.closed_visible = True
            if stream.followers:
                self._wake(stream)
            if event.records:
                for observer in self.observers:
                    observer.grown(stream, event.start)
        elif type(event) is Created:
            # A laxer class may have shown later records already: they waited for less than the creation did.
            born = sum(map(len, event.records)) + (0 if event.forked is None else event.forked.at)
            stream.visible = max(stream.visible, born)
            stream.closed_visible = stream.closed_visible or event.closed
            if event.records:
                for observer in self.observers:
                    observer.grown(stream, 0 if event.forked is None else event.forked.at)
        elif type(event) is CreatedAndAppended:
            # As above: a laxer class may have shown later records already.
            stream.visible = max(stream.visible, event.appended.end)
            stream.closed_visible = stream.closed_visible or event.appended.closed
            if stream.followers:
                self._wake(stream)
            if event.appended.records:
                for observer in self.observers:
                    observer.grown(stream, event.appended.start)
        elif type(event) is Deleted:
            followers, stream.followers = stream.followers, None
            for follower in followers or ():
                follower.gone(stream)
            for observer in self.observers:
                observer.deleted(stream)

    def _wake(self, stream: LoadedStream) -> None:
        stream.encoded = None
        for follower in list(stream.followers or ()):
            follower.wake(stream)
