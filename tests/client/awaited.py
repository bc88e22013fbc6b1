"""The asyncio client with the interface of the blocking one, so that one test holds for both.
Owns only the awaiting; it adds nothing and hides nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any


class Awaited:
    """An object of the client; what its methods return is awaited, and async iterators become plain ones."""

    def __init__(self, runner: asyncio.Runner, target: Any) -> None:
        self._runner, self._target = runner, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not inspect.ismethod(found):
            return self._plain(found)
        return lambda *args, **more: self._plain(found(*map(_inner, args), **more))

    def _plain(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._plain(self._runner.run(value))
        if isinstance(value, AsyncIterator):
            return self._each(value)
        if isinstance(value, list):
            return [self._plain(one) for one in value]
        return Awaited(self._runner, value) if type(value).__name__.startswith("Async") else value

    def _each(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(values)

        try:
            while True:
                try:
                    yield self._plain(self._runner.run(following()))
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(values.aclose())  # type: ignore[attr-defined]


def _inner(value: Any) -> Any:
    if isinstance(value, list):
        return [_inner(one) for one in value]
    return value._target if isinstance(value, Awaited) else value
