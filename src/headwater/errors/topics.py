"""Failures that topics, queues and routers answer with.

Owns their facts and messages. Never says what they mean at a door: the table does.
"""

from __future__ import annotations

from headwater.errors.base import Facts, Failure

__all__ = [
    "BELOW_TOPICS",
    "EpochChanged",
    "NotAQueue",
    "QuorumNeedsCluster",
    "RouterConflict",
    "RouterCycle",
    "RouterNotFound",
    "Throttled",
    "TooManyHoles",
    "TooManyRouters",
    "TopicFull",
]

BELOW_TOPICS = {
    "stream_not_found": "topic_not_found",
    "stream_exists_incompatible": "topic_exists_incompatible",
    "name_taken": "topic_exists_incompatible",
    "bad_name": "bad_request",
    "bad_body": "bad_request",
    "bad_query": "bad_request",
    "bad_header": "bad_request",
    "bad_content_type": "bad_request",
}
"""Codes that are spelt otherwise where topics are served: there they tell what a client can do about it, no more."""


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
        self.deleted = 0
        """Records that the same request has deleted before it came to this."""

    def message(self) -> str:
        told = f"; {self.deleted} records that match are deleted, the others are not" if self.deleted else ""
        return (
            f"the deleted records would lie in more than {self.holes_max} separate places of the topic; "
            f"first delete what lies before them (before_seq), or, in a queue, ack jobs that lie before them{told}"
        )

    def details(self) -> dict[str, object]:
        return {"deleted": self.deleted}


class EpochChanged(Failure):
    """The topic was deleted and made again since the reader learnt its epoch."""

    def __init__(self, epoch: int, head_seq: int) -> None:
        self.epoch = epoch
        self.head_seq = head_seq

    def message(self) -> str:
        return f"the topic was deleted and made again; its epoch is {self.epoch} now: begin again with from_seq=0"

    def details(self) -> dict[str, object]:
        return {"epoch": self.epoch, "head_seq": self.head_seq}


class QuorumNeedsCluster(Failure):
    def message(self) -> str:
        return (
            "durability quorum needs a cluster, and this node is by itself; use fsync, which is the strongest class "
            "of one node, or serve with --cluster"
        )


class Throttled(Failure):
    """More is written than can be delivered and taken in."""

    def __init__(self, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms

    def message(self) -> str:
        return (
            "topics are delivered late and the log is behind, so writes are refused for a while; nothing was written: "
            "retry, or set disable_backpressure"
        )

    def facts(self) -> Facts:
        return {"retry_after_s": -(-self.retry_after_ms // 1000)}

    def details(self) -> dict[str, object]:
        return {"retry_after_ms": self.retry_after_ms}


class NotAQueue(Failure):
    def message(self) -> str:
        return 'the topic is not a queue; make it one by PATCH with {"queue":{}}'


class RouterNotFound(Failure):
    def message(self) -> str:
        return "no such router; define it with PUT first"


class RouterConflict(Failure):
    """There is a router that this one cannot stand beside."""

    def __init__(self, reason: str, other: str, dest: str) -> None:
        self.reason = reason
        """`router_exists` or `router_dest_fan_in`."""
        self.other = other
        self.dest = dest
        """The topic that the other router writes to; empty when the name alone is taken."""

    def message(self) -> str:
        if self.reason == "router_exists":
            return f"router {self.other} exists with another configuration; delete it first"
        return f"router {self.other} writes to {self.dest} already, and a topic takes copies from one router only"

    def details(self) -> dict[str, object]:
        return {"reason": self.reason, "router": self.other}


class RouterCycle(Failure):
    def __init__(self, cycle: list[str | None]) -> None:
        self.cycle = cycle
        """Topics, the first one again as the last; None for those that the client may not read."""

    def message(self) -> str:
        way = " -> ".join(topic or "(not told)" for topic in self.cycle)
        return (
            f"the router would close a cycle: {way}; records would go round in it unless filters stop them: define it "
            "with allow_cycle if they do"
        )

    def details(self) -> dict[str, object]:
        return {"cycle": self.cycle}


class TooManyRouters(Failure):
    def __init__(self, routers_max: int) -> None:
        self.routers_max = routers_max

    def message(self) -> str:
        return f"there are {self.routers_max} routers, as many as there may be; delete one first"

    def details(self) -> dict[str, object]:
        return {"limit": self.routers_max}
