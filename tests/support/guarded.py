"""A node with authentication on, and keys made on it.

Owns what a test needs to speak to one in somebody's name. Never looks inside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.http import Response
from tests.support.node import Node

FIRST = re.compile(r"first admin key, shown this once: (hw_\S+)")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Guarded:
    def __init__(self, node: Node, admin: str) -> None:
        self.node = node
        self.admin = admin
        self._keys: dict[tuple[str, ...], str] = {}

    def key(self, *scopes: str) -> str:
        """A key with these scopes, made once."""
        if scopes not in self._keys:
            self._keys[scopes] = self.made(*scopes)["token"]
        return self._keys[scopes]

    def made(self, *scopes: str, **more: Any) -> dict[str, Any]:
        """A new key, as the call that makes it answers."""
        return self.call("POST", "/__headwater/tokens", {"name": "test", "scopes": list(scopes), **more})

    def call(self, method: str, path: str, body: object = None) -> Any:
        """A call in the name of the admin, that is to succeed."""
        raw = None if body is None else json.dumps(body).encode()
        answer = self.ask(self.admin, method, path, raw)
        assert answer.status < 300, (method, path, answer)
        return json.loads(answer.body) if answer.body else None

    def ask(
        self,
        token: str | None,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Any request, with or without a credential."""
        given = {"Content-Type": "application/json", **(headers or {}), **({} if token is None else bearer(token))}
        return self.node.request(method, path, given, body)


def code(answer: Response) -> str:
    """The error code of an answer; empty for one that is none."""
    try:
        return str(json.loads(answer.body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""


@contextmanager
def guarded(directory: Path, memory: bool = True, flags: Sequence[str] = ()) -> Iterator[Guarded]:
    with Node.started(directory, memory, flags=("--auth", "on", *flags)) as node:
        yield Guarded(node, first_key(node))


def first_key(node: Node) -> str:
    found = FIRST.search(node.output())
    assert found is not None, node.output()
    return found[1]
