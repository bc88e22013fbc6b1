"""Log lines: structlog, to stderr, as text on a terminal and JSON elsewhere.

Owns the set-up, and that an event is one line: control characters that come from elsewhere are escaped. Never logs per
request, and never a header value, token or payload; nor the user and password of a URL, whoever puts it into a line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import Any

import structlog

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*(?=@)")
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
    """A structlog processor: no text of an event holds a character that is not printable, but for a trace's lines, and
    none holds credentials of a URL."""
    for name, value in event.items():
        if name == "exception" and isinstance(value, str):
            event[name] = "\n".join(TRACE + told(line) for line in value.split("\n"))
        elif isinstance(value, str):
            event[name] = told(value)
        elif not isinstance(value, int | float | None):
            event[name] = told(repr(value))
    return event


def told(text: str) -> str:
    """As it may stand in a line."""
    return escaped(_CREDENTIALS.sub("[redacted]", text) if "@" in text else text)


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
