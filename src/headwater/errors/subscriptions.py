"""Failures of subscriptions.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = [
    "AlreadyClaimed",
    "BadAck",
    "BadSubscription",
    "Fenced",
    "NoPendingWork",
    "SubscriptionExists",
    "SubscriptionNotFound",
    "TokenMissing",
    "TooManySubscriptions",
    "WebhookRefused",
]


RETRY_AFTER_S = 60
"""Room comes only when somebody deletes one."""


class BadSubscription(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"bad subscription request: {self.reason}"


class SubscriptionNotFound(Failure):
    def message(self) -> str:
        return "no such subscription; create it with PUT first"


class SubscriptionExists(Failure):
    def message(self) -> str:
        return "the subscription exists with another configuration; delete it first, or choose another id"


class TooManySubscriptions(Failure):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def message(self) -> str:
        return f"this server keeps {self.limit} subscriptions at most; delete some first"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class WebhookRefused(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"this server does not call that webhook.url: {self.reason}"


class TokenMissing(Failure):
    def message(self) -> str:
        return "send the token of the wake as Authorization: Bearer"

    def facts(self) -> Facts:
        return {"authentication": "Bearer"}


class Fenced(Failure):
    def message(self) -> str:
        return "this wake is over or another one took its place; no cursor moved"


class AlreadyClaimed(Failure):
    def __init__(self, holder: str, generation: int) -> None:
        self.holder = holder
        self.generation = generation

    def message(self) -> str:
        return "another worker holds the lease; wait for the next wake"

    def details(self) -> dict[str, object]:
        return {"current_holder": self.holder, "generation": self.generation}


class NoPendingWork(Failure):
    def message(self) -> str:
        return "nothing waits behind the cursors; wait for the next wake"


class BadAck(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"nothing was acknowledged: {self.reason}"
