"""A quick disk for groups on real files: small slabs, syncs that do nothing, checkpoints in slices of one stream.
What is read back is read by the same system, so nothing is lost by it."""

from __future__ import annotations

import os

import pytest

from headwater.engine import checkpoint
from headwater.log import wal


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "_SLAB_BYTES", 8 << 10)
    monkeypatch.setattr(wal, "_ZEROS", bytes(4 << 10))
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(checkpoint, "SLICE_STREAMS", 1)
