"""What the clients of one run did and were told, in the order in which it ended.

Owns the record's shapes and nothing else. All times are of one monotonic clock, that of the process with the clients.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace

from xxhash import xxh3_64_intdigest

ACKNOWLEDGED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"
"""REFUSED is certain: every attempt was answered with a failure that says that it changed nothing, or never left."""


KEPT_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Append:
    """One payload that a client wanted in a stream, with all its attempts."""

    stream: str
    payload: bytes
    """Ends with its only line end, and is like no other of the run."""
    start_s: float
    """When the first attempt began."""
    end_s: float
    outcome: str
    client: str = ""
    next_offset: int | None = None
    """The offset behind it, as the answer told; None when no answer told one, or it was the answer to a repetition."""
    producer: str | None = None
    epoch: int = 0
    seq: int = 0
    attempts_count: int = 1
    codes: tuple[str, ...] = ()
    """What the attempts before the last one were answered."""


@dataclass(frozen=True, slots=True)
class Read:
    """One answer, or the events of one connection up to a control event."""

    stream: str
    reader: str
    start_s: float
    """When it was asked for."""
    end_s: float
    from_offset: int
    data: bytes
    up_to_date: bool
    fresh: bool = True
    """Nothing of it can be from before `start_s`. Later events of a connection may have been on their way."""
    linearizable: bool = False
    next_offset: int | None = None
    """What the answer told; None when it is where the data ends."""
    digest: tuple[int, int] | None = None
    """Size and hash of the data, when only its beginning is kept."""

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.from_offset + (len(self.data) if self.digest is None else self.digest[0])

    def fits(self, content: bytes) -> bool:
        """Whether a stream with this content has what was seen where it was seen."""
        part = content[self.from_offset : self.end]
        return part == self.data if self.digest is None else _digest(part) == self.digest

    def packed(self) -> Read:
        """The same, as it is kept: an hour of readings does not fit into memory."""
        if len(self.data) <= KEPT_BYTES_MAX:
            return self
        return replace(self, data=self.data[:KEPT_BYTES_MAX], digest=_digest(self.data))


def _digest(data: bytes) -> tuple[int, int]:
    return len(data), xxh3_64_intdigest(data)


@dataclass(frozen=True, slots=True)
class Strange:
    """An answer that nothing explains: neither what was asked for, nor a failure that may be repeated."""

    stream: str
    client: str
    at_s: float
    what: str


@dataclass
class History:
    """Filled by many threads."""

    appends: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    strange: list[Strange] = field(default_factory=list)
    told: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(subscription, stream): the furthest tail that the subscriber was told of."""
    tails: dict[tuple[str, str], int] = field(default_factory=dict)
    """(reader, stream): how far a reader that follows a stream has come."""
    subscribed: dict[str, list[str]] = field(default_factory=dict)
    """Subscription: the streams that it is linked to."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, what: Append | Read | Strange) -> None:
        with self._lock:
            if isinstance(what, Append):
                self.appends.append(what)
            elif isinstance(what, Read):
                self.reads.append(what.packed())
            else:
                self.strange.append(what)

    def was_told(self, subscription: str, stream: str, tail: int) -> None:
        with self._lock:
            self.told[subscription, stream] = max(self.told[subscription, stream], tail)
