"""Questions that concern groups which several processes may serve: asked of each, answered over its own groups.

Owns what asking means, and the way of a node with one process: a plain call. Never sends anything itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

Answer = Callable[..., Awaitable[Any]]
"""Answers a question over the groups of this process. Arguments and answer are what msgpack knows."""


class Questions(Protocol):
    """Processes that serve groups have numbers."""

    @property
    def me(self) -> int: ...

    @property
    def alone(self) -> bool:
        """There is no other process, and there never will be."""
        ...

    @property
    def everyone(self) -> Sequence[int]:
        """The processes that are there now, in ascending order."""
        ...

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Called after `everyone` or the owner of a group may have changed."""
        ...

    def owner(self, group: int) -> int:
        """The process that serves a group. Raises MemberUnavailable when there is none now."""
        ...

    async def wait_for_owner(self, group: int) -> int:
        """The process that serves a group; waits a while when none does, because it is changing hands.

        Raises MemberUnavailable.
        """
        ...

    def register(self, name: str, answer: Answer) -> None: ...

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        """The answer of one process, which is an `into`. Raises its refusal, or that it cannot be reached."""
        ...

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        """The answer of the process that serves a group. Raises its refusal, or that it cannot be reached."""
        ...

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        """Every process's answer, in their order: together they are about every group, each once. Raises the first
        refusal, and MemberUnavailable when a group has no owner or changed hands meanwhile."""
        ...


class LocalQuestions:
    """Questions of a node with one process."""

    me = 0
    alone = True
    everyone = (0,)

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._answers: dict[str, Answer] = {}

    def owner(self, group: int) -> int:
        return 0

    async def wait_for_owner(self, group: int) -> int:
        return 0

    def register(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    async def ask(self, member: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self._answers[name](*arguments)

    async def ask_owner(self, group: int, name: str, *arguments: Any, into: Any = Any) -> Any:
        return await self._answers[name](*arguments)

    async def ask_all(self, name: str, *arguments: Any, into: Any = Any) -> list[Any]:
        return [await self._answers[name](*arguments)]
