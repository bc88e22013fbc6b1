"""The other processes as subscriptions of this one hear of their streams.

Owns one session with each that is there: what it was told to watch, and what it told. Never decides what growth means:
`growth` does. What was not told is found by `comparing`. With one process there is nobody to ask, and no task runs.

    no session -> all interests are sent, a session begins -> what exists there is compared with the links
    session    -> news, asked for again and again          -> hints applied in the order of their seqs, each once

Processes come and go, and groups go from one to another. One that came is asked as soon as there is a subscription; one
that went is forgotten. Who takes a group over says so in its news.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog

from headwater.engine.engine import Engine
from headwater.errors import Failure, MemberUnavailable
from headwater.model.subscriptions import Subscription
from headwater.ports import Rng
from headwater.subscriptions.all_streams import AllStreams
from headwater.subscriptions.comparing import PAUSE_S_FIRST, PAUSE_S_MAX, Comparing, Missed
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
INTERESTS_SENT_MAX = 5_000

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
        self.gaps_count = 0
        """Moments at which something may have happened elsewhere that nobody told of. Each has been compared with the
        subscriptions that were there then."""
        self._questions = questions = engine.questions
        self._here = Comparing(questions.me, questions, index, streams, growth, _nothing, self.is_latest)
        """Streams of this process need no hints; those of a group that has just entered are compared as well."""
        self._epochs: dict[int, int] = {}
        """By group: the highest that was heard of."""
        self._all: dict[int, _Neighbour] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks of processes that went."""
        self._stopped = False
        self._follow_members()
        if not questions.alone:
            questions.on_change.append(self._follow_members)

    def start(self) -> None:
        """Takes sessions up if there are subscriptions; otherwise the first one does."""
        if self.index.by_uid:
            for neighbour in self._all.values():
                neighbour.start()

    async def stop(self) -> None:
        self._stopped = True
        for neighbour in self._all.values():
            self._end(neighbour)
        if (task := self._here.stop()) is not None:
            self._ending.add(task)
        await asyncio.gather(*self._ending, return_exceptions=True)

    # ---- who is there, and who serves what --------------------------------------------------------------------------

    def _follow_members(self) -> None:
        if self._stopped:
            return
        there = {*self._questions.everyone} - {self._questions.me}
        for member in self._all.keys() - there:
            self._end(self._all.pop(member))
        for member in there - self._all.keys():
            self._all[member] = _Neighbour(self, member)
            if self.index.by_uid:
                self._all[member].start()

    def _end(self, neighbour: _Neighbour) -> None:
        for task in neighbour.stop():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def entered(self, group: int, epoch: int, subs: Iterable[Subscription]) -> None:
        """This process serves the group from now on, and these subscriptions, which live in it."""
        self.gaps_count += 1
        self.is_latest(group, epoch)
        if not self.index.by_uid or self._stopped:
            return
        # What became of the group's streams was heard of by whoever served them, if it lived on.
        self._here.need(Missed(groups={group}))
        self.need({sub.uid for sub in subs})

    def is_latest(self, group: int, epoch: int) -> bool:
        """Whether nobody is known to have owned the group after whoever says something about it."""
        latest = self._epochs[group] = max(epoch, self._epochs.get(group, 0))
        return epoch == latest

    def need(self, uids: set[str]) -> None:
        """These subscriptions may have missed something, wherever it was."""
        if not uids or self._stopped:
            return
        if not self._questions.alone:
            self._here.need(Missed(uids=set(uids)))
        for neighbour in self._all.values():
            neighbour.start()
            neighbour.comparing.need(Missed(uids=set(uids)))

    # ---- interests ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watching(self, interests: list[Interest]) -> AsyncIterator[None]:
        """Inside, every other process tells of these. Raises MemberUnavailable, OutcomeUnknown."""
        self.held.update(interests)
        try:
            await asyncio.gather(*(neighbour.watch(interests) for neighbour in self._all.values()))
            gaps_count = self.gaps_count
            yield
            if self.gaps_count != gaps_count:
                # What the body looked at may have changed hands before the index knew that somebody wants to hear.
                self.need({uid for interest in interests for uid in self.index.wanting(interest)})
        finally:
            self.held.subtract(interests)
            self.held += Counter()  # forgets what is not held any more
            self.unwatch(interests)

    async def watch(self, member: int, interests: list[Interest]) -> None:
        """On return that process tells of these. Raises MemberUnavailable, OutcomeUnknown."""
        neighbour = self._all.get(member)
        if neighbour is None:
            raise MemberUnavailable(member)
        await neighbour.watch(interests)

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
        if self._all or self._here.is_behind:
            await asyncio.gather(self._refresh_here(), *(neighbour.refresh() for neighbour in self._all.values()))

    async def _refresh_here(self) -> None:
        try:
            async with asyncio.timeout(REFRESH_S_MAX):
                await self._here.tried()
        except TimeoutError:
            pass  # what is known has to do


async def _nothing() -> None: ...


class _Neighbour:
    def __init__(self, neighbours: Neighbours, member: int) -> None:
        self.unwanted: set[Interest] = set()
        self._all = neighbours
        self._member = member
        self._questions = questions = neighbours.engine.questions
        self.comparing = Comparing(
            member,
            questions,
            neighbours.index,
            neighbours.streams,
            neighbours.growth,
            self._watch_all,
            neighbours.is_latest,
        )
        self._session: str | None = None
        self._applied = 0
        """seq of the last hint that was applied in this session."""
        self._placed: set[Interest] = set()
        self._lock = asyncio.Lock()
        """Held while interests are sent: they must arrive in order."""
        self._following: asyncio.Task[None] | None = None
        self._reconcile_at_ms = 0
        self._stopped = False

    def start(self) -> None:
        if self._following is None and not self._stopped:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> list[asyncio.Task[None]]:
        """Ends it; returns the tasks that are being cancelled."""
        self._stopped = True
        if self._following is not None:
            self._following.cancel()
        return [task for task in (self._following, self.comparing.stop()) if task is not None]

    # ---- interests ------------------------------------------------------------------------------------------------

    async def watch(self, interests: list[Interest]) -> None:
        """On return the other process tells of these. Raises MemberUnavailable, OutcomeUnknown."""
        async with self._lock:
            if self._session is not None:
                await self._send([interest for interest in interests if interest not in self._placed], [])
            if self._session is None:
                await self._begin()
        self.start()

    async def _watch_all(self) -> None:
        """On return the other process tells of all that the subscriptions of this one want to hear of."""
        await self.watch(list(self._all.index.interests()))

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
        self._all.gaps_count += 1
        self._reconcile_at_ms = self._now_ms() + RECONCILE_INTERVAL_MS
        await self._send(rest, [])
        if self._all.index.by_uid and not self._stopped:
            self.comparing.need(Missed(everything=True))

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
                    log.exception("what another process said cannot be used; it is asked again", member=self._member)
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
                    self._apply(hint)
            any_heard = any_heard or bool(hints)
            full, wait_ms = len(hints) >= NEWS_MAX, 0
        return any_heard

    def _apply(self, hint: Hint) -> None:
        neighbours = self._all
        if hint.entered:
            neighbours.gaps_count += 1
            neighbours.is_latest(hint.sid, hint.epoch)
            if neighbours.index.by_uid:
                self.comparing.need(Missed(groups={hint.sid}))
        elif hint.deleted or neighbours.is_latest(neighbours.streams.group_of(hint.sid), hint.epoch):
            neighbours.growth.heard(hint)
            neighbours.streams.touch(hint.path)
        # Otherwise it is late: the stream was compared, or will be, at a later owner, which may have deleted it.

    async def refresh(self) -> None:
        try:
            async with asyncio.timeout(REFRESH_S_MAX):
                await self._hear(0)
                if self._session is None:
                    async with self._lock:
                        if self._session is None:
                            await self._begin()
                self._reconcile_when_due()
                await self.comparing.tried()
        except (Failure, TimeoutError):
            pass  # it is away: what is known has to do

    def _reconcile_when_due(self) -> None:
        """What a hint that was lost would have told is found in the end, whatever lost it."""
        if self._now_ms() >= self._reconcile_at_ms:
            self._reconcile_at_ms = self._now_ms() + RECONCILE_INTERVAL_MS
            self.comparing.need(Missed(again=True))

    def _now_ms(self) -> int:
        return self._all.engine.clock.now_ms()
