"""The groups of a node in a cluster: it joins, follows and takes over groups as they come, and hands them over.

Owns the order in which the node joins and leaves. Never decides who owns a group: `cluster/ownership` does, and the
log has the last word.

    secret, id -> the cluster's description -> logs -> listen for other nodes -> register -> doors -> pings, ownership
    drain -> hand every group over -> say goodbye -> give the number back -> doors close -> logs close
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from headwater import __version__, lake_location
from headwater.catalog.sqlite import SqliteCatalog
from headwater.cluster.calls import Calls
from headwater.cluster.catalog_snapshots import CatalogSnapshots
from headwater.cluster.description import Description, Disagreement, agreed
from headwater.cluster.erased_log import SharedErasedLog
from headwater.cluster.gate import Factory, Gate
from headwater.cluster.logs import Logs, NatsLogs, ObjectLogs
from headwater.cluster.membership import HTTP, S3P
from headwater.cluster.nodes import ID_FILE_NAME, CannotRegister, Node, Registry, kept_id
from headwater.cluster.ownership import Ownership
from headwater.cluster.ownership_view import OwnershipView
from headwater.cluster.ownership_wiring import Timing, Wiring
from headwater.cluster.peers import Peers, answers
from headwater.cluster.pings import Pings
from headwater.cluster.view import View
from headwater.config import Settings
from headwater.data_directory import DataDirectory, DirectoryRefused
from headwater.doors.http.server import HttpServer
from headwater.doors.listener import BACKLOG
from headwater.doors.s3p.server import S3pServer
from headwater.doors.secure_door import SecureDoor
from headwater.doors.tls_nodes import NodesTls
from headwater.engine.engine import Engine
from headwater.engine.owned_group import OwnedGroup, SharedCopies
from headwater.group_maker import GroupMaker
from headwater.lake.store import StoreError
from headwater.log.medium import MediumError
from headwater.log.quorum import QuorumLog
from headwater.log.quorum_entries import FORMAT as LOG_FORMAT
from headwater.ports import Rng, SystemClock
from headwater.security import url_key
from headwater.security.name_hash import NameHash
from headwater.setting_values import AUTO, OFF, parse_listen, shown_address
from headwater.start_refused import CannotStart
from headwater.subscriptions.keys import Keys
from headwater.subscriptions.manager import Manager

GROUPS_DEFAULT = 16
SECRET_BYTES_MIN = 16
SNAPSHOT_BYTES = 64 << 20
LEAVE_S_MAX = 30.0
"""Beyond it a node that stops lets go of groups that nobody took: others claim them when their logs are silent."""
WIND_DOWN_S = 1.0
"""For how long clients are served at least after a node was told to stop: most of them send something meanwhile."""
MEET_S_MAX = 5.0
MEET_LOOK_S = 0.05
"""How long clients are not let in while it is not known who owns what, and how often that is looked at."""
ANY_ADDRESS = ("0.0.0.0", "::")
TAKE_OVER = "take_over"

log = structlog.get_logger("headwater.cluster")


class ClusterGroups:
    in_cluster = True
    worker, workers_count = 0, 1
    handover = None

    membership: Peers
    calls: Calls
    view: View
    ownership: Ownership
    description: Description
    registry: Registry
    logs: Logs

    def __init__(
        self, settings: Settings, data: DataDirectory, sockets: dict[str, list[socket.socket]], http: tuple[str, int]
    ) -> None:
        """`sockets` are bound, to `http` and for S3P, and do not listen yet; the data directory is locked."""
        self._settings = settings
        self._data = data
        self._sockets = sockets
        self._http = http
        self._doors: dict[str, Factory] = {}
        self._gate: Gate | None = None
        self._tls: NodesTls | None = None
        self._internal: HttpServer | None = None
        self._pings: Pings | None = None
        self._owning = False
        self._maker: GroupMaker | None = None
        self._subscriptions: Manager | None = None
        self.groups_count = 0

    # ---- joining ------------------------------------------------------------------------------------------------

    async def join(self, rng: Rng) -> None:
        """The node has a number, and knows how many groups there are. Raises CannotStart."""
        settings = self._settings
        self.secret = _secret(Path(settings.cluster_secret_file))
        url = lake_location.cluster_url(settings)
        try:
            self._store = lake_location.open_lake(settings, url)
            self.place = lake_location.open_place(settings, url)
            self.logs = logs_of(settings)
            await self.logs.open()
            wanted = settings.groups_wanted
            self.description = await agreed(self.place, wanted, GROUPS_DEFAULT, self.logs.where, rng)
            await self.logs.agree(self.description.id)
            self.groups_count = self.description.groups
            self._data.join(self.description.id, self.groups_count)
            self._keys = await Keys.shared(self.place, self.secret, rng)
            self._name_hash = await NameHash.shared(self.place, self.secret, rng)
            self._url_secret = await url_key.shared(self.place, self.secret, rng)
            await self._register(rng)
        except MediumError as error:
            raise CannotStart(f"the cluster cannot be joined: {error.reason}") from None
        except StoreError as error:
            raise CannotStart(f"the cluster's place {url} cannot be used: {error.reason}") from None
        except (Disagreement, DirectoryRefused, CannotRegister) as error:
            raise CannotStart(str(error)) from None

    async def _register(self, rng: Rng) -> None:
        settings, clock = self._settings, SystemClock()
        if settings.cluster_tls_ca != OFF:
            self._tls = NodesTls(settings)
        node_id = kept_id(self._data.path, rng)
        self._gate = Gate(node_id, self.secret, self._doors, None if self._tls is None else self._tls.accepting)
        host, port = parse_listen(settings.cluster_listen)
        try:
            port = await self._gate.listen(host, port)
        except OSError as error:
            where = shown_address(host, port)
            why = f"cannot listen on {where}: {error.strerror}; choose another --cluster-listen"
            raise CannotStart(why) from None
        address = _told(settings.cluster_advertise, host, port, "cluster_advertise")
        advertised_host, _ = parse_listen(address)
        public_host = advertised_host if self._http[0] in ANY_ADDRESS else self._http[0]
        public = _told(settings.public_address, public_host, self._http[1], "public_address")
        zone = "" if settings.zone == AUTO else settings.zone
        self.registry = Registry(self.place)
        await self._refuse_a_twin(node_id, address)
        run = rng.token(8).hex()
        started_ms = clock.now_ms()
        me = Node(-1, node_id, run, address, public, __version__, zone, started_ms, LOG_FORMAT)
        node = await self.registry.register(me)
        self.view = View(node, self.groups_count)
        self.membership = Peers(self.view, self.secret, None if self._tls is None else self._tls.connecting)
        self.calls = Calls(self.membership)
        self._pings = Pings(self.view, self.calls, self.registry.nodes)
        self._pings.on_displaced = lambda: self.view.drain(True)
        log.info("joined", node=node.number, id=node.id, address=address, groups=self.groups_count)

    async def _refuse_a_twin(self, node_id: str, address: str) -> None:
        """A node that was killed leaves its registration; one that answers is there, with this node's id. Raises
        CannotStart, MediumError."""
        connecting = None if self._tls is None else self._tls.connecting
        for node in await self.registry.nodes():
            if node.id == node_id and node.address != address and await answers(node, self.secret, connecting):
                raise CannotStart(
                    f"another node with the id {node_id} answers at {node.address}: one of the two has a copy of the "
                    f"other's data directory. Remove {self._data.path / ID_FILE_NAME} in the copy, and it is a new node"
                )

    def keys(self, rng: Rng) -> Keys:
        """What every node of the cluster signs webhooks with."""
        return self._keys

    def name_hash(self, rng: Rng) -> NameHash:
        """What names in receipts of erasures are hashed with, by every node of the cluster."""
        return self._name_hash

    def url_secret(self, rng: Rng) -> bytes:
        """What URLs are signed with, by every node of the cluster."""
        return self._url_secret

    # ---- groups -------------------------------------------------------------------------------------------------

    def engine(self, maker: GroupMaker) -> Engine:
        """Without a group yet: they come when the node takes them over."""
        self._maker = maker
        clock = SystemClock()
        self._engine = engine = Engine({}, self.groups_count, clock, self.calls)
        self._by_id = OwnershipView(self.view, lambda group: self.ownership.groups[group].epoch)
        lease_s = self._settings.cluster_lease_ms / 1000
        wiring = Wiring(
            log=self.logs.log,
            build=self._build,
            catalog_path=self._data.catalog,
            snapshots=self._snapshots,
            tell=self._tell,
            report=_report,
            note=_note,
            streams_loaded_max=maker.options.streams_loaded_max,
            snapshot_bytes=SNAPSHOT_BYTES,
            address=self.view.node.address,
        )
        timing = Timing(claim_after_s=lease_s, lease_s=lease_s)
        self.ownership = Ownership(engine, self._by_id, wiring, timing, clock, maker.rng)
        self.calls.register(TAKE_OVER, self.ownership.asked)
        return engine

    def _build(self, number: int, group_log: QuorumLog, catalog: SqliteCatalog) -> OwnedGroup:
        if self._maker is None or self._subscriptions is None:
            raise RuntimeError("a group is built before the node is wired")
        erased = SharedErasedLog(group_log, self.ownership.groups[number].forget)
        shared = SharedCopies(group_log, erased)
        owned = self._maker.make(number, group_log, None, catalog, partial(_report_group, number), shared)
        self._subscriptions.follow(owned.group)
        return owned

    def _snapshots(self, group: int) -> CatalogSnapshots:
        return CatalogSnapshots(self._store, group, self.view.node.id, self._data.snapshots)

    async def _tell(self, member: str, group: int, epoch: int, take: bool) -> bool:
        return bool(await self.calls.ask(self._by_id.number_of(member), TAKE_OVER, group, epoch, take))

    def recover(self, subscriptions: Manager) -> None:
        """There is nothing to recover before other nodes are met."""
        self._subscriptions = subscriptions
        subscriptions.start()

    # ---- doors --------------------------------------------------------------------------------------------------

    async def open(
        self,
        http: HttpServer,
        internal: Callable[[], HttpServer],
        s3p: S3pServer | None,
        admin: HttpServer | None = None,
    ) -> None:
        """Other nodes may ask and send on from now on."""
        self._internal = internal()
        self._doors[HTTP] = self._internal.accept
        if s3p is not None:
            self._doors[S3P] = s3p.accept_member
        if self._gate is not None:
            self._internal.begin(self._gate)

    async def listen(
        self,
        server: HttpServer | S3pServer,
        kind: str,
        host: str,
        port: int,
        owner: Callable[[bytes], Any],
        secure: SecureDoor | None = None,
    ) -> int:
        """Clients may come from now on; returns the port."""
        loop = asyncio.get_running_loop()
        for sock in self._sockets[kind]:
            if secure is not None:
                sock.listen(BACKLOG)
                secure.listen(sock)
                server.begin(secure)
                continue
            server.begin(await loop.create_server(server.accept, sock=sock, backlog=BACKLOG))
        return port

    async def serve(self) -> None:
        """The node meets the others, and takes part in groups from now on. Clients come later. Raises CannotStart."""
        # Last of the listeners: others are told of a group when everything here is ready for its requests.
        self._engine.listeners.append(self._by_id)
        self.view.on_change.append(self.ownership.changed)
        self._owning = True
        self.ownership.start()
        if self._pings is not None:
            try:
                await self._pings.start()
            except MediumError as error:
                raise CannotStart(f"who is in the cluster cannot be seen: {error.reason}") from None
        await self._met()

    async def _met(self) -> None:
        """Returns when the owner of each group is known, and after a while in any case. Before that a client would be
        told that its group has no owner."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + MEET_S_MAX
        while clock.monotonic_s() < deadline_s:
            if self.view.settled and all(self.view.claim_of(group) is not None for group in range(self.groups_count)):
                return
            await clock.sleep(MEET_LOOK_S)

    # ---- leaving ------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hands every group over. Doors are still open: what comes meanwhile is sent on to the new owners, and clients
        are told to go elsewhere with the next answer."""
        leaving_s = SystemClock().monotonic_s()
        if self._owning:
            self.view.drain(True)
            try:
                async with asyncio.timeout(LEAVE_S_MAX):
                    await self.ownership.drain()
            except TimeoutError:
                log.warning("groups were not handed over in time", groups=sorted(self.ownership.claims()))
            await asyncio.sleep(max(0.0, leaving_s + WIND_DOWN_S - SystemClock().monotonic_s()))
        if self._pings is not None:
            await self._pings.stop()
        if getattr(self, "registry", None) is not None:
            try:
                await self.registry.release()
            except MediumError as error:
                log.warning(
                    "the node's number could not be given back: it is taken again by its id", reason=error.reason
                )

    async def close_doors(self, grace_s: float) -> None:
        """Called when clients' doors are closed: what other nodes still wait for may be served here."""
        if self._internal is not None:
            await self._internal.close(grace_s)
        elif self._gate is not None:
            self._gate.close()

    async def stop(self) -> None:
        if self._owning:
            await self.ownership.stop()
        if getattr(self, "calls", None) is not None:
            self.calls.close()
        if self._tls is not None:
            self._tls.stop()
        if getattr(self, "logs", None) is not None:
            with suppress(MediumError):
                await self.logs.close()


def _secret(path: Path) -> bytes:
    """Raises CannotStart."""
    try:
        secret = path.read_bytes().strip()
        mode = path.stat().st_mode & 0o077
    except OSError as error:
        raise CannotStart(f"the cluster's secret in {path} cannot be read: {error.strerror or error}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise CannotStart(f"the cluster's secret in {path} is shorter than {SECRET_BYTES_MIN} bytes: make a longer one")
    if mode & 0o007:
        raise CannotStart(f"everybody on this machine may read {path}: chmod 600 it")
    return secret


def logs_of(settings: Settings) -> Logs:
    """The logs of the cluster that a node is to join, not opened. Raises CannotStart."""
    url = settings.cluster
    if not url.startswith("nats://"):
        return ObjectLogs(lake_location.open_place(settings, url), url.rstrip("/"))
    urls = [one if "://" in one else f"nats://{one}" for one in url.split(",")]
    monitors = [] if settings.cluster_monitors == AUTO else settings.cluster_monitors.split(",")
    credentials = None if settings.cluster_credentials == AUTO else settings.cluster_credentials
    try:
        return NatsLogs(urls, settings.cluster_name, settings.cluster_replicas, monitors, credentials)
    except ImportError as error:
        raise CannotStart(
            f"--cluster nats://… needs the extra `cluster`: pip install 'headwater[cluster]' ({error})"
        ) from None


def _told(setting: str, host: str, port: int, name: str) -> str:
    """HOST:PORT that others are told. Raises CannotStart."""
    if setting != AUTO:
        try:
            parse_listen(setting)
        except ValueError as error:
            raise CannotStart(f"{name}: {error}") from None
        return setting
    if host in ANY_ADDRESS:
        flag = f"--{name.replace('_', '-')}"
        raise CannotStart(f"others cannot be told {host}, which is every address: give {flag} HOST:PORT")
    return shown_address(host, port)


def _note(what: str, facts: dict[str, Any]) -> None:
    log.info(what, **facts)


def _report(what: str, why: str) -> None:
    log.warning(what, reason=why)


def _report_group(group: int, what: str, why: str) -> None:
    if what == "log":
        # Its owner is another node now, or its log is not reached: not the end of this node.
        log.warning("a group is not served here any more", group=group, reason=why)
    else:
        log.error(what, group=group, error=why)
