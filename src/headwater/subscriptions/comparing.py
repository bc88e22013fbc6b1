"""What subscriptions may have missed of one process's streams, found by looking at them.

Owns what is still to be compared with that process, and that it is tried until it is. Never decides what growth means:
`growth` does.

Hints tell of what happens while somebody listens. These moments leave a gap, and each of them asks for a comparison:

    a session with the process begins       all its streams, all subscriptions
    a group enters the process              the group's streams, all subscriptions
    a subscription enters this process      all its streams, that subscription
    ten minutes have passed                 all its streams, all subscriptions: a hint may have been lost

A group that has left the process before it could be compared is dropped: whoever serves it now has told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog

from headwater.engine.questions import Questions
from headwater.errors import Failure, NoOwner
from headwater.model.subscriptions import Subscription
from headwater.subscriptions.all_streams import AllStreams
from headwater.subscriptions.growth import Growth
from headwater.subscriptions.registry import Index

PAUSE_S_FIRST, PAUSE_S_MAX = 0.1, 5.0
PATTERNS_SOUGHT_MAX = 500
SLICE_LINKS = 5_000
"""Links looked through without a pause."""

log = structlog.get_logger("headwater.subscriptions")


class Missed(msgspec.Struct):
    """What is to be compared."""

    everything: bool = False
    again: bool = False
    """Everything, although nothing is known to be missed: nobody waits for that."""
    groups: set[int] = msgspec.field(default_factory=set)
    """With all subscriptions."""
    uids: set[str] = msgspec.field(default_factory=set)
    """With all groups of the process."""

    @property
    def is_known(self) -> bool:
        """Something was missed, or may have been."""
        return self.everything or bool(self.groups or self.uids)

    def add(self, other: Missed) -> None:
        self.everything = self.everything or other.everything
        self.again = self.again or other.again
        self.groups |= other.groups
        self.uids |= other.uids


class Comparing:
    """`watched` returns when the process tells of all that the subscriptions want to hear of: what happens after the
    comparison is told."""

    def __init__(
        self,
        member: int,
        questions: Questions,
        index: Index,
        streams: AllStreams,
        growth: Growth,
        watched: Callable[[], Awaitable[None]],
        is_latest: Callable[[int, int], bool],
    ) -> None:
        """`is_latest`: whether nobody is known to have owned a group after an epoch."""
        self._member = member
        self._questions = questions
        self._index = index
        self._streams = streams
        self._growth = growth
        self._watched = watched
        self._is_latest = is_latest
        self._missed = Missed()
        self._trying = Missed()
        self._task: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        """Ends a pause."""
        self._waiting: set[asyncio.Future[None]] = set()
        """For a try that leaves nothing, or fails."""
        self._stopped = False

    @property
    def is_behind(self) -> bool:
        """Something may have been missed, and is not made up for yet."""
        return self._missed.is_known or self._trying.is_known

    def need(self, missed: Missed) -> None:
        """Has it compared, now or after what is being compared."""
        self._missed.add(missed)
        self._nudged.set()
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def tried(self) -> None:
        """Returns when everything that was missed has been compared, or a try of it failed. Tries it now."""
        if not self.is_behind or self._stopped:
            return
        self._nudged.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def stop(self) -> asyncio.Task[None] | None:
        """Ends it; returns the task that is being cancelled."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        self._release()
        return self._task

    def _release(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def _run(self) -> None:
        pause_s = PAUSE_S_FIRST
        while self._missed.is_known or self._missed.again or self._trying.is_known or self._trying.again:
            self._trying.add(self._missed)
            self._missed = Missed()
            self._nudged.clear()
            try:
                if self._index.by_uid:
                    await self._watched()
                    await self._compare(self._trying)
                self._trying = Missed()
                pause_s = PAUSE_S_FIRST
            except Exception as error:
                if not isinstance(error, Failure):
                    log.exception("streams of another process cannot be compared", member=self._member)
                self._release()
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            if not self.is_behind:
                self._release()
        self._task = None

    async def _pause(self, pause_s: float) -> None:
        try:
            # Not `wait_for`: of a nudge and a cancellation in the same turn it takes the nudge alone.
            async with asyncio.timeout(pause_s):
                await self._nudged.wait()
        except TimeoutError:
            pass

    # ---- a comparison -------------------------------------------------------------------------------------------

    async def _compare(self, missed: Missed) -> None:
        """Raises a Failure when the process does not answer, or a group left it meanwhile."""
        asked = self._questions.ask(self._member, "subscriptions_groups", into=dict[int, int])
        epochs: dict[int, int] = await asked
        served = {*epochs}
        by_uid = self._index.by_uid
        if missed.everything or missed.again:
            await self._compare_with(served, epochs, list(by_uid.values()))
            return
        if missed.groups & served:
            await self._compare_with(missed.groups & served, epochs, list(by_uid.values()))
        if missed.uids:
            subs = [sub for uid in missed.uids if (sub := by_uid.get(uid)) is not None]
            await self._compare_with(served, epochs, subs)

    def _demand_latest(self, groups: Iterable[int], epochs: dict[int, int]) -> None:
        """Raises NoOwner when a later owner of a group was heard of: an answer may be older than what it said."""
        for group in groups:
            if not self._is_latest(group, epochs[group]):
                raise NoOwner(group)

    async def _compare_with(self, groups: set[int], epochs: dict[int, int], subs: list[Subscription]) -> None:
        """Compares the links with the streams of these groups: those that grew, are new, or are gone."""
        seen: set[int] = set()
        patterns = sorted({sub.config.pattern for sub in subs if sub.config.pattern is not None})
        for at in range(0, len(patterns), PATTERNS_SOUGHT_MAX):
            sought = patterns[at : at + PATTERNS_SOUGHT_MAX]
            async for rows in self._streams.matching(self._member, sought, sorted(groups)):
                self._demand_latest(groups, epochs)
                for row in rows:
                    seen.add(row[1])
                    self._growth.recall(row)
        links_count = 0
        for sub in subs:
            links_count += len(sub.links)
            if links_count >= SLICE_LINKS:
                links_count = 0
                await asyncio.sleep(0)
            if self._index.holds(sub):
                await self._compare_links(sub, groups, epochs, seen)

    async def _compare_links(self, sub: Subscription, groups: set[int], epochs: dict[int, int], seen: set[int]) -> None:
        sids = {path: link.sid for path, link in sub.links.items() if link.sid not in seen}
        places = self._places(sids, groups)
        if not places:
            return
        looked = await self._streams.look(places, dict.fromkeys(groups, self._member))
        self._demand_latest(groups, epochs)
        for path, group in places.items():
            failure = looked.unknown.get(path)
            if failure is not None and group in groups:
                raise failure
            state = looked.found.get(path)
            if state is not None:
                self._growth.recall((path, *state))
            elif failure is None and sids[path]:
                self._demand_owner(group)
                self._growth.lost(path, sids[path])

    def _places(self, sids: dict[str, int], groups: Iterable[int]) -> dict[str, int]:
        """Where the search for each path begins. A stream that is named and was not there may be in any group by now,
        if it is a fork: its home knows."""
        streams = self._streams
        return {
            path: streams.group_of(sid) if sid else streams.place(path)
            for path, sid in sids.items()
            if not sid or streams.group_of(sid) in groups
        }

    def _demand_owner(self, group: int) -> None:
        """Raises MemberUnavailable unless that process is seen to serve the group. One that stood still and goes on may
        not know yet that it does not: what was created since is not there for it, and is not gone."""
        if self._questions.owner(group) != self._member:
            raise NoOwner(group)
