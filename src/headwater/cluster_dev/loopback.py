"""Small HTTP requests to the parts of a local cluster, and the environment that its processes get.

Requests have short time limits: a part may be paused, and others are asked then. None is repeated.
"""

from __future__ import annotations

import json
import os
from typing import Any

from headwater.client.connection import Answer, Connection, Failed, address

TIMEOUT_S = 2.0


def ask(url: str, path: str, method: str = "GET", body: bytes | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """The answer, whatever its status. Raises Failed."""
    server = address(url)
    if server is None:
        raise ValueError(f"{url} is no address")
    connection = Connection(server, timeout_s)
    try:
        return connection.request(method, path, body=body)
    finally:
        connection.close()


def document(url: str, path: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The JSON of a good answer; None when there is none."""
    try:
        answer = ask(url, path, timeout_s=timeout_s)
        return json.loads(answer.body) if answer.status == 200 else None
    except (Failed, ValueError):
        return None


def answers_well(url: str, path: str) -> bool:
    try:
        return ask(url, path).status == 200
    except Failed:
        return False


def environment() -> dict[str, str]:
    """This process's, without settings of a node and without proxies: everything here is on loopback."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADWATER_") and not name.lower().endswith("_proxy")
    }
