"""Questions that concern groups which several processes may serve: asked of each, answered over its own groups.

Owns what asking means, and the way of a node with one process: a plain call. Never sends anything itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Answer = Callable[..., Awaitable[Any]]
"""Answers a question over the groups of this process. Arguments and answer are what msgpack knows."""


class Questions(Protocol):
    """Processes that serve groups are numbered from 0."""

    me: int
    count: int
    """How many processes there are."""

    def owner(self, group: int) -> int:
        """The process that serves a group."""
        ...

    def register(self, name: str, answer: Answer) -> None: ...

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        """The answer of one process, which is an `into`. Raises its refusal, or that it cannot be reached."""
        ...

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        """The answer of the process that serves a group. Raises its refusal, or that it cannot be reached."""
        ...

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        """Every process's answer, in their order. Raises the first refusal."""
        ...


class LocalQuestions:
    """Questions of a node with one process."""

    me = 0
    count = 1

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    def owner(self, group: int) -> int:
        return 0

    def register(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self._answers[name](*arguments)

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self._answers[name](*arguments)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        return [await self._answers[name](*arguments)]
