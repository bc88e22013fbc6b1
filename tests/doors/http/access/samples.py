"""A request for every route and method of the policy table, and what each kind of credential is to get.

Owns the values of the placeholders. A route that has others, or asks for something new, fails until it has a sample."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.cluster.members import Members
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.local_groups import LocalGroups
from headwater.node import Node
from headwater.security.policy import Concern, Rule
from headwater.security.principals import Action

BUCKET, STREAM = "shop", "cart"
KEY = f"{BUCKET}/{STREAM}"
VALUES = {
    "bucket": BUCKET,
    "stream": STREAM,
    "path": KEY,
    "topic": KEY,
    "offset": f"{0:020d}",
    "g": "0",
    "router": "copying",
}
PART_SCOPE = {
    "/__headwater/append": "append",
    "/__headwater/snapshots": "append",
}
OWN_CODES = {"not_authenticated", "credential_refused", "forbidden"}
"""Codes by which access is refused."""


class Sample(NamedTuple):
    route: str
    method: str
    rule: Rule
    path: str
    body: bytes | None
    headers: dict[str, str]

    def scopes(self) -> list[str]:
        """What is just enough for it."""
        actions = self.rule.actions[self.method]
        names = ",".join(str(one.name).lower() for one in Action if one & actions)
        if Action.ADMIN in actions:
            return ["admin"]
        match self.rule.concern:
            case Concern.STREAM | Concern.PARTS:
                if self.route == "/v0/routers":
                    return ["read:shop/*"]
                return [f"{names}:{KEY}"] if self.route not in LISTINGS else [f"read:{KEY}"]
            case Concern.BUCKET:
                return [f"{names}:{BUCKET}"]
            case Concern.NODE:
                return [f"{names}:_headwater/{self.rule.of}"]
            case Concern.EVERYTHING:
                return [f"{names}:*"]
            case Concern.KNOWN:
                return ["read:shop", "append,create:shop"]
            case _:
                return ["read:nothing"]

    def lacking(self) -> list[str]:
        """The right place, and not the right action."""
        actions = self.rule.actions[self.method]
        others = [one for one in (Action.READ, Action.APPEND, Action.MANAGE) if not one & actions]
        names = ",".join(str(one.name).lower() for one in others[:1])
        return [f"{names}:*"]


LISTINGS = ("/{bucket}/streams", "/ds/{bucket}/streams", "/__headwater/buckets/{bucket}/streams", "/v0/topics")
QUERIES = {
    "/__headwater/tail": f"stream={KEY}",
    "/v0/sse": f"topics={KEY}",
    "/v0/topics": f"bucket={BUCKET}",
}
_SUBSCRIPTION = {"type": "pull-wake", "pattern": "shop/*", "wake_stream": "shop/wakes"}
_ROUTER = {"source": KEY, "dest": "shop/copies"}
BODIES: dict[tuple[str, str], object] = {
    ("/v1/stream/__ds/subscriptions/{id}", "PUT"): _SUBSCRIPTION,
    ("/v1/stream/__ds/subscriptions/{id}/streams", "POST"): {"streams": [KEY]},
    ("/v0/routers/{router}", "PUT"): _ROUTER,
    ("/v0/topics/{topic}/records", "POST"): {"records": [{"data": 1}]},
    ("/__headwater/append", "POST"): [{"stream": KEY, "records": [1]}],
    ("/__headwater/sign", "POST"): {"stream": KEY},
    ("/__headwater/tokens", "POST"): {"name": "made", "scopes": ["read:nothing"]},
    ("/__headwater/tokens/{id}/rotate", "POST"): {},
    ("/__headwater/buckets/{bucket}/schema", "PUT"): {"type": "object", "properties": {"n": {"type": "integer"}}},
    ("/v1/stream/{path}", "POST"): 1,
    ("/{bucket}/{stream}", "POST"): 1,
    ("/ds/{bucket}/{stream}", "POST"): 1,
}


def policy_rows(directory: Path) -> list[tuple[str, Rule]]:
    """The table, as a node states it when it is wired together."""

    async def rows() -> list[tuple[str, Rule]]:
        settings = Settings(memory=True, s3p="off")
        node = Node(settings, LocalGroups(settings, DataDirectory(directory), Members(0, 1, 1, Path())))
        try:
            await node.start(("127.0.0.1", 0), None)
            return list(node.policy)
        finally:
            await node.stop()

    return asyncio.run(rows())


def samples(rows: list[tuple[str, Rule]], token_id: str) -> list[Sample]:
    found = []
    for route, rule in rows:
        for method in rule.actions:
            values = {**VALUES, "id": token_id if "tokens" in route else "watching"}
            path = re.sub(r"\{(\w+)\}", lambda found: values[found[1]], route)  # noqa: B023
            if route in QUERIES:
                path += f"?{QUERIES[route]}"
            body: bytes | None = json.dumps(BODIES[route, method]).encode() if (route, method) in BODIES else None
            if route == "/__headwater/snapshots":
                body = msgspec.msgpack.encode([{"stream": KEY, "offset": 0, "body": b"x"}])
            found.append(Sample(route, method, rule, path, body, {}))
    return found
