"""One process of a node, wired together: settings and its groups in, open doors out.

Owns the order of start and stop. Never holds logic of its own beyond that order.

    recover its groups -> start their logs -> upkeep -> listen -> ready        and back again when it stops
"""

from __future__ import annotations

import asyncio
import gc
import resource
import shutil
import socket
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from headwater import lake_location
from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.scrub import scrub
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.calls import PREFIX as MEMBERS_PREFIX
from headwater.cluster.calls import Calls
from headwater.cluster.forwarding import Forwarder
from headwater.cluster.handover import Acceptor, Door, Factory, Handover
from headwater.cluster.members import Members
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.doors.http.admin.administration import Administration
from headwater.doors.http.admin.backup import BackupDoor
from headwater.doors.http.admin.bulk_snapshots import BulkSnapshots
from headwater.doors.http.admin.erasures import Erasures
from headwater.doors.http.admin.groups import PREFIX as GROUPS_PREFIX
from headwater.doors.http.admin.groups import GroupCalls
from headwater.doors.http.admin.lake import LakeCalls
from headwater.doors.http.admin.matches import matches
from headwater.doors.http.admin.pipeline import Pipeline
from headwater.doors.http.admin.plan import Plans
from headwater.doors.http.admin.usage import Usage
from headwater.doors.http.buckets import Buckets
from headwater.doors.http.bulk_append import Batches
from headwater.doors.http.durable_streams import DurableStreams
from headwater.doors.http.elsewhere import Elsewhere
from headwater.doors.http.exchange import Exchange
from headwater.doors.http.first_request import group_of_first
from headwater.doors.http.many_streams_tail import Tails
from headwater.doors.http.respond import Responder
from headwater.doors.http.routes import Routes
from headwater.doors.http.server import HttpServer
from headwater.doors.http.snapshots import Snapshots
from headwater.doors.http.subscriptions import PREFIX as SUBSCRIPTIONS_PREFIX
from headwater.doors.http.subscriptions import Subscriptions
from headwater.doors.http.wire import Budget
from headwater.doors.s3p.names import first_owner
from headwater.doors.s3p.server import S3pServer
from headwater.engine import buckets as engine_buckets
from headwater.engine.engine import Engine
from headwater.engine.fork_placement import ForkPlacement
from headwater.engine.group import Group
from headwater.engine.owned_group import GroupOptions, OwnedGroup
from headwater.errors import NoSuchRoute
from headwater.lake.append_pressure import AppendPressure
from headwater.lake.cache import DiskCache
from headwater.lake.feed import encode_feed
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.store import ObjectStore, StoreError, probe
from headwater.lake.store_probe import StoreProbe
from headwater.log.null import NullLog
from headwater.log.wal import Wal
from headwater.model.commands import Durability
from headwater.model.stream import Limits
from headwater.model.subscriptions import path_of
from headwater.observe import readings
from headwater.observe.health import Health
from headwater.observe.metrics import Metrics
from headwater.ports import BlobsUnavailable, Catalog, CatalogCopy, Log, SystemClock, SystemRng
from headwater.security.name_hash import NameHash
from headwater.setting_values import shown_address
from headwater.start_refused import CannotStart
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Manager
from headwater.subscriptions.webhooks import WebhookClient

log = structlog.get_logger("headwater")


class _Catalog:
    """A group's catalog file as worker threads use it. See `CatalogFiles`."""

    def __init__(self, data: DataDirectory, group: int) -> None:
        self._path = data.catalog(group)
        self.held_directory = data.held(group)

    def open(self) -> LakeFiles:
        return LakeFiles(self._path)

    def open_to_read(self) -> LakeFiles:
        return LakeFiles(self._path, read_only=True)

    def copy(self, to: Path) -> CatalogCopy:
        return copy_catalog(self._path, to)

    def scrub(self, name: str) -> bool:
        return scrub(self._path, name)


class Node:
    """One process, assembled. `start` and `stop` may each be called once."""

    def __init__(self, settings: Settings, members: Members, sockets: dict[str, list[int]] | None = None) -> None:
        """With one member the node is this process alone; otherwise `sockets` are those that its doors accept from.

        The data directory is prepared, and locked for it.
        """
        self._sockets = sockets or {}
        self.settings = settings
        self._members = members
        self._data = DataDirectory(Path(settings.data))
        self._address = ""
        self._owned: dict[int, OwnedGroup] = {}
        self._calls: Calls | None = None
        self._http: HttpServer | None = None
        self._internal: HttpServer | None = None
        self._handover: Handover | None = None
        self._forwarder = Forwarder(members)
        self._store_probe: StoreProbe | None = None
        self._s3p: S3pServer | None = None
        self._placing: ForkPlacement | None = None
        self._subscriptions: Manager | None = None
        self._lake_calls: LakeCalls | None = None
        self._bulk_snapshots: BulkSnapshots | None = None

    async def start(self, http: tuple[str, int], s3p: tuple[str, int] | None) -> str:
        """Recovers and listens; returns HOST:PORT. Raises CannotStart, LogCorrupt or LogContradiction."""
        settings = self.settings
        _raise_file_limit(settings.connections_max + settings.s3p_connections_max)
        rng = SystemRng()
        engine, store, blobs, lake = await self._engine(rng)
        self._subscriptions = subscriptions = self._subscribe(engine, rng)
        for one in engine.owned.values():
            self._recover(one)
        subscriptions.start()
        for one in engine.owned.values():
            one.start()
        gc.collect()
        gc.freeze()  # what recovery built is long-lived: the collector need not walk it again
        responder = Responder(settings.cors_origin, settings.memory)
        streams = DurableStreams(engine, settings, responder, engine.clock, rng)
        routes = self._routes(engine, streams, blobs, rng)
        self._pipeline_calls(routes, engine, store, lake)
        routes.call("/__headwater/erase", self._erasures(engine, rng, subscriptions).handle)
        routes.call(SUBSCRIPTIONS_PREFIX, Subscriptions(subscriptions, settings).handle)
        bodies_bytes_max = settings.bodies_bytes_max // self._members.count
        bodies = Budget(max(bodies_bytes_max, settings.body_bytes_max, settings.snapshot_bytes_max))
        self._http = HttpServer(settings, routes, responder, bodies)
        metrics = self._pages(routes, engine, self._http)
        metrics.add(*readings.engine_gauges(engine), *readings.http_gauges(self._http, streams))
        metrics.add(*readings.subscription_gauges([subscriptions]))
        if s3p is not None:
            members = None if self._members.alone else self._members
            self._s3p = S3pServer(settings, engine, members, self._placing)
            metrics.add(*readings.s3p_gauges(self._s3p))
        await self._open_to_members(routes, responder, bodies)
        if self._handover is not None:
            metrics.add(*readings.member_gauges(self._handover, self._forwarder))
        await self._listen(engine, http, s3p)
        return self._address

    async def _engine(self, rng: SystemRng) -> tuple[Engine, ObjectStore, StoreBlobs, DeltaLake | None]:
        """The groups of this process, not recovered yet, and where their records settle."""
        settings, members = self.settings, self._members
        clock = SystemClock()
        numbers = members.groups_of(members.me)
        stores = {number: self._stores(number) for number in numbers}
        logs: dict[int, Log] = {number: NullLog() if wal is None else wal for number, (wal, _) in stores.items()}
        store = await self._store(rng)
        blobs = StoreBlobs(store)
        disk = await asyncio.to_thread(self._disk_cache)
        append_pressure = AppendPressure(lambda: sum(log.tail for log in logs.values())).is_due
        cache_bytes = settings.lake_cache_bytes // members.count
        lake = None if settings.memory else DeltaLake(store, cache_bytes, clock, rng, disk, append_pressure)
        limits = Limits(
            settings.producers_per_stream_max, settings.producer_idle_ms, Durability[settings.durability.upper()]
        )
        schedule = asyncio.get_running_loop().call_soon
        options = self._options()
        hot_bytes_max = settings.hot_bytes_max // members.groups_count
        for number, (wal, catalog) in stores.items():
            group = Group(logs[number], catalog, clock, schedule, limits, hot_bytes_max, number, members.groups_count)
            if settings.memory:
                # Nothing tells this run's streams from those of the last one: their ids, and so their ETags, must.
                group.give_out_after(clock.now_ms() << 16)
            files = None if settings.memory else _Catalog(self._data, number)
            self._owned[number] = OwnedGroup(group, wal, blobs, lake, files, options, rng, _report)
        if not members.alone:
            self._calls = Calls(members)
        return Engine(self._owned, members.groups_count, clock, self._calls), store, blobs, lake

    def _options(self) -> GroupOptions:
        """Of one group: what is a limit of the node is shared among its groups."""
        settings, groups_count = self.settings, self._members.groups_count
        return GroupOptions(
            settings.checkpoint_interval_ms,
            max(1, settings.streams_loaded_max // groups_count),
            min(settings.flush_bytes, settings.hot_bytes_max // 2) // groups_count,
            settings.flush_interval_ms,
            settings.lake_file_bytes,
            settings.lake_gc_interval_ms,
            settings.lake_grace_ms,
        )

    def _recover(self, owned: OwnedGroup) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            count = owned.recover()
        except OSError as error:
            where = self._data.wal(owned.number)
            why = f"the log in {where} cannot be opened: {error.strerror or error}; make room, or look at the disk"
            raise CannotStart(why) from None
        if count:
            took_s = round(loop.time() - began_s, 3)
            streams_count = len(owned.group.loaded.by_key)
            log.info("recovered", group=owned.number, events=count, streams=streams_count, seconds=took_s)

    def _routes(self, engine: Engine, streams: DurableStreams, blobs: StoreBlobs, rng: SystemRng) -> Routes:
        settings = self.settings
        directory = engine_buckets.Buckets(engine, engine.questions)
        placing = self._placing = ForkPlacement(engine) if engine.groups_count > 1 else None
        elsewhere = None if placing is None else Elsewhere(engine, placing, self._forwarder)
        buckets = Buckets(directory)
        snapshots = Snapshots(engine, blobs, settings, rng)
        batches = Batches(engine, directory, settings, placing)
        routes = Routes(settings, streams, buckets, snapshots, batches, elsewhere)
        routes.call("/__headwater/buckets", buckets.by_any_name)
        self._bulk_snapshots = BulkSnapshots(engine, blobs, settings, rng)
        routes.call("/__headwater/snapshots", self._bulk_snapshots.handle)
        routes.call("/__headwater/tail", Tails(engine, settings, self._members).handle)
        return routes

    def _pipeline_calls(self, routes: Routes, engine: Engine, store: ObjectStore, lake: DeltaLake | None) -> None:
        """What the data pipeline and operators ask of groups."""
        settings = self.settings
        place = lake_location.place(settings, store)
        groups = GroupCalls(engine, routes.handle)
        routes.call(GROUPS_PREFIX, groups.handle)
        routes.expect = groups.expect
        pipeline = Pipeline(engine, encode_feed, None if lake is None else partial(_describe, store))
        pipeline.register(groups)
        routes.call("/__headwater/lake", pipeline.lake)
        routes.call("/__headwater/flush", pipeline.flush)
        if lake is not None:
            # One round of gc sees that nothing refers to it, and another finds that its time is over.
            unused_ms_max = settings.lake_grace_ms + 2 * settings.lake_gc_interval_ms
            self._lake_calls = LakeCalls(lake.files, place, unused_ms_max)
            self._lake_calls.register(groups)
        routes.call("/__headwater/plan", Plans(engine, groups, self._lake_calls).handle)
        usage = Usage(engine)
        routes.call("/__headwater/usage", usage.handle)
        groups.call("usage", usage.of_group)
        administration = Administration(engine, settings, lambda: self._address)
        routes.call("/__headwater/config", administration.config)
        administration.register(groups)
        groups.call("matches", matches)
        groups.call("backup", BackupDoor(engine.groups_count, place).handle)

    def _erasures(self, engine: Engine, rng: SystemRng, subscriptions: Manager) -> Erasures:
        hash_name = None if self.settings.memory else NameHash.kept(self._data.path, rng).of
        return Erasures(engine, hash_name, lambda key: subscriptions.named_by(path_of(key)), self.settings)

    def _pages(self, routes: Routes, engine: Engine, http: HttpServer) -> Metrics:
        health, metrics, probe = Health(engine.questions), Metrics(engine.questions), self._store_probe

        def wrong(what: str) -> str | None:
            return next((why for owned in engine.owned.values() if (why := owned.failures()[what]) is not None), None)

        health.add("log", lambda: wrong("log"))
        health.add("checkpoint", lambda: wrong("checkpoint"))
        if not self.settings.memory:
            health.add("lake", lambda: wrong("lake") or (None if probe is None else probe.failure))
        health.add("shutdown", lambda: "the node is shutting down" if http.closing else None)
        routes.page("/healthz", health.healthz)
        routes.page("/readyz", health.readyz)
        routes.page("/metrics", metrics.prometheus)
        routes.page("/__headwater/metrics", metrics.json)
        return metrics

    def _subscribe(self, engine: Engine, rng: SystemRng) -> Manager:
        settings = self.settings
        keys = Keys.fresh(rng) if settings.memory else Keys.kept(Path(settings.data), rng)
        return Manager(engine, keys, WebhookClient(settings.webhook_allow_local), rng)

    # ---- doors --------------------------------------------------------------------------------------------------

    async def _open_to_members(self, routes: Routes, responder: Responder, bodies: Budget) -> None:
        """Other processes of the node may ask, send on and hand over from now on."""
        members, calls = self._members, self._calls
        if calls is None or self._http is None:
            return
        routes.call(MEMBERS_PREFIX, partial(_answer, calls))
        self._internal = HttpServer(self.settings, routes, responder, bodies, internal=True)
        await self._internal.listen_unix(members.http_path(members.me))
        self._handover = Handover(members)
        accepting: dict[str, Factory] = {"http": self._http.accept}
        if self._s3p is not None:
            await self._s3p.listen_unix(members.s3p_path(members.me))
            accepting["s3p"] = self._s3p.accept
        self._handover.open(accepting)

    async def _listen(self, engine: Engine, http: tuple[str, int], s3p: tuple[str, int] | None) -> None:
        if self._http is None:
            raise RuntimeError("there is no door to open")
        questions, name_bytes_max = engine.questions, self.settings.stream_name_bytes_max

        def http_owner(first: bytes) -> int | None:
            group = group_of_first(first, engine, name_bytes_max)
            return None if group is None else questions.owner(group)

        def s3p_owner(first: bytes) -> int | None:
            key = first_owner(first)
            return None if key is None else questions.owner(engine.place(key))

        if s3p is not None and self._s3p is not None:
            s3p_door = Door(s3p_owner, self._s3p.accept)
            address = await self._open(self._s3p, *s3p, "s3p", s3p_door, "another --s3p, or --s3p off")
            if self._members.alone:
                log.info("s3p ready", address=address)
        http_door = Door(http_owner, self._http.accept)
        self._address = await self._open(self._http, *http, "http", http_door, "another --listen")

    async def _open(
        self, server: HttpServer | S3pServer, host: str, port: int, kind: str, door: Door, instead: str
    ) -> str:
        """Begins to accept; returns HOST:PORT. Raises CannotStart."""
        try:
            if self._handover is None:
                port = await server.listen(host, port)
            else:
                handover = self._handover
                sockets = [socket.socket(fileno=descriptor) for descriptor in self._sockets[kind]]
                server.begin(*(Acceptor(listening, kind, door, handover) for listening in sockets))
        except OSError as error:
            where = shown_address(host, port)
            raise CannotStart(f"cannot listen on {where}: {error.strerror}; choose {instead}") from None
        return shown_address(host, port)

    # ---- where things are kept ------------------------------------------------------------------------------------

    async def _store(self, rng: SystemRng) -> ObjectStore:
        """The lake's object store. One that is not a directory of our own is tried out; it may be away for now."""
        settings = self.settings
        url = "memory:" if settings.memory else lake_location.lake_url(settings)
        try:
            store = lake_location.open_lake(settings, url)
            if settings.lake != "auto" and not settings.memory:
                self._store_probe = StoreProbe(partial(probe, store, rng.token(8).hex()), partial(_report, "lake"))
                await self._store_probe.start()
        except StoreError as error:
            raise CannotStart(f"the lake {url} cannot be used: {error.reason}") from None
        return store

    def _disk_cache(self) -> DiskCache | None:
        """Where parts of a remote lake are kept at hand; when it is off, what an earlier run kept goes."""
        settings = self.settings
        members = self._members
        if settings.memory:
            return None
        directory = self._data.cache(members.me)
        if settings.lake.startswith("s3://") and settings.lake_disk_cache_bytes:
            try:
                return DiskCache(directory, settings.lake_disk_cache_bytes // members.count)
            except StoreError as error:
                raise CannotStart(error.reason) from None
        shutil.rmtree(directory, ignore_errors=True)
        return None

    def _stores(self, group: int) -> tuple[Wal | None, Catalog]:
        settings = self.settings
        if settings.memory:
            return None, SqliteCatalog(None)
        wal = Wal(self._data.wal(group), settings.log_file_bytes, settings.disk_sync_ms)
        path = self._data.catalog(group)
        try:
            return wal, SqliteCatalog(path)
        except sqlite3.Error as error:
            raise CannotStart(f"the catalog {path} cannot be opened: {error}") from None

    async def stop(self) -> None:
        """Ends everything. May be called after a failed start."""
        if self._subscriptions is not None:
            self._subscriptions.close()
        grace_s = self.settings.shutdown_grace_ms / 1000
        doors = [door for door in (self._http, self._s3p) if door is not None]
        await asyncio.gather(*(door.close(grace_s) for door in doors))
        if self._handover is not None:
            self._handover.close()
        if self._internal is not None:
            # After the others: what their clients still wait for may be served by this process.
            await self._internal.close(grace_s)
        if self._subscriptions is not None:
            await self._subscriptions.stop()
        if self._lake_calls is not None:
            self._lake_calls.close()
        if self._store_probe is not None:
            await self._store_probe.stop()
        for owned in self._owned.values():
            await owned.stop()
        if self._bulk_snapshots is not None:
            self._bulk_snapshots.close()
        if self._calls is not None:
            self._calls.close()


def _answer(calls: Calls, exchange: Exchange, rest: bytes, query: bytes) -> None:
    """A question of another process of the node."""
    if not exchange.internal:
        raise NoSuchRoute
    exchange.only(b"POST")

    async def answer() -> None:
        status, body = await calls.answer(rest[1:].decode("latin-1"), exchange.request.body)
        headers = [("Content-Type", "application/msgpack")]
        exchange.reply(exchange.responder.full(status, headers, body, exchange.request.keep_alive))

    exchange.run(answer())


def _describe(store: ObjectStore, counts: dict[int, dict[str, int]]) -> dict[str, Any]:
    """Says what is in the lake, from a worker thread. Imports late: a node that settles nothing loads no Arrow."""
    from headwater.lake.info import describe

    try:
        return describe(store, counts)
    except StoreError as error:
        raise BlobsUnavailable(error.reason) from error


def _report(what: str, why: str) -> None:
    if what == "log":
        log.critical("the log failed: this node acknowledges nothing any more", error=why)
    else:
        log.error(what, error=why)


def _raise_file_limit(connections_max: int) -> None:
    """Every connection is a file descriptor: takes as many as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, connections_max + 256) if hard != resource.RLIM_INFINITY else connections_max + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
