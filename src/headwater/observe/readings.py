"""What a node tells of itself in numbers: each part's counters under their names.

What is told of each group stands in `group_readings`, what is told of how long things take in `timings`.
Owns names and help texts. Never counts: it reads plain ints of the parts when somebody asks. A number of groups is the
sum over those of this process; what has been counted since the start stays in it when a group leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.histogram import Histogram
from headwater.observe.metrics import ByLabel, Gauge, Reading

FORWARDED = "Requests sent on to another process."

if TYPE_CHECKING:
    from headwater.cluster.forwarding import Forwarder
    from headwater.cluster.handover import Handover
    from headwater.doors.http.durable_streams import DurableStreams
    from headwater.doors.http.respond import Responder
    from headwater.doors.http.server import HttpServer
    from headwater.doors.http.topics.door import TopicDoor
    from headwater.doors.http.topics.sockets import TopicSockets
    from headwater.doors.s3p.server import S3pServer
    from headwater.engine.engine import Engine
    from headwater.engine.flush import Flusher
    from headwater.engine.lake_gc import LakeGc
    from headwater.engine.owned_group import OwnedGroup
    from headwater.engine.quotas import Quotas
    from headwater.observe.cluster_readings import ClusterReadings
    from headwater.security.limits import Limits
    from headwater.subscriptions.manager import Manager
    from headwater.topics.admission import Admission
    from headwater.topics.delivery import Delivery
    from headwater.topics.queues import Queues
    from headwater.topics.routers import Routers


class SinceStart:
    """A listener of the engine: what groups counted here, those that have left among them. A group that comes may have
    counted before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._elsewhere: dict[Callable[[OwnedGroup], float], float] = {}
        """By what is counted: the counts of groups that left, without those with which groups came."""
        self._times: dict[Callable[[OwnedGroup], Histogram], Histogram] = {}
        """The same of what is timed."""
        engine.listeners.append(self)

    def reader(self, read: Callable[[OwnedGroup], float]) -> Callable[[], float]:
        self._elsewhere[read] = 0
        return lambda: self._elsewhere[read] + sum(map(read, self._engine.owned.values()))

    def timing(self, read: Callable[[OwnedGroup], Histogram]) -> Callable[[], list[Histogram]]:
        elsewhere = self._times[read] = Histogram()
        return lambda: [elsewhere, *map(read, self._engine.owned.values())]

    def entered(self, owned: OwnedGroup) -> None:
        self._moved(owned, -1)

    def left(self, owned: OwnedGroup) -> None:
        self._moved(owned, 1)

    def _moved(self, owned: OwnedGroup, sign: int) -> None:
        for read in self._elsewhere:
            self._elsewhere[read] += sign * read(owned)
        for times, elsewhere in self._times.items():
            elsewhere.include(times(owned), sign)


def engine_gauges(engine: Engine, since_start: SinceStart) -> list[Gauge]:

    def total(name: str, text: str, read: Callable[[OwnedGroup], float], counts: bool = False) -> Gauge:
        return Gauge(name, text, lambda: sum(map(read, engine.owned.values())), counts)

    def count(name: str, text: str, read: Callable[[OwnedGroup], float], counts: bool = True) -> Gauge:
        return Gauge(name, text, since_start.reader(read), counts)

    def of_lake(name: str, text: str, read: Callable[[Flusher, LakeGc], float]) -> Gauge:
        return count(name, text, lambda one: 0 if one.flusher is None else read(one.flusher, one.lake_gc))  # type: ignore[arg-type]

    accepted = "Appends accepted since the start."
    pending = "Answers that wait for the log."
    queued = "Bytes of the log that are not synced yet: what was gathered, and what is being written."
    appends = since_start.reader(lambda one: one.group.appends_count)
    found = [
        Gauge("appends", accepted, lambda: engine.joined_count + appends(), counts=True, by_worker=True),
        total("streams_loaded", "Streams whose metadata is in memory.", lambda one: len(one.group.loaded.by_key)),
        total("hot_bytes", "Memory taken by records that are not in the lake.", lambda one: one.group.loaded.hot_bytes),
        total("hot_bytes_max", "Where hot bytes have their ceiling.", lambda one: one.group.hot_bytes_max),
        total("log_queue_bytes", queued, lambda one: one.group.log.tail - one.group.log.synced),
        total("answers_pending", pending, lambda one: one.group.batches.answers_pending),
        total("log_tail_position", "Log position after the newest event.", lambda one: one.group.log.tail, True),
        total("log_synced_position", "Position up to which the log is synced.", lambda one: one.group.log.synced, True),
        total("log_failed", "Logs that acknowledge nothing any more.", lambda one: int(one.group.failed)),
        count("checkpoints", "Checkpoints taken since the start.", lambda one: one.upkeep.checkpoints_count),
        total("lake_position", "Position up to which the lake has all.", lambda one: one.group.lake_position(), True),
        count("cold_reads", "Reads that went to the lake.", lambda one: one.reads.reads_count),
        total("cold_reads_pending", "Reads that wait for the lake.", lambda one: one.reads.pending),
    ]
    if any(owned.flusher is None for owned in engine.owned.values()):
        return found
    return [
        *found,
        of_lake("flushes", "Files settled into the lake.", lambda flusher, _: flusher.flushes_count),
        of_lake("flushed_bytes", "Payload bytes settled into the lake.", lambda flusher, _: flusher.flushed_bytes),
        Gauge("flush_lag_seconds", "Time since everything was settled.", lambda: _lag_s(engine), merge=max),
        of_lake("lake_gc_runs", "Runs of the lake's gc.", lambda _, gc: gc.runs_count),
        of_lake("lake_gc_files", "Files deleted by the lake's gc.", lambda _, gc: gc.files_deleted_count),
        of_lake("lake_gc_bytes", "Bytes deleted by the lake's gc.", lambda _, gc: gc.bytes_deleted),
    ]


def _lag_s(engine: Engine) -> float:
    return max((owned.flusher.lag_s() for owned in engine.owned.values() if owned.flusher is not None), default=0.0)


def http_gauges(http: HttpServer, streams: DurableStreams) -> list[Gauge]:
    return [
        Gauge("reads", "Stream reads since the start.", lambda: streams.reads_count, counts=True),
        Gauge("connections_open", "HTTP connections.", lambda: len(http.connections), by_worker=True),
        Gauge("connections_refused", "Connections cut for lack of room.", lambda: http.refused_count, counts=True),
        Gauge("sse_open", "Open SSE connections.", lambda: streams.sse_open),
        Gauge("long_polls_open", "Waiting long-polls.", lambda: streams.long_polls_open),
    ]


def limit_gauges(limits: Limits | None, quotas: Quotas | None) -> list[Reading]:
    """None: there are none."""
    refused = "Requests, connections and writes refused by limits of clients and buckets."
    held = "Connections that were held after such a refusal."
    found: list[Reading] = []

    def counts() -> dict[str, float]:
        return {**({} if limits is None else limits.refused), **({} if quotas is None else quotas.refused)}

    if limits is not None or quotas is not None:
        found.append(ByLabel("limit_refusals", refused, "limit", counts, counts=True))
    if limits is not None:
        found += [
            Gauge("limits_held", held, lambda: limits.held_count, counts=True),
            Gauge("limit_accounts", "Principals and addresses that are counted.", lambda: limits.accounts_count),
        ]
    return found


def member_gauges(handover: Handover, forwarder: Forwarder) -> list[Gauge]:
    sent, received = "Connections given to the worker they are for.", "Connections taken from other workers."
    return [
        Gauge("connections_handed_over", sent, lambda: handover.sent_count, counts=True),
        Gauge("connections_taken_over", received, lambda: handover.received_count, counts=True),
        Gauge("requests_forwarded", FORWARDED, lambda: forwarder.forwarded_count, True),
    ]


def cluster_gauges(cluster: ClusterReadings, forwarder: Forwarder) -> list[Reading]:
    """Of one node: its own numbers, and the cluster as it sees it."""
    by_state = "Groups by what this node is to them: owner, suspended owner, standby, or away."
    lag = "Time since a standby here got the last entry of its log; the longest. An owner writes several each lease."
    age = "Time since the newest catalog snapshot of a group owned here, or since it was taken over; the longest."
    uncovered = "Log of groups owned here that their catalog snapshots do not cover."
    suspended = "Times that a group was not served for lack of an answer of its log."
    failing = "Groups whose last step with a catalog snapshot failed."
    return [
        Gauge("cluster_nodes_alive", "Nodes that answer, this one among them.", cluster.nodes_alive),
        Gauge("cluster_groups_owned", "Groups that this node owns.", cluster.groups_owned),
        Gauge("cluster_groups_without_owner", "Groups without one.", lambda: len(cluster.groups_without_owner())),
        Gauge("cluster_standbys_ready", "Groups that this node could take over at once.", cluster.standbys_ready),
        Gauge("cluster_snapshots_failing", failing, cluster.snapshots_failing),
        ByLabel("cluster_groups", by_state, "state", cluster.groups_by_state),
        Gauge("cluster_standby_lag_seconds", lag, cluster.standby_lag_s),
        Gauge("cluster_snapshot_age_seconds", age, cluster.snapshot_age_s),
        Gauge("cluster_snapshot_lag_bytes", uncovered, cluster.snapshot_lag_bytes),
        Gauge("cluster_claims", "Groups taken over since the start.", cluster.claims, counts=True),
        Gauge("cluster_hand_overs", "Groups handed over since the start.", cluster.hand_overs, counts=True),
        Gauge("cluster_suspensions", suspended, cluster.suspensions, counts=True),
        Gauge("requests_forwarded", FORWARDED, lambda: forwarder.forwarded_count, True),
    ]


def s3p_gauges(s3p: S3pServer) -> list[Gauge]:
    return [
        Gauge("s3p_connections_open", "S3P connections.", lambda: len(s3p.connections)),
        Gauge("s3p_connections_refused", "S3P connections cut for lack of room.", lambda: s3p.refused_count, True),
        Gauge("s3p_reads_blocked", "S3P READs that wait for records.", lambda: s3p.blocked_count),
    ]


def router_gauges(routers: Routers) -> list[Gauge]:
    lag = "Records of sources that routers have not come to yet, as far as is known here."
    most = "The same, of the router with most."
    lost = "Records that retention took from sources before routers forwarded them, since the start."
    return [
        Gauge("routers", "Routers at work.", lambda: routers.count),
        Gauge("routers_stuck", "Routers that cannot forward just now.", lambda: routers.stuck_count),
        Gauge("router_lag_records", lag, lambda: sum(routers.lags())),
        Gauge("router_lag_longest_records", most, lambda: max(routers.lags(), default=0)),
        Gauge("router_records_copied", "Records forwarded since the start.", lambda: routers.copied_count, True),
        Gauge("router_records_lost", lost, lambda: routers.lost_count, True),
    ]


def topic_gauges(topics: TopicDoor, sockets: TopicSockets) -> list[Gauge]:
    return [
        Gauge("topic_tails_open", "SSE connections that follow topics.", lambda: topics.tails.open_count),
        Gauge("topic_polls_open", "Requests that wait for records of a topic.", lambda: topics.diffs.polls_open),
        Gauge("websockets_open", "Open WebSockets.", lambda: sockets.open_count),
    ]


def delivery_gauges(delivery: Delivery, admission: Admission) -> list[Gauge]:
    now = delivery.figures
    served, failed = "Times that a topic's growth was delivered.", "Deliveries that failed; others went on."
    waited = "Seconds that topics waited for their turn, all together, since the start."
    longest = "Longest time that a topic has waited for its turn since the start."
    oldest = "How long the topic that waits longest has waited by now."
    pressure = "From 0 to 1: how far deliveries are behind what they should be."
    refused = "Writes to topics that were refused because of pressure."
    return [
        Gauge("deliveries", served, lambda: now().served_count, True),
        Gauge("deliveries_failed", failed, lambda: now().failed_count, True),
        Gauge("delivery_wait_seconds", waited, lambda: now().wait_ms_sum / 1000, True),
        Gauge("delivery_wait_longest_seconds", longest, lambda: now().wait_ms_max / 1000, merge=max),
        Gauge("delivery_wait_oldest_seconds", oldest, lambda: now().oldest_wait_ms / 1000, merge=max),
        Gauge("delivery_topics_ready", "Topics that wait for their turn.", lambda: now().depth),
        Gauge("delivery_topics_deferred", "Of them, those that pressure holds back.", lambda: now().deferred_count),
        Gauge("delivery_pressure", pressure, lambda: now().pressure, merge=max),
        Gauge("topic_writes_throttled", refused, lambda: admission.refused_count, True),
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


def queue_gauges(queues: Queues) -> list[Gauge]:
    """Of queues in memory: those that were used since they came to this process."""
    figures, counts = queues.figures, queues.counts
    returned = "Jobs that came back without an ack: by an expiry, a nack, or the end of their connection."
    return [
        Gauge("queues", "Queues in memory.", lambda: queues.count),
        Gauge("queue_jobs_ready", "Jobs that wait for a claim.", lambda: counts().ready),
        Gauge("queue_jobs_leased", "Jobs that somebody has claimed.", lambda: counts().leased),
        Gauge("queue_jobs_delayed", "Jobs that are to be handed out later.", lambda: counts().delayed),
        Gauge("queue_jobs_dying", "Jobs on their way to the dead letters.", lambda: queues.dying_count),
        Gauge("queue_claims", "Jobs handed out since the start.", lambda: queues.claims_count, True),
        Gauge("queue_acks", "Jobs done since the start.", lambda: queues.acks_count, True),
        Gauge("queue_nacks", "Jobs given back by their claimers.", lambda: figures.nacks_count, True),
        Gauge("queue_expiries", "Leases that ended by their deadline.", lambda: figures.expired_count, True),
        Gauge("queue_reclaims", returned, lambda: figures.returned_count, True),
        Gauge("queue_dead_letters", "Jobs moved to the dead letters.", lambda: queues.dead_lettered_count, True),
    ]


def answer_gauges(responder: Responder, streams: DurableStreams) -> list[Reading]:
    by_class = "HTTP answers by the class of their status, by the process that made them."
    by_code = "HTTP answers that were refusals or faults, by error code."

    def classes() -> dict[str, float]:
        counts = responder.statuses
        found = {f"{hundred}xx": float(sum(counts[hundred * 100 : hundred * 100 + 100])) for hundred in range(1, 6)}
        found["2xx"] += streams.plain_count
        return found

    def codes() -> dict[str, float]:
        return {row.code: float(count) for row, count in responder.failures.items()}

    return [
        ByLabel("responses", by_class, "class", classes, counts=True),
        ByLabel("errors", by_code, "code", codes, counts=True),
    ]
