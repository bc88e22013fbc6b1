"""Spans of OpenTelemetry, sent by OTLP over HTTP to where the standard variables `OTEL_…` say.

Owns which traces are kept, and the way to the exporter. Loaded only when the setting `traces` is on: it needs the extra
`otel`. Never waits for a collector: spans are sent by a thread of the SDK, from a bounded queue, and dropped when that
is full.

A request is part of a trace when its client says so, by a `traceparent` with the flag `sampled`; of those that bring
none, one in `trace_one_in` begins a trace. Work that belongs to no request (a flush, a webhook) begins its own, as far
as ROOTS_PER_S allows.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from headwater import __version__, spans
from headwater.spans import Span, Value

ROOTS_PER_S = 20
STOP_S_MAX = 3.0
ERROR_CHARS_MAX = 200
TROUBLE_EVERY_S = 60.0
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CLIENTS = frozenset(("forward", "webhook"))
log = structlog.get_logger("headwater.traces")


class OtelSpan:
    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> bytes:
        found = self._span.get_span_context()
        return b"00-%032x-%016x-%02x" % (found.trace_id, found.span_id, found.trace_flags)

    @property
    def context(self) -> SpanContext:
        return self._span.get_span_context()

    def tell(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def end(self, error: str | None = None) -> None:
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error[:ERROR_CHARS_MAX]))
        self._span.end()


class OtelTracer:
    """See `spans.Tracer`."""

    def __init__(self, provider: TracerProvider, one_in: int) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headwater", __version__)
        self._one_in = one_in
        self._unasked_count = 0
        self._roots_left = float(ROOTS_PER_S)
        self._at_s = time.monotonic()

    def of_request(self, name: str, traceparent: bytes | None, facts: Mapping[str, Value]) -> Span | None:
        if traceparent is not None:
            parent = parsed(traceparent)
            return None if parent is None else self._begin(name, parent, facts, SpanKind.SERVER)
        if not self._one_in:
            return None
        self._unasked_count += 1
        if self._unasked_count % self._one_in:
            return None
        return self._begin(name, None, facts, SpanKind.SERVER)

    def of_work(self, name: str, parent: Span | None, facts: Mapping[str, Value]) -> Span | None:
        kind = SpanKind.CLIENT if name in _CLIENTS else SpanKind.INTERNAL
        if isinstance(parent, OtelSpan):
            return self._begin(name, parent.context, facts, kind)
        return self._begin(name, None, facts, kind) if self._may_begin() else None

    def _may_begin(self) -> bool:
        now_s = time.monotonic()
        self._roots_left = min(ROOTS_PER_S, self._roots_left + (now_s - self._at_s) * ROOTS_PER_S)
        self._at_s = now_s
        if self._roots_left < 1:
            return False
        self._roots_left -= 1
        return True

    def _begin(self, name: str, parent: SpanContext | None, facts: Mapping[str, Value], kind: SpanKind) -> Span | None:
        # An empty context, not the thread's: whoever is current there is none of ours.
        context = trace.set_span_in_context(trace.INVALID_SPAN if parent is None else NonRecordingSpan(parent))
        span = self._tracer.start_span(name, context, kind, attributes=dict(facts))
        return OtelSpan(span) if span.is_recording() else None

    def close(self) -> None:
        """What is left is sent, if that does not take long: the process is about to end."""
        ended = threading.Event()

        def end() -> None:
            self._provider.shutdown()
            ended.set()

        threading.Thread(target=end, name="traces-end", daemon=True).start()
        ended.wait(STOP_S_MAX)


def parsed(traceparent: bytes) -> SpanContext | None:
    """None when it cannot be read, or its trace is not sampled."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5] is not None):
        return None
    trace_id, span_id, flags = int(found[2], 16), int(found[3], 16), int(found[4], 16)
    if not (trace_id and span_id and flags & TraceFlags.SAMPLED):
        return None
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def begin(one_in: int, instance: str) -> OtelTracer:
    """From now on spans are begun."""
    _tell_of_trouble()
    resource = Resource.create()
    facts = {SERVICE_VERSION: __version__, "service.instance.id": instance}
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        facts[SERVICE_NAME] = "headwater"  # nobody gave a name
    provider = TracerProvider(resource=resource.merge(Resource(facts)))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    spans.tracer = made = OtelTracer(provider, one_in)
    return made


class _ToLog(logging.Handler):
    """What the SDK has to say is a line like any other, now and then."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + TROUBLE_EVERY_S
            log.warning("traces cannot be sent", reason=record.getMessage()[:ERROR_CHARS_MAX])


def _tell_of_trouble() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    if not any(isinstance(handler, _ToLog) for handler in logger.handlers):
        logger.addHandler(_ToLog())
