"""The only place where parts are wired together: settings in, a running node out.

Owns the order of start and stop. Never holds logic of its own beyond that order.

    lock the data directory -> recover -> start the log -> upkeep -> listen -> ready        and back again on SIGTERM
"""

from __future__ import annotations

import asyncio
import cProfile
import fcntl
import gc
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any

import structlog
import uvloop

from headwater.catalog.catalog_copy import copy_catalog
from headwater.catalog.lake_files import LakeFiles
from headwater.catalog.scrub import scrub
from headwater.catalog.sqlite import CatalogMismatch, SqliteCatalog
from headwater.config import Settings
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
from headwater.doors.http.many_streams_tail import Tails
from headwater.doors.http.respond import Responder
from headwater.doors.http.routes import Routes
from headwater.doors.http.server import HttpServer
from headwater.doors.http.snapshots import Snapshots
from headwater.doors.http.subscriptions import PREFIX as SUBSCRIPTIONS_PREFIX
from headwater.doors.http.subscriptions import Subscriptions
from headwater.doors.s3p.server import S3pServer
from headwater.engine import buckets as engine_buckets
from headwater.engine.engine import Engine
from headwater.engine.group import Group
from headwater.engine.owned_group import CatalogFiles, GroupOptions, OwnedGroup
from headwater.engine.recovery import LogContradiction
from headwater.lake.append_pressure import AppendPressure
from headwater.lake.cache import DiskCache
from headwater.lake.feed import encode_feed
from headwater.lake.lake import DeltaLake, StoreBlobs
from headwater.lake.open_store import open_store
from headwater.lake.store import ObjectStore, StoreError, probe
from headwater.lake.store_probe import StoreProbe
from headwater.log.entries import BadEntry
from headwater.log.null import NullLog
from headwater.log.wal import Wal
from headwater.log.wal_recovery import LogCorrupt
from headwater.model.commands import Durability
from headwater.model.stream import Limits
from headwater.model.subscriptions import path_of
from headwater.observe import log_lines, readings
from headwater.observe.health import Health
from headwater.observe.metrics import Metrics
from headwater.ports import BlobsUnavailable, Catalog, CatalogCopy, Log, SystemClock, SystemRng
from headwater.security.name_hash import BadReceiptKey, NameHash
from headwater.subscriptions.keys import BadKeys, Keys
from headwater.subscriptions.manager import Manager
from headwater.subscriptions.registry import Registry
from headwater.subscriptions.webhooks import WebhookClient

EXIT_OK, EXIT_FAILED = 0, 1
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may hold the interpreter while the log's writer waits for it: the default of 5 ms is a
visible part of an append's latency under load."""

log = structlog.get_logger("headwater")


class CannotStart(Exception):
    """Something outside has to change first; the message says what."""


def serve(settings: Settings) -> int:
    """Runs a node until SIGTERM or SIGINT; returns the process's exit code."""
    log_lines.set_up(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if settings.profile != "off":
                with cProfile.Profile() as profiler:
                    runner.run(_run(settings))
                profiler.dump_stats(settings.profile)
            else:
                runner.run(_run(settings))
    except (CannotStart, LogCorrupt, LogContradiction, CatalogMismatch, BadEntry, BadKeys, BadReceiptKey) as error:
        print(log_lines.escaped(f"error: {error}"), file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


async def _run(settings: Settings) -> None:
    node = Node(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    log_lines.log_stray_exceptions(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        address = await node.start()
        print(f"headwater ready on http://{address}", flush=True)
        await stopping.wait()
    finally:
        await node.stop()


class _Catalog:
    """The catalog's file as worker threads of a group use it. See `CatalogFiles`."""

    def __init__(self, data: Path) -> None:
        self._path = data / "catalog.db"
        self.held_directory = data / "held"

    def open(self) -> LakeFiles:
        return LakeFiles(self._path)

    def open_to_read(self) -> LakeFiles:
        return LakeFiles(self._path, read_only=True)

    def copy(self, to: Path) -> CatalogCopy:
        return copy_catalog(self._path, to)


class Node:
    """One node, assembled. `start` and `stop` may each be called once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock: IO[bytes] | None = None
        self._address = ""
        self._owned: OwnedGroup | None = None
        self._http: HttpServer | None = None
        self._store_probe: StoreProbe | None = None
        self._s3p: S3pServer | None = None
        self._subscriptions: Manager | None = None
        self._lake_calls: LakeCalls | None = None
        self._bulk_snapshots: BulkSnapshots | None = None

    async def start(self) -> str:
        """Recovers and listens; returns HOST:PORT. Raises CannotStart, LogCorrupt or LogContradiction."""
        settings = self.settings
        _raise_file_limit(settings.connections_max + settings.s3p_connections_max)
        rng = SystemRng()
        engine, store, blobs, lake = await self._engine(rng)
        owned = engine.owned[0]
        self._subscriptions = subscriptions = self._subscribe(owned.group, rng)
        self._recover(owned)
        subscriptions.read_at = lambda stream, offset: owned.reads.read_now(stream, offset, 1)
        subscriptions.start()
        owned.start()
        gc.collect()
        gc.freeze()  # what recovery built is long-lived: the collector need not walk it again
        responder = Responder(settings.cors_origin, settings.memory)
        streams = DurableStreams(engine, settings, responder, engine.clock, rng)
        routes = self._routes(engine, streams, blobs, rng)
        self._pipeline_calls(routes, engine, store, lake)
        routes.call("/__headwater/erase", self._erasures(owned, lake, rng, subscriptions).handle)
        routes.call(SUBSCRIPTIONS_PREFIX, Subscriptions(subscriptions, settings).handle)
        http = self._http = HttpServer(settings, routes, responder)
        metrics = self._pages(routes, owned, http)
        metrics.add(*readings.engine_gauges(engine), *readings.http_gauges(http, streams))
        metrics.add(*readings.subscription_gauges([subscriptions]))
        if settings.s3p_address is not None:
            await self._open_s3p(*settings.s3p_address, engine, metrics)
        host, port = settings.listen_address
        try:
            port = await http.listen(host, port)
        except OSError as error:
            why = f"cannot listen on {settings.listen}: {error.strerror}; choose another --listen"
            raise CannotStart(why) from None
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self._address

    async def _engine(self, rng: SystemRng) -> tuple[Engine, ObjectStore, StoreBlobs, DeltaLake | None]:
        """The groups of this process, not recovered yet, and where their records settle."""
        settings = self.settings
        clock = SystemClock()
        wal, catalog = self._stores()
        log_of_group: Log = NullLog() if wal is None else wal
        store = await self._store(rng)
        blobs = StoreBlobs(store)
        disk = await asyncio.to_thread(self._disk_cache)
        append_pressure = AppendPressure(lambda: log_of_group.tail).is_due
        cache_bytes = settings.lake_cache_bytes
        lake = None if settings.memory else DeltaLake(store, cache_bytes, clock, rng, disk, append_pressure)
        limits = Limits(
            settings.producers_per_stream_max, settings.producer_idle_ms, Durability[settings.durability.upper()]
        )
        schedule = asyncio.get_running_loop().call_soon
        group = Group(log_of_group, catalog, clock, schedule, limits, settings.hot_bytes_max)
        if settings.memory:
            # Nothing tells this run's streams from those of the last one: their ids, and so their ETags, must.
            group.give_out_after(clock.now_ms() << 16)
        options = GroupOptions(
            settings.checkpoint_interval_ms,
            settings.streams_loaded_max,
            min(settings.flush_bytes, settings.hot_bytes_max // 2),
            settings.flush_interval_ms,
            settings.lake_file_bytes,
            settings.lake_gc_interval_ms,
            settings.lake_grace_ms,
        )
        files = None if settings.memory else _Catalog(Path(settings.data))
        owned = self._owned = OwnedGroup(group, wal, blobs, lake, files, options, rng, _report)
        return Engine({0: owned}, 1, clock), store, blobs, lake

    def _recover(self, owned: OwnedGroup) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            count = owned.recover()
        except OSError as error:
            where = Path(self.settings.data) / "wal"
            why = f"the log in {where} cannot be opened: {error.strerror or error}; make room, or look at the disk"
            raise CannotStart(why) from None
        if count:
            took_s = round(loop.time() - began_s, 3)
            log.info("recovered", events=count, streams=len(owned.group.loaded.by_key), seconds=took_s)

    def _routes(self, engine: Engine, streams: DurableStreams, blobs: StoreBlobs, rng: SystemRng) -> Routes:
        settings = self.settings
        directory = engine_buckets.Buckets(engine, engine.questions)
        buckets = Buckets(directory)
        snapshots = Snapshots(engine, blobs, settings, rng)
        routes = Routes(settings, streams, buckets, snapshots, Batches(engine, directory, settings))
        routes.call("/__headwater/buckets", buckets.by_any_name)
        self._bulk_snapshots = BulkSnapshots(engine, blobs, settings, rng)
        routes.call("/__headwater/snapshots", self._bulk_snapshots.handle)
        return routes

    def _pipeline_calls(self, routes: Routes, engine: Engine, store: ObjectStore, lake: DeltaLake | None) -> None:
        """What the data pipeline and operators ask of groups."""
        settings, owned = self.settings, engine.owned[0]
        place = _place(settings, store)
        groups = GroupCalls(engine)
        routes.call(GROUPS_PREFIX, groups.handle)
        routes.expect = groups.expect
        routes.call("/__headwater/tail", Tails(owned.group, settings).handle)
        describe = None if owned.files is None else _describer(store, owned.files)
        pipeline = Pipeline(engine, encode_feed, describe)
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

    def _erasures(self, owned: OwnedGroup, lake: DeltaLake | None, rng: SystemRng, subscriptions: Manager) -> Erasures:
        eraser = hash_name = None
        if lake is not None and owned.log is not None and owned.files is not None:
            data = Path(self.settings.data)
            hash_name = NameHash.kept(data, rng).of
            eraser = owned.eraser(lake, partial(scrub, data / "catalog.db"))
        named_by = subscriptions.registry.named_by
        return Erasures(eraser, hash_name, lambda key: named_by(path_of(key)), self.settings)

    def _pages(self, routes: Routes, owned: OwnedGroup, http: HttpServer) -> Metrics:
        health, metrics, probe = Health(), Metrics(), self._store_probe
        health.add("log", lambda: owned.failures()["log"])
        health.add("checkpoint", lambda: owned.failures()["checkpoint"])
        if owned.flusher is not None:
            health.add("lake", lambda: owned.failures()["lake"] or (None if probe is None else probe.failure))
        health.add("shutdown", lambda: "the node is shutting down" if http.closing else None)
        routes.page("/healthz", health.healthz)
        routes.page("/readyz", health.readyz)
        routes.page("/metrics", metrics.prometheus)
        routes.page("/__headwater/metrics", metrics.json)
        return metrics

    def _subscribe(self, group: Group, rng: SystemRng) -> Manager:
        settings = self.settings
        keys = Keys.fresh(rng) if settings.memory else Keys.kept(Path(settings.data), rng)
        registry = Registry()
        manager = Manager(group, registry, keys, WebhookClient(settings.webhook_allow_local), rng)
        group.domains[registry.name] = registry
        group.observers.append(manager)
        return manager

    async def _open_s3p(self, host: str, port: int, engine: Engine, metrics: Metrics) -> None:
        s3p = self._s3p = S3pServer(self.settings, engine)
        try:
            port = await s3p.listen(host, port)
        except OSError as error:
            why = f"cannot listen on {self.settings.s3p}: {error.strerror}; choose another --s3p, or --s3p off"
            raise CannotStart(why) from None
        log.info("s3p ready", address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        metrics.add(*readings.s3p_gauges(s3p))

    async def _store(self, rng: SystemRng) -> ObjectStore:
        """The lake's object store. One that is not a directory of our own is tried out; it may be away for now."""
        settings = self.settings
        url = "memory:" if settings.memory else lake_url(settings)
        try:
            store = open_lake(settings, url)
            if settings.lake != "auto" and not settings.memory:
                self._store_probe = StoreProbe(partial(probe, store, rng.token(8).hex()), partial(_report, "lake"))
                await self._store_probe.start()
        except StoreError as error:
            raise CannotStart(f"the lake {url} cannot be used: {error.reason}") from None
        return store

    def _disk_cache(self) -> DiskCache | None:
        """Where parts of a remote lake are kept at hand; when it is off, what an earlier run kept goes."""
        settings = self.settings
        directory = Path(settings.data) / "cache"
        if settings.memory:
            return None
        if settings.lake.startswith("s3://") and settings.lake_disk_cache_bytes:
            try:
                return DiskCache(directory, settings.lake_disk_cache_bytes)
            except StoreError as error:
                raise CannotStart(error.reason) from None
        shutil.rmtree(directory, ignore_errors=True)
        return None

    def _stores(self) -> tuple[Wal | None, Catalog]:
        settings = self.settings
        if settings.memory:
            return None, SqliteCatalog(None)
        data = Path(settings.data)
        try:
            data.mkdir(parents=True, exist_ok=True)
            self._lock = (data / "lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(f"another node already serves {data}; stop it, or choose another --data") from None
        except OSError as error:
            raise CannotStart(f"cannot use the data directory {data}: {error.strerror}") from None
        wal = Wal(data / "wal" / "0", settings.log_file_bytes, settings.disk_sync_ms)
        try:
            return wal, SqliteCatalog(data / "catalog.db")
        except sqlite3.Error as error:
            raise CannotStart(f"the catalog {data / 'catalog.db'} cannot be opened: {error}") from None

    async def stop(self) -> None:
        doors = [door for door in (self._http, self._s3p) if door is not None]
        await asyncio.gather(*(door.close(self.settings.shutdown_grace_ms / 1000) for door in doors))
        if self._subscriptions is not None:
            await self._subscriptions.stop()
        if self._lake_calls is not None:
            self._lake_calls.close()
        if self._store_probe is not None:
            await self._store_probe.stop()
        if self._owned is not None:
            await self._owned.stop()
        if self._bulk_snapshots is not None:
            self._bulk_snapshots.close()
        if self._lock is not None:
            self._lock.close()


def _describer(store: ObjectStore, files: CatalogFiles) -> Callable[[], dict[str, Any]]:
    """Says what is in the lake, from a worker thread. Imports late: a node that settles nothing loads no Arrow."""

    def describe() -> dict[str, Any]:
        from headwater.lake.info import describe

        with closing(files.open_to_read()) as lake_files:
            try:
                return describe(store, lake_files)
            except StoreError as error:
                raise BlobsUnavailable(error.reason) from error

    return describe


def lake_url(settings: Settings) -> str:
    return str(Path(settings.data) / "lake") if settings.lake == "auto" else settings.lake


def open_lake(settings: Settings, url: str) -> ObjectStore:
    """Raises StoreRefused for what can never work; tries nothing yet."""
    return open_store(url, endpoint=_given(settings.lake_endpoint), region=_given(settings.lake_region))


def _place(settings: Settings, store: ObjectStore) -> dict[str, str | None]:
    """How others open the lake's store."""
    return {
        "url": store.uri,
        "endpoint": _given(settings.lake_endpoint),
        "region": _given(settings.lake_region),
    }


def _given(value: str) -> str | None:
    return None if value == "auto" else value


def _report(what: str, why: str) -> None:
    log.error(what, error=why)


def _raise_file_limit(connections_max: int) -> None:
    """Every connection is a file descriptor: takes as many as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, connections_max + 256) if hard != resource.RLIM_INFINITY else connections_max + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
