"""Log lines: structlog, to stderr, as text on a terminal and JSON elsewhere.

Owns the set-up. Never logs per request, and never a header value, token or payload.
"""

from __future__ import annotations

import logging
import sys

import structlog


def set_up(level: str, form: str) -> None:
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
