"""A node as the pipeline sees it: its calls over HTTP, from a driver or an executor.

Owns kept-alive connections, for each thread one and one for the feed of each group, and waiting while a node is busy or
restarts. Never repeats a call that is not safe to repeat: each method says whether it is. Pickles as its address.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

from headwater.client.backoff import Backoff
from headwater.client.connection import TIMEOUT_S, Address, Answer, Connection, Failed, Lost, NotConnected, address
from headwater.client.tls_files import TlsFiles
from headwater.errors import TABLE

PATIENCE_S = 60.0
"""How long a call waits for a node that is away or busy before it gives up."""
LOG_CHANGED = ("another_log", "log_set_back")
OUTCOME_OPEN = frozenset(row.code for row in TABLE.values() if not row.no_effect)
"""Codes of refusals after which something may have been done."""
PLAN = "/__headwater/plan"
OWNER_PATIENCE_S, OWNER_AVOIDED_S = 5.0, 60.0
"""The address that an owner has for clients need not be one that is reached from here."""
_unreached: dict[Address, float] = {}
"""Owners that did not answer, and until when none of this process's calls goes to them."""
_OF_GROUP = re.compile(r"/__headwater/groups/(\d+)/")
_OF_FEED = re.compile(r"/__headwater/groups/(\d+)/feed$")
_LOOKS = re.compile(r"/__headwater/(plan|groups/\d+/(feed|matches|lake/extents))$")
"""Calls that only look, beside GET and HEAD."""


class NodeError(Exception):
    """A call did not succeed; the message says which, and what to do where something can be done."""


class NodeRefused(NodeError):
    """The node answered with an error. Header names are in lower case."""

    def __init__(self, call: str, status: int, code: str, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{call}: {status} {code}: {message}")
        self.status, self.code, self.headers = status, code, headers

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark carries exceptions from executors to the driver.
        return NodeError, (str(self),)


class OnlyLooked(NodeError):
    """A call was not made, because it may change something on a node that is only to be looked at."""


class DataLoss(NodeError):
    """Records that a read was still to have are gone; the message says which."""


class LogChanged(DataLoss):
    """The node's log is not the one that was expected of it."""

    def __init__(self, url: str, code: str, message: str) -> None:
        super().__init__(
            f"{url}: {message}. It changed while it was read: run the query again, and it says how to go on"
        )
        self.code, self.message = code, message

    def __reduce__(self) -> tuple[Any, ...]:
        return DataLoss, (str(self),)


class Seen(NamedTuple):
    """What a reader has seen of a group's log, and expects to find in it again."""

    log: str
    incarnation: str
    position: int


_NONE: Mapping[int, Seen] = {}


def of(group: int) -> str:
    """What the paths of calls about one group begin with."""
    return f"/__headwater/groups/{group}"


class Node:
    def __init__(
        self,
        url: str,
        token: str | None = None,
        patience_s: float = PATIENCE_S,
        expects: Mapping[int, Seen] = _NONE,
        tls: TlsFiles | None = None,
    ) -> None:
        """`tls`: without it the environment of this process names the files."""
        server = address(url, tls)
        if server is None:
            raise NodeError(f"{url!r} is not the address of a node: write it as http://HOST:PORT")
        self.url = url.rstrip("/")
        self._server = server
        self.token = token
        self._patience_s = patience_s
        self.expects = dict(expects)
        """By group."""
        self.owners: dict[int, str] = {}
        """Where the owners of groups are reached, HOST:PORT by group, as far as the node told it."""
        self.looks_only = False
        """Calls that may change something raise OnlyLooked."""
        self.hidden: dict[str, str] = {}
        """Names of streams that must not be written down anywhere, and what is written instead."""
        self._mine = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        # Executors have an environment of their own: the files are those that the driver was told, by the same paths.
        told = (self.url, self.token, self._patience_s, self.expects, self._server.tls)
        return _unpickled, (told, self.owners, self.looks_only)

    def expecting(self, seen: Mapping[int, Seen]) -> Self:
        """The same node, whose calls raise LogChanged when a group's log does not have what was seen of it.

        A call about one group is about that group's log, any other one about all of those that are named here.
        """
        other = object.__new__(type(self))
        other.__dict__ = {**self.__dict__, "expects": dict(seen)}
        return other

    def looking_only(self) -> Self:
        """The same node, nothing of which is changed by any call."""
        other = object.__new__(type(self))
        other.__dict__ = {**self.__dict__, "looks_only": True}
        return other

    def __repr__(self) -> str:
        return f"Node({self.url!r})"

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        repeat: bool | None = None,
    ) -> Answer:
        """One request. Raises NodeRefused for an answer of 400 and more, NodeError when there was none, LogChanged.

        Waits while the node cannot be reached at all, or answers 429 or 503 and certainly did nothing: it is busy, or
        the group has no owner just now, or another one. A connection that ends in the middle, and an answer that
        leaves open what was done, are tried again only if `repeat` (default: for GET and HEAD).
        """
        if self.looks_only and method not in ("GET", "HEAD") and not _LOOKS.match(path):
            raise OnlyLooked(f"{method} {self.url}{path} was not called: a dry run changes nothing")
        repeat = method in ("GET", "HEAD") if repeat is None else repeat
        backoff = Backoff(self._patience_s)
        while True:
            asked_s = 0.0
            why: Exception | None = None
            try:
                answer = self._request(method, path, self._headers(path, headers), body, not repeat)
            except NotConnected as error:
                failed, why = NodeError(f"no node answers at {self.url} ({error}): start one, or name it"), error
            except Lost as error:
                failed, why = NodeError(f"{method} {self.url}{path}: the connection was lost ({error})"), error
                if not repeat:
                    raise failed from error
            except Failed as error:
                raise NodeError(f"{method} {self.url}{path}: {error}") from error
            else:
                if answer.status < 400:
                    return answer
                failed = self._refused(method, path, answer)
                if answer.status not in (429, 503) or (answer.error()[0] in OUTCOME_OPEN and not repeat):
                    raise failed
                asked_s = _seconds(answer.headers.get("retry-after"))
            if not backoff.wait(asked_s):
                raise failed from why

    def json(self, method: str, path: str, body: object = None, *, repeat: bool | None = None) -> Any:
        """The same with JSON both ways."""
        sent = None if body is None else json.dumps(body).encode()
        return json.loads(self.call(method, path, sent, {"Content-Type": "application/json"}, repeat=repeat).body)

    # ---- what jobs ask --------------------------------------------------------------------------------------------

    def groups(self) -> list[int]:
        """The numbers of the groups, in order."""
        return [facts["group"] for facts in self.plan({})]

    def plan(
        self, asked: Mapping[int, Mapping[str, Any]], choice: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """How far groups are, and what is asked of them besides (see `POST /__headwater/plan`).

        Those are the groups that are asked about or expected to have a log, and all of them when none is. Raises
        NodeRefused with the code `no_such_group` when one is not there.
        """
        expected = {group: {"expected": _spelled(seen)} for group, seen in self.expects.items()}
        numbers = {*asked, *expected}
        body: dict[str, Any] = {
            "groups": {str(group): {**expected.get(group, {}), **asked.get(group, {})} for group in sorted(numbers)}
        }
        if choice is not None:
            body["choice"] = choice
        found: list[dict[str, Any]] = self.json("POST", PLAN, body, repeat=True)["groups"]
        return found

    def feed(self, group: int, wanted: Mapping[str, Any]) -> Answer:
        """Records of a group that are not in the lake yet (see `POST …/feed`), from the group's owner where that is
        known. Raises NodeRefused with status 410 when the lake has some of them."""
        sent = json.dumps(wanted).encode()
        return self.call("POST", f"{of(group)}/feed", sent, {"Content-Type": "application/json"}, repeat=True)

    def flush(self) -> dict[str, Any]:
        """Everything that is synced by now settles into the lake."""
        done: dict[str, Any] = self.json("POST", "/__headwater/flush", repeat=True)
        return done

    def lake_files(self, group: int) -> dict[str, Any]:
        """Has the node take a checkpoint; for who only looks, only when it could not tell of all files otherwise."""
        when = "?checkpoint=if-needed" if self.looks_only else ""
        found: dict[str, Any] = self.json("GET", f"{of(group)}/lake/files{when}")
        return found

    def lake_extents(self, group: int, files: list[str]) -> bytes:
        """Arrow IPC of the live extents of up to 1,000 files of one group."""
        sent = json.dumps({"files": files}).encode()
        headers = {"Content-Type": "application/json"}
        return self.call("POST", f"{of(group)}/lake/extents", sent, headers, repeat=True).body

    def lake_streams(self, limit: int = 50_000) -> Iterator[bytes]:
        """Arrow IPC pages of every stream, group by group."""
        for group in self.groups():
            after: str | None = "-1"
            while after is not None:
                query = urlencode({"after": after, "limit": limit})
                answer = self.call("GET", f"{of(group)}/lake/streams?{query}")
                yield answer.body
                after = answer.headers.get("headwater-next")

    def reads(self) -> Iterator[dict[str, Any]]:
        """How much was read of each bucket on each day, as of the last checkpoint: day, bucket, reads, bytes."""
        after: str | None = ""
        while after is not None:
            page = self.json("GET", "/__headwater/usage" + (f"?{urlencode({'after': after})}" if after else ""))
            yield from page["days"]
            after = page["next"]

    def missing(self, wanted: dict[str, Any]) -> list[str]:
        """Which of the names (`streams`, a `bucket` or a `pattern`) no stream goes by, whichever group it is in."""
        missing: list[str] | None = None
        for group in self.groups():
            found = self.json("POST", f"{of(group)}/matches", wanted, repeat=True)["missing"]
            missing = found if missing is None else [name for name in missing if name in set(found)]
            if not missing:
                break
        return missing or []

    def swap(self, group: int, remove: list[str], add: list[str]) -> dict[str, Any]:
        """Replaces files of a group's part of the lake by others with the same live rows. Safe to repeat."""
        done: dict[str, Any] = self.json("POST", f"{of(group)}/lake/swap", {"remove": remove, "add": add}, repeat=True)
        return done

    def erase(self, stream: str) -> dict[str, Any]:
        """What deleted streams of that name left in the node's log and catalog is gone afterwards. Safe to repeat."""
        done: dict[str, Any] = self.json("POST", "/__headwater/erase", {"stream": stream}, repeat=True)
        return done

    def known(self, stream: str) -> dict[str, Any]:
        """The hash that stands for a stream's name, and the subscriptions that name it. Hides the name from now on."""
        found: dict[str, Any] = self.json("POST", "/__headwater/erase/known", {"stream": stream}, repeat=True)
        self.hidden[stream] = self.hidden[quote(stream, safe="/")] = found["stream_hash"]
        return found

    # ---- streams --------------------------------------------------------------------------------------------------

    @staticmethod
    def stream_path(name: str) -> str:
        return "/v1/stream/" + quote(name, safe="/")

    def put_stream(self, name: str, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Makes the stream unless it is there already."""
        self.call("PUT", self.stream_path(name), b"", {"Content-Type": content_type, **(headers or {})}, repeat=True)

    # ---- the connection -------------------------------------------------------------------------------------------

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, fresh: bool) -> Answer:
        """One try. What a group's feed is asked goes to its owner, on a connection of its own: a node with workers
        hands each connection to whom its first request is for."""
        found = _OF_FEED.match(path)
        group = None if found is None else int(found[1])
        server = None if group is None else self._owner(group)
        if server is not None and not fresh:
            connection = self._connection(server, group, OWNER_PATIENCE_S)
            try:
                answer = connection.request(method, path, headers, body)
            except Failed:
                # The owner may be gone, or have an address that is not reached from here: the node sends it on.
                _unreached[server] = time.monotonic() + OWNER_AVOIDED_S
            else:
                connection.wait_for(TIMEOUT_S)
                return answer
        return self._connection(self._server, group).request(method, path, headers, body, fresh=fresh)

    def _owner(self, group: int) -> Address | None:
        owner = self.owners.get(group)
        scheme = "https" if self._server.secure else "http"
        server = None if owner is None else address(f"{scheme}://{owner}", self._server.tls)
        return None if server is None or _unreached.get(server, 0.0) > time.monotonic() else server

    def _connection(self, server: Address, group: int | None, timeout_s: float = TIMEOUT_S) -> Connection:
        kept: dict[tuple[Address, int | None], Connection] | None = getattr(self._mine, "connections", None)
        if kept is None:
            kept = self._mine.connections = {}
        if (server, group) not in kept:
            kept[server, group] = Connection(server, timeout_s)
        return kept[server, group]

    def _headers(self, path: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        found = dict(headers or {})
        if expected := self._expected(path):
            found["Headwater-Expected-Log"] = expected
        if self.token is not None:
            found["Authorization"] = f"Bearer {self.token}"
        return found

    def _expected(self, path: str) -> str:
        if path == PLAN:
            return ""  # its body says it, group by group
        group = _OF_GROUP.match(path)
        if group is None:
            return ",".join(f"{number}:{_spelled(seen)}" for number, seen in sorted(self.expects.items()))
        seen = self.expects.get(int(group[1]))
        return "" if seen is None else _spelled(seen)

    def _refused(self, method: str, path: str, answer: Answer) -> NodeError:
        code, message = answer.error()
        if self.expects and code in LOG_CHANGED:
            return LogChanged(self.url, code, message)
        return NodeRefused(f"{method} {self.url}{path}", answer.status, code, message, answer.headers)


def _unpickled(told: tuple[Any, ...], owners: dict[int, str], looks_only: bool) -> Node:
    node = Node(*told)
    node.owners, node.looks_only = dict(owners), looks_only
    return node


def _spelled(seen: Seen) -> str:
    return "/".join(map(str, seen))


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
