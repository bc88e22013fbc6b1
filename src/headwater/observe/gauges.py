"""What the parts of a node count, as gauges: the lake, its gc, subscriptions.

Owns their names and texts. Never counts anything: each part does, in plain numbers.
"""

from __future__ import annotations

from headwater.engine.cold import Reads
from headwater.engine.flush import Flusher
from headwater.engine.group import Group
from headwater.engine.sweep import Sweeper
from headwater.observe.metrics import Gauge
from headwater.subscriptions.manager import Manager


def lake_gauges(group: Group, reads: Reads, flusher: Flusher | None) -> tuple[Gauge, ...]:
    common = (
        Gauge("lake_position", "Log position up to which records are in the lake.", group.lake_position, counts=True),
        Gauge("cold_reads", "Reads that went to the lake.", lambda: reads.reads_count, counts=True),
        Gauge("cold_reads_pending", "Reads that wait for the lake.", lambda: reads.pending),
    )
    if flusher is None:
        return common
    return (
        *common,
        Gauge("flushes", "Files settled into the lake.", lambda: flusher.flushes_count, counts=True),
        Gauge("flushed_bytes", "Payload bytes settled into the lake.", lambda: flusher.flushed_bytes, counts=True),
        Gauge("flush_lag_seconds", "Time since everything was settled.", flusher.lag_s),
    )


def gc_gauges(sweeper: Sweeper) -> tuple[Gauge, ...]:
    return (
        Gauge("lake_gc_runs", "Runs of the lake's gc.", lambda: sweeper.runs_count, counts=True),
        Gauge("lake_gc_files", "Files deleted by the lake's gc.", lambda: sweeper.files_deleted_count, counts=True),
        Gauge("lake_gc_bytes", "Bytes deleted by the lake's gc.", lambda: sweeper.bytes_deleted, counts=True),
    )


def subscription_gauges(manager: Manager) -> tuple[Gauge, ...]:
    deliveries = manager.deliveries
    return (
        Gauge("subscriptions", "Subscriptions.", lambda: len(manager.registry.by_id)),
        Gauge("subscription_wakes", "Wakes issued since the start.", lambda: manager.wakes_count, counts=True),
        Gauge("webhooks_delivered", "Webhooks taken since the start.", lambda: deliveries.delivered_count, counts=True),
        Gauge("webhooks_failed", "Webhook attempts that failed.", lambda: deliveries.failed_count, counts=True),
    )
