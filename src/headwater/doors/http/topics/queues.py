"""Queues over HTTP: claim jobs, ack, nack and extend them, look at them, and delete them all.

Owns the shapes of these requests and their limits. Never decides about a job: `topics.queues` does.

    POST .../claim   {"max":1,"lease_ms":30000,"node":"w1","wait_ms":20000}     -> jobs, each with its lease
    POST .../ack     {"acks":[{"seq":7,"lease_id":812}]}                        -> they are done and deleted
    POST .../nack    {"nacks":[{"seq":7,"lease_id":812,"delay_ms":1000,"reason":"busy"}]}
    POST .../extend  {"extends":[{"seq":7,"lease_id":812,"lease_ms":60000}]}
    GET .../queue
    GET .../peek?state=ready&limit=10
    POST .../purge   {}

There is no coroutine for a request. A claim that waits is no more than an entry in its queue's line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from headwater.doors.http import headers as parse
from headwater.doors.http.exchange import Exchange, Repeated
from headwater.doors.http.topics import answers
from headwater.doors.http.topics.answers import Timing, encode, reply, reply_parts, reply_value
from headwater.doors.http.topics.config import LEASE_MS_MAX, LEASE_MS_MIN, NUMBER_MAX, decoded
from headwater.doors.http.topics.records import DELAY_MS_MAX, Answer, Records, label, written
from headwater.doors.http.topics.routes import TopicRoutes, once_published
from headwater.engine.engine import Engine
from headwater.engine.loaded_stream import LoadedStream
from headwater.engine.pending_answers import Outcome
from headwater.engine.read_plan import shown_count
from headwater.engine.record_reads import TopicRecord
from headwater.engine.topic_deletes import RecordsGone
from headwater.errors import BadBody, BadQuery, Failure
from headwater.model.commands import Append
from headwater.model.events import Appended
from headwater.model.queues import NACKED, Nack, Wish
from headwater.security.principals import Action
from headwater.topics import job_keys
from headwater.topics.acks import Done
from headwater.topics.cohorts import Job
from headwater.topics.job_keys import Split
from headwater.topics.queue import Queue
from headwater.topics.queue_look import LOOKED_STATES, Looked, look
from headwater.topics.queues import Queues

CLAIM_MAX = 1_000
ACKS_MAX = 10_000
WAIT_MS_MAX = 60_000
REASON_BYTES_MAX = 1_024
CLAIMS_KNOWN, CLAIM_BYTES_KNOWN = 1_000, 256
"""Bodies of claims that are remembered, and how long such a one may be. Overflow: all are forgotten."""
PEEK_DEFAULT, PEEK_MAX = 10, 1_000
T = TypeVar("T")


class _Claim(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    max: int = 1
    lease_ms: int | None = None
    node: str | None = None
    wait_ms: int = 0


class _Lease(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    seq: int
    lease_id: int


class _Nack(_Lease, forbid_unknown_fields=True, gc=False):
    delay_ms: int | None = None
    reason: str | None = None


class _Extend(_Lease, forbid_unknown_fields=True, gc=False):
    lease_ms: int | None = None


class _Acks(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    acks: list[_Lease]


class _Nacks(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    nacks: list[_Nack]


class _Extends(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    extends: list[_Extend]


class _Nothing(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    pass


_decode_claim = msgspec.json.Decoder(_Claim).decode
_decode_acks = msgspec.json.Decoder(_Acks).decode
_decode_nacks = msgspec.json.Decoder(_Nacks).decode
_decode_extends = msgspec.json.Decoder(_Extends).decode
_decode_nothing = msgspec.json.Decoder(_Nothing).decode

Act = Callable[[Exchange, Queue, T, Timing], None]
WORK = Action.READ | Action.APPEND
"""A worker reads the jobs, and its leases and acks are written to the topic."""


class QueueCalls:
    def __init__(self, engine: Engine, queues: Queues) -> None:
        self._engine = engine
        self._queues = queues
        self._claims: dict[bytes, _Claim] = {}
        """By body: workers repeat theirs."""

    def register(self, routes: TopicRoutes, records: Records) -> None:
        self._post(routes, "claim", WORK, self._claim_of, self._claim, in_passes=True)
        self._post(routes, "ack", WORK, _acks_of, self._ack, in_passes=True)
        self._post(routes, "nack", WORK, _nacks_of, self._nack)
        self._post(routes, "extend", WORK, _extends_of, self._extend)
        self._post(routes, "purge", Action.MANAGE, _nothing_of, self._purge)
        routes.verb("queue", "GET", self._show, Action.READ)
        routes.verb("peek", "GET", self._peek, Action.READ)
        records.jobs = self._parted

    def _post(
        self,
        routes: TopicRoutes,
        verb: str,
        needs: Action,
        wanted: Callable[[bytes], T],
        act: Act[T],
        in_passes: bool = False,
    ) -> None:
        """`wanted` makes of a body what `act` is given; it raises BadBody."""
        engine, of = self._engine, self._queues.of

        def handle(exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
            known = exchange.request.known
            if known is not None:
                known.memo = Repeated(partial(again, key), in_passes)
            begin(exchange, key, timing)

        def again(key: str, exchange: Exchange) -> None:
            timing = Timing()
            asked = wanted(exchange.request.body)
            try:
                stream = engine.find(key, True)
            except Failure:
                begin(exchange, key, timing)  # its creation or deletion may be under way
                return
            queue = of(stream)
            timing.judged()
            act(exchange, queue, asked, timing)

        def begin(exchange: Exchange, key: str, timing: Timing) -> None:
            asked = wanted(exchange.request.body)
            once_published(engine, exchange, key, partial(found, exchange, key, asked, timing))

        def found(exchange: Exchange, key: str, asked: T, timing: Timing) -> None:
            queue = of(engine.find(key, True))
            timing.judged()
            act(exchange, queue, asked, timing)

        routes.verb(verb, "POST", handle, needs)

    # ---- claims -----------------------------------------------------------------------------------------------------

    def _claim_of(self, body: bytes) -> _Claim:
        known = self._claims.get(body)
        if known is not None:
            return known
        wanted: _Claim = decoded(_decode_claim, body) if body else _Claim()
        within("max", wanted.max, 1, CLAIM_MAX)
        within("wait_ms", wanted.wait_ms, 0, WAIT_MS_MAX)
        if wanted.lease_ms is not None:
            within("lease_ms", wanted.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
        if wanted.node is not None:
            label("node", wanted.node)
        if len(body) <= CLAIM_BYTES_KNOWN:
            if len(self._claims) >= CLAIMS_KNOWN:
                self._claims.clear()
            self._claims[body] = wanted
        return wanted

    def _claim(self, exchange: Exchange, queue: Queue, wanted: _Claim, timing: Timing) -> None:
        timing.waits_for_log = queue.config.leases_durable
        wait_ms = 0 if self._queues.closed else wanted.wait_ms
        lease_ms = queue.config.lease_ms if wanted.lease_ms is None else wanted.lease_ms
        until_s = self._engine.clock.monotonic_s() + wait_ms / 1000
        wish = Wish(wanted.max, lease_ms, wanted.node)
        claiming = _Claiming(self._engine, exchange, queue, wish, until_s, timing)
        queue.enter(claiming)
        if wait_ms and exchange.connection.exchanges[0] is exchange:
            exchange.connection.stream(claiming)

    # ---- what becomes of jobs ---------------------------------------------------------------------------------------

    def _ack(self, exchange: Exchange, queue: Queue, pairs: list[tuple[int, int]], timing: Timing) -> None:
        def told(done: Done) -> None:
            fields = b'"acked":[%b],"failed":%b' % (_numbers(done.done), _failed(done))
            reply(exchange, 200, fields, timing)

        # A head that was seen before came with its body and nothing else: nothing follows it in this turn.
        queue.ack(pairs, exchange.told(told), together=exchange.request.known is not None)

    def _nack(self, exchange: Exchange, queue: Queue, nacks: list[Nack], timing: Timing) -> None:
        def told(done: Done) -> None:
            fields = (_numbers(done.done), _numbers(done.dead), _failed(done))
            reply(exchange, 200, b'"released":[%b],"dead_lettered":[%b],"failed":%b' % fields, timing)

        timing.waits_for_log = queue.config.leases_durable
        queue.nack(nacks, exchange.told(told))

    def _extend(self, exchange: Exchange, queue: Queue, wishes: list[tuple[int, int, int]], timing: Timing) -> None:
        def told(done: Done) -> None:
            extended = b",".join([b'{"seq":%d,"deadline_ms":%d}' % one for one in done.deadlines])
            reply(exchange, 200, b'"extended":[%b],"failed":%b' % (extended, _failed(done)), timing)

        config = queue.config
        timing.waits_for_log = config.leases_durable
        filled = [(seq, lease_id, lease_ms or config.lease_ms) for seq, lease_id, lease_ms in wishes]
        queue.extend(filled, exchange.told(told))

    def _purge(self, exchange: Exchange, queue: Queue, nothing: _Nothing, timing: Timing) -> None:
        def purged(gone: RecordsGone) -> None:
            queue.state.gone([(1, gone.earliest_seq)])
            reply_value(exchange, 200, {"deleted": gone.deleted}, timing)

        self._engine.delete_records(queue.stream.key, None, None, exchange.told(purged))

    # ---- looking ----------------------------------------------------------------------------------------------------

    def _show(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        parse.query(query, ())
        timing.waits_for_log = False

        def show() -> None:
            queue = self._queues.of(self._engine.find(key, False))
            counts, state = queue.counts(), queue.state

            def shown(ready: Looked) -> None:
                now_ms = self._engine.clock.now_ms()
                value = {
                    "ready": counts.ready,
                    "leased": counts.leased,
                    "delayed": counts.delayed,
                    "dead_lettered": counts.dead_lettered,
                    "head_seq": shown_count(queue.stream),
                    "oldest_ready_ms": max(0, now_ms - ready.records[0].ms) if ready.records else None,
                    "claims_count": state.claims_count,
                    "acks_count": state.acks_count,
                    "trouble": queue.trouble if state.dying else None,
                }
                reply_value(exchange, 200, value, timing)

            look(queue, "ready", 1, 1, exchange.told(shown))

        once_published(self._engine, exchange, key, show)

    def _peek(self, exchange: Exchange, key: str, query: bytes, timing: Timing) -> None:
        timing.waits_for_log = False
        wanted = parse.query(query, ("state", "limit"))
        state = wanted.get("state", "ready")
        if state not in LOOKED_STATES:
            raise BadQuery("state", f"expected one of {', '.join(LOOKED_STATES)}")
        limit = parse.whole(wanted, "limit", PEEK_DEFAULT, PEEK_MAX)
        if not limit:
            raise BadQuery("limit", f"expected 1 to {PEEK_MAX}")

        def peek() -> None:
            queue = self._queues.of(self._engine.find(key, False))

            def found(looked: Looked) -> None:
                texts = _peeked(queue, state, looked.records)
                reply_parts(exchange, [b'"jobs":[', *_commas(texts), b"]"], timing)

            queue.sweep()
            look(queue, state, limit, self._queues.claim_bytes_max, exchange.told(found))

        once_published(self._engine, exchange, key, peek)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def _parted(self, stream: LoadedStream, command: Append) -> tuple[Append, Answer]:
        """See `Jobs`. A write by a producer goes on even without jobs: its tuple is noted."""
        parted = Split(command, {}, {})
        if job_keys.has_keys(command.labels):
            parted = job_keys.split(self._engine, stream, command)
        count = len(command.records)

        def answer(outcome: Outcome) -> bytes:
            if isinstance(outcome, Appended):
                first, head = outcome.seq + 1, outcome.seq + len(outcome.records)
            elif parted.append.records or command.producer is not None:
                return written(stream, outcome)
            else:
                first = head = shown_count(stream)
            return b'"seqs":[%b],"head_seq":%d,"duplicates":[%b]' % (
                _numbers(parted.seqs(first, count)),
                head,
                _numbers(parted.duplicates),
            )

        return parted.append, answer


class _Claiming:
    """A claim over HTTP: a Claimer that does not stay; while it waits, a Streamer of its connection.

    One that waits behind other answers of its connection is no Streamer: it is found to be gone when the connection is.
    """

    __slots__ = ("_engine", "_exchange", "_queue", "_timing", "_wish", "until_s")

    stays = False

    def __init__(
        self, engine: Engine, exchange: Exchange, queue: Queue, wish: Wish, until_s: float, timing: Timing
    ) -> None:
        self._engine = engine
        self._exchange = exchange
        self._queue = queue
        self._wish = wish
        self.until_s = until_s
        self._timing = timing

    def wish(self) -> Wish | None:
        return None if self._exchange.connection.closing else self._wish

    def got(self, jobs: list[Job] | Failure) -> None:
        exchange = self._exchange
        if exchange.connection.streamer is self:
            exchange.connection.streamer = None
        try:
            if isinstance(jobs, Failure):
                exchange.fail(jobs)
            elif exchange.connection.closing:
                self._queue.give_back([one.lease for one in jobs])
            else:
                self._answer(jobs)
        except Exception:
            exchange.broke()

    def _answer(self, jobs: list[Job]) -> None:
        stream = self._queue.stream
        texts = texts_of(stream, jobs)
        if jobs:
            self._engine.count_read(stream.key, sum(len(one.record.payload) for one in jobs))
        if len(texts) == 1:
            reply(self._exchange, 200, b'"jobs":[%b]' % texts[0], self._timing)
        else:
            reply_parts(self._exchange, [b'"jobs":[', *_commas(texts), b"]"], self._timing)

    # ---- as a Streamer ----------------------------------------------------------------------------------------------

    def drained(self) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def stop(self) -> None:
        """Its client sends no more, and may be gone: a job that it does not wait for is not lost with it."""
        if self._queue.withdraw(self):
            self.got([])

    def lost(self) -> None:
        self._queue.withdraw(self)


# ---- texts ---------------------------------------------------------------------------------------------------------


def texts_of(stream: LoadedStream, jobs: list[Job]) -> list[bytes]:
    """The text of each job's object."""
    texts = answers.texts(stream, [one.record for one in jobs])
    return [
        b'{"seq":%d,"lease_id":%d,"deadline_ms":%d,"deliveries":%d,%b'
        % (lease.seq, lease.lease_id, lease.deadline_ms, lease.deliveries, text)
        for (lease, _), text in zip(jobs, texts, strict=True)
    ]


def _peeked(queue: Queue, state: str, records: list[TopicRecord]) -> list[bytes]:
    found = []
    for one, text in zip(records, answers.texts(queue.stream, records), strict=True):
        lease = queue.state.leases.get(one.seq)
        more = b'"state":"%b","deliveries":%d' % (state.encode(), queue.state.deliveries_of(one.seq))
        if lease is not None:
            more += b',"deadline_ms":%d' % lease.deadline_ms
            if lease.node is not None:
                more += b',"claimed_by":' + encode(lease.node)
        scheduled_ms = None if one.labels is None else one.labels.deliver_at_ms
        ready_ms = queue.state.delayed.get(one.seq, scheduled_ms)
        if state == "delayed" and ready_ms is not None:
            more += b',"ready_ms":%d' % ready_ms
        found.append(b'{"seq":%d,%b,%b' % (one.seq, more, text))
    return found


def _numbers(numbers: Sequence[int]) -> bytes:
    if len(numbers) == 1:
        return b"%d" % numbers[0]
    return ",".join(map(str, numbers)).encode()


def _failed(done: Done) -> bytes:
    return b"[]" if not done.failed else encode([{"seq": seq, "code": code} for seq, code in done.failed])


def _commas(texts: list[bytes]) -> list[bytes]:
    return [part for text in texts for part in (b",", text)][1:]


# ---- bodies --------------------------------------------------------------------------------------------------------


def within(name: str, value: int, low: int, high: int) -> None:
    """Raises BadBody."""
    if not low <= value <= high:
        raise BadBody(f"{name}: expected a whole number from {low} to {high}")


def _leases(name: str, given: Sequence[_Lease]) -> None:
    if not given:
        raise BadBody(f"{name}: it is empty")
    if len(given) > ACKS_MAX:
        raise BadBody(f"{name}: at most {ACKS_MAX}")
    for index, one in enumerate(given):
        if not (0 <= one.seq <= NUMBER_MAX and 0 <= one.lease_id <= NUMBER_MAX):
            field = "lease_id" if 0 <= one.seq <= NUMBER_MAX else "seq"
            raise BadBody(f"{name}[{index}].{field}: expected a whole number from 0 to {NUMBER_MAX}")


def _acks_of(body: bytes) -> list[tuple[int, int]]:
    wanted: _Acks = decoded(_decode_acks, body)
    _leases("acks", wanted.acks)
    return [(one.seq, one.lease_id) for one in wanted.acks]


def _nacks_of(body: bytes) -> list[Nack]:
    wanted: _Nacks = decoded(_decode_nacks, body)
    _leases("nacks", wanted.nacks)
    found = []
    for index, one in enumerate(wanted.nacks):
        if one.delay_ms is not None:
            within(f"nacks[{index}].delay_ms", one.delay_ms, 0, DELAY_MS_MAX)
        if one.reason is not None and len(one.reason.encode()) > REASON_BYTES_MAX:
            raise BadBody(f"nacks[{index}].reason: at most {REASON_BYTES_MAX} bytes")
        found.append(Nack(one.seq, one.lease_id, one.delay_ms, one.reason or NACKED))
    return found


def _extends_of(body: bytes) -> list[tuple[int, int, int]]:
    """A lease without a length has 0."""
    wanted: _Extends = decoded(_decode_extends, body)
    _leases("extends", wanted.extends)
    for index, one in enumerate(wanted.extends):
        if one.lease_ms is not None:
            within(f"extends[{index}].lease_ms", one.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
    return [(one.seq, one.lease_id, one.lease_ms or 0) for one in wanted.extends]


def _nothing_of(body: bytes) -> _Nothing:
    return decoded(_decode_nothing, body) if body else _Nothing()
