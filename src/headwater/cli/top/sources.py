"""The nodes that `headwater top` looks at: which they are, and a look at each of them.

Owns the questions, side by side, and how long a node may take. Never prints, and never judges what it is told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from headwater.cli.client import BadUsage, Client, ClientError, NotUnderstood, Refused
from headwater.cli.ctl.cluster import ClusterSeen, seen_by, url_of
from headwater.cli.top.figures import Look

ANSWER_S_MAX = 5.0
ASKED_AT_ONCE = 16
STREAMS_ASKED = 100


class Nodes:
    """Those that were named, and all others of their cluster."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises BadUsage for what is no address."""
        self._named = list(urls)
        for url in self._named:
            Client(url).close()
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="top")
        self._is_cluster: bool | None = None
        """None: nobody has said yet."""
        self._seen: ClusterSeen | None = None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def is_cluster(self) -> bool:
        return self._is_cluster is True

    def look(self) -> list[Look]:
        """At every node. Raises ClientError when none answers as a node would, or the first one refuses to tell."""
        looks = list(self._pool.map(self._look_at, self._which()))
        if all(look.metrics is None for look in looks):
            raise self._failure(looks[0].url)
        return looks

    def _which(self) -> list[tuple[str, str]]:
        """(name, url) of each node."""
        if self._is_cluster is not False:
            known = [] if self._seen is None else [url_of(node, self._is_secure) for node in self._seen.nodes]
            for url in dict.fromkeys([*self._named, *known]):
                try:
                    self._seen = seen_by(url)
                    self._is_cluster = True
                    break
                except BadUsage:
                    self._is_cluster = False
                    break
                except ClientError:
                    continue  # the next one may answer
        if self._seen is None:
            return [(url.partition("://")[2], url) for url in self._named]
        named = {node.node: url_of(node, self._is_secure) for node in self._seen.nodes}
        if len(named) == 1:
            return [(str(node), self._named[0]) for node in named]
        return [(str(node), url) for node, url in sorted(named.items())]

    @property
    def _is_secure(self) -> bool:
        return self._named[0].startswith("https")

    def _look_at(self, node: tuple[str, str]) -> Look:
        name, url = node
        try:
            with closing(Client(url, ANSWER_S_MAX)) as client:
                metrics = _object(client, "/__headwater/metrics", {})
                at_s = time.monotonic()
                try:
                    streams = _object(client, "/__headwater/hottest", {"limit": str(STREAMS_ASKED)}).get("streams", [])
                except Refused:
                    streams = []  # whose key is for metrics alone may not see names
            return Look(name, url, at_s, metrics, streams)
        except ClientError as why:
            return Look(name, url, time.monotonic(), failure=why.message)

    def _failure(self, url: str) -> ClientError:
        """Why a node tells nothing, found out once more."""
        try:
            with closing(Client(url, ANSWER_S_MAX)) as client:
                _object(client, "/__headwater/metrics", {})
        except ClientError as why:
            return why
        return ClientError(f"{url} answers now, and did not before", "run the command again")


def _object(client: Client, path: str, query: dict[str, str]) -> dict[str, Any]:
    answer = client.request("GET", path, query=query)
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (path.endswith("metrics") and "append_seconds" not in found):
        raise NotUnderstood(f"{client.base_url} does not tell its metrics", "is --url the address of a Headwater node?")
    return found
