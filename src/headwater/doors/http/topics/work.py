"""Jobs as they come, over SSE: `GET /v0/topics/{topic}/work?max=10&lease_ms=30000&node=w1`.

Owns one connection's jobs: it has at most `max` that are neither done nor given back. Acks, nacks and extensions are
requests of their own, over any connection; each that ends a lease makes room here. When the connection ends, however
it does, the jobs that it still has are given back.

    event: job
    data:{"seq":7,"lease_id":812,"deadline_ms":1760000030000,"deliveries":1,"ts":1760000000000,"data":{"to":"a@b.c"}}

A client that does not read gets no further jobs: what was written and not taken by its socket is bounded.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf

from headwater.config import Settings
from headwater.doors.http import headers as parse
from headwater.doors.http import sse
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.failures import topic_error
from headwater.doors.http.live_reads import chunks_to
from headwater.doors.http.topics.answers import Timing, encode
from headwater.doors.http.topics.config import LEASE_MS_MAX, LEASE_MS_MIN
from headwater.doors.http.topics.queues import CLAIM_MAX, texts_of
from headwater.doors.http.topics.records import label
from headwater.doors.http.topics.routes import TopicRoutes, once_published
from headwater.engine.engine import Engine
from headwater.errors import BadBody, BadQuery, Failure, ShuttingDown
from headwater.model.queues import Wish
from headwater.security.principals import Action
from headwater.topics.cohorts import Job
from headwater.topics.queue import Queue
from headwater.topics.queues import Queues

_QUERY = ("max", "lease_ms", "node")
BATCH_COUNT = 16
"""Jobs that one pass gives a worker at most: others have their turn in between."""


class Work:
    def __init__(self, engine: Engine, settings: Settings, queues: Queues) -> None:
        self.engine = engine
        self.queues = queues
        self.keepalive_s = settings.sse_keepalive_ms / 1000
        self.open_count = 0

    def register(self, routes: TopicRoutes) -> None:
        routes.verb("work", "GET", self._get, Action.READ | Action.APPEND)

    def _get(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        wanted = parse.query(query, _QUERY)
        most = parse.whole(wanted, "max", 1, CLAIM_MAX)
        if not most:
            raise BadQuery("max", f"expected 1 to {CLAIM_MAX}")
        lease_ms = parse.whole(wanted, "lease_ms", 0, LEASE_MS_MAX)
        if "lease_ms" in wanted and lease_ms < LEASE_MS_MIN:
            raise BadQuery("lease_ms", f"expected {LEASE_MS_MIN} to {LEASE_MS_MAX}")
        node = wanted.get("node")
        if node is not None:
            try:
                label("node", node)
            except BadBody as bad:
                raise BadQuery("node", bad.reason.removeprefix("node: ")) from None
        once_published(self.engine, exchange, key, partial(self._open, exchange, key, most, lease_ms, node))

    def _open(self, exchange: Exchange, key: str, most: int, lease_ms: int, node: str | None) -> None:
        queue = self.queues.of(self.engine.find(key, True))
        if self.queues.closed:
            raise ShuttingDown
        _Worker(self, exchange, queue, most, lease_ms or queue.config.lease_ms, node).begin()


class _Worker:
    """One connection: a Claimer that stays, and a Streamer."""

    stays = True
    until_s = inf

    def __init__(
        self, owner: Work, exchange: Exchange, queue: Queue, most: int, lease_ms: int, node: str | None
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._queue = queue
        self._most = most
        self._lease_ms = lease_ms
        self._node = node
        self._connection = owner.queues.new_connection()
        self._write = chunks_to(exchange)
        self._quiet_since_s = asyncio.get_running_loop().time()
        self._over = False

    def begin(self) -> None:
        exchange = self._exchange
        self._owner.open_count += 1
        exchange.connection.stream(self)
        request = exchange.request
        exchange.begin(exchange.responder.head(200, sse.headers(request.version), None, request.keep_alive))
        self._write(sse.chunk(b"event: open\ndata:{}\n\n"))
        self._queue.join(self._connection, self)

    # ---- as a Claimer -----------------------------------------------------------------------------------------------

    def wish(self) -> Wish | None:
        line = self._exchange.connection
        room = self._most - len(self._queue.state.connections.get(self._connection, ()))
        if self._over or line.paused or line.closing or room <= 0:
            return None
        return Wish(min(room, BATCH_COUNT), self._lease_ms, self._node, self._connection)

    def got(self, jobs: list[Job] | Failure) -> None:
        try:
            if self._over:
                if not isinstance(jobs, Failure):
                    self._queue.give_back([one.lease for one in jobs])
            elif isinstance(jobs, Failure):
                self._refused(jobs)
            else:
                stream = self._queue.stream
                self._quiet_since_s = 0.0
                self._owner.engine.count_read(stream.key, sum(len(one.record.payload) for one in jobs))
                for text in texts_of(stream, jobs):
                    self._write(sse.chunk(b"event: job\ndata:%b\n\n" % sse.lines(text)))
        except Exception:
            self._exchange.broke()

    def _refused(self, failure: Failure) -> None:
        """The client is told why, and connects again if that may help."""
        self._end(b"event: error\ndata:%b\n\n" % encode(topic_error(failure)))

    # ---- as a Streamer ----------------------------------------------------------------------------------------------

    def drained(self) -> None:
        self._queue.resume(self._connection)

    def tick(self, now_s: float) -> None:
        if self._quiet_since_s == 0.0:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= self._owner.keepalive_s - 1 and not self._exchange.connection.paused:
            self._quiet_since_s = now_s
            self._write(sse.KEEP_ALIVE)

    def stop(self) -> None:
        self._end(b"")

    def _end(self, last: bytes) -> None:
        if not self._over:
            self._close()
            self._write((sse.chunk(last) if last else b"") + sse.LAST_CHUNK)
            self._exchange.connection.finish(self._exchange)

    def lost(self) -> None:
        self._close()

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._owner.open_count -= 1
            self._queue.leave(self._connection)
