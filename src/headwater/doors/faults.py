"""A fault inside this server: told to the client by an id, and to the operator with its trace under the same id.

Owns the id and the log line. Never answers: doors do.
"""

from __future__ import annotations

import structlog

from headwater.errors import InternalError
from headwater.ports import SystemRng

log = structlog.get_logger("headwater.doors")
_rng = SystemRng()


def report(door: str, request_id: str | None = None, **facts: object) -> InternalError:
    """Called while the exception is handled: logs it, and returns what the client is to be told. `request_id` is what
    the request is called already."""
    failure = InternalError(request_id or _rng.token(8).hex())
    log.exception("request failed", door=door, request_id=failure.request_id, **facts)
    return failure
