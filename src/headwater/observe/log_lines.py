"""Log lines: structlog, to stderr, as text on a terminal and JSON elsewhere.

Owns the set-up, and that an event is one line: control characters that come from elsewhere are escaped. Never logs per
request, and never a header value, token or payload.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import structlog

TRACE = "  | "
"""In front of each line of a trace: none of them can pass for an event."""


def set_up(level: str, form: str) -> None:
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            escape,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def escape(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A structlog processor: no text of an event holds a character that is not printable, but for a trace's lines."""
    for name, value in event.items():
        if name == "exception" and isinstance(value, str):
            event[name] = "\n".join(TRACE + escaped(line) for line in value.split("\n"))
        elif isinstance(value, str):
            event[name] = escaped(value)
        elif not isinstance(value, int | float | None):
            event[name] = escaped(repr(value))
    return event


def escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def log_stray_exceptions(loop: asyncio.AbstractEventLoop) -> None:
    """What nobody caught becomes an event like any other, instead of asyncio's own lines."""
    log = structlog.get_logger("headwater")

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error(context.get("message", "unhandled exception"), exc_info=context.get("exception"))

    loop.set_exception_handler(report)
