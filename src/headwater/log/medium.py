"""What a quorum log is kept in: one group's entries, each written once and numbered from 1 without gaps.

Owns the contract between `quorum` and the media (`objects`, `jetstream`), and how a medium says no. Never looks into an
entry.
"""

from __future__ import annotations

from typing import Protocol


class MediumError(Exception):
    """`reason` is a sentence for the operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Taken(MediumError):
    """The number holds an entry that is not the given one, or this writer was fenced. What was given is not in the log,
    and never will be."""


class Unavailable(MediumError):
    """Nothing was written, and nothing that was sent can be written any more. Or, of a read: no answer."""


class Unsure(MediumError):
    """The entry may be there, or may still come to be there. The same call again finds out."""


class Gone(MediumError):
    """The number was purged: whoever stands there is too far behind, and begins again from a catalog snapshot.
    Of a put: what became of the entry cannot be found out any more."""


class Lost(MediumError):
    """What must be there is not, or is not what was written: the log is damaged, or it is another log."""


class Entries(Protocol):
    """The entries of one group, as one process sees them. Everything runs on the event loop and never blocks it.

    A process reads and puts through the same object. It may put after its own `claim` has returned, and until somebody
    else claims; up to `in_flight_max` puts of consecutive numbers run at once, and may end in any order.
    """

    @property
    def entry_bytes_max(self) -> int:
        """Entries aim to stay below it. One event that is longer alone still comes as one entry, which the medium has
        to take."""
        ...

    async def head(self) -> int:
        """The oldest number that can be read, with everything after it; the next number to be written when there is
        none. Raises Unavailable."""
        ...

    async def read(self, first: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Entries `first`, `first` + 1, … as far as they are there without a gap; [] when `first` is not there yet.

        Only what stays: no entry that was returned is ever replaced, or void later. At least one entry when there is
        one, then no more than `bytes_max`. Claims are entries like others. What a former owner wrote behind the claim
        that fenced it is never returned. Raises Unavailable, Gone, Lost.
        """
        ...

    async def put(self, number: int, data: bytes) -> None:
        """On return entry `number` is `data`, on stable storage at a quorum, and every entry before it that was put
        through this object may still be under way. The same call again is safe, and how an unknown outcome is
        resolved: `data` is unlike that of any other put. Raises Taken, Unavailable, Unsure, Gone.
        """
        ...

    async def claim(self, number: int, data: bytes) -> None:
        """Like `put`, and on return nobody who claimed before can add an entry that anybody would read: neither what
        they send from now on nor what they have sent. `number` is the one after the last entry that was read.
        Raises Taken when it is no longer the next one; Unavailable, Unsure, Gone, Lost."""
        ...

    async def wait(self, number: int) -> None:
        """Returns when entry `number` may be there, and after a while in any case. Raises Gone, Lost."""
        ...

    async def purge(self, below: int) -> None:
        """Entries below the number may go, now or later. What fences former owners stays for ever, and so does the
        newest entry. Called by an owner, for entries that were acknowledged. Raises Unavailable."""
        ...

    async def close(self) -> None:
        """Ends what runs for this object. Idempotent."""
        ...
