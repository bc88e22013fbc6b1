"""A log at a quorum: what `objects` and `jetstream` have in common, which is everything but the storing.

Owns batches, positions, watermarks, claims, following, and what becomes of an entry whose outcome is not known. Never
acknowledges an entry before every entry in front of it, and never counts on a clock for that: time only says when to
give up.

One instance is one process's view of one group's log. It follows (`load`, `more`), may claim, and from then on writes
until it fails or is closed. After a failure it is done: a new one begins at `cursor`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headwater.histogram import Histogram
from headwater.log import entries
from headwater.log.medium import Entries, Gone, Lost, MediumError, Taken, Unavailable, Unsure
from headwater.log.quorum_copy import QuorumCopy
from headwater.log.quorum_entries import (
    KIND_BATCH,
    KIND_CLAIM,
    TOKEN_BYTES,
    Claim,
    Cursor,
    FormatUnknown,
    LogDamaged,
    Reader,
    encode_claim,
    encode_entry,
)
from headwater.model.events import Event
from headwater.ports import BROKEN, FENCED, SYSTEM_CLOCK, UNKNOWN, Clock, LogFailure, Rng, SystemRng

IN_FLIGHT_MAX = 4
PATIENCE_MS = 30_000
"""For how long an entry is tried before the log fails. No request waits as long: it is told that the outcome is not
known, while the log goes on finding out."""
READ_BYTES = 8 << 20
_AGAIN_S_MIN, _AGAIN_S_MAX = 0.05, 1.0
Barriers = list[asyncio.Future[None]]


class Behind(Exception):
    """Somebody wrote or claimed meanwhile: take what came with `more`, and decide again whether to claim."""


class LogFailed(Exception):
    def __init__(self, failure: LogFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class _Batch:
    """Events that go into one entry."""

    __slots__ = ("end", "parts", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.parts: list[bytes] = []


class _Sent:
    """An entry on its way."""

    __slots__ = ("barriers", "begun_s", "data", "end", "number", "outcome", "task")

    def __init__(self, number: int, end: int, data: bytes, barriers: Barriers, begun_s: float) -> None:
        self.begun_s = begun_s
        self.number = number
        self.end = end
        self.data = data
        self.barriers = barriers
        self.outcome: LogFailure | bool = False
        """True: stored. A failure: never stored, or not known to be."""
        self.task: asyncio.Task[None] | None = None


class QuorumLog:
    """See `ports.Log`. `load` comes before `replay`, `claim` before `start`; `written` and `synced` are the same."""

    def __init__(
        self,
        medium: Entries,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        patience_ms: int = PATIENCE_MS,
        clock: Clock = SYSTEM_CLOCK,
        rng: Rng | None = None,
    ) -> None:
        self._medium = medium
        self._in_flight_max = in_flight_max
        self._patience_s = patience_ms / 1000
        self._clock = clock
        self._token = (rng or SystemRng()).token
        self._reader = Reader()
        self._loaded: list[tuple[int, Event]] = []
        self._ends: deque[tuple[int, int]] = deque()
        """(position after it, number) of every entry that may still be purged."""
        self._owns = self._pumping = self._closing = False
        self._entry_bytes_max = self._purge_below = 0
        self._batch: _Batch | None = None
        self._committed: deque[_Batch] = deque()
        self._barriers: Barriers = []
        self._sent: deque[_Sent] = deque()
        self._next = Cursor()
        self._on_progress: Callable[[], None] = lambda: None
        self._idle: asyncio.Future[None] | None = None
        self.kept_after: int | None = None
        """An owner purges nothing that ends after this position, whatever `trim` allows: others begin there. None:
        everything that `trim` allows may go."""
        self._held_after: int | None = None
        self._copy: QuorumCopy | None = None
        """Is told of what is acknowledged."""
        self._begun: list[tuple[str, int]] = []
        self._confirmed_s = 0.0
        """When the newest entry that is acknowledged was sent."""
        self._purging: asyncio.Task[None] | None = None
        self.head = self.tail = self.written = self.synced = 0
        self.failure: LogFailure | None = None
        self.sync_times = Histogram()

    @property
    def cursor(self) -> Cursor:
        """After the last entry that was read, or acknowledged."""
        return self._reader.cursor

    @property
    def owner(self) -> Claim | None:
        """The last claim that was read."""
        return self._reader.claim

    @property
    def identity(self) -> str:
        return f"{self.cursor.incarnation:016x}" if self.cursor.incarnation else ""

    def incarnations(self) -> list[tuple[str, int]]:
        begun, self._begun = self._begun, []
        return begun

    # ---- following ----------------------------------------------------------------------------------------------

    async def load(self, cursor: Cursor | None = None, claim: Claim | None = None) -> None:
        """Fetches everything from the cursor on (None: from the oldest entry that is held) for `replay`.

        It is held in memory until it is replayed: not more than what a catalog snapshot does not cover, and the events
        become hot records in any case. Raises Unavailable, Gone, Lost, LogDamaged, FormatUnknown.
        """
        if cursor is None:
            cursor = Cursor(number=await self._medium.head())
        self._reader = Reader(cursor, claim)
        self._loaded = []
        self._ends.clear()
        begun = cursor.incarnation != 0
        while found := await self._medium.read(self._reader.cursor.number, READ_BYTES):
            if not begun:
                self._reader.begin(*found[0])
                cursor = self._reader.cursor
                begun = True
            for number, data in found:
                self._loaded += self._take(number, data)
        self.head = cursor.position
        self._stand()

    async def more(self) -> list[tuple[int, Event]]:
        """What follows in the log, with positions; [] at its end for now. For standbys: only what stays is returned.

        Raises like `load`. What comes before the place where it is stopped is returned first."""
        events: list[tuple[int, Event]] = []
        while not events and (found := await self._medium.read(self._reader.cursor.number, READ_BYTES)):
            for number, data in found:
                try:
                    events += self._take(number, data)
                except (LogDamaged, FormatUnknown):
                    if not events:
                        raise
                    break
        return events

    async def wait(self) -> None:
        """Returns when there may be more, and after a while in any case."""
        await self._medium.wait(self._reader.cursor.number)

    def _take(self, number: int, data: bytes) -> list[tuple[int, Event]]:
        before = self._reader.claim
        events = self._reader.take(number, data)
        if (claim := self._reader.claim) is not before and claim is not None:
            self._begun.append((claim.incarnation, self._reader.cursor.position))
        self._ends.append((self._reader.cursor.position, number))
        self._stand()
        return events

    def _stand(self) -> None:
        self._next = self._reader.cursor
        self.tail = self.written = self.synced = self._next.position

    def replay(self, promised: int = 0) -> Iterator[tuple[int, Event]]:
        """See `Log.replay`: what `load` fetched. Raises LogDamaged when the log ends before `promised`."""
        if self.tail < promised:
            raise LogDamaged(self._next.number, self.tail, f"it ends there, and the catalog goes up to {promised}")
        loaded, self._loaded = self._loaded, []
        return iter(loaded)

    # ---- owning -------------------------------------------------------------------------------------------------

    async def claim(self, claim: Claim) -> Claim:
        """Takes the group over: on return nobody else's entries count any more, and this log may be started.

        Returns the claim with its epoch. Whoever calls has followed to the end: else Behind. Raises Unavailable or
        Unsure when the medium gives no answer in time; then it is not known whether the claim stands, and following on
        tells. Raises Gone, Lost.
        """
        at = self._reader.cursor
        claim = msgspec.structs.replace(claim, epoch=at.epoch + 1)
        incarnation = at.incarnation or int.from_bytes(self._token(8), "little") | 1
        begin = Cursor(at.number, at.position, claim.epoch, False, incarnation)
        data = encode_entry(KIND_CLAIM, begin, self._token(TOKEN_BYTES), [encode_claim(claim)])
        begun_s = self._clock.monotonic_s()
        deadline_s = begun_s + self._patience_s
        pause_s = _AGAIN_S_MIN
        while True:
            try:
                await self._medium.claim(at.number, data)
                break
            except Taken as error:
                raise Behind(error.reason) from error
            except (Unavailable, Unsure):
                if self._clock.monotonic_s() + pause_s > deadline_s:
                    raise
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_S_MAX)
        self._take(at.number, data)
        self._confirmed_s = begun_s
        self._entry_bytes_max = self._medium.entry_bytes_max
        self._owns = True
        return claim

    async def begin(self, position: int, epoch: int, identity: str) -> None:
        """Makes the log's first entry, which says that the log goes on at `position`: a catalog holds everything before
        it, and another log held it once. Nobody owns the group afterwards. Epochs rise from `epoch` on: whoever claims
        has a higher one than any owner of the other log had.

        Whoever calls has loaded the log and found nothing; else Behind. Raises like `claim`.
        """
        if self._reader.cursor != Cursor():
            raise Behind("the log has entries already")
        self._reader.cursor = Cursor(1, position, epoch, False, int(identity, 16))
        try:
            await self.claim(Claim("", "", incarnation=self._token(8).hex()))
        except BaseException:
            self._reader.cursor = Cursor()
            raise
        self._owns = False
        self.head = position

    def start(self, on_progress: Callable[[], None]) -> None:
        """See `Log.start`. Only after `claim`."""
        if not self._owns:
            raise RuntimeError("a log is started by its owner: claim it first")
        self._on_progress = on_progress

    def add(self, event: Event, sync: bool) -> int:
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch(self.tail)
        parts = batch.parts
        held = len(parts)
        size = entries.encode(event, self.tail, parts)
        if held and self.tail + size - batch.start > self._entry_bytes_max:
            event_parts = parts[held:]
            del parts[held:]
            self.commit()
            batch = self._batch = _Batch(self.tail)
            batch.parts = event_parts
        self.tail = batch.end = self.tail + size
        return self.tail

    def commit(self) -> None:
        batch = self._batch
        if batch is not None:
            self._batch = None
            if self.failure is None and not self._closing:
                self._committed.append(batch)
                self._pump()

    async def barrier(self) -> None:
        """Returns when an entry that was sent after this call is acknowledged: at the time of the call nobody else had
        claimed, and everything acknowledged before it is below `synced`. Callers of one turn share one entry, and
        share it with events that are on their way out. Raises LogFailed."""
        if self.failure is not None:
            raise LogFailed(self.failure)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._barriers.append(done)
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_later)
        await done

    def is_confirmed(self, within_s: float) -> bool:
        """Whether an entry that was sent within that time was acknowledged: nobody else had claimed then."""
        return self._clock.monotonic_s() - self._confirmed_s < within_s

    def _pump_later(self) -> None:
        self._pumping = False
        self._pump()

    def _pump(self) -> None:
        """Sends what was committed, as far as entries may be in flight. What has to wait goes together later."""
        while (
            self.failure is None
            and len(self._sent) < self._in_flight_max
            and (self._committed or (self._barriers and not self._pumping))
        ):
            self._send()

    def _send(self) -> None:
        at = self._next
        parts: list[bytes] = []
        end = at.position
        while self._committed and (not parts or self._committed[0].end - at.position <= self._entry_bytes_max):
            batch = self._committed.popleft()
            parts += batch.parts
            end = batch.end
        barriers, self._barriers = self._barriers, []
        data = encode_entry(KIND_BATCH, at, self._token(TOKEN_BYTES), parts)
        self._next = Cursor(at.number + 1, end, at.epoch, False, at.incarnation)
        sent = _Sent(at.number, end, data, barriers, self._clock.monotonic_s())
        self._sent.append(sent)
        sent.task = asyncio.get_running_loop().create_task(self._store(sent))

    async def _store(self, sent: _Sent) -> None:
        """Ends with an outcome: stored, certainly not stored, or not to be found out in time."""
        deadline_s = self._clock.monotonic_s() + self._patience_s
        pause_s = _AGAIN_S_MIN
        unsure = False
        while self.failure is None:
            try:
                await self._medium.put(sent.number, sent.data)
                sent.outcome = True
                break
            except Taken as error:
                sent.outcome = LogFailure(FENCED, f"another node took the group over: ask again ({error.reason})")
                break
            except (Gone, Lost) as error:
                sent.outcome = LogFailure(UNKNOWN, f"what became of entry {sent.number} is not known: {error.reason}")
                break
            except Unavailable as error:
                reason = error.reason
            except Unsure as error:
                unsure = True
                reason = error.reason
            except Exception as error:
                unsure = True
                reason = f"{type(error).__name__}: {error}"
            if self._clock.monotonic_s() + pause_s > deadline_s:
                sent.outcome = (
                    LogFailure(UNKNOWN, f"the log gave no answer to entry {sent.number} ({reason})")
                    if unsure
                    else LogFailure(BROKEN, f"the log could not be written ({reason})")
                )
                break
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_S_MAX)
        self._advance()

    def _advance(self) -> None:
        """Acknowledges in order, as far as outcomes are known."""
        if self.failure is not None:
            return
        moved = False
        while self._sent and self._sent[0].outcome is True:
            sent = self._sent.popleft()
            self._confirmed_s = sent.begun_s
            self.sync_times.add(self._clock.monotonic_s() - sent.begun_s)
            self._reader.cursor = Cursor(sent.number + 1, sent.end, self._next.epoch, False, self._next.incarnation)
            self._ends.append((sent.end, sent.number))
            if self._copy is not None:
                self._copy.acknowledged(sent.number, sent.data)
            moved = moved or sent.end > self.synced
            self.written = self.synced = sent.end
            for barrier in sent.barriers:
                if not barrier.done():
                    barrier.set_result(None)
        if self._sent and isinstance(self._sent[0].outcome, LogFailure):
            self._fail(self._sent[0].outcome)
            return
        self._pump()
        if moved:
            self._on_progress()
        self._end_when_idle()

    def _fail(self, failure: LogFailure) -> None:
        self.failure = failure
        barriers = self._barriers + [barrier for sent in self._sent for barrier in sent.barriers]
        self._barriers = []
        for barrier in barriers:
            if not barrier.done():
                barrier.set_exception(LogFailed(failure))
        for sent in self._sent:
            if sent.task is not None and sent.task is not asyncio.current_task():
                sent.task.cancel()
        self._sent.clear()
        self._committed.clear()
        self._on_progress()
        self._end_when_idle()

    def give_up(self, reason: str) -> None:
        if self.failure is None:
            self._fail(LogFailure(BROKEN, reason))

    # ---- backups ------------------------------------------------------------------------------------------------

    def hold(self, after: int | None) -> None:
        """See `CopiedLog.hold`. For an owner."""
        self._held_after = after
        if after is None:
            self._copy = None

    async def begin_copy(self, after: int, known: int, to: Path) -> QuorumCopy:
        """See `CopiedLog.begin_copy`: on return everything is fetched that was acknowledged at the call. What comes
        later is kept in memory until the copy advances."""
        end = self._reader.cursor
        number = next((number for position, number in self._ends if position > after), end.number)
        copy = self._copy = QuorumCopy(end.position, known, to)
        try:
            while number < end.number:
                found = await self._medium.read(number, READ_BYTES)
                if not found:
                    raise OSError(f"entry {number} of the log cannot be read")
                await asyncio.to_thread(copy.fetched, [one for one in found if one[0] < end.number])
                number = found[-1][0] + 1
        except (MediumError, LogDamaged) as error:
            raise OSError(str(error)) from error
        return copy

    # ---- forgetting and closing ---------------------------------------------------------------------------------

    def trim(self, below: int) -> None:
        """See `Log.trim`. A standby forgets what it knows of those entries; only an owner lets them be purged."""
        number = 0
        for limit in (self.kept_after, self._held_after):
            if self._owns and limit is not None:
                below = min(below, limit)
        # The newest entry stays: it says where the log ends.
        while len(self._ends) > 1 and self._ends[0][0] <= below:
            self.head, number = self._ends.popleft()
        if number and self._owns and self.failure is None and not self._closing:
            self._purge_below = number + 1
            if self._purging is None:
                self._purging = asyncio.get_running_loop().create_task(self._purge())

    async def purged(self) -> None:
        """On return what `trim` allowed to go so far is gone. Raises MediumError."""
        while self._purging is not None:
            await asyncio.wait([self._purging])
        if self._ends:
            # All before the oldest one that is kept: what an earlier purge has left goes, too.
            await self._medium.purge(self._ends[0][1])

    async def _purge(self) -> None:
        done = 0
        try:
            while done < self._purge_below and self.failure is None:
                below = self._purge_below
                await self._medium.purge(below)
                done = below
        except MediumError:
            pass  # the next trim goes further and takes these along
        finally:
            self._purging = None

    def close(self) -> None:
        """Sends what was gathered and accepts nothing more. Returns at once: `closed` waits for the end."""
        if not self._closing:
            self.commit()
            self._closing = True

    async def closed(self) -> None:
        """Returns when everything gathered is acknowledged, or the log has failed, and nothing runs any more."""
        self.close()
        if self._is_busy():
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.gather(self._purging, return_exceptions=True)
        await self._medium.close()

    def _is_busy(self) -> bool:
        return bool(self._sent or self._committed or self._barriers)

    def _end_when_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._is_busy():
            self._idle.set_result(None)
