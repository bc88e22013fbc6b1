"""A medium in memory: the simplest thing that keeps the contract of `Entries`, and a wire to it that misbehaves.

Owns what is stored in one group, for several processes that are simulated in one. Never sleeps: whoever tests decides
when something arrives.
"""

from __future__ import annotations

import asyncio

from headwater.log.medium import Gone, Lost, Taken, Unavailable


class Place:
    """What all processes share: entries by number. The newest claim fences everybody who claimed before."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.end = 1
        self.owner: object = None
        self.head = 1
        self.grown = asyncio.Event()

    def store(self, writer: object, number: int, data: bytes) -> None:
        """Raises Taken. A number before its turn is not stored: the caller sends it again."""
        if number < self.end:
            if self.entries.get(number) != data:
                raise Taken(f"entry {number} is another one")
            return
        if writer is not self.owner:
            raise Taken("the writer was fenced")
        if number > self.end:
            raise Unavailable(f"entry {self.end} is not there yet")
        self.entries[number] = data
        self.end += 1
        self.grown.set()

    def claim(self, writer: object, number: int, data: bytes) -> None:
        if number < self.end and self.entries.get(number) == data:
            return
        if number != self.end:
            raise Taken(f"entry {number} is another one")
        self.owner = writer
        self.store(writer, number, data)


class MemoryEntries:
    """One process's view of a place."""

    entry_bytes_max = 64 << 10

    def __init__(self, place: Place) -> None:
        self.place = place
        self.broken: Exception | None = None
        """Raised by every put from now on, which stores nothing."""

    async def head(self) -> int:
        return self.place.head

    async def read(self, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        place = self.place
        if first < place.head:
            raise Gone(f"entries below {place.head} were purged")
        if first > place.end:
            raise Lost(f"the log ends before entry {place.end}")
        found: list[tuple[int, bytes]] = []
        size = 0
        for number in range(first, place.end):
            size += len(place.entries[number])
            if found and size > bytes_max:
                break
            found.append((number, place.entries[number]))
        return found

    async def put(self, number: int, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        self.place.store(self, number, data)

    async def claim(self, number: int, data: bytes) -> None:
        await asyncio.sleep(0)
        self.place.claim(self, number, data)

    async def wait(self, number: int) -> None:
        place = self.place
        while place.end <= number:
            place.grown.clear()
            await place.grown.wait()

    async def purge(self, below: int) -> None:
        place = self.place
        for number in range(place.head, min(below, place.end - 1)):
            del place.entries[number]
        place.head = max(place.head, min(below, place.end - 1))

    async def close(self) -> None: ...
