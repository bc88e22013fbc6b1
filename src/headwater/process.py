"""One process of a node at work: from its settings to its end by a signal.

Owns its event loop, its exit code and what a refusal to start looks like. Never wires anything: `node` does.
"""

from __future__ import annotations

import asyncio
import cProfile
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from headwater.catalog.sqlite import CatalogMismatch
from headwater.cluster.members import Members
from headwater.cluster.supervisor import Order, block_signals, takes_hang_up, unblock_hang_up
from headwater.cluster_groups import ClusterGroups
from headwater.config import Settings
from headwater.data_directory import DataDirectory
from headwater.engine.recovery import LogContradiction
from headwater.local_groups import LocalGroups
from headwater.log.entries import BadEntry
from headwater.log.wal_recovery import LogCorrupt
from headwater.node import Node
from headwater.observe import log_lines
from headwater.security.name_hash import BadReceiptKey
from headwater.start_refused import EXIT_OK, CannotStart, refused
from headwater.subscriptions.keys import BadKeys

Addresses = tuple[tuple[str, int], tuple[str, int] | None, tuple[str, int] | None]
"""Of HTTP, S3P and the node's own calls."""
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may hold the interpreter while the log's writer waits for it: the default of 5 ms is a
visible part of an append's latency under load."""
REFUSALS = (CannotStart, LogCorrupt, LogContradiction, CatalogMismatch, BadEntry, BadKeys, BadReceiptKey)
"""What ends a start with a line that says what to do."""


def serve_alone(settings: Settings, groups_count: int) -> int:
    """Runs a node of one process until SIGTERM or SIGINT; returns its exit code."""
    data = DataDirectory(Path(settings.data))
    node = Node(settings, LocalGroups(settings, data, Members(0, 1, groups_count, Path())), show)

    def ready(address: str) -> None:
        print(f"headwater ready on {settings.scheme}://{address}", flush=True)

    async def body() -> None:
        addresses = settings.listen_address, settings.s3p_address, settings.admin_address
        await _serve(node, addresses, ready, (signal.SIGTERM, signal.SIGINT))

    return _exit_code(body, settings.profile)


def serve_in_cluster(
    settings: Settings,
    http: tuple[str, int],
    s3p: tuple[str, int] | None,
    admin: tuple[str, int] | None,
    sockets: dict[str, list[socket.socket]],
) -> int:
    """The same of a node of a cluster, whose `sockets` are bound and do not listen yet."""
    groups = ClusterGroups(settings, DataDirectory(Path(settings.data)), sockets, http)

    def ready(address: str) -> None:
        print(f"headwater ready on {settings.scheme}://{address}", flush=True)

    async def body() -> None:
        await _serve(Node(settings, groups, show), (http, s3p, admin), ready, (signal.SIGTERM, signal.SIGINT))

    return _exit_code(body, settings.profile)


def serve_worker(
    order: Order, ready: Callable[[], None], watch: Callable[[], None], announce: Callable[[str], None]
) -> int:
    """Runs one process of a node until SIGTERM. `watch` is called on its event loop before anything is opened, and
    `announce` with what is to be shown to whoever started the node."""
    settings = Settings(**order.settings)
    log_lines.set_up(settings.log_level, settings.log_format)
    members = Members(order.member, order.members_count, order.groups_count, Path(order.directory))

    async def body() -> None:
        watch()
        sockets = {"http": order.http_sockets, "s3p": order.s3p_sockets, "admin": order.admin_sockets}
        groups = LocalGroups(settings, DataDirectory(Path(settings.data)), members, sockets)
        node = Node(settings, groups, announce)
        await _serve(node, (order.http, order.s3p, order.admin), lambda address: ready(), (signal.SIGTERM,))

    profile = settings.profile if settings.profile == "off" else f"{settings.profile}.{order.member}"
    return _exit_code(body, profile)


def show(text: str) -> None:
    """A line for whoever started the server: never a log line."""
    print(text, flush=True)


def _exit_code(body: Callable[[], Coroutine[Any, Any, None]], profile: str) -> int:
    try:
        _run(body, profile)
    except REFUSALS as error:
        return refused(error)
    except sqlite3.Error as error:
        return refused(CannotStart(f"the catalog cannot be opened or written: {error}; make room, or look at the disk"))
    return EXIT_OK


def _run(body: Callable[[], Coroutine[Any, Any, None]], profile: str) -> None:
    """Runs a node's coroutine on the event loop that all of them have."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profile != "off":
            with cProfile.Profile() as profiler:
                runner.run(body())
            profiler.dump_stats(profile)
        else:
            runner.run(body())


async def _serve(
    node: Node,
    addresses: Addresses,
    ready: Callable[[str], None],
    signals: tuple[signal.Signals, ...],
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    log_lines.log_stray_exceptions(loop)
    for number in signals:
        loop.add_signal_handler(number, stopping.set)
    if takes_hang_up(node.settings.tls):
        loop.add_signal_handler(signal.SIGHUP, node.hang_up)
    unblock_hang_up()
    try:
        ready(await node.start(*addresses))
        await stopping.wait()
    finally:
        await node.stop()
        block_signals()
