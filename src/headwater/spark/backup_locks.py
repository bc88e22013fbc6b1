"""Who works in a place of backups: any number of backups at once, or one that deletes and nobody else.

Owns the objects that say so. Never trusts two clocks to agree: how old a lock is, is told by the store that has both it
and the one who asks. Never waits: whoever finds the place taken withdraws and says so.

    locks/shared-<token>        a backup is being made
    locks/alone-<token>         something is being deleted

Each is written anew while its owner works. One that is older than LOCK_MS is what a crash left behind, and counts no
more. Everybody writes a lock first and then looks for others: of two, one at least sees the other.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headwater.lake.store import ObjectStore, StoreError
from headwater.spark.job_runs import JobRefused

LOCKS = "locks"
SHARED, ALONE = "shared", "alone"
LOCK_MS = 3_600_000
RENEW_S = 60.0
HELD_S = LOCK_MS / 2_000
"""So long after it was last written an owner relies on its lock."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _elapsed_s() -> float:
    """Goes on while the machine sleeps, where the system can tell: locks get older meanwhile."""
    return time.clock_gettime(_CLOCK)


class Lock:
    def __init__(self, store: ObjectStore, kind: str, monotonic_s: Callable[[], float]) -> None:
        self._store, self._monotonic_s = store, monotonic_s
        self.key = f"{LOCKS}/{kind}-{secrets.token_hex(8)}"
        self._written_s = monotonic_s()
        self._lost = False

    def write(self) -> None:
        """Raises StoreError. A lock that was left alone for too long is lost for good."""
        self._lost = self._lost or self._is_old()
        began_s = self._monotonic_s()
        self._store.put(self.key, b"")
        self._written_s = began_s

    def require(self) -> None:
        """Raises JobRefused when others may have taken the place for free meanwhile."""
        if self._lost or self._is_old():
            raise JobRefused(
                f"the lock on {self._store.uri} could not be renewed for {HELD_S / 60:.0f} minutes",
                "nothing more was changed there; run it again when the store answers",
            )

    def _is_old(self) -> bool:
        return self._monotonic_s() - self._written_s > HELD_S


@contextmanager
def locked(
    store: ObjectStore, kind: str, monotonic_s: Callable[[], float] = _elapsed_s, renew_s: float = RENEW_S
) -> Iterator[Lock]:
    """The place is taken while the block runs. Raises JobRefused when others have it, StoreError."""
    lock = Lock(store, kind, monotonic_s)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(renew_s):
            with suppress(StoreError):  # `require` tells
                lock.write()

    renewing = threading.Thread(target=renew, daemon=True, name="headwater-backup-lock")
    lock.write()
    try:
        _require_free(store, lock, kind)
        renewing.start()
        yield lock
    finally:
        over.set()
        if renewing.ident is not None:
            renewing.join()
        with suppress(StoreError):
            store.delete(lock.key)


def _require_free(store: ObjectStore, lock: Lock, kind: str) -> None:
    found = {stored.key: stored.modified_ms for stored in store.list(LOCKS)}
    if lock.key not in found:
        raise JobRefused(f"{store.uri} does not list a lock that was just written", "name another place")
    for key, written_ms in found.items():
        if key == lock.key:
            continue
        if found[lock.key] - written_ms > LOCK_MS:
            store.delete(key)
        elif kind == ALONE or key.startswith(f"{LOCKS}/{ALONE}-"):
            what = "backups are being deleted" if key.startswith(f"{LOCKS}/{ALONE}-") else "a backup is being made"
            raise JobRefused(
                f"{what} in {store.uri} ({key})",
                f"run it again later; what a crash left counts for {LOCK_MS // 60_000} minutes",
            )
