"""What a node tells of itself in numbers: each part's counters under their names.

Owns names and help texts. Never counts: it reads plain ints of the parts when somebody asks. A number of groups is the
sum over those of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.observe.metrics import Gauge

if TYPE_CHECKING:
    from headwater.cluster.forwarding import Forwarder
    from headwater.cluster.handover import Handover
    from headwater.doors.http.durable_streams import DurableStreams
    from headwater.doors.http.server import HttpServer
    from headwater.doors.s3p.server import S3pServer
    from headwater.engine.engine import Engine
    from headwater.engine.owned_group import OwnedGroup
    from headwater.subscriptions.manager import Manager


def _summed(engine: Engine, read: Callable[[OwnedGroup], float]) -> Callable[[], float]:
    return lambda: sum(read(owned) for owned in engine.owned.values())


def engine_gauges(engine: Engine) -> list[Gauge]:
    def total(name: str, text: str, read: Callable[[OwnedGroup], float], counts: bool = False) -> Gauge:
        return Gauge(name, text, _summed(engine, read), counts)

    found = [
        Gauge("appends", "Appends accepted since the start.", lambda: _appends(engine), True),
        total("streams_loaded", "Streams whose metadata is in memory.", lambda one: len(one.group.loaded.by_key)),
        total("hot_bytes", "Memory taken by records that are not in the lake.", lambda one: one.group.loaded.hot_bytes),
        total("log_tail_position", "Log position after the newest event.", lambda one: one.group.log.tail, True),
        total("log_synced_position", "Position up to which the log is synced.", lambda one: one.group.log.synced, True),
        total("log_failed", "Logs that acknowledge nothing any more.", lambda one: int(one.group.failed)),
        total("checkpoints", "Checkpoints taken since the start.", lambda one: one.upkeep.checkpoints_count, True),
        total("lake_position", "Position up to which the lake has all.", lambda one: one.group.lake_position(), True),
        total("cold_reads", "Reads that went to the lake.", lambda one: one.reads.reads_count, True),
        total("cold_reads_pending", "Reads that wait for the lake.", lambda one: one.reads.pending),
    ]
    if any(owned.flusher is None for owned in engine.owned.values()):
        return found
    return [
        *found,
        total("flushes", "Files settled into the lake.", lambda one: one.flusher.flushes_count, True),  # type: ignore[union-attr]
        total("flushed_bytes", "Payload bytes settled into the lake.", lambda one: one.flusher.flushed_bytes, True),  # type: ignore[union-attr]
        Gauge("flush_lag_seconds", "Time since everything was settled.", lambda: _lag_s(engine), merge=max),
        total("lake_gc_runs", "Runs of the lake's gc.", lambda one: one.lake_gc.runs_count, True),  # type: ignore[union-attr]
        total("lake_gc_files", "Files deleted by the lake's gc.", lambda one: one.lake_gc.files_deleted_count, True),  # type: ignore[union-attr]
        total("lake_gc_bytes", "Bytes deleted by the lake's gc.", lambda one: one.lake_gc.bytes_deleted, True),  # type: ignore[union-attr]
    ]


def _appends(engine: Engine) -> int:
    return engine.joined_count + sum(owned.group.appends_count for owned in engine.owned.values())


def _lag_s(engine: Engine) -> float:
    return max((owned.flusher.lag_s() for owned in engine.owned.values() if owned.flusher is not None), default=0.0)


def http_gauges(http: HttpServer, streams: DurableStreams) -> list[Gauge]:
    return [
        Gauge("reads", "Stream reads since the start.", lambda: streams.reads_count, counts=True),
        Gauge("connections_open", "HTTP connections.", lambda: len(http.connections)),
        Gauge("connections_refused", "Connections cut for lack of room.", lambda: http.refused_count, counts=True),
        Gauge("sse_open", "Open SSE connections.", lambda: streams.sse_open),
        Gauge("long_polls_open", "Waiting long-polls.", lambda: streams.long_polls_open),
    ]


def member_gauges(handover: Handover, forwarder: Forwarder) -> list[Gauge]:
    sent, received = "Connections given to the worker they are for.", "Connections taken from other workers."
    return [
        Gauge("connections_handed_over", sent, lambda: handover.sent_count, counts=True),
        Gauge("connections_taken_over", received, lambda: handover.received_count, counts=True),
        Gauge("requests_forwarded", "Requests sent on to another worker.", lambda: forwarder.forwarded_count, True),
    ]


def s3p_gauges(s3p: S3pServer) -> list[Gauge]:
    return [
        Gauge("s3p_connections_open", "S3P connections.", lambda: len(s3p.connections)),
        Gauge("s3p_connections_refused", "S3P connections cut for lack of room.", lambda: s3p.refused_count, True),
        Gauge("s3p_reads_blocked", "S3P READs that wait for records.", lambda: s3p.blocked_count),
    ]


def subscription_gauges(managers: list[Manager]) -> list[Gauge]:
    def total(name: str, text: str, read: Callable[[Manager], float], counts: bool = False) -> Gauge:
        return Gauge(name, text, lambda: sum(map(read, managers)), counts)

    return [
        total("subscriptions", "Subscriptions.", lambda one: one.subscriptions_count),
        total("subscription_wakes", "Wakes issued since the start.", lambda one: one.wakes.count, True),
        total("webhooks_delivered", "Webhooks taken.", lambda one: one.deliveries.delivered_count, True),
        total("webhooks_failed", "Webhook attempts that failed.", lambda one: one.deliveries.failed_count, True),
    ]
