"""One process of a node, wired together: settings and its groups in, open doors out.

Owns the order of start and stop. Never holds logic of its own beyond that order.

    recover its groups -> start their logs -> upkeep -> listen -> ready        and back again when it stops
"""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from headwater import lake_location
from headwater.cluster.calls import PREFIX as MEMBERS_PREFIX
from headwater.cluster.calls import Calls
from headwater.cluster.forwarding import Forwarder
from headwater.cluster_groups import ClusterGroups
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.doors.http.access import Access
from headwater.doors.http.admin.administration import Administration
from headwater.doors.http.admin.backup import BackupDoor
from headwater.doors.http.admin.bulk_snapshots import BulkSnapshots
from headwater.doors.http.admin.cluster import PREFIX as CLUSTER_PREFIX
from headwater.doors.http.admin.cluster import ClusterCalls, no_cluster
from headwater.doors.http.admin.erasures import Erasures
from headwater.doors.http.admin.feed import Encoding, FeedCalls
from headwater.doors.http.admin.groups import PREFIX as GROUPS_PREFIX
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.admin.hottest import HottestCall
from headwater.doors.http.admin.lake import LakeCalls
from headwater.doors.http.admin.matches import matches
from headwater.doors.http.admin.pipeline import Pipeline
from headwater.doors.http.admin.plan import Plans
from headwater.doors.http.admin.tokens import BUCKETS_PREFIX, SIGN, BucketCalls, TokenCalls
from headwater.doors.http.admin.tokens import PREFIX as TOKENS_PREFIX
from headwater.doors.http.admin.usage import Usage
from headwater.doors.http.admin_listener import ClientRoutes
from headwater.doors.http.bucket_schemas import SchemaCalls
from headwater.doors.http.buckets import Buckets
from headwater.doors.http.bulk_append import Batches
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.elsewhere import Elsewhere
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.many_streams_tail import Tails
from headwater.doors.http.named_access import RouterAccess, SubscriptionAccess
from headwater.doors.http.respond import Responder
from headwater.doors.http.routes import Routes
from headwater.doors.http.server import HttpServer
from headwater.doors.http.snapshots import Snapshots
from headwater.doors.http.subscriptions import PREFIX as SUBSCRIPTIONS_PREFIX
from headwater.doors.http.subscriptions import Subscriptions
from headwater.doors.http.topics.door import TopicDoor
from headwater.doors.http.topics.routers import PREFIX as ROUTERS_PREFIX
from headwater.doors.http.topics.routers import RouterCalls
from headwater.doors.http.topics.routes import PREFIX as TOPICS_PREFIX
from headwater.doors.http.topics.sockets import MESSAGE_BYTES_MAX
from headwater.doors.http.watch import Watch
from headwater.doors.http.websocket import WebSockets
from headwater.doors.http.wire import Budget
from headwater.doors.s3p.server import S3pServer
from headwater.engine import buckets as engine_buckets
from headwater.engine.bucket_schemas import BucketSchemas
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.quotas import Quotas
from headwater.errors import NoSuchRoute
from headwater.group_maker import GroupMaker
from headwater.lake.append_pressure import AppendPressure
from headwater.lake.cache import DiskCache
from headwater.lake.feed import begin_feed, encode_feed, encode_part
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.store import ObjectStore, StoreError, probe
from headwater.lake.store_probe import StoreProbe
from headwater.local_groups import LocalGroups
from headwater.model.subscriptions import path_of
from headwater.node_doors import NodeDoors
from headwater.observe import readings, traces
from headwater.observe.audit_readings import audit_gauges
from headwater.observe.cluster_readings import NodeReadings
from headwater.observe.group_readings import LoopDelay, group_readings, process_readings
from headwater.observe.health import Health
from headwater.observe.metrics import Metrics
from headwater.observe.slow_batches import tell_slow_batches
from headwater.observe.timings import timings
from headwater.observe.tls_readings import tls_gauges
from headwater.ports import BlobsUnavailable, SystemClock, SystemRng
from headwater.security import policy
from headwater.security.audit_writer import AuditWriter
from headwater.security.directory import Directory
from headwater.security.limits import new_limits
from headwater.security.new_audit import new_audit, new_writer
from headwater.security.new_guard import KeySets, key_sets, new_guard
from headwater.start_refused import CannotStart
from headwater.subscriptions.manager import Manager
from headwater.subscriptions.webhooks import WebhookClient
from headwater.topics.access import TopicAccess
from headwater.topics.admission import Admission
from headwater.topics.delivery import Delivery
from headwater.topics.priorities import Priorities
from headwater.topics.queues import Queues
from headwater.topics.routers import Routers

if TYPE_CHECKING:
    from headwater.observe.tracing import OtelTracer

FILES_TLS = 10_000
"""Connections that have not made their handshake, of all doors (see `secure_door`)."""

log = structlog.get_logger("headwater")


class Node:
    """One process, assembled. `start` and `stop` may each be called once."""

    def __init__(
        self, settings: Settings, groups: LocalGroups | ClusterGroups, announce: Callable[[str], None] = print
    ) -> None:
        """`announce` shows a line to whoever started the server."""
        self.settings = settings
        self._announce = announce
        self._audit = new_audit(settings, SystemClock(), SystemRng(), groups.worker)
        self._audit_writer: AuditWriter | None = None
        self._access = Access(new_guard(settings, SystemClock()), self._audit)
        self._directory: Directory | None = None
        self._key_sets: KeySets | None = None
        self._quotas: Quotas | None = None
        self._groups = groups
        self._data = DataDirectory(Path(settings.data))
        self._address = ""
        self._engine: Engine | None = None
        self._http: HttpServer | None = None
        self._admin: HttpServer | None = None
        self._forwarder: Forwarder | None = None
        self._store_probe: StoreProbe | None = None
        self._s3p: S3pServer | None = None
        self._placing: ForkPlacement | None = None
        self._subscriptions: Manager | None = None
        self._topic_access: TopicAccess | None = None
        self._routers: Routers | None = None
        self._delivery: Delivery | None = None
        self._queues: Queues | None = None
        self._lake_calls: LakeCalls | None = None
        self._bulk_snapshots: BulkSnapshots | None = None
        self._doors: NodeDoors | None = None
        self._loop_delay = LoopDelay(SystemClock())
        self._tracer: OtelTracer | None = None

    @property
    def policy(self) -> policy.Policy:
        """What each route asks of a client; complete once the node has started."""
        return self._access.policy

    async def start(
        self, http: tuple[str, int], s3p: tuple[str, int] | None, admin: tuple[str, int] | None = None
    ) -> str:
        """Recovers and listens; returns HOST:PORT. Raises CannotStart, LogCorrupt or LogContradiction."""
        settings, groups = self.settings, self._groups
        own = 0 if admin is None else settings.connections_max
        _raise_file_limit(settings.connections_max + settings.s3p_connections_max + own + FILES_TLS * settings.tls)
        rng, clock = SystemRng(), SystemClock()
        self._tracer = traces.begin(settings, f"{settings.listen}/{groups.worker}")
        store = await self._store(rng)
        await groups.join(rng)
        self._forwarder = Forwarder(groups.membership, settings.scheme, settings.admin_address is not None)
        blobs = StoreBlobs(store)
        lake = await self._lake(store, clock, rng)
        maker = GroupMaker(settings, self._data, groups.groups_count, blobs, lake, clock, rng)
        self._engine = engine = groups.engine(maker)
        webhooks = WebhookClient(settings.webhook_allow_local)
        self._subscriptions = subscriptions = Manager(engine, groups.keys(rng), webhooks, rng)
        groups.recover(subscriptions)
        responder = Responder(settings.cors_origin, settings.memory, settings.cors_credentials, settings.tls_hsts_s)
        streams = DurableStreams(engine, settings, responder, engine.clock, rng)
        soon = asyncio.get_running_loop().call_soon
        if self._access.guard.on:
            self._access.guard.url_secret = groups.url_secret(rng)
            self._key_sets = key_sets(settings, self._access.guard, clock, webhooks)
        self._directory = Directory(engine, self._access.guard, rng, self._announce, self._audit)
        if settings.bucket_streams_max or settings.bucket_bytes_max:
            self._quotas = Quotas(engine, settings.bucket_streams_max, settings.bucket_bytes_max)
            self._quotas.start()
        self._delivery = delivery = Delivery(soon, engine.clock.call_later, engine.clock)
        priorities, admission = Priorities(engine.clock), Admission(engine, delivery)
        routes = self._routes(engine, self._forwarder, streams, blobs, rng)
        topics = TopicDoor(engine, settings, groups.in_cluster, routes.where, delivery, priorities, self._access)
        topics.records.admit = admission.demand
        routes.call(TOPICS_PREFIX, topics.routes.handle, topics.routes.judge)
        self._pipeline_calls(routes, engine, store, lake)
        self._topic_access = TopicAccess(engine, self._placing, delivery, priorities)
        if self._audit is not None:
            self._audit_writer = new_writer(self._audit, settings, self._topic_access.write, clock)
        self._routers = Routers(engine, self._topic_access)
        self._routers.start()
        erasures = self._erasures(engine, rng, subscriptions, self._routers)
        routes.call("/__headwater/erase", erasures.handle, policy.ADMIN_DO)
        about = SubscriptionAccess(self._access, engine, subscriptions)
        subscribing = Subscriptions(subscriptions, settings, about)
        routes.call(SUBSCRIPTIONS_PREFIX, subscribing.handle, subscribing.judge)
        self._queues = Queues(engine, self._topic_access, rng, settings.read_bytes_max)
        self._queues.start()
        topics.serve_queues(self._queues)
        router_access = RouterAccess(self._access, engine, self._routers)
        routing = RouterCalls(self._routers, settings.stream_name_bytes_max, router_access)
        routes.call(ROUTERS_PREFIX, routing.handle, routing.judge)
        bodies_bytes_max = settings.bodies_bytes_max // groups.workers_count
        bodies = Budget(max(bodies_bytes_max, settings.body_bytes_max, settings.snapshot_bytes_max))
        sockets = topics.serve_sockets(WebSockets(settings, bodies, message_bytes_max=MESSAGE_BYTES_MAX))
        watch = Watch(settings, asyncio.get_running_loop().time, self._audit)
        tell_slow_batches(engine, watch)
        handles = routes if admin is None else ClientRoutes(routes)
        limits = new_limits(settings, clock)
        self._http = HttpServer(settings, handles, responder, bodies, access=self._access, watch=watch, limits=limits)
        if admin is not None:
            self._admin = HttpServer(settings, routes, responder, bodies, access=self._access, watch=watch)
        metrics = self._pages(routes, engine, self._http)
        since_start = readings.SinceStart(engine)
        metrics.add(*readings.engine_gauges(engine, since_start), *readings.http_gauges(self._http, streams))
        metrics.add(*readings.answer_gauges(responder, streams), *readings.queue_gauges(self._queues))
        metrics.add(*timings(since_start, streams, subscriptions, self._queues, self._forwarder))
        metrics.add(*readings.limit_gauges(limits, self._quotas))
        metrics.add(*group_readings(engine), *process_readings(self._loop_delay, clock))
        metrics.add(*readings.subscription_gauges([subscriptions]), *readings.router_gauges(self._routers))
        metrics.add(*readings.topic_gauges(topics, sockets), *readings.delivery_gauges(delivery, admission))
        if s3p is not None:
            members = None if groups.membership.alone else groups.membership
            guard = self._access.guard
            self._s3p = S3pServer(settings, engine, members, self._placing, guard, self._audit, limits)
            metrics.add(*readings.s3p_gauges(self._s3p))
        if groups.calls is not None:
            routes.call(MEMBERS_PREFIX, partial(_answer, groups.calls), policy.MEMBERS)
        internal = partial(HttpServer, settings, routes, responder, bodies, True, watch, self._access)
        await groups.open(self._http, internal, self._s3p, self._admin)
        if groups.handover is not None:
            metrics.add(*readings.member_gauges(groups.handover, self._forwarder))
        await groups.serve()
        if self._audit is not None and self._audit_writer is not None:
            metrics.add(*audit_gauges(self._audit))
            self._audit_writer.start()
        await self._directory.start()
        if self._key_sets is not None:
            await self._key_sets.start()
        self._doors = doors = NodeDoors(settings, groups, engine, responder, self._access.guard)
        if doors.tls is not None:
            metrics.add(*tls_gauges(doors.tls))
        if s3p is not None and self._s3p is not None:
            await doors.open_s3p(self._s3p, s3p)
        if admin is not None and self._admin is not None:
            await doors.open_admin(self._admin, admin)
        self._address = await doors.open_http(self._http, http)
        self._loop_delay.start()
        return self._address

    def hang_up(self) -> None:
        """SIGHUP: what is kept in files that others write is read again."""
        if self._doors is not None:
            self._doors.hang_up()

    async def _lake(self, store: ObjectStore, clock: SystemClock, rng: SystemRng) -> DeltaLake | None:
        """Where records of all groups settle; None for a node that keeps nothing."""
        settings = self.settings
        if settings.memory:
            return None
        disk = await asyncio.to_thread(self._disk_cache)
        cache_bytes = settings.lake_cache_bytes // self._groups.workers_count

        def log_tails() -> int:
            owned = {} if self._engine is None else self._engine.owned
            return sum(one.group.log.tail for one in owned.values())

        return DeltaLake(store, cache_bytes, clock, rng, disk, AppendPressure(log_tails).is_due)

    def _routes(
        self, engine: Engine, forwarder: Forwarder, streams: DurableStreams, blobs: StoreBlobs, rng: SystemRng
    ) -> Routes:
        settings = self.settings
        directory = engine_buckets.Buckets(engine, engine.questions)
        placing = self._placing = ForkPlacement(engine) if engine.groups_count > 1 else None
        elsewhere = None if placing is None else Elsewhere(engine, placing, forwarder)
        buckets = Buckets(directory)
        snapshots = Snapshots(engine, blobs, settings, rng)
        batches = Batches(engine, directory, settings, placing)
        routes = Routes(settings, streams, buckets, snapshots, batches, elsewhere, self._access)
        if self._directory is not None:
            of_bucket = BucketCalls(buckets, self._directory, SchemaCalls(BucketSchemas(engine)), self._access)
            routes.call(BUCKETS_PREFIX, of_bucket.handle, of_bucket.judge)
            tokens = TokenCalls(self._directory, self._access, engine.clock, settings.stream_name_bytes_max)
            routes.call(TOKENS_PREFIX, tokens.handle, tokens.judge)
            routes.call(SIGN, tokens.sign, policy.SIGN)
        self._bulk_snapshots = BulkSnapshots(engine, blobs, settings, rng)
        routes.call("/__headwater/snapshots", self._bulk_snapshots.handle, policy.BULK_SNAPSHOTS)
        tails = Tails(engine, settings, self._groups.membership)
        routes.call("/__headwater/tail", tails.handle, policy.MANY_TAIL)
        return routes

    def _pipeline_calls(self, routes: Routes, engine: Engine, store: ObjectStore, lake: DeltaLake | None) -> None:
        """What the data pipeline and operators ask of groups."""
        settings = self.settings
        place = lake_location.place(settings, store)
        groups = GroupCalls(engine, routes.handle, self._access)
        routes.call(GROUPS_PREFIX, groups.handle, groups.judge)
        routes.expect = groups.expect
        pipeline = Pipeline(engine, None if lake is None else partial(_describe, store))
        pipeline.register(groups)
        FeedCalls(Encoding(encode_feed, begin_feed, encode_part)).register(groups)
        routes.call("/__headwater/lake", pipeline.lake, policy.READ_ALL)
        routes.call("/__headwater/flush", pipeline.flush, policy.FLUSH)
        if lake is not None:
            # One round of gc sees that nothing refers to it, and another finds that its time is over.
            unused_ms_max = settings.lake_grace_ms + 2 * settings.lake_gc_interval_ms
            self._lake_calls = LakeCalls(lake.files, lake.infos, place, unused_ms_max)
            self._lake_calls.register(groups)
        plans = Plans(engine, groups, self._lake_calls, self._groups.membership.public_address)
        routes.call("/__headwater/plan", plans.handle, policy.ASK_ALL)
        usage = Usage(engine)
        routes.call("/__headwater/usage", usage.handle, policy.READ_ALL)
        routes.call("/__headwater/hottest", HottestCall(engine, self._groups.in_cluster).handle, policy.ADMIN_LOOK)
        groups.call("usage", usage.of_group, policy.READ_ALL)
        administration = Administration(engine, settings, lambda: self._address)
        routes.call("/__headwater/config", administration.config, policy.ADMIN_LOOK)
        administration.register(groups)
        self._cluster_calls(routes, engine, groups)
        groups.call("matches", matches, policy.ASK_ALL)
        backups = BackupDoor(engine.groups_count, place, self._groups.in_cluster)
        groups.call("backup", backups.handle, policy.ADMIN_ALL)

    def _cluster_calls(self, routes: Routes, engine: Engine, group_calls: GroupCalls) -> None:
        groups = self._groups
        if isinstance(groups, LocalGroups):
            routes.call(CLUSTER_PREFIX, no_cluster, policy.ADMIN_ALL)
            return
        calls = ClusterCalls(
            groups.view, groups.ownership, groups.registry, groups.description, groups.logs.kind, engine.questions
        )
        calls.register(group_calls)
        routes.call(CLUSTER_PREFIX, calls.handle, policy.ADMIN_ALL)

    def _erasures(self, engine: Engine, rng: SystemRng, subscriptions: Manager, routers: Routers) -> Erasures:
        hash_name = None if self.settings.memory else self._groups.name_hash(rng).of
        return Erasures(
            engine, hash_name, lambda key: subscriptions.named_by(path_of(key)), self.settings, routers.named_by
        )

    def _pages(self, routes: Routes, engine: Engine, http: HttpServer) -> Metrics:
        groups, probe = self._groups, self._store_probe
        cluster = None if isinstance(groups, LocalGroups) else NodeReadings(groups.view, groups.ownership)
        health = Health(engine.questions, cluster, self._loop_delay.now_s)
        metrics = Metrics(engine.questions, groups.in_cluster)
        if cluster is not None and self._forwarder is not None:
            metrics.add(*readings.cluster_gauges(cluster, self._forwarder))

        def wrong(what: str) -> str | None:
            return next((why for owned in engine.owned.values() if (why := owned.failures()[what]) is not None), None)

        health.add("log", lambda: wrong("log"))
        health.add("checkpoint", lambda: wrong("checkpoint"))
        if not self.settings.memory:
            health.add("lake", lambda: wrong("lake") or (None if probe is None else probe.failure))
        health.add("shutdown", lambda: "the node is shutting down" if http.closing else None)
        routes.page("/healthz", health.healthz, policy.OPEN_PAGE)
        routes.page("/readyz", health.readyz, policy.OPEN_PAGE)
        routes.page("/metrics", metrics.prometheus, policy.METRICS)
        routes.page("/__headwater/metrics", metrics.json, policy.METRICS)
        return metrics

    # ---- where things are kept ------------------------------------------------------------------------------------

    async def _store(self, rng: SystemRng) -> ObjectStore:
        """The lake's object store. One that is not a directory of our own is tried out; it may be away for now."""
        settings = self.settings
        url = "memory:" if settings.memory else lake_location.lake_url(settings)
        try:
            store = lake_location.open_lake(settings, url)
            if settings.lake != "auto" and not settings.memory:
                self._store_probe = StoreProbe(partial(probe, store, rng.token(8).hex()), _report_lake)
                await self._store_probe.start()
        except StoreError as error:
            raise CannotStart(f"the lake {url} cannot be used: {error.reason}") from None
        return store

    def _disk_cache(self) -> DiskCache | None:
        """Where parts of a remote lake are kept at hand; when it is off, what an earlier run kept goes."""
        settings, groups = self.settings, self._groups
        directory = self._data.cache(groups.worker)
        if settings.lake.startswith("s3://") and settings.lake_disk_cache_bytes:
            try:
                return DiskCache(directory, settings.lake_disk_cache_bytes // groups.workers_count)
            except StoreError as error:
                raise CannotStart(error.reason) from None
        shutil.rmtree(directory, ignore_errors=True)
        return None

    async def stop(self) -> None:
        """Ends everything. May be called after a failed start."""
        self._loop_delay.close()
        doors = [door for door in (self._http, self._s3p, self._admin) if door is not None]
        for door in doors:
            door.wind_down()
        if self._audit_writer is not None:
            await self._audit_writer.flush_in_time()
        await self._groups.leave()
        if self._subscriptions is not None:
            self._subscriptions.close()
        if self._topic_access is not None:
            self._topic_access.close()
        if self._queues is not None:
            self._queues.close()
        grace_s = self.settings.shutdown_grace_ms / 1000
        await asyncio.gather(*(door.close(grace_s) for door in doors))
        if self._audit_writer is not None:
            await self._audit_writer.stop()
        await self._groups.close_doors(grace_s)
        if self._doors is not None:
            self._doors.stop()
        if self._subscriptions is not None:
            await self._subscriptions.stop()
        if self._routers is not None:
            await self._routers.stop()
        if self._delivery is not None:
            self._delivery.close()
        if self._queues is not None:
            await self._queues.stop()
        if self._lake_calls is not None:
            self._lake_calls.close()
        if self._store_probe is not None:
            await self._store_probe.stop()
        if self._directory is not None:
            await self._directory.stop()
        if self._key_sets is not None:
            await self._key_sets.stop()
        if self._quotas is not None:
            await self._quotas.stop()
        await self._groups.stop()
        if self._bulk_snapshots is not None:
            self._bulk_snapshots.close()
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            await asyncio.to_thread(traces.end, tracer)


def _answer(calls: Calls, exchange: Exchange, rest: bytes, query: bytes) -> None:
    """A question of another process of the node."""
    if not exchange.internal:
        raise NoSuchRoute
    exchange.only(b"POST")

    async def answer() -> None:
        status, body = await calls.answer(rest[1:].decode("latin-1"), exchange.request.body)
        headers = [("Content-Type", "application/msgpack")]
        exchange.reply(exchange.responder.to_member(status, headers, body, exchange.request.keep_alive))

    exchange.run(answer())


def _describe(store: ObjectStore, counts: dict[int, dict[str, int]]) -> dict[str, Any]:
    """Says what is in the lake, from a worker thread. Imports late: a node that settles nothing loads no Arrow."""
    from headwater.lake.info import describe

    try:
        return describe(store, counts)
    except StoreError as error:
        raise BlobsUnavailable(error.reason) from error


def _report_lake(why: str) -> None:
    log.error("lake", error=why)


def _raise_file_limit(connections_max: int) -> None:
    """Every connection is a file descriptor: takes as many as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, connections_max + 256) if hard != resource.RLIM_INFINITY else connections_max + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
