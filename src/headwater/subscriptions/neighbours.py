"""The other processes as subscriptions of this one hear of their streams.

Owns one session with each: what it was told to watch, what it told, and the search for what it may have missed. Never
decides what growth means: `growth` does. With one process there is nobody to ask, and no task runs.

    no session -> all interests are sent, a session begins -> what exists there is compared with the links
    session    -> news, asked for again and again          -> hints applied in the order of their seqs, each once
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog

from headwater.engine.engine import Engine
from headwater.errors import Failure
from headwater.ports import Rng
from headwater.subscriptions.all_streams import AllStreams
from headwater.subscriptions.growth import Growth
from headwater.subscriptions.hints import NEWS_MAX, Hint
from headwater.subscriptions.registry import Index, Interest

WAIT_MS = 10_000
"""How long a process keeps a question for news while there are none. Well below the time limit of questions."""
RECONCILE_INTERVAL_MS = 600_000
REFRESH_S_MAX = 5.0
"""How long a claim waits for a process that may have news for it."""
GATHER_S = 0.005
"""After news, before the next are asked for: streams that grow all the time must not cost a question each time."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.1, 5.0
INTERESTS_SENT_MAX = 5_000
PATTERNS_SOUGHT_MAX = 500

log = structlog.get_logger("headwater.subscriptions")


class Neighbours:
    def __init__(self, engine: Engine, index: Index, streams: AllStreams, growth: Growth, rng: Rng) -> None:
        self.engine = engine
        self.index = index
        self.streams = streams
        self.growth = growth
        self.rng = rng
        self.held: Counter[Interest] = Counter()
        """What a request that is under way wants to hear of before the index knows it."""
        questions = engine.questions
        self._all = {member: _Neighbour(self, member) for member in questions.everyone if member != questions.me}

    @property
    def members(self) -> list[int]:
        return list(self._all)

    def start(self) -> None:
        """Takes sessions up if there are subscriptions; otherwise the first one does."""
        if self.index.by_uid:
            for neighbour in self._all.values():
                neighbour.start()

    async def stop(self) -> None:
        await asyncio.gather(*(neighbour.stop() for neighbour in self._all.values()))

    @asynccontextmanager
    async def watching(self, interests: list[Interest]) -> AsyncIterator[None]:
        """Inside, every other process tells of these. Raises MemberUnavailable, OutcomeUnknown."""
        self.held.update(interests)
        try:
            await asyncio.gather(*(neighbour.watch(interests) for neighbour in self._all.values()))
            yield
        finally:
            self.held.subtract(interests)
            self.held += Counter()  # forgets what is not held any more
            self.unwatch(interests)

    async def watch(self, member: int, interests: list[Interest]) -> None:
        await self._all[member].watch(interests)

    def unwatch(self, interests: Iterable[Interest]) -> None:
        """Has the others forget what nobody here wants to hear of any more, by and by."""
        if self._all:
            unwanted = [interest for interest in interests if not self.wants(interest)]
            for neighbour in self._all.values():
                neighbour.unwanted.update(unwanted)

    def wants(self, interest: Interest) -> bool:
        return interest in self.held or self.index.wants(interest)

    async def refresh(self) -> None:
        """On return all that was acknowledged elsewhere before the call is known here, unless a process is away."""
        if self._all:
            await asyncio.gather(*(neighbour.refresh() for neighbour in self._all.values()))


class _Neighbour:
    def __init__(self, neighbours: Neighbours, member: int) -> None:
        self.unwanted: set[Interest] = set()
        self._all = neighbours
        self._member = member
        self._questions = neighbours.engine.questions
        self._session: str | None = None
        self._applied = 0
        """seq of the last hint that was applied in this session."""
        self._placed: set[Interest] = set()
        self._lock = asyncio.Lock()
        """Held while interests are sent: they must arrive in order."""
        self._following: asyncio.Task[None] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._reconcile_at_ms = 0
        self._behind = False
        """True until the first comparison of a session is through: hints may have been missed before it."""
        self._stopped = False

    def start(self) -> None:
        if self._following is None and not self._stopped:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        self._stopped = True
        tasks = [task for task in (self._following, self._reconciling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- interests ------------------------------------------------------------------------------------------------

    async def watch(self, interests: list[Interest]) -> None:
        """On return the other process tells of these. Raises MemberUnavailable, OutcomeUnknown."""
        async with self._lock:
            if self._session is not None:
                await self._send([interest for interest in interests if interest not in self._placed], [])
            if self._session is None:
                await self._begin()
        self.start()

    async def _begin(self) -> None:
        """A new session, with all interests of this process."""
        everything = list({*self._all.index.interests(), *self._all.held})
        self._session = None
        session = self._all.rng.token(8).hex()
        first, rest = everything[:INTERESTS_SENT_MAX], everything[INTERESTS_SENT_MAX:]
        await self._questions.ask(
            self._member, "subscriptions_watch", self._questions.me, session, first, [], True, into=bool
        )
        self._session, self._applied, self._placed = session, 0, set(first)
        self.unwanted.clear()
        self._behind = bool(self._all.index.by_uid)
        self._reconcile_at_ms = self._now_ms() if self._behind else self._now_ms() + RECONCILE_INTERVAL_MS
        await self._send(rest, [])

    async def _send(self, added: list[Interest], removed: list[Interest]) -> None:
        """Leaves no session when the other process does not know it any more."""
        while self._session is not None and (added or removed):
            now, added = added[:INTERESTS_SENT_MAX], added[INTERESTS_SENT_MAX:]
            arguments = (self._questions.me, self._session, now, removed, False)
            if not await self._questions.ask(self._member, "subscriptions_watch", *arguments, into=bool):
                self._session = None
            self._placed.difference_update(removed)
            self._placed.update(now)
            removed = []

    async def _send_unwanted(self) -> None:
        unwanted = [one for one in self.unwanted if one in self._placed and not self._all.wants(one)]
        self.unwanted.clear()
        await self._send([], unwanted)

    # ---- news -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        pause_s = PAUSE_S_FIRST
        while True:
            try:
                async with self._lock:
                    if self._session is None:
                        await self._begin()
                    if self.unwanted:
                        await self._send_unwanted()
                if not self._all.index.by_uid and not self._all.held:
                    self._following = None  # the next subscription goes on from here
                    return
                self._reconcile_when_due()
                if await self._hear(WAIT_MS):
                    await asyncio.sleep(GATHER_S)
                pause_s = PAUSE_S_FIRST
            except Exception as error:
                if not isinstance(error, Failure):
                    log.exception("what another worker said cannot be used; it is asked again", worker=self._member)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _hear(self, wait_ms: int) -> bool:
        """Applies the news there are; returns whether there were any.

        Leaves no session when the other process does not know it any more.
        """
        full, any_heard = True, False
        while full and (session := self._session) is not None:
            arguments = (self._questions.me, session, self._applied, wait_ms)
            hints = await self._questions.ask(self._member, "subscriptions_news", *arguments, into=list[Hint] | None)
            if self._session != session:
                break
            if hints is None:
                self._session = None
                break
            for hint in hints:
                # Two answers may hold the same hint: one to a claim, one to the question that waits.
                if hint.seq > self._applied:
                    self._applied = hint.seq
                    self._all.growth.heard(hint)
                    self._all.streams.touch(hint.path)
            any_heard = any_heard or bool(hints)
            full, wait_ms = len(hints) >= NEWS_MAX, 0
        return any_heard

    async def refresh(self) -> None:
        try:
            async with asyncio.timeout(REFRESH_S_MAX):
                await self._hear(0)
                if self._session is None:
                    async with self._lock:
                        if self._session is None:
                            await self._begin()
                self._reconcile_when_due()
                if self._behind and self._reconciling is not None:
                    await asyncio.shield(self._reconciling)
        except (Failure, TimeoutError):
            pass  # it is away: what is known has to do

    # ---- what may have been missed --------------------------------------------------------------------------------

    def _reconcile_when_due(self) -> None:
        if self._reconciling is None and self._now_ms() >= self._reconcile_at_ms and not self._stopped:
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())
            self._reconciling.add_done_callback(self._reconciled)

    def _reconciled(self, task: asyncio.Task[None]) -> None:
        self._reconciling = None
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Failure):
            log.error("streams of another worker cannot be compared", worker=self._member, reason=str(error))

    async def _reconcile(self) -> None:
        """Compares the links with the streams of that process: those that grew, are new, or are gone."""
        session, index, streams, growth = self._session, self._all.index, self._all.streams, self._all.growth
        seen: set[int] = set()
        patterns = sorted(index.patterns)
        for at in range(0, len(patterns), PATTERNS_SOUGHT_MAX):
            async for rows in streams.matching(self._member, patterns[at : at + PATTERNS_SOUGHT_MAX]):
                for row in rows:
                    seen.add(row[1])
                    growth.recall(row)
        for sub in list(index.by_uid.values()):
            links = {path: link.sid for path, link in sub.links.items() if link.sid not in seen}
            places = {
                path: streams.group_of(sid) if sid else streams.place(path)
                for path, sid in links.items()
                if not sid or self._questions.owner(streams.group_of(sid)) == self._member
            }
            looked = await streams.look(places)
            looked.demand()
            for path in places:
                state = looked.found.get(path)
                if state is not None:
                    growth.recall((path, *state))
                elif links[path]:
                    growth.lost(path, links[path])
        if self._session == session:
            self._behind = False
            self._reconcile_at_ms = self._now_ms() + RECONCILE_INTERVAL_MS

    def _now_ms(self) -> int:
        return self._all.engine.clock.now_ms()
