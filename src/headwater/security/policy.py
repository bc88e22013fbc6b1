"""What each route asks of a client: one table, made of what every registration says.

Owns the rules' shapes and the table. A route without a rule cannot be registered, and one that is registered twice has
to say the same. Never judges: `doors/http/admission` does, by these rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from headwater.security.principals import Action


class Concern(Enum):
    """What a route is about."""

    STREAM = "the stream of its path"
    BUCKET = "the bucket of its path"
    EVERYTHING = "all buckets"
    NODE = "the node"
    PARTS = "each stream or part that it names, judged one by one"
    KNOWN = "what is known by the name in its path"
    TOKEN = "the token of a wake, which its route asks for"
    OPEN = "nothing"
    MEMBERS = "processes of this node or cluster alone"


class Rule(NamedTuple):
    """Of one route. `actions` has what a method needs; a method that is not in it is not served there."""

    concern: Concern
    actions: Mapping[str, Action]
    of: str = ""
    """Of a NODE's route: the name in the bucket `_headwater` that a scope may cover, such as `metrics`."""

    @property
    def allowed(self) -> str:
        return ", ".join((*self.actions, "OPTIONS"))

    def action(self, method: bytes) -> Action | None:
        """None: that method is not served."""
        return self.actions.get(method.decode("latin-1"))


READ, APPEND, CREATE, MANAGE, ADMIN = Action.READ, Action.APPEND, Action.CREATE, Action.MANAGE, Action.ADMIN
NODE_BUCKET = "_headwater"
"""What the node tells of itself has names in it, so that a key can be made for a scraper that reads nothing else."""
_LOOK = {"GET": READ, "HEAD": READ}

STREAM = Rule(Concern.STREAM, {**_LOOK, "PUT": CREATE, "POST": APPEND, "DELETE": MANAGE})
"""A PUT with a body appends too, and one of a fork reads its source: that is judged by what it says."""
SNAPSHOT_LATEST = Rule(Concern.STREAM, _LOOK)
SNAPSHOT = Rule(Concern.STREAM, {**_LOOK, "PUT": APPEND, "DELETE": MANAGE})
BOOTSTRAP = Rule(Concern.STREAM, _LOOK)
APPEND_BATCH = Rule(Concern.STREAM, {"POST": APPEND})
BUCKET = Rule(Concern.BUCKET, {**_LOOK, "PUT": MANAGE, "DELETE": MANAGE})
LISTING = Rule(Concern.PARTS, _LOOK)
SUBSCRIPTION = Rule(Concern.KNOWN, {"GET": READ, "HEAD": READ, "PUT": READ, "DELETE": READ})
SUBSCRIPTION_DO = Rule(Concern.KNOWN, {"POST": READ})
SUBSCRIPTION_STREAM = Rule(Concern.KNOWN, {"DELETE": READ})
ROUTER = Rule(Concern.KNOWN, {"GET": READ, "PUT": READ, "DELETE": READ})
ROUTERS = Rule(Concern.PARTS, {"GET": READ})
"""Reading what it matches or copies, and writing to where it writes: whoever could have made it may do these."""
WAKE = Rule(Concern.TOKEN, {"POST": READ})
BULK_APPEND = Rule(Concern.PARTS, {"POST": APPEND})
SIGN = Rule(Concern.PARTS, {"POST": READ})
BULK_SNAPSHOTS = Rule(Concern.PARTS, {"POST": APPEND})
TOPICS = Rule(Concern.PARTS, {"GET": READ})
MANY_TAIL = Rule(Concern.PARTS, {"GET": READ})
OPEN_PAGE = Rule(Concern.OPEN, _LOOK)
METRICS = Rule(Concern.NODE, _LOOK, "metrics")
MEMBERS = Rule(Concern.MEMBERS, {"POST": ADMIN})
READ_ALL = Rule(Concern.EVERYTHING, {"GET": READ})
READ_OR_ASK_ALL = Rule(Concern.EVERYTHING, {"GET": READ, "POST": READ})
ASK_ALL = Rule(Concern.EVERYTHING, {"POST": READ})
FLUSH = Rule(Concern.EVERYTHING, {"POST": APPEND})
"""Whoever may append everywhere has the node flush in any case."""
ADMIN_LOOK = Rule(Concern.EVERYTHING, {"GET": ADMIN})
ADMIN_DO = Rule(Concern.EVERYTHING, {"POST": ADMIN})
ADMIN_ALL = Rule(
    Concern.EVERYTHING,
    {"GET": ADMIN, "HEAD": ADMIN, "PUT": ADMIN, "POST": ADMIN, "PATCH": ADMIN, "DELETE": ADMIN},
)


def of_stream(method: str, actions: Action) -> Rule:
    return Rule(Concern.STREAM, {method: actions})


class Policy:
    """The table: templates of paths, `{name}` for what differs, each with its rule."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def state(self, route: str, rule: Rule) -> Rule:
        """Notes the rule of a route. Raises TypeError for none, ValueError for another one than before.

        Methods of one route may be stated one by one.
        """
        if not isinstance(rule, Rule):
            raise TypeError(f"{route} has no rule: say what it asks of a client (see security.policy)")
        before = self._rules.get(route)
        if before is not None:
            same = before.concern is rule.concern and before.of == rule.of
            if not same or any(
                before.actions[one] != rule.actions[one] for one in before.actions.keys() & rule.actions
            ):
                raise ValueError(f"{route} has two rules: {before} and {rule}")
        self._rules[route] = rule if before is None else rule._replace(actions={**before.actions, **rule.actions})
        return rule

    def __iter__(self) -> Iterator[tuple[str, Rule]]:
        return iter(sorted(self._rules.items()))

    def rule(self, route: str) -> Rule:
        """Raises KeyError."""
        return self._rules[route]
