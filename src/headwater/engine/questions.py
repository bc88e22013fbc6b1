"""Questions of a node with one process: asking is a plain call.

Owns the answers of this process. Never sends anything.
"""

from __future__ import annotations

from typing import Any

from headwater.world import Answer


class LocalQuestions:
    """See `world.Questions`."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    def register(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self._answers[name](*arguments)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        return [await self._answers[name](*arguments)]
