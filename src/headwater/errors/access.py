"""Failures of access: who a client is, and what it may do.

Owns their facts and messages. Never repeats a credential, and never says whether what it is about exists.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = [
    "AccessUnknown",
    "BadAccess",
    "CredentialRefused",
    "Forbidden",
    "KeyNotFound",
    "NotAuthenticated",
    "TooManyKeys",
]

RETRY_AFTER_S = 1
CHALLENGE = 'Bearer realm="headwater"'


class NotAuthenticated(Failure):
    """There is no credential, and nobody may do that without one."""

    def __init__(self, needed: str) -> None:
        self.needed = needed

    def message(self) -> str:
        return (
            f"this needs {self.needed}, and the request brings no credential; send a key or a token as "
            "'Authorization: Bearer ...'"
        )

    def facts(self) -> Facts:
        return {"authentication": CHALLENGE}


class CredentialRefused(Failure):
    """There is one, and it does not hold."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"the credential is not accepted: {self.reason}"

    def facts(self) -> Facts:
        return {"authentication": f'{CHALLENGE}, error="invalid_token"'}


class Forbidden(Failure):
    def __init__(self, needed: str) -> None:
        self.needed = needed

    def message(self) -> str:
        return f"this needs {self.needed}, which the credential does not allow"


class AccessUnknown(Failure):
    """This process has not heard of the keys, or not for too long."""

    def message(self) -> str:
        return "this process cannot reach the directory of keys just now, and cannot tell who may do what; try again"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class KeyNotFound(Failure):
    def message(self) -> str:
        return "there is no such key; `headwater token list` shows all of them"


class TooManyKeys(Failure):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def message(self) -> str:
        return f"there are {self.limit} keys at most; revoke some first"


class BadAccess(Failure):
    """A request about keys, signed URLs or public buckets that asks for what there cannot be."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return self.reason
