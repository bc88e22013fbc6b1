"""Failures that topics, queues and routers answer with.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Failure

__all__ = ["TooManyHoles", "TopicFull"]


class TopicFull(Failure):
    """Its configuration says that a write is refused rather than that old records go."""

    def __init__(self, what: str, cap: int, held: int) -> None:
        self.what = what
        self.cap = cap
        self.held = held

    def message(self) -> str:
        return (
            f"the topic is full: it holds {self.held} {self.what} of at most {self.cap}; delete records, "
            f"raise cap_{self.what}, or set discard to old"
        )

    def details(self) -> dict[str, object]:
        return {"cap": f"cap_{self.what}", "limit": self.cap, "held": self.held}


class TooManyHoles(Failure):
    def __init__(self, holes_max: int) -> None:
        self.holes_max = holes_max

    def message(self) -> str:
        return (
            f"the deleted records would lie in more than {self.holes_max} separate places of the topic; "
            f"delete what lies before them first (before_seq)"
        )
