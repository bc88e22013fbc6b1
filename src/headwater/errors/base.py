"""What a failure is, and what a row of the table says of one.

Owns the two shapes. Never knows a particular failure.
"""

from __future__ import annotations

from typing import NamedTuple

Facts = dict[str, int | str]


class Failure(Exception):
    """A refusal that is the client's to see. Subclasses carry facts as attributes; `TABLE` says what they mean.

    Another process makes the same failure from its class and attributes, so nothing else may be kept in it.
    """

    def message(self) -> str:
        raise NotImplementedError

    def facts(self) -> Facts:
        """What clients read by machine beside code and message. Doors say how it is written."""
        return {}

    def details(self) -> dict[str, object]:
        """What the error body says beside code, message and retryable."""
        return {}

    def __str__(self) -> str:
        return self.message()


class Row(NamedTuple):
    """What one failure means at every door."""

    status: int
    code: str
    s3p: str
    retryable: bool
    no_effect: bool
    """True when the request certainly changed nothing."""
