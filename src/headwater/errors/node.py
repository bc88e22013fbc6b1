"""Failures of the node: what it cannot do now.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Failure

__all__ = [
    "LogUnavailable",
    "MemberUnavailable",
    "OutcomeUnknown",
    "Overloaded",
    "ShuttingDown",
    "SwapRefused",
]

RETRY_AFTER_S = 1


class LogUnavailable(Failure):
    """The log failed: nothing is acknowledged until the node is restarted on a healthy disk."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"this node does not accept writes: {self.reason}"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", "5"),)


class Overloaded(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"over capacity: {self.reason}; retry later"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", str(RETRY_AFTER_S)),)


class ShuttingDown(Failure):
    def message(self) -> str:
        return "the node is shutting down; retry"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", str(RETRY_AFTER_S)),)


class MemberUnavailable(Failure):
    """The process that owns the stream's group does not answer. The request did not reach it."""

    def __init__(self, member: int) -> None:
        self.member = member

    def message(self) -> str:
        return f"worker {self.member}, which serves this, is restarting; retry"

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", str(RETRY_AFTER_S)),)


class OutcomeUnknown(Failure):
    """The process that owns the stream's group went away while it had the request: it may have taken effect."""

    def __init__(self, member: int) -> None:
        self.member = member

    def message(self) -> str:
        return (
            f"worker {self.member} went away before it answered; a write may or may not have taken effect: "
            "retry it with the same producer headers, or look at the stream first"
        )

    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Retry-After", str(RETRY_AFTER_S)),)


class SwapRefused(Failure):
    """Files of the lake cannot take the place of others as they are."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"nothing was swapped: {self.reason}"
