"""Buckets over all groups: made and deleted in group 0, counted in each.

Owns what this process remembers of buckets, and the order of a deletion. Never decides about one: `model.buckets` does,
in group 0's log.

A bucket exists when it was made, or while a stream is in it. A process asks group 0's once and remembers that a bucket
was made. A deletion

    1. makes every process forget the bucket, and count its streams there once what is pending is durable;
    2. is then decided by group 0, by the sum.

Whoever wants to create a stream in the bucket meanwhile has to ask, and waits until that is decided. An answer that
left before the deletion and arrives after it is told apart by its version, and asked again. So no stream is made in a
bucket after its deletion, whatever crashes: what a process remembers is gone with it, and group 0's log has the
decision. A version begins with the epoch of group 0's owner: what an owner said is older than what its successor says,
whatever their clocks. A process that serves a group since it asked asks again: a deletion before need not have told it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.keyed_locks import KeyedLocks
from headwater.engine.listing import Listed, Page, page
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import OwnedGroup
from headwater.engine.questions import Questions
from headwater.engine.schema_records import forget
from headwater.errors import BucketNotFound, GroupMoved, Overloaded
from headwater.model.commands import CreateBucket, DeleteBucket
from headwater.model.names import DEFAULT_BUCKET

DIRECTORY = 0
"""The group that buckets are made in."""
FORGOTTEN_MAX = 10_000
"""Deletions that late answers are compared with: those of the last seconds would do. Overflow: the oldest go."""
_ASKED_AGAIN_MAX = 100
Version = tuple[int, int]
"""(epoch of group 0's owner, a number that grows in its process)."""
NEVER: Version = (-1, 0)


class Buckets:
    def __init__(self, engine: Engine, questions: Questions) -> None:
        self._engine = engine
        self._questions = questions
        self._made: set[str] = set()
        """Buckets that were made, as far as this process asked."""
        self._forgotten: dict[str, Version] = {}
        """Version of the last deletion that this process heard of, by bucket."""
        self._deciding = KeyedLocks()
        """Of group 0's process: buckets that are being made, deleted or asked for."""
        self._version = 0
        self._entered_count = 0
        engine.listeners.append(self)
        questions.register("bucket_made", self._answer_made)
        questions.register("bucket_count", self._answer_count)
        questions.register("bucket_forget", self._answer_forget)
        questions.register("streams_page", self._answer_page)

    def exists(self, name: str) -> bool:
        """True when this process knows that the bucket exists; otherwise `require` finds out."""
        if name in self._made or name == DEFAULT_BUCKET:
            return True
        if DIRECTORY in self._engine.owned and name not in self._deciding:
            bucket = self._engine.owned[DIRECTORY].group.loaded.bucket(name)
            if bucket is not None and bucket.explicit:
                return True
        return self._count(name) > 0

    async def require(self, name: str) -> None:
        """Returns when the bucket exists. Raises BucketNotFound."""
        for _ in range(_ASKED_AGAIN_MAX):
            if self.exists(name):
                return
            entered_count = self._entered_count
            asked = self._questions.ask_owner(DIRECTORY, "bucket_made", name, into=tuple[bool, Version])
            made, version = await asked
            if version > self._forgotten.get(name, NEVER) and entered_count == self._entered_count:
                break
        else:
            raise Overloaded("the bucket is being deleted, or group 0 changes its owner again and again")
        if made:
            self._made.add(name)
        elif not await self.count(name):
            raise BucketNotFound

    async def count(self, name: str) -> int:
        """Streams in the bucket, over all groups."""
        return await self._sum("bucket_count", name)

    async def describe(self, name: str) -> tuple[int, int]:
        """(streams, when it was made, ms). Raises BucketNotFound. Called where group 0 is."""
        await self.require(name)
        bucket = self._directory().loaded.bucket(name)
        return await self.count(name), 0 if bucket is None else bucket.created_ms

    async def create(self, name: str) -> None:
        """On return the bucket is durable. Raises BucketExists. Called where group 0 is."""
        async with self._deciding.of(name):
            await self._submit(CreateBucket(name))

    async def delete(self, name: str) -> None:
        """On return it is durably gone. Raises BucketNotFound, BucketNotEmpty. Called where group 0 is."""
        async with self._deciding.of(name):
            directory = self._directory()
            count = await self._sum("bucket_forget", name, self._next_version(directory))
            if self._directory() is not directory:
                raise GroupMoved(DIRECTORY)  # it left and came back: what was decided here meanwhile is not known
            bucket = directory.loaded.bucket(name)
            here = 0 if bucket is None else bucket.count
            # Group 0 counts its own again when it decides: only what others counted is told to it.
            await self._submit(DeleteBucket(name, max(0, count - here)))
            forget(directory, name)

    async def page(self, bucket: str, prefix: str, after: str, limit: int) -> Page:
        """A page of the bucket's streams over all groups (see `listing.page`)."""
        answers = await self._questions.ask_all(
            "streams_page", bucket, prefix, after, limit, into=tuple[list[int], Page]
        )
        self._check_all(answers)
        return merged([found for _, found in answers], limit)

    # ---- answers --------------------------------------------------------------------------------------------------

    async def _answer_made(self, name: str) -> tuple[bool, Version]:
        async with self._deciding.of(name):
            directory = self._directory()
            bucket = directory.loaded.bucket(name)
            return bucket is not None and bucket.explicit, self._next_version(directory)

    async def _answer_count(self, name: str) -> tuple[list[int], int]:
        return await self._pending(), self._count(name)

    async def _answer_forget(self, name: str, version: tuple[int, int]) -> tuple[list[int], int]:
        self._made.discard(name)
        before = self._forgotten.pop(name, NEVER)
        self._forgotten[name] = max(before, (version[0], version[1]))
        if len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        return await self._pending(), self._count(name)

    async def _answer_page(self, bucket: str, prefix: str, after: str, limit: int) -> tuple[list[int], Page]:
        numbers = await self._pending()
        now_ms = self._engine.clock.now_ms()
        groups = [owned.group for owned in self._engine.owned.values()]
        pages = [page(group.loaded, bucket, prefix, after, limit, now_ms) for group in groups]
        return numbers, merged(pages, limit) if pages else Page([], False)

    # ---- as a listener --------------------------------------------------------------------------------------------

    def entered(self, owned: OwnedGroup) -> None:
        """While this process did not serve the group, a deletion need not have asked it."""
        self._entered_count += 1
        self._made.clear()

    def left(self, owned: OwnedGroup) -> None: ...

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _next_version(self, directory: Group) -> Version:
        self._version = max(self._version + 1, self._engine.clock.now_ms())
        return directory.epoch, self._version

    def _directory(self) -> Group:
        """Raises GroupMoved."""
        owned = self._engine.owned.get(DIRECTORY)
        if owned is None:
            raise GroupMoved(DIRECTORY)
        return owned.group

    async def _sum(self, question: str, *arguments: object) -> int:
        """What all groups count together. Raises GroupMoved when one was not asked, or was asked twice."""
        answers = await self._questions.ask_all(question, *arguments, into=tuple[list[int], int])
        self._check_all(answers)
        return sum(count for _, count in answers)

    def _check_all(self, answers: Sequence[tuple[list[int], object]]) -> None:
        """Each answer is over the groups it names. One that moved while it was asked for may be in none, or in two."""
        asked = sorted(number for numbers, _ in answers for number in numbers)
        if asked != list(range(self._engine.groups_count)):
            raise GroupMoved(next((n for n in range(self._engine.groups_count) if asked.count(n) != 1), 0))

    def _count(self, name: str) -> int:
        found = (owned.group.loaded.bucket(name) for owned in self._engine.owned.values())
        return sum(bucket.count for bucket in found if bucket is not None)

    async def _pending(self) -> list[int]:
        """Returns when everything decided so far is durable: an answer may rest on it then. The groups are those of
        this process at the time of return."""
        for owned in list(self._engine.owned.values()):
            future = OutcomeFuture()
            owned.group.after_pending(future)
            await future.success()
        return list(self._engine.owned)

    async def _submit(self, command: CreateBucket | DeleteBucket) -> None:
        future = OutcomeFuture()
        self._directory().submit_bucket(command, future)
        await future.success()


def merged(pages: list[Page], limit: int) -> Page:
    """The first `limit` streams of several pages that begin at the same place."""
    if len(pages) == 1:
        return pages[0]
    streams: list[Listed] = sorted((one for found in pages for one in found.streams), key=lambda one: one.stream_id)
    return Page(streams[:limit], len(streams) > limit or any(found.has_more for found in pages))
