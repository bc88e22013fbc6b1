"""A running cluster as an operator's command sees it: what its nodes say, and which of them is asked.

Owns the shapes of the admin calls, and going on to the next node when one does not answer. Never judges what a node
says (`health` does), and never prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import msgspec

from headwater.cli.client import (
    BadUsage,
    Client,
    ClientError,
    ConnectionLost,
    NotUnderstood,
    Refused,
    Unreachable,
    printable,
)
from headwater.client.connection import TIMEOUT_S

PATH = "/__headwater/cluster"
ANSWER_S_MAX = 10.0
"""A node that has not answered a question by then does not answer."""
AGAIN_TRIES = 8
AGAIN_S = 1.0
"""Between two tries of a call that a node answers 503 to: it asks another node, which may just be handing over."""

T = TypeVar("T")


class NodeSeen(msgspec.Struct, frozen=True):
    node: int
    id: str
    run: str
    address: str
    public_address: str
    version: str
    started_ms: int
    alive: bool
    zone: str = ""
    reads_format: int = 1
    draining: bool = False
    groups: list[int] = []
    """That it owns."""
    ready: list[int] = []
    """That it follows and could take over at once."""


class GroupSeen(msgspec.Struct, frozen=True):
    group: int
    owner: int | None
    epoch: int
    in_line: list[int] = []
    ready: list[int] = []


class ClusterSeen(msgspec.Struct, frozen=True):
    """The cluster as one of its nodes sees it."""

    name: str
    log: str
    groups_count: int
    node: int
    """Who was asked."""
    settled: bool
    """It has heard of every other node."""
    nodes: list[NodeSeen]
    groups: list[GroupSeen]
    format: int = 1

    def named(self, wanted: str) -> NodeSeen:
        """By its number or its id. Raises BadUsage."""
        for one in self.nodes:
            if wanted in (str(one.node), one.id):
                return one
        known = ", ".join(str(one.node) for one in self.nodes)
        raise BadUsage(f"the cluster has no node {wanted}", f"its nodes are {known}; see: headwater ctl status")

    def numbered(self, group: int) -> GroupSeen:
        """Raises BadUsage."""
        for one in self.groups:
            if one.group == group:
                return one
        raise BadUsage(f"the cluster has no group {group}", f"its groups are 0 to {self.groups_count - 1}")


class SnapshotSeen(msgspec.Struct, frozen=True):
    position: int
    log_floor: int
    epoch: int
    group: int = -1


class OwnershipSeen(msgspec.Struct, frozen=True):
    """A group as its owner sees it."""

    group: int
    node: int
    state: str
    epoch: int
    position: int
    log_head: int
    snapshot: SnapshotSeen | None = None
    snapshot_failure: str | None = None

    @property
    def uncovered_bytes(self) -> int:
        """How much of the log a node reads that begins at the newest catalog snapshot."""
        return self.position - (self.log_head if self.snapshot is None else self.snapshot.log_floor)


class SnapshotsWritten(msgspec.Struct, frozen=True):
    groups: list[SnapshotSeen]


class Silent(ClientError):
    """No node answers."""

    exit_code = 2


class Cluster:
    """Asks the first node that answers, and remembers it. The others of the cluster are tried when none does that the
    user has named."""

    def __init__(self, urls: Sequence[str], sleep: Callable[[float], None], note: Callable[[str], None]) -> None:
        """`note` hears once of each node that does not answer."""
        self.urls = list(urls)
        self._sleep = sleep
        self._note = note
        self._told: set[str] = set()
        for url in self.urls:
            Client(url).close()  # a wrong one is told before anything is asked

    def seen(self) -> ClusterSeen:
        """Raises Silent, and BadUsage when the nodes are not of a cluster."""
        found = self._first(lambda url: seen_by(url))
        secure = self.urls[0].startswith("https")
        for node in found.nodes:
            url = url_of(node, secure)
            if url not in self.urls:
                self.urls.append(url)
        return found

    def url_of(self, node: NodeSeen) -> str:
        return url_of(node, self.urls[0].startswith("https"))

    def ownership(self, group: int) -> OwnershipSeen:
        """Raises ClientError."""
        return self._patiently("GET", f"/__headwater/groups/{group}/ownership", None, OwnershipSeen)

    def lake_files(self, group: int) -> dict[str, Any]:
        """The owner compares its catalog with the lake's table to answer this. Raises ClientError."""
        return self._patiently("GET", f"/__headwater/groups/{group}/lake/files", None, dict[str, Any])

    def drain(self, node: int, draining: bool) -> None:
        self._patiently("POST", f"{PATH}/drain", {"node": node, "draining": draining}, dict[str, Any])

    def move(self, group: int, node: int | None) -> None:
        self._patiently("POST", f"{PATH}/move", {"group": group, "node": node}, dict[str, Any])

    def forget(self, node: int) -> None:
        self._patiently("POST", f"{PATH}/forget", {"node": node}, dict[str, Any])

    def snapshot(self, group: int | None) -> list[SnapshotSeen]:
        return self._patiently("POST", f"{PATH}/snapshot", {"group": group}, SnapshotsWritten).groups

    def _patiently(self, method: str, path: str, body: dict[str, Any] | None, into: type[T]) -> T:
        """Every call here may be sent twice: each says what should be, not what should change."""
        data = None if body is None else msgspec.json.encode(body)
        for left in reversed(range(AGAIN_TRIES)):
            try:
                return self._first(lambda url: _call(url, method, path, data, into, TIMEOUT_S))
            except Refused as why:
                if why.status != 503 or not left:
                    raise
            self._sleep(AGAIN_S)
        raise RuntimeError("the last try returns or raises")

    def _first(self, ask: Callable[[str], T]) -> T:
        reasons = []
        for url in list(self.urls):
            try:
                answer = ask(url)
            except (Unreachable, ConnectionLost) as why:
                reasons.append(why.message)
                if url not in self._told:
                    self._told.add(url)
                    self._note(why.message)
                continue
            self._told.discard(url)
            self.urls.remove(url)
            self.urls.insert(0, url)
            return answer
        raise Silent(f"no node answers: {'; '.join(reasons)}", "check --url, and that the nodes run")


def seen_by(url: str) -> ClusterSeen:
    """Raises ClientError; BadUsage when the node is not of a cluster."""
    try:
        return _call(url, "GET", PATH, None, ClusterSeen, ANSWER_S_MAX)
    except Refused as why:
        if why.status == 404:
            raise BadUsage(
                f"{url} is not a node of a cluster: {why.message}", "ctl is for nodes that were started with --cluster"
            ) from None
        raise


def url_of(node: NodeSeen, secure: bool) -> str:
    return f"{'https' if secure else 'http'}://{node.public_address}"


def _call(url: str, method: str, path: str, body: bytes | None, into: type[T], timeout_s: float) -> T:
    with closing(Client(url, timeout_s)) as client:
        headers = {} if body is None else {"Content-Type": "application/json"}
        answer = client.request(method, path, headers=headers, body=body)
    try:
        return msgspec.json.decode(answer.body, type=into)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
        raise NotUnderstood(
            f"{url} answers {path} with what is not understood: {printable(str(why))}", "is it of another version?"
        ) from None


def numbers(values: Iterable[int]) -> str:
    """1, 2, 3, 5 as "1-3, 5"."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
