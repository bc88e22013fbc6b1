"""A log in nothing but objects that are created once: the medium of a cluster that has an object store and no more.

Owns epochs, seals, and which objects count. Never overwrites an object, and never deletes a seal.

    {group}/{epoch:010}-{first:020}/{number:020}    entry `number`, written by the owner of `epoch`, whose first entry
                                                    has the number `first`

    0   4s   "HWO1"
    4   u8   1: an entry, 2: a seal (an entry that is a claim, and ends the epoch in whose folder it lies)
    5   3s   zero
    8   u64  settled: when this was sent, every entry below this number was stored
    16  ...  the entry

A claim is one creation: a seal at the next number of the epoch that ends. From then on the former owner finds that
number taken. It acknowledges in order, so nothing that it stored behind the seal was acknowledged, and nobody reads it.
The next epoch begins with the number after the seal, in a folder that tells both.

Only the owner of an epoch, and who seals it, writes into its folder. That is why an entry in front of a genuine seal
may be created again after it was purged and does no harm: it is the same entry. A *seal* at a purged number would do
harm: it comes from a standby that slept while the log went on. `settled` tells: a purge leaves an object behind, in
each epoch, that says that the purged numbers were there. A seal with such an object behind it counts for nobody, and
who meets it or made it is too far behind (Gone).
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import NamedTuple

from headwater.log.medium import Gone, Lost, Taken, Unavailable, Unsure
from headwater.log.object_places import ObjectPlace
from headwater.ports import SYSTEM_CLOCK, Clock

ENTRY_BYTES_MAX = 2 << 20
_MAGIC = b"HWO1"
_HEAD = Struct("<4sB3xQ")
_ENTRY, _SEAL = 1, 2
_READS_AT_ONCE = 4
_DELETES_AT_ONCE = 16
_POLL_S_MIN, _POLL_S_MAX = 0.05, 0.5
_POLLS_PER_WAIT = 8
_NEWEST_COUNT = 16
"""More than can be in flight at once."""


class _Epoch(NamedTuple):
    epoch: int
    first: int

    @property
    def folder(self) -> str:
        return f"{self.epoch:010}-{self.first:020}"


class _Object(NamedTuple):
    kind: int
    settled: int
    data: bytes


class ObjectEntries:
    """See `Entries`."""

    entry_bytes_max = ENTRY_BYTES_MAX

    def __init__(self, place: ObjectPlace, group: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._place = place
        self._group = group
        self._clock = clock
        self._epochs: list[_Epoch] = []
        """Every epoch that is known, by number. The last one may have ended without this process knowing it."""
        self._at = 0
        """Everything before this number was read or written here, seals included; 0: nothing yet."""
        self._own: _Epoch | None = None
        self._settled = 0
        self._vouched = 0
        """Numbers below it may be purged: an object that stays says that they were there."""
        self._under_way: dict[int, int] = {}
        """What `settled` says in the objects of numbers that are not settled. A second attempt says the same."""
        self._stored: set[int] = set()
        self._purged_upto = ""

    # ---- reading ------------------------------------------------------------------------------------------------

    async def head(self) -> int:
        await self._list_epochs()
        held: dict[_Epoch, set[int]] = {epoch: set() for epoch in self._epochs}
        folders = {epoch.folder: epoch for epoch in self._epochs}
        for key in await self._place.keys(self._group):
            epoch = folders.get(key.split("/")[-2])
            if epoch is not None:
                held[epoch].add(_number_of(key))
        last = self._epochs[-1]
        # What is missing at the beginning of the last epoch was purged, or is still under way: what the newest objects
        # know to be settled tells.
        newest = [await self._get(last, number) for number in sorted(held[last])[-_NEWEST_COUNT:]]
        head = max((stored.settled for stored in newest if stored is not None), default=last.first)
        for epoch in reversed(self._epochs):
            while head > epoch.first and head - 1 in held[epoch]:
                head -= 1
            if head > epoch.first:
                break
        return head

    async def read(self, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        epoch = await self._epoch_of(first)
        found: list[tuple[int, bytes]] = []
        size = 0
        number = first
        while True:
            # One at a time at the end of the log, several when there is more.
            numbers = range(number, number + (_READS_AT_ONCE if found else 1))
            reads = (self._get(epoch, number) for number in numbers)
            for stored in await asyncio.gather(*reads, return_exceptions=True):
                if isinstance(stored, BaseException):
                    if not found:
                        raise stored
                    stored = None  # what comes before it can be applied; the next call meets it again
                if stored is None or (found and size + len(stored.data) > bytes_max):
                    if not found and (self._at != first or not self._is_last(epoch)):
                        await self._explain_absence(epoch, first)
                    self._at = number
                    return found
                if stored.kind == _SEAL and self._is_last(epoch):
                    await self._check_seal(epoch, number)
                    self._epochs.append(_Epoch(epoch.epoch + 1, number + 1))
                found.append((number, stored.data))
                size += len(stored.data)
                number += 1
                if number == self._end_of(epoch):
                    epoch = self._epochs[self._epochs.index(epoch) + 1]
                    break

    async def wait(self, number: int) -> None:
        epoch = await self._epoch_of(number)
        pause_s = _POLL_S_MIN
        for _ in range(_POLLS_PER_WAIT):
            try:
                if await self._get(epoch, number) is not None:
                    return
            except Unavailable:
                pass  # as good as not there: who reads next is told
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _POLL_S_MAX)
        if await self._get(epoch, number) is None and await self._was_purged(epoch, number):
            raise Gone(f"entry {number} of the log was purged")

    async def _list_epochs(self) -> None:
        names = await self._place.folders(self._group)
        try:
            epochs = [_Epoch(*map(int, name.split("-"))) for name in names]
        except (ValueError, TypeError) as error:
            raise Lost(f"there is a folder that is not a log's: {error}") from error
        self._epochs = sorted(epochs) or [_Epoch(0, 1)]
        self._at = 0

    async def _epoch_of(self, number: int) -> _Epoch:
        """The epoch in whose folder the entry is, or will be unless the epoch ends before it."""
        if not self._epochs:
            await self._list_epochs()
        epoch = next((epoch for epoch in reversed(self._epochs) if epoch.first <= number), None)
        if epoch is None:
            raise Lost(f"entry {number} lies before the log's first epoch")
        if self._at != number and self._is_last(epoch) and number > epoch.first:
            # The last epoch that has an object may be sealed there, and the next one be empty.
            before = await self._get(epoch, number - 1)
            if before is not None and before.kind == _SEAL:
                await self._check_seal(epoch, number - 1)
                epoch = _Epoch(epoch.epoch + 1, number)
                self._epochs.append(epoch)
                self._at = number
        return epoch

    def _is_last(self, epoch: _Epoch) -> bool:
        return self._epochs[-1] == epoch

    def _end_of(self, epoch: _Epoch) -> int:
        """The number after the epoch's seal; 0 when it is not known to be sealed."""
        index = self._epochs.index(epoch) + 1
        return self._epochs[index].first if index < len(self._epochs) else 0

    async def _explain_absence(self, epoch: _Epoch, number: int) -> None:
        """Called where reading begins: nothing is there. Raises when something was, or must be."""
        if await self._was_purged(epoch, number):
            raise Gone(f"entry {number} of the log was purged")
        # The entry before it is there, or was: it may have been purged since this process looked for the first time.
        if not self._is_last(epoch) or (
            number > epoch.first
            and await self._get(epoch, number - 1) is None
            and not await self._was_purged(epoch, number - 1)
        ):
            raise Lost(f"the log ends before entry {number}")

    async def _check_seal(self, epoch: _Epoch, number: int) -> None:
        if await self._was_purged(epoch, number):
            raise Gone(f"the log went on from entry {number}, which was purged")

    async def _was_purged(self, epoch: _Epoch, number: int) -> bool:
        """True when an object of the epoch says that the number held an entry before, whatever it holds now."""
        folder = f"{self._group}/{epoch.folder}"
        while True:
            vanished = False
            # From the last one: behind a genuine seal there are no more objects than could be in flight.
            for key in reversed(await self._place.keys(folder, self._key(epoch, number))):
                stored = await self._get(epoch, _number_of(key))
                if stored is not None and stored.settled > number:
                    return True
                vanished = vanished or stored is None
            if not vanished:
                return False
            # A purge went on meanwhile. What it left behind may be younger than the listing.

    def _key(self, epoch: _Epoch, number: int) -> str:
        return f"{self._group}/{epoch.folder}/{number:020}"

    async def _get(self, epoch: _Epoch, number: int) -> _Object | None:
        stored = await self._place.get(self._key(epoch, number))
        if stored is None:
            return None
        if len(stored) < _HEAD.size or stored[:4] != _MAGIC or stored[4] not in (_ENTRY, _SEAL):
            raise Lost(f"object {self._key(epoch, number)} is not an entry of a log")
        _, kind, settled = _HEAD.unpack_from(stored)
        return _Object(kind, settled, stored[_HEAD.size :])

    # ---- writing ------------------------------------------------------------------------------------------------

    async def claim(self, number: int, data: bytes) -> None:
        epoch = await self._epoch_of(number)
        if not self._is_last(epoch):
            if self._own == _Epoch(epoch.epoch + 1, number + 1):
                stored = await self._get(epoch, number)
                if stored is not None and stored.data == data:
                    return
            raise Taken(f"entry {number} is there")
        # Twice: before, so as to leave no seal that does not count; after, because it may have been purged meanwhile.
        if await self._was_purged(epoch, number):
            raise Gone(f"entry {number} of the log was purged")
        await self._create(epoch, number, _HEAD.pack(_MAGIC, _SEAL, number), data)
        if await self._was_purged(epoch, number):
            raise Gone(f"the log went on from entry {number}, which was purged")
        self._own = _Epoch(epoch.epoch + 1, number + 1)
        self._epochs.append(self._own)
        self._at = self._settled = self._vouched = number + 1
        self._under_way = {}
        self._stored = set()

    async def put(self, number: int, data: bytes) -> None:
        epoch = self._own
        if epoch is None:
            raise Taken("this process has not claimed the group")
        head = _HEAD.pack(_MAGIC, _ENTRY, self._under_way.setdefault(number, self._settled))
        await self._create(epoch, number, head, data)
        self._stored.add(number)
        while self._settled in self._stored:
            self._stored.remove(self._settled)
            self._vouched = max(self._vouched, self._under_way.pop(self._settled))
            self._settled += 1
            self._at = self._settled

    async def _create(self, epoch: _Epoch, number: int, head: bytes, data: bytes) -> None:
        """Returns when the object is there. Raises Taken when another one is, Unsure, Unavailable, Gone."""
        if await self._place.create(self._key(epoch, number), head + data):
            return
        try:
            stored = await self._get(epoch, number)
        except Unavailable as error:
            raise Unsure(error.reason) from error
        if stored is None:
            raise Unsure(f"entry {number} was there, and is not there any more")
        if stored.data == data:
            return
        if stored.kind == _SEAL:
            try:
                await self._check_seal(epoch, number)
            except Unavailable as error:
                raise Unsure(error.reason) from error
        raise Taken(f"entry {number} is another one")

    # ---- forgetting ---------------------------------------------------------------------------------------------

    async def purge(self, below: int) -> None:
        below = min(below, self._vouched)
        seals = {epoch.folder: later.first - 1 for epoch, later in zip(self._epochs, self._epochs[1:], strict=False)}
        gone: list[str] = []
        # What an earlier purge of this process has been through is not listed again.
        for key in await self._place.keys(self._group, self._purged_upto):
            folder, number = key.split("/")[-2], _number_of(key)
            seal = seals.get(folder)
            if number < below and number != seal:
                gone.append(key)
        for start in range(0, len(gone), _DELETES_AT_ONCE):
            await self._place.delete(gone[start : start + _DELETES_AT_ONCE])
        if gone:
            self._purged_upto = gone[-1]

    async def close(self) -> None: ...


def _number_of(key: str) -> int:
    return int(key.rpartition("/")[2])
