"""Small zero-filled slabs for the logs of these tests: 4 MiB for every file would be all that they do.
A disk without syncs, for those that tear a log a thousand times."""

from __future__ import annotations

import os

import pytest

from headwater.log import wal


@pytest.fixture(autouse=True)
def _small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "_SLAB_BYTES", 16 << 10)
    monkeypatch.setattr(wal, "_ZEROS", bytes(4 << 10))


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs that do nothing: bytes are as good as written for whoever reads them back in the same process."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
