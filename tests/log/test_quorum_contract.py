"""The log at a quorum keeps its promises over the simplest medium: faults found here are the core's."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.log.medium import Entries
from tests.log.memory_entries import MemoryEntries, Place
from tests.log.quorum_contract import QuorumContract


class TestQuorum(QuorumContract):
    @pytest.fixture
    def place(self) -> Place:
        return Place()

    async def medium(self, place: Any) -> Entries:
        return MemoryEntries(place)

    async def destroy(self, place: Any) -> None:
        place.__init__()
