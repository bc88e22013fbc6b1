"""Traces, as those see them who do the work: spans that may be begun, and cost next to nothing while nobody traces.

Owns the place where a tracer is put, and which span is the current one. Never knows a tracer: `observe.tracing` is one,
and is loaded only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

Value = str | int | float | bool


class Span(Protocol):
    @property
    def traceparent(self) -> bytes:
        """By which another process goes on with the trace."""
        ...

    def tell(self, name: str, value: Value) -> None: ...

    def end(self, error: str | None = None) -> None:
        """Called once."""
        ...


class Tracer(Protocol):
    def of_request(self, name: str, traceparent: bytes | None, facts: Mapping[str, Value]) -> Span | None:
        """None when the request is not sampled."""
        ...

    def of_work(self, name: str, parent: Span | None, facts: Mapping[str, Value]) -> Span | None:
        """Part of `parent`; without one a trace of its own, None when that is not sampled."""
        ...


tracer: Tracer | None = None
"""Put here once, before anything is served."""
current: ContextVar[Span | None] = ContextVar("span", default=None)
"""That of the request which is being handled."""


def begin(name: str, **facts: Value) -> Span | None:
    """Part of the current request's span; None when that is not sampled, or nobody traces."""
    return None if tracer is None else tracer.of_work(name, current.get(), facts)


def begin_part(name: str, **facts: Value) -> Span | None:
    """The same, but never a trace of its own."""
    if tracer is None or (parent := current.get()) is None:
        return None
    return tracer.of_work(name, parent, facts)


@contextmanager
def around(name: str, **facts: Value) -> Iterator[Span | None]:
    """A span for the work of a block; an exception is told and goes on."""
    span = begin(name, **facts)
    if span is None:
        yield None
        return
    try:
        yield span
    except BaseException as error:
        span.end(f"{type(error).__name__}: {error}")
        raise
    span.end()
