"""Failures of the node: what it cannot do now.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = [
    "AnotherLog",
    "GroupMoved",
    "InternalError",
    "LogSetBack",
    "LogUnavailable",
    "MemberUnavailable",
    "NoOwner",
    "NoSuchGroup",
    "NoSuchNode",
    "NodeIsAlive",
    "NotACluster",
    "NotServedHere",
    "OutcomeUnknown",
    "Overloaded",
    "OwnerChanged",
    "ShuttingDown",
    "SwapRefused",
]

RETRY_AFTER_S = 1
LOG_RETRY_AFTER_S = 5


class AnotherLog(Failure):
    """The log is not the one that the client has positions of."""

    def __init__(self, expected: str, found: str) -> None:
        self.expected = expected
        self.found = found

    def message(self) -> str:
        return (
            f"log {self.expected} was expected, and this is log {self.found}: another node answers here, or its data "
            "directory was made anew"
        )


class LogSetBack(Failure):
    """It is the log, but not with the history that the client has seen: it was restored, or lost its end."""

    def __init__(self, incarnation: str, position: int, end: int | None = None) -> None:
        self.incarnation = incarnation
        self.position = position
        self.end = end
        """Where that incarnation ended in this log; None when it is not in it at all."""

    def message(self) -> str:
        why = "is not in this log at all" if self.end is None else f"ended at {self.end}"
        return (
            f"position {self.position} was expected, of the log's incarnation {self.incarnation}, which {why}: the "
            "node was restored from a backup or a copy, or lost the end of its log"
        )


class LogUnavailable(Failure):
    """The log failed: nothing is acknowledged until the node is restarted on a healthy disk."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"this node does not accept writes: {self.reason}"

    def facts(self) -> Facts:
        return {"retry_after_s": LOG_RETRY_AFTER_S}


class InternalError(Failure):
    """A fault of this server. What it was stands in the node's log, under the same id."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id

    def message(self) -> str:
        return f"this server made a mistake; its log says what happened to request {self.request_id}"

    def facts(self) -> Facts:
        return {"request_id": self.request_id}

    def details(self) -> dict[str, object]:
        return {"request_id": self.request_id}


class GroupMoved(Failure):
    """The group went to another process while the request was here. It changed nothing."""

    def __init__(self, group: int) -> None:
        self.group = group

    def message(self) -> str:
        return f"group {self.group} moved to another node; retry"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class NoSuchGroup(Failure):
    """A call about a group that this node does not have."""

    def __init__(self, group: int, groups_count: int) -> None:
        self.group = group
        self.groups_count = groups_count

    def message(self) -> str:
        has = "one group, 0" if self.groups_count == 1 else f"groups 0 to {self.groups_count - 1}"
        return f"there is no group {self.group}: this node has {has}"


class NoSuchNode(Failure):
    """A call about a node that is not there."""

    def __init__(self, node: str, there_is: str) -> None:
        self.node = node
        self.there_is = there_is

    def message(self) -> str:
        return f"there is no node {self.node}; there is: {self.there_is}"


class NodeIsAlive(Failure):
    """A node was to be forgotten that answers."""

    def __init__(self, member: int) -> None:
        self.member = member

    def message(self) -> str:
        return f"node {self.member} is alive: stop it, and it gives its number back by itself"


class NotACluster(Failure):
    """A call about a cluster, at a node by itself."""

    def message(self) -> str:
        return "this node is by itself: it was not started with --cluster"


class Overloaded(Failure):
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"over capacity: {self.reason}; retry later"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class ShuttingDown(Failure):
    def message(self) -> str:
        return "the node is shutting down; retry"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class NotServedHere(Failure):
    """The stream lives in a group that this process does not serve, or its name has just been placed in another."""

    def __init__(self, group: int) -> None:
        self.group = group

    def message(self) -> str:
        return "the stream of this name has just moved, or its name was given to another one; nothing happened: retry"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class MemberUnavailable(Failure):
    """The process that owns the stream's group does not answer. The request did not reach it."""

    def __init__(self, member: int) -> None:
        self.member = member

    def message(self) -> str:
        return f"member {self.member}, which serves this, does not answer; retry"

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class NoOwner(MemberUnavailable):
    """No process that is known to be there serves the group now. The request reached none."""

    def __init__(self, group: int) -> None:
        self.group = group

    def message(self) -> str:
        return f"group {self.group}, which this is about, has no owner just now; retry"


class OutcomeUnknown(Failure):
    """The process that owns the stream's group went away while it had the request: it may have taken effect."""

    def __init__(self, member: int) -> None:
        self.member = member

    def message(self) -> str:
        return (
            f"member {self.member} went away before it answered; a write may or may not have taken effect: "
            "retry it with the same producer headers, or look at the stream first"
        )

    def facts(self) -> Facts:
        return {"retry_after_s": RETRY_AFTER_S}


class OwnerChanged(Failure):
    """Files were written to be swapped in by an owner of the group that it does not have any more."""

    def __init__(self, group: int, epoch: int, current: int) -> None:
        self.group = group
        self.epoch = epoch
        self.current = current

    def message(self) -> str:
        return (
            f"nothing was swapped: the new files were written in epoch {self.epoch} of group {self.group}, whose owner "
            f"has epoch {self.current}; list its files again, and write new ones"
        )


class SwapRefused(Failure):
    """Files of the lake cannot take the place of others as they are."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def message(self) -> str:
        return f"nothing was swapped: {self.reason}"
