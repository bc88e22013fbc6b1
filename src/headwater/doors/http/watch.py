"""Requests that are looked at closer: those that their client gave a name or a trace, slow ones, all for an access log,
and those that the audit log tells of.

Owns which they are, and the lines that are logged of them. Never slows down a plain append: one whose head is known is
not looked at, and no other append either unless its client gave it a name or a trace. How long appends take is measured
for batches (`engine.batch_times`), and slow batches are told here.

A line names method, path, status, time and name. Never a query, which may hold a signature, nor a header's value.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import structlog

from headwater import spans
from headwater.config import Settings
from headwater.doors.http import audited, request_ids
from headwater.doors.http.exchange import Exchange, Line, Repeated
from headwater.doors.http.wire import Request, is_append
from headwater.engine.batch_times import SlowBatch
from headwater.engine.pending_answers import Waiter
from headwater.security.audit import Audit
from headwater.security.principals import Asked
from headwater.spans import Span

SLOW_LINES_PER_S = 5
SLOW_LINES_AT_ONCE = 20
"""Slow requests beyond it are counted, and the next line says how many they were."""
TRACEPARENT = b"traceparent"
_WAIT_BY_PATH = (b"/claim", b"/work", b"/ws", b"/sse", b"/tail")
log = structlog.get_logger("headwater.requests")


class Watch:
    """Of one process."""

    def __init__(self, settings: Settings, now_s: Callable[[], float], audit: Audit | None = None) -> None:
        self._audit = audit
        self.slow_s = settings.slow_request_ms / 1000 or inf
        self._access_log = settings.access_log
        self._now_s = now_s
        self._lines = _Lines(now_s)
        self._all = self._access_log or self.slow_s < inf or audit is not None

    def start(self, connection: Line, request: Request, handle: Callable[[Exchange], None]) -> None:
        """Has a request handled, in its turn, that is no append with a known head."""
        exchange = self.begin(connection, request)
        connection.exchanges.append(exchange)
        span = exchange.span if isinstance(exchange, Watched) else None
        if span is None:
            handle(exchange)
            return
        before = spans.current.set(span)
        try:
            handle(exchange)
        finally:
            spans.current.reset(before)

    def begin(self, connection: Line, request: Request) -> Exchange:
        """The exchange of a request that is no append with a known head."""
        tracer, known = spans.tracer, request.known
        if known is not None and tracer is None and not self._access_log:
            # Such a head has no name. Claims and acks: the passes over a queue and the log's batches are timed instead.
            memo = known.memo
            if type(memo) is Repeated and memo.in_passes:
                return Exchange(connection, request)
        headers = request.headers
        named = request_ids.HEADER in headers
        if is_append(request) and not named and (tracer is None or TRACEPARENT not in headers):
            return Exchange(connection, request)
        if not (named or self._all or tracer is not None):
            return Exchange(connection, request)
        exchange = Watched(connection, request)
        exchange.watch = self
        exchange.begun_s = self._now_s()
        exchange.id = request_ids.settled(request) if named else None
        exchange.span = None
        exchange.subject = ""
        if tracer is not None:
            facts = {"http.request.method": request.method.decode("latin-1"), "url.path": request_ids.path_of(request)}
            span = tracer.of_request(facts["http.request.method"], headers.get(TRACEPARENT), facts)
            if span is not None:
                exchange.span = span
                if request.known is None:
                    headers[TRACEPARENT] = span.traceparent  # whoever it is sent on to goes on with it
        return exchange

    def answered(self, exchange: Watched, answer: bytes) -> bytes:
        """The answer, or its head, as it leaves."""
        request = exchange.request
        took_s = self._now_s() - exchange.begun_s
        slow = took_s >= self.slow_s and not waits(request)
        audited_as = None if self._audit is None or exchange.internal else self._audited(exchange, answer)
        if (slow or audited_as is not None) and exchange.id is None:
            exchange.id = request_ids.new()
        if audited_as is not None and self._audit is not None:
            asked = Asked("http", exchange.client_address, exchange.principal, exchange.id)
            self._audit.done(asked, *audited_as, int(answer[9:12]))
        if exchange.id is not None:
            answer = request_ids.with_id(answer, exchange.id)
        if slow or self._access_log:
            self._tell(exchange, answer[9:12], took_s, slow)
        if exchange.span is not None:
            span, exchange.span = exchange.span, None
            status = int(answer[9:12])
            span.tell("http.response.status_code", status)
            span.end(None if status < 500 else f"answered {status}")
        return answer

    @staticmethod
    def _audited(exchange: Watched, answer: bytes) -> tuple[str, str] | None:
        """Action, and what it is about, if the audit log tells of it: done, or perhaps done."""
        if answer[9:10] not in (b"2", b"5"):
            return None
        found = audited.action_of(exchange.request.method, exchange.request.target.partition(b"?")[0])
        return None if found is None else (found[0], exchange.subject or found[1])

    def _tell(self, exchange: Watched, status: bytes, took_s: float, slow: bool) -> None:
        request = exchange.request
        facts: dict[str, object] = {
            "method": request.method.decode("latin-1"),
            "path": request_ids.path_of(request),
            "status": int(status),
            "ms": round(took_s * 1000, 3),
        }
        if exchange.id is not None:
            facts["request_id"] = exchange.id
        if exchange.internal:
            facts["sent_on"] = True
        if slow:
            self._lines.warn("slow request", facts)
        else:
            log.info("request", **facts)

    def slow_batch(self, group: int, batch: SlowBatch) -> None:
        """Answers leave that waited long for the log."""
        facts: dict[str, object] = {
            "group": group,
            "answers": batch.answers_count,
            "ms": round(batch.took_s * 1000, 3),
            "queue_ms": round(batch.queued_s * 1000, 3),
            "sync_ms": round(batch.sync_s * 1000, 3),
        }
        named = [found for waiter in batch.waiters if (found := _named(waiter))]
        facts |= next((one for one in named if "request_id" in one), named[0] if named else {})
        self._lines.warn("slow append", facts)


class Watched(Exchange):
    """An exchange that is timed, and whose answer may get a name."""

    __slots__ = ("begun_s", "id", "span", "subject", "watch")

    watch: Watch
    begun_s: float
    id: str | None
    span: Span | None
    subject: str
    """See `is_about`."""

    def is_about(self, subject: str) -> None:
        self.subject = subject

    def reply(self, data: bytes) -> None:
        super().reply(self.watch.answered(self, data))

    def begin(self, head: bytes) -> None:
        super().begin(self.watch.answered(self, head))


class _Lines:
    """A bounded number of warnings."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._left = float(SLOW_LINES_AT_ONCE)
        self._at_s = now_s()
        self._omitted_count = 0

    def warn(self, event: str, facts: dict[str, object]) -> None:
        now_s = self._now_s()
        self._left = min(SLOW_LINES_AT_ONCE, self._left + (now_s - self._at_s) * SLOW_LINES_PER_S)
        self._at_s = now_s
        if self._left < 1:
            self._omitted_count += 1
            return
        self._left -= 1
        if self._omitted_count:
            facts["omitted"] = self._omitted_count
            self._omitted_count = 0
        log.warning(event, **facts)


def waits(request: Request) -> bool:
    """It waits for what is written later, and is not slow for that."""
    path, _, query = request.target.partition(b"?")
    return b"live=" in query or b"wait" in query or path.endswith(_WAIT_BY_PATH)


def _named(waiter: Waiter) -> dict[str, object]:
    if not isinstance(waiter, Exchange):
        return {}
    request = waiter.request
    facts: dict[str, object] = {"method": request.method.decode("latin-1"), "path": request_ids.path_of(request)}
    if isinstance(waiter, Watched) and waiter.id is not None:
        facts["request_id"] = waiter.id
    return facts
