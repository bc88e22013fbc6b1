"""The local log keeps what every log promises (see `contract`)."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater.log.wal import Wal
from headwater.ports import BROKEN, LogFailure
from tests.log.contract import LogContract


class TestWal(LogContract):
    async def open(self, place: Path) -> Wal:
        return Wal(place, 8 << 10, 5)

    def crash(self, log: Any) -> None:
        """What a kill leaves: whatever the writer has written by now. The thread ends without a last sync."""
        log.failure = LogFailure(BROKEN, "killed")
        log.close()

    def break_writes(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.fdatasync

        def fail(fd: int) -> None:
            if threading.current_thread().name == "wal-writer":
                raise OSError(5, "Input/output error")
            real(fd)

        monkeypatch.setattr(os, "fdatasync", fail)
