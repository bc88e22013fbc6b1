"""What this process tells the others about its streams: which of those that they want to hear of grew or went.

Owns the interests of every other process and the hints that it has not acknowledged. Never sends: the others ask.

    subscriptions_watch   (asker, session, added, removed, whole) -> whether the session is known
    subscriptions_news    (asker, session, acknowledged seq, wait ms) -> hints after it; None: the session is not known

A hint stays until the asker acknowledges it, so that an answer that was lost is given again. Hints of one stream are
one hint, with the newest seq. A session that is not known, because this process restarted, did not see the asker for a
while or kept too many hints, tells the asker to begin a new one and to look for itself at what it may have missed.

A group that another process served before enters this one with a hint too: the asker has to look at its streams for
itself, because what the other process had to tell may never have been told.
"""

from __future__ import annotations

import asyncio
from itertools import islice, takewhile

import msgspec

from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.errors import MemberUnavailable
from headwater.model import subscriptions as model
from headwater.model.glob import Patterns
from headwater.subscriptions.registry import Interest

HINTS_MAX = 100_000
"""Unacknowledged hints of one asker. Overflow: its session is forgotten."""
NEWS_MAX = 2_000
"""Hints in one answer."""
ASKERS_KEPT_MAX = 100_000


class Hint(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    path: str
    sid: int
    """Of the stream; of a group that entered, its number."""
    fork_at: int
    start: int
    """Where the first of the growths begins that this hint stands for."""
    tail: int
    deleted: bool
    entered: bool = False
    """Not about a stream: the process serves a group from now on that it did not serve before."""
    epoch: int = 0
    """Of the process's ownership of the group: a later owner knows better."""


class _Asker:
    """Another process, for one session."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.patterns = Patterns()
        self.paths: set[str] = set()
        self.hints: dict[int, Hint] = {}
        """By sid, and by -1 - number for groups that entered, in the order of their seqs."""
        self.waiting: set[asyncio.Future[None]] = set()

    def wants(self, path: str) -> bool:
        return path in self.paths or bool(self.patterns.matching(path))

    def wake(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)

    def acknowledge(self, seq: int) -> None:
        for key, _ in list(takewhile(lambda entry: entry[1].seq <= seq, self.hints.items())):
            del self.hints[key]


class Hints:
    """An `Observer` of all groups of this process."""

    def __init__(self, engine: Engine) -> None:
        self._askers: dict[int, _Asker] = {}
        self._version = 0
        self._seq = 0
        self._wanted_by: dict[int, tuple[int, str, list[_Asker]]] = {}
        """By sid: version, path, who wants to hear of it. Overflow: all are forgotten."""
        self._closed = False
        self._questions = engine.questions
        self._owned = engine.owned
        self._groups_count = engine.groups_count
        self._me = engine.questions.me
        engine.questions.register("subscriptions_watch", self._answer_watch)
        engine.questions.register("subscriptions_news", self._answer_news)
        if not engine.questions.alone:
            engine.observe(self)
            engine.questions.on_change.append(self._forget_absent)

    def _forget_absent(self) -> None:
        """A process that is not there any more asks for nothing; one that comes back begins a new session."""
        for member in self._askers.keys() - {*self._questions.everyone}:
            self._forget(self._askers[member])

    def entered(self, group: int, epoch: int) -> None:
        """This process serves the group from now on: its streams may have done what nobody was told of."""
        for asker in list(self._askers.values()):
            self._seq += 1
            asker.hints.pop(-1 - group, None)
            asker.hints[-1 - group] = Hint(self._seq, "", group, 0, 0, 0, False, True, epoch)
            self._told(asker)

    def close(self) -> None:
        """Nobody waits for a hint any more: questions that would are refused."""
        self._closed = True
        for asker in self._askers.values():
            asker.wake()

    # ---- as an observer -------------------------------------------------------------------------------------------

    def grown(self, stream: LoadedStream, start: int) -> None:
        if not self._askers:
            return
        known = self._wanted_by.get(stream.sid)
        if known is None or known[0] != self._version:
            path = model.path_of(stream.key)
            known = (self._version, path, self._wanting(path))
            if len(self._wanted_by) >= ASKERS_KEPT_MAX:
                self._wanted_by.clear()
            self._wanted_by[stream.sid] = known
        for asker in known[2]:
            self._hint(asker, known[1], stream, start, False)

    def deleted(self, stream: LoadedStream) -> None:
        self._wanted_by.pop(stream.sid, None)
        path = model.path_of(stream.key)
        for asker in self._wanting(path):
            self._hint(asker, path, stream, stream.visible, True)

    def pass_ended(self) -> None:
        """Nothing waits for the end of a pass: whoever waits for hints takes them in a later turn of the loop."""

    def left(self) -> None:
        """Whoever serves the group now tells of its streams."""

    def _wanting(self, path: str) -> list[_Asker]:
        return [] if model.reserved(path) else [asker for asker in self._askers.values() if asker.wants(path)]

    def _hint(self, asker: _Asker, path: str, stream: LoadedStream, start: int, deleted: bool) -> None:
        self._seq += 1
        before = asker.hints.pop(stream.sid, None)
        start = start if before is None else before.start
        owned = self._owned.get(stream.sid % self._groups_count)
        epoch = 0 if owned is None else owned.group.epoch
        facts = (path, stream.sid, stream.fork_at, start, stream.visible, deleted)
        asker.hints[stream.sid] = Hint(self._seq, *facts, False, epoch)
        self._told(asker)

    def _told(self, asker: _Asker) -> None:
        if asker.waiting:
            asker.wake()
        if len(asker.hints) > HINTS_MAX:
            self._forget(asker)

    def _forget(self, asker: _Asker) -> None:
        for member in [member for member, other in self._askers.items() if other is asker]:
            del self._askers[member]
        self._version += 1
        asker.wake()

    # ---- answers --------------------------------------------------------------------------------------------------

    async def _answer_watch(
        self, member: int, session: str, added: list[Interest], removed: list[Interest], whole: bool
    ) -> bool:
        """Changes what a process wants to hear of; `whole` begins a session."""
        asker = self._askers.get(member)
        if whole:
            if asker is not None:
                self._forget(asker)
            asker = self._askers[member] = _Asker(session)
        elif asker is None or asker.session != session:
            return False
        for is_pattern, text in removed:
            if is_pattern:
                asker.patterns.remove(text, "")
            else:
                asker.paths.discard(text)
        for is_pattern, text in added:
            if is_pattern:
                asker.patterns.add(text, "")
            else:
                asker.paths.add(text)
        self._version += 1
        return True

    async def _answer_news(self, member: int, session: str, acknowledged: int, wait_ms: int) -> list[Hint] | None:
        asker = self._askers.get(member)
        if asker is None or asker.session != session:
            return None
        asker.acknowledge(acknowledged)
        if not asker.hints and wait_ms:
            if self._closed:
                raise MemberUnavailable(self._me)  # an empty answer would have it ask again at once
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asker.waiting.add(future)
            try:
                await asyncio.wait_for(future, wait_ms / 1000)
            except TimeoutError:
                pass
            finally:
                asker.waiting.discard(future)
            if self._askers.get(member) is not asker:
                return None
        return list(islice(asker.hints.values(), NEWS_MAX))
