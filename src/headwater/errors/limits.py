"""Failures of limits: a client, an address or a bucket uses all that the operator gives it.

Owns their facts and messages. Never says what others use, nor whether what a request is about exists.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = ["BucketFull", "RateLimited", "TooManyConnections", "TooManyFollowers"]

RETRY_AFTER_S = 1
QUOTA_RETRY_AFTER_S = 60
"""Room in a bucket comes when somebody deletes, or retention does."""


class RateLimited(Failure):
    def __init__(self, whose: str, what: str, limit: int, retry_after_s: int) -> None:
        self.whose = whose
        """`principal` or `address`."""
        self.what = what
        """`requests` or `bytes`."""
        self.limit = limit
        self.retry_after_s = retry_after_s

    def message(self) -> str:
        return (
            f"this {self.whose} may use {self.limit} {self.what} a second ({self.whose}_{self.what}_per_s), and has; "
            f"wait for {self.retry_after_s} s, and send less at a time"
        )

    def facts(self) -> Facts:
        return {"retry_after_s": self.retry_after_s}


class TooManyConnections(Failure):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def message(self) -> str:
        return (
            f"this address may have {self.limit} connections open (address_connections_max), and has; close some, or "
            "send more over each"
        )

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class TooManyFollowers(Failure):
    def __init__(self, whose: str, limit: int) -> None:
        self.whose = whose
        self.limit = limit

    def message(self) -> str:
        return (
            f"this {self.whose} may have {self.limit} live reads at a time ({self.whose}_followers_max), and has; end "
            "some, or follow many streams over one connection"
        )

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class BucketFull(Failure):
    def __init__(self, bucket: str, what: str, limit: int) -> None:
        self.bucket = bucket
        self.what = what
        """`streams` or `bytes`."""
        self.limit = limit

    def message(self) -> str:
        return (
            f"the bucket {self.bucket} may hold {self.limit} {self.what} (bucket_{self.what}_max), and does; delete "
            "streams or trim them, or ask the operator for more"
        )

    def facts(self) -> Facts:
        return {"retry_after_s": QUOTA_RETRY_AFTER_S}
