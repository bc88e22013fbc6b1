"""The groups of this process: which group a name belongs to, and the way to its streams.

Owns the map from keys to groups and from streams to theirs. Never decides: a group does. What doors, subscriptions and
admin calls want of streams they ask here; none of them holds a group, a log or a catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from xxhash import xxh3_64_intdigest

from headwater.engine.group import Group
from headwater.engine.leaving import leave
from headwater.engine.loaded_stream import Follower, LoadedStream, Observer
from headwater.engine.marks import Marks
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.pending_answers import Waiter
from headwater.engine.placements import Placement
from headwater.engine.questions import LocalQuestions, Questions
from headwater.engine.read_plan import Slice
from headwater.engine.reads import Done
from headwater.engine.reads_by_id import Place, Record
from headwater.engine.record_reads import Done as RecordsDone
from headwater.engine.topic_deletes import Done as DeletesDone
from headwater.engine.topic_deletes import Match
from headwater.engine.usage import ReadUsage
from headwater.errors import Failure, GroupMoved, NotServedHere
from headwater.model.commands import Command, Create
from headwater.ports import Clock

GUESTS_MAX = 65_536
BARRED_MAX = 10_000
"""What is refused by them was under way when a name was placed elsewhere: seconds would do. Overflow: the oldest go."""


class Listener(Protocol):
    """Someone who has to know which groups this process serves."""

    def entered(self, owned: OwnedGroup) -> None:
        """Requests for the group are served here from now on."""
        ...

    def left(self, owned: OwnedGroup) -> None:
        """They are not any more. Its followers have been told."""
        ...


def home_of(key: str, groups_count: int) -> int:
    """The group that a name belongs to."""
    return 0 if groups_count == 1 else xxh3_64_intdigest(key.encode()) % groups_count


class Lease(Protocol):
    """Of a group that another process may come to serve."""

    def holds(self) -> bool:
        """Nobody else can serve it at this moment."""
        ...

    async def confirm(self) -> None:
        """Returns when it is certain that nobody else served it at the time of the call. Raises GroupMoved."""
        ...


class Engine:
    """With one group every call below is that group's own: it costs nothing to ask here."""

    def __init__(
        self, owned: dict[int, OwnedGroup], groups_count: int, clock: Clock, questions: Questions | None = None
    ) -> None:
        self.owned = owned
        self.questions: Questions = LocalQuestions() if questions is None else questions
        """The way to groups of other processes."""
        self.groups_count = groups_count
        self.clock = clock
        # A group that may leave is looked up each time.
        only = owned[0].group if groups_count == 1 and 0 in owned else None
        self.submit: Callable[[str, Command, Waiter], None] = self._submit if only is None else only.submit
        """See `Group.submit`."""
        self.find: Callable[[str, bool], LoadedStream] = self._find if only is None else only.find
        """See `Group.find`."""
        self.look: Callable[[str], LoadedStream | None] = self._look if only is None else only.loaded.find
        """The stream of that name, loaded if need be, visible or not; None when there is none."""
        self._only = only
        self._usage = next(iter(owned.values())).group.usage if owned else ReadUsage(clock)
        """Reads are counted by bucket, whatever group they were of: one of this process keeps the counts."""
        self._observers: list[Observer] = []
        self.listeners: list[Listener] = []
        self._guests: dict[str, int] = {}
        """Names whose home another process serves, and the group of this one that it placed them in. Overflow: all are
        forgotten; whoever is served just then is refused, and may try again."""
        self._barred: dict[str, int] = {}
        """See `bar`."""
        self._leases: dict[int, Lease] = {}
        """See `enter`."""
        self.joined_count = 0
        """Appends that a door submitted together with the one before them."""

    # ---- which group --------------------------------------------------------------------------------------------

    def home(self, key: str) -> int:
        """The group that a name belongs to."""
        return home_of(key, self.groups_count)

    def placement(self, key: str) -> Placement | None:
        """Where the stream of that name lives when that is not its home, which this process serves. Raises GroupMoved
        when it has left since."""
        home = self.home(key)
        owned = self.owned.get(home)
        if owned is None:
            raise GroupMoved(home)
        return None if key in owned.group.loaded.by_key else owned.placements.get(key)

    def place(self, key: str) -> int:
        """The group that the stream of that name lives in, or would be created in; its home when another process
        serves that, and may know better."""
        if self._only is not None:
            return 0
        home = self.home(key)
        placed = self.placement(key) if home in self.owned else None
        return home if placed is None else placed.group

    async def locate(self, key: str) -> int:
        """The group that the stream of that name lives in, or would be created in."""
        home = self.home(key)
        if home in self.owned:
            return self.place(key)
        return int(await self.questions.ask_owner(home, "placement", key))

    def admit(self, key: str, group: int, version: int, creates: bool) -> None:
        """The name's home, which another process serves, has sent a request to `group` by a placement.

        Raises NotServedHere, also for a creation when the name has been placed elsewhere since.
        """
        if group not in self.owned or (creates and self._barred.get(key, -1) >= version):
            raise NotServedHere(group)
        if len(self._guests) >= GUESTS_MAX:
            self._guests.clear()
        self._guests[key] = group

    def bar(self, key: str, version: int) -> None:
        """Refuses from now on creations that were sent here by a placement of that version or an older one."""
        self._barred.pop(key, None)
        self._barred[key] = version
        if len(self._barred) > BARRED_MAX:
            del self._barred[next(iter(self._barred))]

    def group(self, key: str) -> Group:
        """Raises NotServedHere."""
        if self._only is not None:
            return self._only
        home = self.owned.get(self.home(key))
        if home is not None and key in home.group.loaded.by_key:
            return home.group  # nearly always: 0.3 µs instead of 0.6 µs
        number = self.place(key)
        found = self.owned.get(number)
        if found is None and (guest := self._guests.get(key)) is not None and self.home(key) not in self.owned:
            found = self.owned.get(guest)
        if found is None:
            raise NotServedHere(number)
        return found.group

    def group_of(self, stream: LoadedStream) -> OwnedGroup:
        """The group that a loaded stream lives in: its id tells. Raises NotServedHere when it has left since."""
        number = stream.sid % self.groups_count
        found = self.owned.get(number)
        if found is None:
            raise NotServedHere(number)
        return found

    def serving(self, number: int) -> OwnedGroup:
        """A group that was here when this was begun. Raises GroupMoved when it has left since."""
        found = self.owned.get(number)
        if found is None:
            raise GroupMoved(number)
        return found

    # ---- one stream ---------------------------------------------------------------------------------------------

    def _submit(self, key: str, command: Command, waiter: Waiter) -> None:
        group = self.group(key)
        # The log would fence what is accepted. A refusal is answered without it, and has to be judged by the present.
        self._demand_lease(group.number)
        if type(command) is Create and command.fork is not None:
            self._check_source(group, key, command.fork.source)
        group.submit(key, command, waiter)

    def _check_source(self, group: Group, key: str, source: str) -> None:
        """Raises NotServedHere for a fork whose source may live in another group.

        It was sent here because a stream of its name lived here, which is gone since.
        """
        if not group.has(source) and not group.has(key) and self.place(source) != group.number:
            raise NotServedHere(self.home(source))

    def _find(self, key: str, touch: bool) -> LoadedStream:
        group = self.group(key)
        self._demand_lease(group.number)
        return group.find(key, touch)

    def _look(self, key: str) -> LoadedStream | None:
        group = self.group(key)
        self._demand_lease(group.number)
        return group.loaded.find(key)

    def _demand_lease(self, number: int) -> None:
        """Raises GroupMoved when another process may serve the group by now. This one has not noticed it if it stood
        still meanwhile: requests that came first are met before the clock is looked at otherwise."""
        lease = self._leases.get(number)
        if lease is not None and not lease.holds():
            raise GroupMoved(number)

    async def confirm(self, key: str) -> None:
        """Returns when nobody else can have acknowledged anything for the stream of that name since the call, which
        takes an entry of a log that others could own. Raises NotServedHere, GroupMoved."""
        await self.confirm_group(self.group(key).number)

    async def confirm_group(self, number: int) -> None:
        """The same for all streams of a group of this process."""
        lease = self._leases.get(number)
        if lease is not None:
            await lease.confirm()

    def unpublished(self, key: str) -> bool:
        return self.group(key).unpublished(key)

    def after_published(self, key: str, waiter: Waiter) -> None:
        self.group(key).after_published(key, waiter)

    def read(self, stream: LoadedStream, offset: int, bytes_max: int, done: Done, joined: bool = False) -> None:
        """See `Reads.read`."""
        reads = self.group_of(stream).reads
        if offset >= stream.timeline.start:
            reads.read(stream, offset, bytes_max, done, joined)
        else:
            self._when_aged(stream, lambda: reads.read(stream, offset, bytes_max, done, joined), done)

    async def read_now(self, stream: LoadedStream, offset: int, bytes_max: int, joined: bool = False) -> Slice:
        future: asyncio.Future[Slice | Failure] = asyncio.get_running_loop().create_future()
        self.read(stream, offset, bytes_max, lambda part: None if future.done() else future.set_result(part), joined)
        found = await future
        if isinstance(found, Failure):
            raise found
        return found

    def read_by_id(
        self,
        stream: LoadedStream,
        ms: int,
        n: int,
        count_max: int,
        bytes_max: int,
        done: Callable[[list[Record] | Failure], None],
        after: int = 0,
    ) -> None:
        """See `ReadsById.read`."""
        by_id, held_ms = self.group_of(stream).by_id, stream.timeline.ms
        if held_ms and ms > held_ms[0]:
            by_id.read(stream, ms, n, count_max, bytes_max, done, after)
        else:
            self._when_aged(stream, lambda: by_id.read(stream, ms, n, count_max, bytes_max, done, after), done)

    def place_of_id(self, stream: LoadedStream, ms: int, n: int, done: Callable[[Place | Failure], None]) -> None:
        """See `ReadsById.place`."""
        self.group_of(stream).by_id.place(stream, ms, n, done)

    def read_records(
        self, stream: LoadedStream, from_seq: int, count_max: int, bytes_max: int, done: RecordsDone
    ) -> None:
        """See `RecordReads.read`."""
        by_number = self.group_of(stream).by_number
        if from_seq >= stream.timeline.seq:
            by_number.read(stream, from_seq, count_max, bytes_max, done)
        else:
            self._when_aged(stream, lambda: by_number.read(stream, from_seq, count_max, bytes_max, done), done)

    def offset_of(self, stream: LoadedStream, number: int, done: Callable[[int | Failure], None]) -> None:
        """See `RecordReads.offset_of`."""
        self.group_of(stream).by_number.offset_of(stream, number, done)

    def apply_retention(self, stream: LoadedStream) -> None:
        """Lets go of what the stream's policy does not keep: a reader that comes now is not to see what is too old. Of
        settled records as far as that is known: reads look into the lake for the rest."""
        if stream.retention is not None:
            self.group_of(stream).group.apply_retention(stream)

    def when_aged(self, stream: LoadedStream, act: Callable[[Failure | None], None]) -> None:
        """The same to the record, in the lake too; then `act` is called, at once if nothing had to be looked up, with
        the failure when the lake did not answer."""
        if stream.retention is None or self.group_of(stream).aged.apply(stream, act):
            act(None)

    def _when_aged(self, stream: LoadedStream, read: Callable[[], None], done: Callable[[Failure], None]) -> None:
        """Reads when settled records that are too old have gone. Raises what `read` does when that is at once.

        Not for reads that begin in memory: the lake must not hold them up."""
        policy = stream.retention
        if policy is None or policy.age_ms is None or stream.earliest >= stream.timeline.start:
            read()
            return

        def go_on(failure: Failure | None) -> None:
            try:
                if failure is not None:
                    raise failure
                read()
            except Failure as refused:
                done(refused)

        if self.group_of(stream).aged.apply(stream, go_on):
            read()

    def marks_of(self, stream: LoadedStream) -> Marks:
        """What records of the stream are found by."""
        return self.group_of(stream).marks

    def delete_records(self, key: str, match: Match | None, before_seq: int | None, done: DeletesDone) -> None:
        """See `TopicDeletes.delete`. Raises NotServedHere."""
        self.owned[self.group(key).number].deletes.delete(key, match, before_seq, done)

    def follow(self, stream: LoadedStream, follower: Follower) -> None:
        """Raises NotServedHere when the stream's group has left, or has left and come back: this stream never grows."""
        group = self.group_of(stream).group
        if not group.loaded.has(stream):
            raise NotServedHere(group.number)
        group.follow(stream, follower)

    def unfollow(self, stream: LoadedStream, follower: Follower) -> None:
        if stream.followers is not None:
            stream.followers.discard(follower)

    def count_read(self, key: str, size: int) -> None:
        """One answer with records of a stream was made: `size` bytes of payload."""
        self._usage.add(key, size)

    def discard_blob(self, blob: str) -> None:
        """An object that nothing refers to is deleted, by whichever group: none of them knows it. Without a group here
        it is left to the lake's gc."""
        for owned in self.owned.values():
            owned.group.loaded.discard_blob(blob, 0)
            break

    # ---- all groups of this process -------------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)
        for owned in self.owned.values():
            owned.group.observers.append(observer)

    def enter(self, owned: OwnedGroup, lease: Lease | None = None) -> None:
        """The group is recovered and started: its requests are served here from now on.

        Without a `lease` nobody else can serve it at any time."""
        if lease is not None:
            self._leases[owned.number] = lease
        if not self.owned:
            owned.group.usage.give_back(self._usage.take())
            self._usage = owned.group.usage
        self.owned[owned.number] = owned
        owned.group.left = False
        owned.group.observers.extend(one for one in self._observers if one not in owned.group.observers)
        for listener in self.listeners:
            listener.entered(owned)

    def leave(self, number: int) -> None:
        """Another process serves the group from now on, or nobody does: requests for it are refused here, and whoever
        follows its streams is told. What was decided may still become durable."""
        owned = self.owned.pop(number, None)
        self._leases.pop(number, None)
        if owned is None:
            return
        if self._usage is owned.group.usage:
            self._usage = next(iter(self.owned.values())).group.usage if self.owned else ReadUsage(self.clock)
            self._usage.give_back(owned.group.usage.take())
        leave(owned.group)
        for listener in self.listeners:
            listener.left(owned)

    def states(self) -> list[dict[str, Any]]:
        return [owned.state() for owned in self.owned.values()]
