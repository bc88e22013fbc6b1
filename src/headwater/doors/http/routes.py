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

from collections.abc import Awaitable, Callable
from functools import partial

from headwater.config import Settings
from headwater.doors.http import headers as parse
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

OWN = b"/__headwater/"
BUCKETS = b"/__headwater/buckets/"
ROUTERS = b"/v0/routers"
EXPECTED_LOG = b"headwater-expected-log"
_KEYS_MAX = 65_536

Page = Callable[[], Awaitable[tuple[int, str, bytes]]]
"""A small page: (status, content type, body)."""
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
    ) -> None:
        """`elsewhere` knows what other processes, or other groups, have to do with a request; None with one group."""
        self._settings = settings
        self._elsewhere = elsewhere
        self._streams = streams
        self._buckets = buckets
        self._snapshots = snapshots
        self._batches = batches
        self._pages: dict[bytes, Page] = {}
        self._calls: list[tuple[bytes, Call]] = []
        self._keys: dict[bytes, str] = {}
        self.expect: Callable[[Exchange, bytes, bytes], bool] = lambda exchange, path, expected: False
        """Refuses a request that was meant for another log; True when that is being found out (see `admin/groups`)."""

    def page(self, path: str, page: Page) -> None:
        """Serves a small page, such as /healthz, at a fixed path."""
        self._pages[path.encode()] = page

    def call(self, prefix: str, call: Call) -> None:
        """Hands everything below `prefix` to `call`. Longer prefixes first."""
        self._calls.append((prefix.encode(), call))
        self._calls.sort(key=lambda entry: -len(entry[0]))

    def handle(self, exchange: Exchange) -> None:
        """Starts the request. Raises Failure when it is refused at once."""
        request = exchange.request
        if request.known is not None and self._again(exchange, request.known):
            return
        target = request.target
        key = self._keys.get(target)
        if key is not None and request.method != b"PUT" and request.method != b"OPTIONS":
            if self._elsewhere is None:
                self._streams.handle(exchange, key, b"")
            else:
                self._elsewhere.stream(exchange, key, None, partial(self._streams.handle, exchange, key, b""))
            return
        path, mark, query = target.partition(b"?")
        if request.method == b"OPTIONS":
            exchange.reply(exchange.responder.preflight(request.keep_alive))
            return
        expected = request.headers.get(EXPECTED_LOG) if path.startswith(OWN) else None
        if expected is not None and self.expect(exchange, path, expected):
            return
        for prefix, call in self._calls:
            if path.startswith(prefix):
                self._call(exchange, path, partial(call, exchange, path[len(prefix) :], query))
                return
        if path.startswith(FLAT):
            key = names.flat_key(parse.path_text(path[len(FLAT) :]), self._settings.stream_name_bytes_max)
            self._where(exchange, key, partial(self._stream, exchange, key, query, None if mark else target))
        elif (page := self._pages.get(path)) is not None:
            _show(exchange, page)
        elif path == b"/__headwater/append":
            self._batches.bulk(exchange)
        else:
            self._bucketed(exchange, path, query, None if mark else target)

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
        elsewhere = self._elsewhere
        if elsewhere is None:
            act()
        elif (number := GROUP.match(path)) is not None:
            elsewhere.group(exchange, int(number[1]), act)
        elif path.startswith(ROUTERS) or (path.startswith(BUCKETS) and path.count(b"/") == BUCKETS.count(b"/")):
            elsewhere.group(exchange, DIRECTORY, act)
        elif (found := SUBSCRIPTION.match(path)) is not None:
            elsewhere.subscription(exchange, parse.path_text(found[1]), act)
        else:
            act()

    def _bucketed(self, exchange: Exchange, path: bytes, query: bytes, target: bytes | None) -> None:
        strict = path.startswith(b"/ds/")
        parts = [parse.path_text(part) for part in path[4 if strict else 1 :].split(b"/")]
        bucket = parts[0]
        if len(bucket) < 4 or bucket.startswith("__"):
            if strict and bucket:
                names.check_bucket(bucket)
            raise NoSuchRoute
        if len(parts) == 1:
            act = partial(self._buckets.handle, exchange, bucket, strict)
            if self._elsewhere is None:
                act()
            else:
                self._elsewhere.group(exchange, DIRECTORY, act)
            return
        if len(parts) == 2 and parts[1] == names.RESERVED_STREAM:
            self._buckets.list(exchange, bucket, query)
            return
        key = names.bucketed_key(bucket, parts[1])
        below = partial(self._below_stream, exchange, key, parts[2:], query, target)
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


def _show(exchange: Exchange, page: Page) -> None:
    if exchange.request.method not in (b"GET", b"HEAD"):
        raise MethodNotAllowed("GET, HEAD, OPTIONS")
    exchange.run(_shown(exchange, page))


async def _shown(exchange: Exchange, page: Page) -> None:
    request = exchange.request
    status, content_type, body = await page()
    headers = [("Content-Type", content_type), ("Cache-Control", "no-store")]
    if status == 503:
        headers.append(("Retry-After", str(RETRY_AFTER_S)))
    head = exchange.responder.head(status, headers, len(body), request.keep_alive)
    exchange.reply(head if request.method == b"HEAD" else head + body)
