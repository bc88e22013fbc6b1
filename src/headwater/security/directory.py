"""The keys of a node or cluster: made and ended in group 0, the directory, and known in every process.

Owns what is asked about keys and public buckets, the copy that each process keeps, and how it follows changes. Never
decides who a credential belongs to: the guard does, by the copy. A key's text is made where it was asked for and goes
nowhere but into that answer.

A change is durable before it is answered, and told to every process that is there. A process that was not told asks
for itself: three times a second it compares the hash of what it has. One that gets no answer for `STALE_S_MAX` has no
keys any more.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from headwater.engine.access_records import (
    AccessEvent,
    AccessKey,
    AccessRecords,
    BucketClosed,
    BucketOpened,
    KeyExpires,
    KeyMade,
    KeyRevoked,
    encode,
)
from headwater.engine.buckets import DIRECTORY
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.outcome_future import OutcomeFuture
from headwater.engine.owned_group import OwnedGroup
from headwater.errors import BadAccess, BucketNotFound, Failure, GroupMoved, KeyNotFound, TooManyKeys
from headwater.model.names import DEFAULT_BUCKET
from headwater.ports import Rng
from headwater.security import keys as bearer
from headwater.security.audit import Audit
from headwater.security.guard import STALE_S_MAX, Copy, Guard
from headwater.security.keys import Made
from headwater.security.principals import ADMIN_SCOPE, Asked, Principal, Scope

log = structlog.get_logger("headwater")

KEYS_MAX = 10_000
"""That live. Overflow: no further one is made."""
PUBLIC_MAX = 1_000
NAME_BYTES_MAX = 128
LOOK_S = 0.3
"""How often a process asks whether the keys have changed: a revocation holds everywhere within a second."""
START_S, AGAIN_S = 5.0, 0.05
"""How long a process that starts waits for the keys before it serves anybody, and how often it asks."""
TELL_S = 1.0
"""How long a change waits at most for processes to hear of it; one that does not answer asks for itself later."""
FIRST_NAME = "first-admin"


class Directory:
    """Of one process, and a `Listener` of the engine."""

    def __init__(
        self,
        engine: Engine,
        guard: Guard,
        rng: Rng,
        announce: Callable[[str], None] = lambda text: None,
        audit: Audit | None = None,
    ) -> None:
        """`announce` shows the first key to whoever started the server, once. With `audit` it is told there too."""
        self._audit = audit
        self._engine = engine
        self._guard = guard
        self._rng = rng
        self._announce = announce
        self._questions = engine.questions
        self._heard_s = engine.clock.monotonic_s()
        self._digest = b""
        self._made: tuple[AccessRecords, int, list[str], bytes, Copy] | None = None
        """What was told last where the directory is: everybody asks three times a second, and it seldom changes."""
        self._tasks: set[asyncio.Task[None]] = set()
        register = engine.questions.register
        register("access_copy", self._answer_copy)
        register("access_told", self._answer_told)
        register("key_add", self._answer_add)
        register("key_end", self._answer_end)
        register("key_list", self._answer_list)
        register("bucket_open", self._answer_open)

    # ---- start and stop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Called once, when the groups of this process are served and others may ask it. On return the first key was
        made, if it is made here and at once, and the keys are known here, if they could be had in time."""
        if not self._guard.on:
            return
        self._engine.listeners.append(self)
        if DIRECTORY in self._engine.owned:
            with suppress(Failure):
                await self._demand_first()
        clock = self._engine.clock
        until_s = clock.monotonic_s() + START_S
        while not self._guard.knows and clock.monotonic_s() < until_s:
            with suppress(Failure, TimeoutError):
                await self._look()
            await clock.sleep(0 if self._guard.knows else AGAIN_S)
        self._spawn(self._follow())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._guard.close()

    def entered(self, owned: OwnedGroup) -> None:
        if owned.number == DIRECTORY:
            self._spawn(self._first_later())

    def left(self, owned: OwnedGroup) -> None: ...

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _first_later(self) -> None:
        with suppress(Failure):
            await self._demand_first()

    async def _demand_first(self) -> None:
        """Makes a key for the operator when nobody could do anything otherwise."""
        now_ms = self._engine.clock.now_ms()
        has_one = any(ADMIN_SCOPE in key.scopes and key.lives(now_ms) for key in self._records().keys.values())
        if has_one or self._guard.has_file_key:
            return
        made = bearer.make(self._rng)
        key = AccessKey(FIRST_NAME, made.hash, (ADMIN_SCOPE,), now_ms, "the server")
        await self._answer_add(made.id, key)
        if self._audit is not None:
            by = Asked("server", "", Principal("server", "the server", ()))
            self._audit.done(by, "key.make", f"{made.id} {FIRST_NAME}: {ADMIN_SCOPE.shown()}", 201)
        self._announce(f"headwater first admin key, shown this once: {made.text}")

    # ---- following ----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        clock = self._engine.clock
        while True:
            with suppress(Failure, TimeoutError):
                await self._look()
            if clock.monotonic_s() - self._heard_s > STALE_S_MAX and self._guard.knows:
                log.error("access", error="the directory of keys cannot be reached: no key is accepted here any more")
                self._digest = b""
                self._guard.learn(None)
            await clock.sleep(LOOK_S)

    async def _look(self) -> None:
        asked = self._questions.ask_owner(DIRECTORY, "access_copy", self._digest, into=tuple[bytes, Copy | None])
        digest, copy = await asked
        self._heard_s = self._engine.clock.monotonic_s()
        if copy is not None:
            self._digest = digest
            self._guard.learn(copy)

    async def _answer_copy(self, known: bytes) -> tuple[bytes, Copy | None]:
        digest, copy = self._copy()
        return digest, None if digest == known else copy

    async def _answer_told(self) -> None:
        if self._guard.on:
            with suppress(Failure):
                await self._look()

    async def _tell(self) -> None:
        """Has every process that is there look at once."""
        if not self._guard.on:
            return
        with suppress(TimeoutError, Failure):
            async with asyncio.timeout(TELL_S):
                asked = (self._questions.ask(member, "access_told") for member in self._questions.everyone)
                await asyncio.gather(*asked, return_exceptions=True)

    # ---- what is asked ------------------------------------------------------------------------------------------

    async def make(
        self, name: str, scopes: tuple[Scope, ...], expires_ms: int | None, by: str, follows: str = ""
    ) -> tuple[Made, AccessKey]:
        """A new key. On return it is durable. Raises BadAccess, TooManyKeys."""
        _check_name(name)
        now_ms = self._engine.clock.now_ms()
        if expires_ms is not None and expires_ms <= now_ms:
            raise BadAccess("expires: that moment has passed")
        made = bearer.make(self._rng)
        key = AccessKey(name, made.hash, scopes, now_ms, by, expires_ms, None, follows)
        await self._questions.ask_owner(DIRECTORY, "key_add", made.id, key)
        return made, key

    async def end(self, id: str, expires_ms: int | None) -> AccessKey:
        """Revokes a key, or has it expire sooner. On return that is durable. Raises KeyNotFound."""
        found: AccessKey = await self._questions.ask_owner(DIRECTORY, "key_end", id, expires_ms, into=AccessKey)
        return found

    async def list(self) -> dict[str, AccessKey]:
        found: dict[str, AccessKey] = await self._questions.ask_owner(DIRECTORY, "key_list", into=dict[str, AccessKey])
        return found

    async def open_bucket(self, bucket: str, is_open: bool) -> None:
        """Lets everybody read a bucket, or nobody without a credential. Raises BucketNotFound."""
        await self._questions.ask_owner(DIRECTORY, "bucket_open", bucket, is_open)

    # ---- answers, where the directory is ------------------------------------------------------------------------

    async def _answer_add(self, id: str, key: Any) -> None:
        key = msgspec.convert(key, AccessKey)
        records, now_ms = self._records(), self._engine.clock.now_ms()
        if sum(one.lives(now_ms) for one in records.keys.values()) >= KEYS_MAX:
            raise TooManyKeys(KEYS_MAX)
        for old, one in list(records.keys.items()):
            # What has expired was told of for as long as there was room.
            if len(records.keys) >= 2 * KEYS_MAX and not one.lives(now_ms) and one.ended_ms is None:
                self._note(KeyRevoked(old), None)
        await self._logged(KeyMade(id, key))
        await self._tell()

    async def _answer_end(self, id: str, expires_ms: int | None) -> AccessKey:
        records = self._records()
        key = records.keys.get(id)
        if key is None:
            raise KeyNotFound
        if expires_ms is None:
            if key.ended_ms is None:
                await self._logged(KeyRevoked(id))
        elif key.expires_ms is None or expires_ms < key.expires_ms:
            await self._logged(KeyExpires(id, expires_ms))
        await self._tell()
        return self._records().keys[id]

    async def _answer_list(self) -> dict[str, AccessKey]:
        future = OutcomeFuture()
        self._group().after_pending(future)
        await future.success()
        return self._records().keys

    async def _answer_open(self, bucket: str, is_open: bool) -> None:
        records = self._records()
        if not is_open:
            if bucket in records.public:
                await self._logged(BucketClosed(bucket))
        else:
            created_ms = self._created_ms(bucket)
            if created_ms is None:
                raise BucketNotFound
            if len(records.public) >= PUBLIC_MAX:
                raise BadAccess(f"at most {PUBLIC_MAX} buckets are public")
            await self._logged(BucketOpened(bucket, created_ms))
        await self._tell()

    # ---- inside -------------------------------------------------------------------------------------------------

    def _copy(self) -> tuple[bytes, Copy]:
        """What is in force, and a hash of it. A bucket that was deleted, and made again, is another one."""
        records = self._records()
        public = sorted(name for name, made_ms in records.public.items() if self._created_ms(name) == made_ms)
        if self._made is None or self._made[0] is not records or self._made[1:3] != (records.version, public):
            copy = Copy(dict(records.keys), public)
            self._made = records, records.version, public, _digest(copy), copy
        return self._made[3], self._made[4]

    def _created_ms(self, bucket: str) -> int | None:
        """Of a bucket that was made by name; one that is only there while it has streams cannot be public."""
        if bucket == DEFAULT_BUCKET:
            return 0
        found = self._group().loaded.bucket(bucket)
        return found.created_ms if found is not None and found.explicit else None

    def _group(self) -> Group:
        owned = self._engine.owned.get(DIRECTORY)
        if owned is None:
            raise GroupMoved(DIRECTORY)
        return owned.group

    def _records(self) -> AccessRecords:
        found = self._group().domains[AccessRecords.name]
        if not isinstance(found, AccessRecords):
            raise TypeError(f"the domain {AccessRecords.name} is another one's")
        return found

    def _note(self, event: AccessEvent, waiter: OutcomeFuture | None) -> None:
        self._group().note(AccessRecords.name, encode(event), waiter)

    async def _logged(self, event: AccessEvent) -> None:
        future = OutcomeFuture()
        self._note(event, future)
        await future.success()


def _digest(copy: Copy) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(copy)).digest()[:16]


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise BadAccess(f"name: a key has a name of 1 to {NAME_BYTES_MAX} bytes of printable text")
