"""How long things take, as a node tells it: one histogram for each.

Owns names and help texts. Never measures: whoever does the work does, and `histogram` says how. No time is measured for
an append alone: `engine.batch_times` measures batches of their answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.histogram import Histogram
from headwater.observe.metrics import Timing

if TYPE_CHECKING:
    from headwater.cluster.forwarding import Forwarder
    from headwater.doors.http.durable_streams import DurableStreams
    from headwater.observe.readings import SinceStart
    from headwater.subscriptions.manager import Manager
    from headwater.topics.queues import Queues

_NONE = Histogram()


def timings(
    since_start: SinceStart, streams: DurableStreams, subscriptions: Manager, queues: Queues, forwarder: Forwarder
) -> list[Timing]:
    append = "Time that answers waited for the log, from the first command of their batch; once for each answer."
    sync = "Time of a sync of the log; in a cluster, of an entry until it was acknowledged."
    flush = "Time of a flush that settled a file."
    cold = "Time of what was read from the lake by a thread, from when it was asked for."
    read = "Time from a catch-up read until its answer begins."
    forward = "Time from sending a request on until its answer begins; of those that found their connection idle."
    hand = "Time from a pass over a queue until its claimers are told, once for each."
    of = since_start.timing
    return [
        Timing("append_seconds", append, of(lambda one: one.group.batches.times)),
        Timing("log_sync_seconds", sync, of(lambda one: one.group.log.sync_times)),
        Timing("flush_seconds", flush, of(lambda one: _NONE if one.flusher is None else one.flusher.times)),
        Timing("cold_read_seconds", cold, of(lambda one: one.reads.times)),
        Timing("read_seconds", read, lambda: [streams.read_times]),
        Timing("forward_seconds", forward, lambda: [forwarder.times]),
        Timing("webhook_seconds", "Time of an attempt at a webhook.", lambda: [subscriptions.deliveries.times]),
        Timing("queue_hand_seconds", hand, lambda: [queues.figures.hand_times]),
    ]
