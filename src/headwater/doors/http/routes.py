"""Paths: which handler a request belongs to.

Owns the map of the HTTP surface. Never handles anything itself beyond small fixed pages and preflights.

    /v1/stream/{path}                                   a stream, bucket = the path's first segment
    /v1/stream/__ds/...                                 subscriptions
    /{bucket}  /ds/{bucket}                             a bucket
    /{bucket}/streams                                   its listing
    /{bucket}/{stream}  /ds/{bucket}/{stream}           a stream
    .../snapshot  .../snapshot/{offset}  .../bootstrap  .../append-batch
    /v0/...                                             topics (see `topics/routes`)
    /__headwater/...  /healthz  /readyz  /metrics       pages and the node's own calls
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http.access import Access, Judge
from headwater.doors.http.buckets import Buckets
from headwater.doors.http.bulk_append import Batches
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.elsewhere import Elsewhere
from headwater.doors.http.exchange import Exchange, Repeated
from headwater.doors.http.first_request import FLAT, GROUP, SUBSCRIPTION
from headwater.doors.http.snapshots import Snapshots
from headwater.doors.http.wire import KnownHead
from headwater.engine.buckets import DIRECTORY
from headwater.errors import MethodNotAllowed, NoSuchRoute, NotServedHere
from headwater.errors.node import RETRY_AFTER_S
from headwater.model import names
from headwater.security import policy
from headwater.security.policy import Rule
from headwater.security.principals import Action, Need

OWN = b"/__headwater/"
BUCKETS = b"/__headwater/buckets/"
ROUTERS = b"/v0/routers"
EXPECTED_LOG = b"headwater-expected-log"
APPEND = "/__headwater/append"
_STREAM = ("/v1/stream/{path}", "/{bucket}/{stream}", "/ds/{bucket}/{stream}")
_BELOW = {
    (): policy.STREAM,
    ("snapshot",): policy.SNAPSHOT_LATEST,
    ("snapshot", "{offset}"): policy.SNAPSHOT,
    ("bootstrap",): policy.BOOTSTRAP,
    ("append-batch",): policy.APPEND_BATCH,
}
"""What a bucketed stream has below it."""
_KEYS_MAX = 65_536

Page = Callable[[bytes], Awaitable[tuple[int, str, bytes]]]
"""A small page, in a form that the value of Accept allows: (status, content type, body)."""
Call = Callable[[Exchange, bytes, bytes], None]
"""A handler for everything below a prefix: (exchange, rest of the path, query)."""


class Routes:
    def __init__(
        self,
        settings: Settings,
        streams: DurableStreams,
        buckets: Buckets,
        snapshots: Snapshots,
        batches: Batches,
        elsewhere: Elsewhere | None = None,
        access: Access | None = None,
    ) -> None:
        """`elsewhere` knows what other processes, or other groups, have to do with a request; None with one group.
        Without `access` nobody is asked who they are."""
        self.access = Access() if access is None else access
        self._guard = self.access.guard
        self._settings = settings
        self._elsewhere = elsewhere
        self._streams = streams
        self._buckets = buckets
        self._snapshots = snapshots
        self._batches = batches
        self._pages: dict[bytes, tuple[Page, Rule]] = {}
        self._calls: list[tuple[bytes, Call, Judge]] = []
        self._keys: dict[bytes, str] = {}
        self.expect: Callable[[Exchange, bytes, bytes], bool] = lambda exchange, path, expected: False
        """Refuses a request that was meant for another log; True when that is being found out (see `admin/groups`)."""

        self._state()

    def page(self, path: str, page: Page, rule: Rule) -> None:
        """Serves a small page, such as /healthz, at a fixed path."""
        self._pages[path.encode()] = page, self.access.policy.state(path, rule)

    def call(self, prefix: str, call: Call, rule: Rule | Judge) -> None:
        """Hands everything below `prefix` to `call`. Longer prefixes first.

        Where one rule does not say what all of them ask, `rule` judges each request, and whoever serves them has
        stated the rules of their routes.
        """
        if isinstance(rule, Rule):
            rule = self.access.by(self.access.policy.state(prefix, rule))
        elif not callable(rule):
            raise TypeError(f"{prefix} has no rule: say what it asks of a client (see security.policy)")
        self._calls.append((prefix.encode(), call, rule))
        self._calls.sort(key=lambda entry: -len(entry[0]))

    def _state(self) -> None:
        """The rules of what is served here."""
        state = self.access.policy.state
        for below, rule in _BELOW.items():
            for stream in _STREAM if not below else _STREAM[1:]:
                state("/".join((stream, *below)), rule)
        for strict in ("", "/ds"):
            state(f"{strict}/{{bucket}}", policy.BUCKET)
            state(f"{strict}/{{bucket}}/streams", policy.LISTING)
        state(APPEND, policy.BULK_APPEND)

    def handle(self, exchange: Exchange) -> None:
        """Starts the request. Raises Failure when it is refused at once."""
        request, epoch = exchange.request, self._guard.epoch
        known = request.known
        if known is not None and known.epoch == epoch and self._again(exchange, known):
            return
        judged = epoch != 0 and not exchange.internal
        if known is not None and not judged:
            known.epoch = epoch
        target = request.target
        key = self._keys.get(target)
        if key is not None and request.method != b"PUT" and request.method != b"OPTIONS":
            if judged:
                self.access.stream(exchange, policy.STREAM, key)
            if self._elsewhere is None:
                self._streams.handle(exchange, key, b"")
            else:
                self._elsewhere.stream(exchange, key, None, partial(self._streams.handle, exchange, key, b""))
            return
        path, mark, query = target.partition(b"?")
        if request.method == b"OPTIONS":
            exchange.reply(exchange.responder.preflight(request.keep_alive))
            return
        for prefix, call, judge in self._calls:
            if path.startswith(prefix):
                rest = path[len(prefix) :]
                act = partial(self._call, exchange, path, partial(call, exchange, rest, query))
                later = judge(exchange, rest, query) if judged else None
                if later is None:
                    act()
                else:
                    exchange.run(_once_judged(later, act))
                return
        if path.startswith(FLAT):
            key = names.flat_key(parse.path_text(path[len(FLAT) :]), self._settings.stream_name_bytes_max)
            if judged:
                self._judge_stream(exchange, key)
            self._where(exchange, key, partial(self._stream, exchange, key, query, None if mark else target))
        elif (found := self._pages.get(path)) is not None:
            page, rule = found
            if judged:
                self.access.ruled(exchange, rule)
            if not self._expects(exchange, path):
                _show(exchange, page)
        elif path == APPEND.encode():
            if judged:
                self.access.ruled(exchange, policy.BULK_APPEND)
            if not self._expects(exchange, path):
                self._batches.bulk(exchange)
        else:
            self._bucketed(exchange, path, query, None if mark else target, judged)

    def _judge_stream(self, exchange: Exchange, key: str) -> None:
        """A request on a stream: a creation may bring records, or be a fork."""
        request, access = exchange.request, self.access
        need = Need(access.action(exchange, policy.STREAM), key)
        if request.method != b"PUT":
            access.demand(exchange, need)
            return
        if request.body:
            need = need._replace(actions=Action.CREATE | Action.APPEND)
        fork = parse.fork(request.headers, self._settings.stream_name_bytes_max)
        access.demand(exchange, need, *(() if fork is None else (Need(Action.READ, fork.source),)))

    def _expects(self, exchange: Exchange, path: bytes) -> bool:
        """See `expect`."""
        expected = exchange.request.headers.get(EXPECTED_LOG) if path.startswith(OWN) else None
        return expected is not None and self.expect(exchange, path, expected)

    def _again(self, exchange: Exchange, known: KnownHead) -> bool:
        """A request that begins like an earlier one, which was judged or sent on: that is not found out again."""
        memo = known.memo
        try:
            if type(memo) is Repeated:
                memo.act(exchange)
                return True
            if self._streams.append_again(exchange, memo):
                return True
        except NotServedHere:
            known.memo = None  # its stream was deleted, and the name is now placed in another process
            return False
        return self._elsewhere is not None and self._elsewhere.again(exchange, memo)

    def where(self, exchange: Exchange, key: str, act: Callable[[], None]) -> None:
        """Calls `act` in the process where the stream lives, or would be created, which is no fork's creation."""
        if self._elsewhere is None:
            act()
        else:
            self._elsewhere.stream(exchange, key, None, act)

    def _where(self, exchange: Exchange, key: str, act: Callable[[], None]) -> None:
        """Calls `act` in the process where the stream lives, or would be created."""
        if self._elsewhere is None:
            act()
            return
        request = exchange.request
        source = None
        if request.method == b"PUT" and (fork := parse.fork(request.headers, self._settings.stream_name_bytes_max)):
            source = fork.source
        self._elsewhere.stream(exchange, key, source, act)

    def _call(self, exchange: Exchange, path: bytes, act: Callable[[], None]) -> None:
        """Calls `act` in the process that serves the group which a call names, or that a subscription lives in."""
        if self._expects(exchange, path):
            return
        elsewhere = self._elsewhere
        if elsewhere is None:
            act()
        elif (number := GROUP.match(path)) is not None:
            elsewhere.group(exchange, int(number[1]), act)
        elif (path.startswith(ROUTERS) and path != ROUTERS) or (
            path.startswith(BUCKETS) and path.count(b"/") == BUCKETS.count(b"/")
        ):
            elsewhere.group(exchange, DIRECTORY, act)
        elif (found := SUBSCRIPTION.match(path)) is not None:
            elsewhere.subscription(exchange, parse.path_text(found[1]), act)
        else:
            act()

    def _bucketed(self, exchange: Exchange, path: bytes, query: bytes, target: bytes | None, judged: bool) -> None:
        strict = path.startswith(b"/ds/")
        parts = [parse.path_text(part) for part in path[4 if strict else 1 :].split(b"/")]
        bucket = parts[0]
        if len(bucket) < 4 or bucket.startswith("__"):
            if strict and bucket:
                names.check_bucket(bucket)
            raise NoSuchRoute
        if len(parts) == 1:
            if judged:
                self.access.ruled(exchange, policy.BUCKET, f"{bucket}/")
            act = partial(self._buckets.handle, exchange, bucket, strict)
            if self._elsewhere is None:
                act()
            else:
                self._elsewhere.group(exchange, DIRECTORY, act)
            return
        if len(parts) == 2 and parts[1] == names.RESERVED_STREAM:
            if judged:
                self.access.ruled(exchange, policy.LISTING)
            self._buckets.list(exchange, bucket, query)
            return
        key, rest = names.bucketed_key(bucket, parts[1]), parts[2:]
        if judged and not rest:
            self._judge_stream(exchange, key)
        elif judged:
            rule = _BELOW.get(("snapshot", "{offset}") if len(rest) == 2 and rest[0] == "snapshot" else tuple(rest))
            if rule is None:
                raise NoSuchRoute
            self.access.stream(exchange, rule, key)
        below = partial(self._below_stream, exchange, key, rest, query, target)
        self._where(exchange, key, partial(self._buckets.with_bucket, exchange, bucket, below))

    def _below_stream(self, exchange: Exchange, key: str, rest: list[str], query: bytes, target: bytes | None) -> None:
        match rest:
            case []:
                self._stream(exchange, key, query, target)
            case ["snapshot"]:
                self._snapshots.handle(exchange, key, None)
            case ["snapshot", token]:
                self._snapshots.handle(exchange, key, token)
            case ["bootstrap"]:
                self._snapshots.bootstrap(exchange, key, query)
            case ["append-batch"]:
                self._batches.append_batch(exchange, key)
            case _:
                raise NoSuchRoute

    def _stream(self, exchange: Exchange, key: str, query: bytes, target: bytes | None) -> None:
        if target is not None and exchange.request.method != b"PUT":
            # Writers repeat their targets: the decoded and checked key is kept. Overflow: all are forgotten. Creations
            # are not repeated: a node that takes a million of them has no use for their names.
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            self._keys[target] = key
        self._streams.handle(exchange, key, query)


async def _once_judged(later: Coroutine[Any, Any, None], act: Callable[[], None]) -> None:
    await later
    act()


def _show(exchange: Exchange, page: Page) -> None:
    if exchange.request.method not in (b"GET", b"HEAD"):
        raise MethodNotAllowed("GET, HEAD, OPTIONS")
    exchange.run(_shown(exchange, page))


async def _shown(exchange: Exchange, page: Page) -> None:
    request = exchange.request
    status, content_type, body = await page(request.headers.get(b"accept", b""))
    headers = [("Content-Type", content_type), ("Cache-Control", "no-store")]
    if status == 503:
        headers.append(("Retry-After", str(RETRY_AFTER_S)))
    head = exchange.responder.head(status, headers, len(body), request.keep_alive)
    exchange.reply(head if request.method == b"HEAD" else head + body)
