"""Where the lake's objects live: the Protocol of an object store, the one in memory, and how one is chosen.

Owns the failures of stores and the start-up probe. Never retries: each store knows what is safe to repeat.

A key is a relative path of plain parts (`data/3/x.parquet`). Objects are whole or absent; nothing is ever appended to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from headwater.ports import SYSTEM_CLOCK

Data = bytes | memoryview
Parts = Data | Sequence[Data]
"""An object's content: one buffer, or several that are stored one after the other without being joined."""


class StoreError(Exception):
    """Something the store, not the caller, is responsible for. `reason` is a sentence for the operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StoreUnavailable(StoreError):
    """The store may come back by itself. Whether a write took effect is unknown; every write here may be repeated."""


class StoreRefused(StoreError):
    """The store will not do this until an operator changes a setting or a permission; `reason` says which."""


class ObjectMissing(StoreError):
    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class LakeDamaged(StoreError):
    """Stored bytes are not what was written. They are not served; only the operator can repair them."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key} is damaged: {what}")
        self.key = key


class Stored(NamedTuple):
    """One line of a listing."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Thread-safe; every call blocks its thread and none holds the GIL while it waits.

    All calls raise StoreUnavailable or StoreRefused. A write that returned is as durable as the store can make it.
    """

    @property
    def uri(self) -> str:
        """What `deltalake` opens to reach the same objects."""
        ...

    @property
    def storage_options(self) -> dict[str, str]:
        """What `deltalake` needs beside the uri."""
        ...

    def put(self, key: str, data: Parts) -> None:
        """Stores the object, over an older one if need be. A crash leaves the old object or the new one."""
        ...

    def put_if_absent(self, key: str, data: Parts) -> bool:
        """True when the object was stored by this call; False when another one is there, which stays as it is.

        Of several concurrent callers exactly one gets True, as long as each one's content is its own: a store that had
        to find out what became of a lost answer can only compare.
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectMissing."""
        ...

    def get_range(self, key: str, start: int, length: int) -> Data:
        """Exactly these bytes. Raises ObjectMissing, or LakeDamaged when the object ends before they do."""
        ...

    def get_tail(self, key: str, length: int) -> tuple[Data, int]:
        """The last bytes (all of a shorter object) and the object's size, in one request. Raises ObjectMissing."""
        ...

    def local_path(self, key: str) -> str | None:
        """The file that is the object, for a library that reads files by itself; None when there is none such."""
        ...

    def head(self, key: str) -> int | None:
        """The object's size in bytes; None when there is none."""
        ...

    def delete(self, key: str) -> None:
        """After it the object is gone, whether it was there or not."""
        ...

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """Every object below the folder `prefix` (all when empty), in no promised order. Half-written ones never."""
        ...

    def leftovers(self) -> Iterator[Stored]:
        """What interrupted writes left behind, with keys that `delete` takes. May hold writes still under way."""
        ...

    def sync(self, keys: Iterable[str]) -> None:
        """Makes objects that another library put here as durable as this store's own. Raises ObjectMissing."""
        ...

    def explain(self, error: Exception) -> StoreError | None:
        """What an error of a library that works on this store means; None when it is not about the store."""
        ...


def parts_of(data: Parts) -> list[Data]:
    """The buffers one by one, each of plain bytes: Arrow's are of signed ones, which not every library takes."""
    parts = [data] if isinstance(data, bytes | memoryview) else data
    return [part if isinstance(part, bytes) else part.cast("B") for part in parts]


def joined(data: Parts) -> bytes:
    return data if isinstance(data, bytes) else b"".join(parts_of(data))


def check_key(key: str) -> str:
    """Returns the key. Raises ValueError for one that could leave the store's folder or that stores spell variously."""
    for part in key.split("/"):
        if part in ("", ".", "..") or not part.isprintable() or "\\" in part or "#" in part:
            raise ValueError(f"not a key: {key!r}")
    return key


class MemoryStore:
    """Keeps objects for as long as the process lives: for nodes that keep nothing."""

    uri = "memory:"

    def __init__(self, now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._lock = threading.Lock()
        self._now_ms = now_ms

    @property
    def storage_options(self) -> dict[str, str]:
        return {}

    def put(self, key: str, data: Parts) -> None:
        entry = joined(data), self._now_ms()
        with self._lock:
            self._objects[check_key(key)] = entry

    def put_if_absent(self, key: str, data: Parts) -> bool:
        entry = joined(data), self._now_ms()
        with self._lock:
            return self._objects.setdefault(check_key(key), entry) is entry

    def get(self, key: str) -> bytes:
        entry = self._objects.get(check_key(key))
        if entry is None:
            raise ObjectMissing(key)
        return entry[0]

    def get_range(self, key: str, start: int, length: int) -> Data:
        data = self.get(key)
        if start + length > len(data):
            raise LakeDamaged(key, f"it ends at byte {len(data)}, before {start + length}")
        return memoryview(data)[start : start + length]

    def get_tail(self, key: str, length: int) -> tuple[Data, int]:
        data = self.get(key)
        return memoryview(data)[max(0, len(data) - length) :], len(data)

    def local_path(self, key: str) -> None:
        return None

    def head(self, key: str) -> int | None:
        entry = self._objects.get(check_key(key))
        return None if entry is None else len(entry[0])

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def list(self, prefix: str = "") -> Iterator[Stored]:
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        with self._lock:
            entries = list(self._objects.items())
        return (Stored(key, len(data), ms) for key, (data, ms) in entries if key.startswith(below))

    def leftovers(self) -> Iterator[Stored]:
        return iter(())

    def sync(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.get(key)

    def explain(self, error: Exception) -> StoreError | None:
        return error if isinstance(error, StoreError) else None


def probe(store: ObjectStore, token: str) -> None:
    """Checks at start-up that the store can be written, read back, written conditionally and deleted from.

    `token` makes the probe's objects this caller's own. Raises StoreRefused or StoreUnavailable with what to change;
    leaves nothing behind on success.
    """
    key, content = f"_probe/{token}", f"headwater probe {token}".encode()
    store.put(key, content)
    try:
        if store.get(key) != content or bytes(store.get_range(key, 10, 5)) != b"probe":
            raise StoreRefused(f"{store.uri} returned other bytes than were written to it: it cannot hold a lake")
        if store.put_if_absent(key, b"another"):
            raise StoreRefused(
                f"{store.uri} overwrote an object although it was asked not to (If-None-Match): "
                "concurrent commits would be lost. Use a store that honours conditional puts"
            )
        if key not in (found.key for found in store.list("_probe")):
            raise StoreRefused(f"{store.uri} does not list an object that was just written: it cannot hold a lake")
    finally:
        store.delete(key)
    if store.head(key) is not None:
        raise StoreRefused(f"{store.uri} still shows an object after it was deleted: it cannot hold a lake")
