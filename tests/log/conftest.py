"""Small zero-filled slabs for the logs of these tests: 4 MiB for every file would be all that they do.
Owns nothing else."""

from __future__ import annotations

import pytest

from headwater.log import wal


@pytest.fixture(autouse=True)
def _small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "_SLAB_BYTES", 16 << 10)
    monkeypatch.setattr(wal, "_ZEROS", bytes(4 << 10))
